//! Releases: a worker gives up a run that has not failed.

use super::*;
use crate::rig::{Raw, Signature};

async fn spend(rig: &Rig, sql: &str) {
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut rig.database.connect("test").await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_run_is_pending_again_in_its_place_and_no_retry_is_used() {
    let rig = start(json!({})).await;
    let tasks = create(&rig, 2).await;
    let first = claim_as(&rig, "w1", 1).await.remove(0);
    let released = of_run(&rig, &first, "release", None).await;
    let status = &released.body["status"];
    assert_eq!((released.status, &status["state"], &status["retriesLeft"]), (200, &json!("pending"), &json!(1)));
    assert_eq!(
        (&status["runs"][0]["reasonResolved"], &status["runs"][1]["reasonCreated"]),
        (&json!("worker-shutdown"), &json!("retry"))
    );
    let repeated = of_run(&rig, &first, "release", Some(&json!({}))).await;
    assert_eq!((repeated.status, &repeated.body["status"]["runs"]), (200, &status["runs"]), "its answer was lost");
    for (what, body) in [("completed", None), ("exception", Some(json!({"reason": "worker-shutdown"})))] {
        assert_eq!(of_run(&rig, &first, what, body.as_ref()).await.status, 409, "{what}");
    }
    let second = claim_as(&rig, "w2", 1).await.remove(0);
    assert_eq!(second["status"]["taskId"], json!(tasks[0]), "it kept its place before the other task");
    assert_eq!(of_run(&rig, &first, "release", None).await.status, 200, "also when the next run has begun");
    assert_eq!(rig.status(tasks[0]).await["runs"].as_array().unwrap().len(), 2);
    assert_eq!(of_run(&rig, &second, "completed", None).await.status, 200);
    assert_eq!(of_run(&rig, &second, "release", None).await.status, 409);
    let missing = format!("{TENURE_API}/tasks/{}/runs/0/release", new_task());
    assert_eq!(rig.call("POST", &missing, None).await.code(), "ResourceNotFound");
    let reader = rig.make_client("reader", &["queue:status:*"]).await;
    assert_eq!(as_worker(&rig, &reader, &second, "release", None).await.code(), "InsufficientScopes");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_released_with_a_delay_waits_so_long() {
    for (body, seconds) in [(json!({"delay": 60}), 60.0), (json!({"delay": 31_622_400}), 3_000.0)] {
        let rig = start_by_hand(json!({"delivery": "at-most-once"})).await;
        let task = create(&rig, 1).await[0];
        let first = claim_as(&rig, "w1", 1).await.remove(0);
        let released = of_run(&rig, &first, "release", Some(&body)).await;
        assert_eq!((released.status, &released.body["status"]["state"]), (200, &json!("pending")), "{}", released.body);
        advance(&rig, seconds - 10.0).await;
        assert!(claim_as(&rig, "w2", 1).await.is_empty());
        if seconds < 1_000.0 {
            advance(&rig, 10.0).await;
            assert_eq!(claim_as(&rig, "w2", 1).await.remove(0)["status"]["taskId"], json!(task));
        } else {
            advance(&rig, 611.0).await;
            assert_eq!(rig.status(task).await["runs"][1]["reasonResolved"], "deadline-exceeded");
        }
        rig.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_release_may_not_say_is_refused_and_the_run_stays() {
    let rig = start(json!({})).await;
    let task = create(&rig, 1).await[0];
    let claim = claim_as(&rig, "w1", 1).await.remove(0);
    for body in [
        json!({"delay": -1}),
        json!({"delay": 31_622_401}),
        json!({"delay": "1"}),
        json!({"notBefore": "soon"}),
        json!({"delay": 1, "notBefore": "2100-01-01T00:00:00Z"}),
        json!({"reason": "tired"}),
    ] {
        let refused = of_run(&rig, &claim, "release", Some(&body)).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
    }
    let path = format!("{TENURE_API}{}/release", run_of(&claim).replacen("/task/", "/tasks/", 1));
    let signature = Signature { who: &rig.root, method: "POST", target: &path, ..Signature::of(&rig.server) };
    let form = Raw::new("POST", &path).authorization(&signature.header()).json(Some(b"{\"delay\": 3600}"));
    for raw in [form.clone().header("Content-Type", "application/x-www-form-urlencoded"), form.without("Content-Type")]
    {
        rig.send(&raw).await.refused(400, "MalformedPayload");
    }
    assert_eq!(rig.status(task).await["state"], "running");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_two_hundredth_release_is_the_last_and_then_the_worker_keeps_the_run() {
    let rig = start(json!({})).await;
    let task = create(&rig, 1).await[0];
    spend(&rig, "UPDATE tasks SET free_runs = 199").await;
    let claim = claim_as(&rig, "w1", 1).await.remove(0);
    assert_eq!(of_run(&rig, &claim, "release", None).await.status, 200);
    let mut kept = claim_as(&rig, "w1", 1).await.remove(0);
    let refused = of_run(&rig, &kept, "release", Some(&json!({"delay": 5}))).await;
    assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{}", refused.body);
    assert_eq!(rig.status(task).await["state"], "running");
    renew(&rig, &mut kept).await;
    assert_eq!(of_run(&rig, &kept, "completed", None).await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_two_hundred_losses_cost_nothing_and_the_next_one_a_retry() {
    let rig = start_by_hand(json!({"delivery": "at-least-once"})).await;
    let task = create(&rig, 1).await[0];
    spend(&rig, "UPDATE tasks SET free_runs = 198").await;
    for (run, retries_left) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
        let claim = claim_as(&rig, "w1", 1).await.remove(0);
        assert_eq!((&claim["runId"], &claim["status"]["retriesLeft"]), (&json!(run), &json!(retries_left)));
        advance(&rig, 10.0).await;
        // The row of losses that holds up the next run is not what is shown here.
        spend(&rig, "UPDATE tasks SET losses = 0").await;
    }
    let status = rig.status(task).await;
    assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("exception"), &json!(0)));
    assert_eq!(number(&rig, "SELECT free_runs::bigint FROM tasks").await, 200);
    rig.server.stop().await;
}
