//! Changes of the key source while runs are assigned.

use super::*;

/// Otherwise its worker could not accept its item.
#[tokio::test]
async fn assigned_run_stays_with_session_when_key_source_changes() {
    const GIVEN: &str = "SELECT (session, ord, waited, held_until, message)::text FROM pending WHERE hold = 3";
    let policy = |key_by: &str| json!({"dispatch": "assign", "acceptTime": 3_600, "concurrency": {"perKey": 1}, "keyBy": key_by});
    let (mut ground, server) = with_an_assigned_run_by(policy("key")).await;
    let before: String = sqlx::query_scalar(GIVEN).fetch_one(&mut ground.conn).await.unwrap();
    put(&server, policy("projectId")).await;
    follow(&server).await;
    while admit(&server).await > 0 {}
    let after: Vec<String> = sqlx::query_scalar(GIVEN).fetch_all(&mut ground.conn).await.unwrap();
    assert_eq!(after, [before]);
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, 1);
    let keyed = "pending p JOIN admission_keys k ON k.id = p.key_id WHERE k.key <> ''";
    assert_eq!(ground.count(keyed).await, 1, "the run has a slot of its project");
    // Another run waits for that slot.
    server.create_one(QUEUE).await;
    while admit(&server).await > 0 {}
    assert_eq!((ground.count("pending WHERE hold = 2").await, ground.count("pending WHERE hold = 3").await), (1, 1));
    ground.finish([server]).await;
}
