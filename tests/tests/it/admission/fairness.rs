//! A fair queue spends turns of keys at the claim, for any order of creation and at any server.

use super::*;

const TASKS_MAX: usize = 1_000;

async fn create_many(rig: &Rig, queue: &str, key: &str, count: usize) {
    let tasks = vec![json!({"taskQueueId": queue, "extra": {"tenure": {"key": key}}}); count];
    for tasks in tasks.chunks(TASKS_MAX) {
        ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await);
    }
}

/// The task of the small key gets the first or the second claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_key_has_its_turn_at_two_servers() {
    let rig = Rig::start().await;
    let other = rig.another("other").await;
    for count in [30, 450, 5_000] {
        let queue = format!("limits/big-{count}");
        rig.put_policy(&queue, &json!({"fair": true})).await;
        create_many(&rig, &queue, "big", count).await;
        create_many(&rig, &queue, "small", 1).await;
        let mut claims = Vec::new();
        for server in [&rig.server, &other] {
            let one = claim(&mut client_of(server), &rig.root, &queue, 1).await;
            assert_eq!(one.len(), 1, "{count}");
            claims.extend(one);
        }
        assert_eq!(by_key(&claims), keys([("big", 1), ("small", 1)]), "{count}");
    }
    assert!(other.stop().await.success());
}
