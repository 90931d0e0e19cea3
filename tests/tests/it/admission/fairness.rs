//! Turns of keys in a fair queue are spent at the claim, for any order of creation and at any server.

use tenure_tests::server::Server;

use super::*;

/// Maximum number of tasks that a request creates.
const TASKS_MAX: usize = 1_000;

async fn create_many(rig: &Rig, queue: &str, key: &str, count: usize) {
    let tasks = vec![json!({"taskQueueId": queue, "extra": {"tenure": {"key": key}}}); count];
    for tasks in tasks.chunks(TASKS_MAX) {
        let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

/// Creates many tasks of one key, then one task of another. That task gets the first or the second
/// claim at these servers.
async fn assert_small_key_has_its_turn(rig: &Rig, servers: &[&Server]) {
    for count in [30, 450, 5_000] {
        let queue = format!("limits/big-{count}");
        put_policy_of(rig, &queue, &json!({"fair": true})).await;
        create_many(rig, &queue, "big", count).await;
        create_many(rig, &queue, "small", 1).await;
        let mut claims = Vec::new();
        for server in servers.iter().cycle().take(2) {
            let one = claim(&mut client_of(server), &rig.root, &queue, 1).await;
            assert_eq!(one.len(), 1, "{count}");
            claims.extend(one);
        }
        assert_eq!(by_key(&claims), keys([("big", 1), ("small", 1)]), "{count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_key_has_its_turn_behind_large_one() {
    let rig = Rig::start().await;
    assert_small_key_has_its_turn(&rig, &[&rig.server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_key_has_its_turn_at_two_servers() {
    let rig = Rig::start().await;
    let other = rig.another("other").await;
    assert_small_key_has_its_turn(&rig, &[&rig.server, &other]).await;
    assert!(other.stop().await.success());
}
