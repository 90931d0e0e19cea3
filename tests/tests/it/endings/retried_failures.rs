//! Failed runs of queues and tasks with `retryFailed`.

use super::*;

async fn create_with_retries(rig: &Rig, fields: &Value) -> SlugId {
    let change = |task: &mut Value| {
        task["retries"] = 2.into();
        for (name, value) in fields.as_object().unwrap() {
            task[name] = value.clone();
        }
    };
    rig.create_with(QUEUE, change).await
}

/// Claims the only pending run and reports it as failed. Returns the status.
async fn fail(rig: &Rig, body: Option<&Value>) -> Value {
    let claim = claim_as(rig, "w1", 1).await.remove(0);
    ok(of_run(rig, &claim, "failed", body).await)["status"].clone()
}

async fn events_of(rig: &Rig, task: SlugId) -> Vec<String> {
    let events = ok(rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await);
    let of_task = |event: &&Value| event["payload"]["status"]["taskId"] == json!(task);
    let name = |event: &Value| event["exchange"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    events["events"].as_array().unwrap().iter().filter(of_task).map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_run_is_retried_until_no_retry_is_left() {
    let rig = Rig::start().await;
    rig.put_policy(QUEUE, &json!({"retryFailed": true})).await;
    let task = create_with_retries(&rig, &json!({})).await;
    let waits = json!({"dependencies": [task], "requires": "all-resolved", "taskQueueId": "endings/waits"});
    let dependent = create_with_retries(&rig, &waits).await;
    for (run, state, retries_left) in [(0_usize, "pending", 1), (1, "pending", 0), (2, "failed", 0)] {
        assert_eq!(rig.status(dependent).await["state"], "unscheduled", "before run {run} failed");
        let status = fail(&rig, None).await;
        assert_eq!((&status["state"], &status["retriesLeft"]), (&json!(state), &json!(retries_left)));
        assert_eq!(status["runs"][run]["state"], "failed");
        assert_eq!(status["runs"][run]["reasonCreated"], if run == 0 { "scheduled" } else { "task-retry" });
    }
    let expected = [
        "task-defined",
        "task-pending",
        "task-running",
        "task-pending",
        "task-running",
        "task-pending",
        "task-running",
        "task-failed",
    ];
    assert_eq!(events_of(&rig, task).await, expected);
    eventually("the dependent task is pending", async || {
        (rig.status(dependent).await["state"] == "pending").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_without_retry_ends_task() {
    let rig = Rig::start().await;
    rig.put_policy(QUEUE, &json!({"retryFailed": true})).await;
    let task = create_with_retries(&rig, &json!({})).await;
    assert_eq!(fail(&rig, Some(&json!({"retry": true}))).await["state"], "pending");
    let claim = claim_as(&rig, "w1", 1).await.remove(0);
    for body in [json!({"retry": false}), json!({"retry": false}), json!({})] {
        let reported = of_run(&rig, &claim, "failed", Some(&body)).await;
        assert_eq!((reported.status, &reported.body["status"]["state"]), (200, &json!("failed")), "{body}");
        assert_eq!(reported.body["status"]["retriesLeft"], 1);
    }
    assert_eq!(resolutions(&rig, task).await, ["task-failed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn option_of_task_overrides_policy() {
    let rig = Rig::start().await;
    for (policy, option, state) in [
        (json!({}), None, "failed"),
        (json!({}), Some(true), "pending"),
        (json!({"retryFailed": true}), Some(false), "failed"),
        (json!({"retryFailed": true, "delivery": "at-most-once"}), None, "pending"),
    ] {
        rig.put_policy(QUEUE, &policy).await;
        let fields = option.map_or(json!({}), |retry| json!({"extra": {"tenure": {"retryFailed": retry}}}));
        let task = create_with_retries(&rig, &fields).await;
        assert_eq!(fail(&rig, None).await["state"], state, "{policy} {option:?}");
        if state == "pending" {
            ok(rig.call("POST", &format!("/task/{task}/cancel"), None).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_delay_applies_after_failed_run() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"retryFailed": true, "retryDelay": {"first": 600, "factor": 2}})).await;
    let task = create_with_retries(&rig, &json!({})).await;
    for seconds in [600, 1_200] {
        assert_eq!(fail(&rig, None).await["state"], "pending");
        rig.advance(seconds - 120).await;
        assert_eq!(claim_as(&rig, "w1", 1).await, Vec::<Value>::new(), "{seconds} seconds are not over");
        rig.advance(180).await;
        eventually("the run is ready", async || {
            let why = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await;
            let reasons = why.body["reasons"].as_array()?;
            (!reasons.iter().any(|reason| reason["code"] == "delay")).then_some(())
        })
        .await;
    }
    assert_eq!(fail(&rig, None).await["state"], "failed");
}
