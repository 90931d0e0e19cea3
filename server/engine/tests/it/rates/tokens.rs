//! Tokens of unclaimed and assigned runs.

use tenure_engine::background::accept;
use tenure_engine::ops::claim_task::claim_task;
use tenure_engine::ops::sessions;

use super::*;

async fn given_to(ground: &mut Ground) -> Option<i64> {
    let given = "SELECT session FROM pending WHERE hold = 3";
    sqlx::query_scalar(given).fetch_optional(&mut ground.conn).await.unwrap()
}

async fn accept_run(server: &Queue, task: TaskId, session: i64) {
    let (worker_group, worker_id) = ("group".to_owned(), "here".to_owned());
    let request = ClaimTask { task, run: RunId::FIRST, worker_group, worker_id, session: Some(session) };
    claim_task(server.engine.why_parts(), LEASE, &request).await.unwrap().unwrap();
}

fn assigned_one_an_hour(of: &str) -> serde_json::Value {
    let mut policy = one_an_hour(of);
    policy["dispatch"] = json!("assign");
    policy
}

/// The assigned worker does not respond, and the next one is free.
#[tokio::test]
async fn returned_run_is_reassigned_at_once_despite_rate() {
    for of in ["total", "perKey"] {
        for closes in [false, true] {
            let mut policy = assigned_one_an_hour(of);
            policy["acceptTime"] = json!(30);
            let (mut ground, server) = assigning(policy).await;
            begin(&server, "other", 100).await;
            server.create(&keyed()).await.unwrap();
            admit(&server).await;
            let first = given_to(&mut ground).await.expect("assigned to a worker");
            if closes {
                let mut closing = server.engine.pool.acquire().await.unwrap();
                sessions::end(&mut closing, &server.engine.notifiers, None, first, SessionEnd::Closed).await.unwrap();
            } else {
                let later = "UPDATE clock SET clock_offset = clock_offset + interval '31 seconds'";
                ground.run(later).await;
                assert_eq!(accept::pass(&server.engine).await.unwrap().done, 1);
            }
            assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
            admit(&server).await;
            let second = given_to(&mut ground).await.expect("assigned to another worker");
            assert_ne!(second, first, "{of} {closes}");
            // This run takes the only start of the hour.
            server.create(&keyed()).await.unwrap();
            admit(&server).await;
            assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
            ground.finish([server]).await;
        }
    }
}

/// The run was assigned an hour earlier.
#[tokio::test]
async fn acceptance_spends_token_at_its_own_time() {
    for of in ["total", "perKey"] {
        let (mut ground, server) = assigning(assigned_one_an_hour(of)).await;
        let (first, second) = (keyed(), keyed());
        for task in [&first, &second] {
            server.create(task).await.unwrap();
        }
        admit(&server).await;
        let session = given_to(&mut ground).await.expect("a session has the first run");
        ground.run(AN_HOUR_LATER).await;
        accept_run(&server, first.id, session).await;
        admit(&server).await;
        assert_eq!(ground.count("pending WHERE hold = 2").await, 1, "{of}");
        ground.run(AN_HOUR_LATER).await;
        admit(&server).await;
        assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "{of}");
        ground.finish([server]).await;
    }
}

#[tokio::test]
async fn cancel_frees_the_token_of_an_assigned_run_only() {
    for of in ["total", "perKey"] {
        let (mut ground, server) = assigning(assigned_one_an_hour(of)).await;
        let tasks = [(); 3].map(|()| keyed());
        for task in &tasks {
            server.create(task).await.unwrap();
        }
        admit(&server).await;
        let session = given_to(&mut ground).await.expect("a session has the first run");
        change(&server, tasks[0].id, Change::Cancel).await.unwrap();
        assert_eq!((ground.count("pending WHERE hold = 3").await, ground.count("pending").await), (0, 2), "{of}");
        admit(&server).await;
        assert_eq!(given_to(&mut ground).await, Some(session), "{of}");
        accept_run(&server, tasks[1].id, session).await;
        change(&server, tasks[1].id, Change::Cancel).await.unwrap();
        admit(&server).await;
        assert_eq!((ground.count("pending WHERE hold = 3").await, ground.count("pending").await), (0, 1), "{of}");
        ground.finish([server]).await;
    }
}

#[tokio::test]
async fn cancel_of_a_waiting_run_costs_no_token() {
    let (mut ground, server) = served().await;
    put(&server, one_an_hour("total")).await;
    let (first, second) = (server.create_one(QUEUE).await, server.create_one(QUEUE).await);
    server.create_one(QUEUE).await;
    change(&server, first, Change::Cancel).await.unwrap();
    assert_eq!(server.claim_one(QUEUE).await.task.id, second);
    change(&server, second, Change::Cancel).await.unwrap();
    assert!(nothing_starts(&server).await);
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
    ground.finish([server]).await;
}
