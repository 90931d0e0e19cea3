//! A server's connection for notifications from other servers is cut.

use std::time::Duration;

use crate::fleet::{NOTIFIED_WITHIN, another_without_fallbacks, until_they_hear, until_they_listen, wake};
use crate::rig::Rig;

/// Ten times the longest wait of a worker in the wait list for its next try.
const UNHEARD_WITHIN: Duration = Duration::from_secs(10);
const ROUNDS: usize = 5;

async fn cut(database: &mut sqlx::PgConnection, servers: usize) {
    for pid in until_they_listen(database, servers).await {
        sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&mut *database).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatedly_cut_listener_is_notified_afterwards() {
    let rig = Rig::start().await;
    let other = another_without_fallbacks(&rig, "other").await;
    let mut database = rig.database.connect("test").await;
    for _ in 0..3 {
        cut(&mut database, 2).await;
    }
    until_they_hear(&mut database, 2).await;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        took.push(wake(&rig, &other, super::QUEUE).await);
    }
    assert!(took.iter().all(|took| *took < NOTIFIED_WITHIN), "{took:?}");
    for server in [&rig.server, &other] {
        assert!(server.log().contains("lost the notifications of the other servers"), "{}", server.log());
    }
    assert!(other.stop().await.success());
    assert!(rig.server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_worker_at_deaf_server_gets_task_by_retries() {
    let rig = Rig::start().await;
    let other = rig.another("other").await;
    let mut database = rig.database.connect("test").await;
    for round in 0..3 {
        cut(&mut database, 2).await;
        let unheard = wake(&rig, &other, super::QUEUE).await;
        assert!(unheard < UNHEARD_WITHIN, "round {round}: {unheard:?}");
    }
    assert!(other.stop().await.success());
    assert!(rig.server.stop().await.success());
}
