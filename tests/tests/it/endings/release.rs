//! Releases: a worker gives back a run that has not failed.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_run_keeps_its_position_and_retries() {
    let rig = Rig::start().await;
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
}
