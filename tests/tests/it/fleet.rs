//! Several servers on one database that notify each other.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _};
use tenure_tests::http::QUEUE_API;
use tenure_tests::server::{Launch, Server};

use crate::rig::{Rig, TIMEOUT, claim_path, client_of, eventually, worker};

/// Ten times the promised tenth of a second of a notification; an idle machine takes a few
/// milliseconds. Tests of notifications disable the fallbacks, which are nearly as fast.
pub const NOTIFIED_WITHIN: Duration = Duration::from_secs(1);

pub fn without_fallbacks(launch: Launch) -> Launch {
    launch.env("TENURE_FALLBACKS", "off")
}

/// Loses all notifications to and from this server.
pub fn without_notifications(launch: Launch) -> Launch {
    launch.env("TENURE_BREAK", "lose-notifications")
}

pub async fn another_without_fallbacks(rig: &Rig, name: &str) -> Server {
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key);
    without_fallbacks(launch).start(rig.folder.path(), name).await
}

pub async fn listeners(database: &mut PgConnection) -> Vec<i32> {
    let rows = sqlx::query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tenure/% listener'
         AND query LIKE 'LISTEN%'",
    );
    rows.fetch_all(database).await.unwrap().iter().map(|row| row.get(0)).collect()
}

pub async fn until_they_listen(database: &mut PgConnection, servers: usize) -> Vec<i32> {
    eventually("all servers listen", async || {
        Some(listeners(database).await).filter(|listeners| listeners.len() == servers)
    })
    .await
}

pub async fn until_they_hear(database: &mut PgConnection, servers: usize) {
    until_they_listen(database, servers).await;
    // A server checks once a second if there are others to notify.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
}

/// Time until a worker waiting at the other server gets a task created at the rig's server.
pub async fn wake(rig: &Rig, other: &Server, queue: &str) -> Duration {
    let mut waiting = client_of(other);
    let path = format!("{QUEUE_API}{}", claim_path(queue));
    waiting.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    // The worker waits after its first attempt; only time shows that.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let task = rig.create_one(queue).await;
    let created = Instant::now();
    let reply = tokio::time::timeout(TIMEOUT, waiting.finish()).await.unwrap().unwrap();
    let took = created.elapsed();
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["tasks"][0]["status"]["taskId"], json!(task), "{body}");
    took
}
