//! A server that stops later than it says so, for load balancers.

use std::time::{Duration, Instant};

use tenure_tests::wire::Target;
use tokio::net::TcpStream;

use super::service_manager::status;
use super::signals::half_a_request;
use crate::rig::{Raw, Rig, eventually};

/// Longer than the requests of the test take.
const DELAY: Duration = Duration::from_secs(8);
const QUEUE: &str = "startup/delay";

async fn until_it_announces_the_stop(rig: &Rig) {
    let refused = eventually("/readyz fails", async || {
        let reply = rig.send(&Raw::new("GET", "/readyz")).await;
        (reply.status == 503).then_some(reply)
    })
    .await;
    assert!(refused.text().contains("this server is stopping"), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_takes_work_until_drain_delay_ends() {
    let delay = format!("{}s", DELAY.as_secs());
    let mut rig = Rig::start_with(|launch| launch.flag("--drain-delay", delay)).await;
    let task = rig.create_one(QUEUE).await;
    assert_eq!(status(&rig.server, "/readyz").await, 200);
    let signalled = Instant::now();
    rig.server.terminate().unwrap();
    until_it_announces_the_stop(&rig).await;
    // Each request has its own connection.
    let claims = rig.claim(QUEUE, 1).await;
    assert_eq!(claims.len(), 1);
    rig.report(&claims[0], "completed", None).await;
    assert_eq!(rig.status(task).await["state"], "completed");
    rig.create_one(QUEUE).await;
    for path in ["/livez", "/__heartbeat__", "/__lbheartbeat__", "/ping"] {
        assert_eq!(status(&rig.server, path).await, 200, "{path}");
    }
    assert!(!rig.server.has_ended());
    assert_eq!(rig.server.ended().await.code(), Some(0), "{}", rig.server.log_tail());
    assert!(signalled.elapsed() >= DELAY, "{:?}", signalled.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_signal_drains_and_third_ends_at_once() {
    let mut rig = Rig::start_with(|launch| launch.flag("--drain-delay", "10m")).await;
    let target = Target::parse(rig.server.root_url()).unwrap();
    let _half = half_a_request(&rig.server, &target).await;
    rig.server.terminate().unwrap();
    until_it_announces_the_stop(&rig).await;
    rig.server.terminate().unwrap();
    eventually("the server takes no more connections", async || {
        TcpStream::connect((target.host.as_str(), target.port)).await.is_err().then_some(())
    })
    .await;
    assert!(!rig.server.has_ended(), "a request is open");
    rig.server.terminate().unwrap();
    assert_eq!(rig.server.ended().await.code(), Some(143));
}
