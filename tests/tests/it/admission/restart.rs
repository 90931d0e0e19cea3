//! Effect of a restart of all servers on runs that were assigned or accepted before.

use super::assign::{accept, assigned};
use super::schedulers::another;
use super::*;

const AWAY: Duration = Duration::from_secs(17);
const TTL: u64 = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z10_restarted_server_assigns_only_to_sessions_heard_from() {
    let mut rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let mut sessions = Vec::new();
    for worker in ["w1", "w2", "w3", "w4", "w5"] {
        sessions.push(rig.start_session(QUEUE, worker, json!({"capacity": 2, "ttl": TTL})).await);
    }
    for _ in 0..5 {
        create(&rig, None).await;
    }
    let mut of_each = Vec::new();
    for session in &sessions {
        let one = eventually("each has a run", async || assigned(&rig, session).await.pop()).await;
        of_each.push(one);
    }
    // Two sessions finish their runs just before.
    for number in 0..2 {
        let claim = accept(&rig, &sessions[number], &format!("w{}", number + 1), &of_each[number], 0).await;
        assert_eq!(claim.status, 200, "{}", claim.body);
        rig.report(&claim.body, "completed", None).await;
    }
    rig.server.kill().unwrap();
    tokio::time::sleep(AWAY).await;
    rig.server = another(&rig, "next", 1).await;
    // More than the two can take, while the other three are silent.
    let mut tasks = Vec::new();
    for _ in 0..6 {
        tasks.push(json!(create(&rig, None).await));
    }
    let mut conn = rig.database.connect("test").await;
    let given_to_silent =
        "SELECT count(*) FROM session_inbox i JOIN worker_sessions s ON s.epoch = i.epoch JOIN tasks t ON t.seq = i.seq
                           WHERE i.kind = 4 AND s.worker_id IN ('w3', 'w4', 'w5') AND t.id <> ALL($1)";
    let old: Vec<sqlx::types::Uuid> =
        of_each.iter().map(|task| task.as_str().unwrap().parse::<SlugId>().unwrap().uuid()).collect();
    let live = eventually("the two sessions are full", async || {
        for session in &sessions[..2] {
            rig.call("POST", &format!("{TENURE_API}/sessions/{session}/renew"), Some(&json!({}))).await;
        }
        let live = [assigned(&rig, &sessions[0]).await, assigned(&rig, &sessions[1]).await];
        let new: i64 = sqlx::query_scalar(given_to_silent).bind(&old).fetch_one(&mut conn).await.unwrap();
        assert_eq!(new, 0, "a silent session gets nothing");
        live.iter().all(|tasks| tasks.len() == 2).then(|| live.concat())
    })
    .await;
    assert!(live.iter().all(|task| tasks.contains(task)), "{live:?} of {tasks:?}");
    // The three sessions end, and their runs go to the live ones.
    for session in &sessions[..2] {
        let body = json!({"capacity": 20});
        rig.call("POST", &format!("{TENURE_API}/sessions/{session}/renew"), Some(&body)).await;
    }
    eventually("everything is with the two", async || {
        let mut all = 0;
        for session in &sessions[..2] {
            rig.call("POST", &format!("{TENURE_API}/sessions/{session}/renew"), Some(&json!({}))).await;
            all += assigned(&rig, session).await.len();
        }
        (all == 9).then_some(())
    })
    .await;
    for (number, task) in of_each.iter().enumerate() {
        let task: SlugId = task.as_str().unwrap().parse().unwrap();
        let state = rig.status(task).await["state"].clone();
        assert_eq!(state, if number < 2 { "completed" } else { "pending" }, "{number}");
    }
    drop(conn);
}
