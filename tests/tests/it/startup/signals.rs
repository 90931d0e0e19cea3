//! Signals, and what becomes of the embedded PostgreSQL.

use std::time::{Duration, Instant};

use tenure_tests::http::QUEUE_API;
use tenure_tests::server::Server;
use tenure_tests::wire::Target;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::rig::{DataFolder, Raw, embedded, eventually, postmaster_of};

/// A request that never ends, so that a drain waits for it.
async fn half_a_request(server: &Server, target: &Target) -> TcpStream {
    let mut half = TcpStream::connect((target.host.as_str(), target.port)).await.unwrap();
    let head = format!("POST {QUEUE_API}/claim-work/a%2Fb HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n");
    half.write_all(head.as_bytes()).await.unwrap();
    // Accepted after it.
    let reply = Raw::new("GET", &format!("{QUEUE_API}/ping")).send(server.root_url()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    half
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_stops_a_server_at_once_and_leaves_no_postgresql_running() {
    let data_folder = DataFolder::new();
    let (mut server, _) = data_folder.start(&embedded()).await;
    let target = Target::parse(server.root_url()).unwrap();
    let _half = half_a_request(&server, &target).await;
    server.terminate().unwrap();
    eventually("the server takes no more connections", async || {
        TcpStream::connect((target.host.as_str(), target.port)).await.is_err().then_some(())
    })
    .await;
    assert!(!server.has_ended());
    let signalled = Instant::now();
    server.terminate().unwrap();
    assert_eq!(server.ended().await.code(), Some(130));
    // Less than what a drain waits for requests, which is six seconds.
    assert!(signalled.elapsed() < Duration::from_secs(4), "{:?}", signalled.elapsed());
    eventually("PostgreSQL ends", async || postmaster_of(&data_folder.data_dir()).is_none().then_some(())).await;
}
