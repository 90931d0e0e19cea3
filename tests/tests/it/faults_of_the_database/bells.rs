//! The connection by which a server hears the others is cut.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _};
use tenure_tests::http::QUEUE_API;
use tenure_tests::server::Server;

use super::create;
use crate::rig::{PATIENCE, Rig, claim_path, client_of, eventually, new_task, worker};

/// A bell takes milliseconds; without bells a worker waits for the line's own retry, half a second on average.
const HEARD_WITHIN: Duration = Duration::from_millis(250);
const ROUNDS: usize = 5;

async fn listeners(database: &mut PgConnection) -> Vec<i32> {
    let rows = sqlx::query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure-listener'
         AND query LIKE 'LISTEN%'",
    );
    rows.fetch_all(database).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// How long it takes until a worker that waits at one server gets the task that the other one is given.
async fn wake(rig: &Rig, other: &Server, database: &mut PgConnection) -> Duration {
    let mut waiting = client_of(other);
    let path = format!("{QUEUE_API}{}", claim_path(super::QUEUE));
    waiting.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    // It is in line when its first attempt has been made; nothing shows that but time.
    sqlx::query("SELECT pg_sleep(0.1)").execute(database).await.unwrap();
    let task = new_task();
    assert_eq!(create(&rig.server, &rig.root, task).await.status, 200);
    let created = Instant::now();
    let reply = tokio::time::timeout(PATIENCE, waiting.finish()).await.unwrap().unwrap();
    let took = created.elapsed();
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["tasks"][0]["status"]["taskId"], json!(task), "{body}");
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_is_cut_again_and_again_hears_the_other_servers_afterwards() {
    let rig = Rig::start().await;
    let other = rig.another("other").await;
    let mut database = rig.database.connect("test").await;
    for round in 0..3 {
        let heard = eventually("both listen", async || {
            Some(listeners(&mut database).await).filter(|listeners| listeners.len() == 2)
        })
        .await;
        for pid in heard {
            sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&mut database).await.unwrap();
        }
        // While nobody listens, the line's own retries serve.
        let unheard = wake(&rig, &other, &mut database).await;
        assert!(unheard < Duration::from_secs(3), "round {round}: {unheard:?}");
    }
    eventually("both listen again", async || (listeners(&mut database).await.len() == 2).then_some(())).await;
    // The server looks once a second whether there is somebody to tell.
    sqlx::query("SELECT pg_sleep(1.2)").execute(&mut database).await.unwrap();
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        took.push(wake(&rig, &other, &mut database).await);
    }
    assert!(took.iter().all(|took| *took < HEARD_WITHIN), "{took:?}");
    for server in [&rig.server, &other] {
        assert!(server.log().contains("lost the bells of the other servers"), "{}", server.log());
    }
    assert!(other.stop().await.success());
    assert!(rig.server.stop().await.success());
}
