//! Tasks with a state machine against the scripted queue.

use serde_json::{Value, json};
use tenure_client::consumer::statemachine::Machine;
use tenure_client::consumer::{Job, Outcome, Stop};

use crate::consumer::{Running, consumer, queue_with, reported};
use crate::queue::{TASK_IDS, claim, date, ok, refuse, until};
use crate::worker::LEASE;

#[tokio::test]
async fn machine_omits_error_texts_that_do_not_fit() {
    let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
    queue.on("/command", |_| refuse(404));
    // The handler's checkpoint takes all the space.
    queue.on("/checkpoint", |request| match &request.body["checkpoint"]["machine"]["errors"] {
        Value::Null => refuse(404),
        errors if errors[0]["error"].as_str().is_some_and(|error| !error.is_empty()) => refuse(400),
        _ => ok(json!({"updated": date(0)})),
    });
    let failing = Machine::new(|job: Job, _stop: Stop| async move {
        job.checkpoint(&"large").await.unwrap();
        Outcome::failed("no disk")
    });
    let running = Running::start(consumer(&queue).handler::<Value, _>(failing));
    until("it is reported", || (!reported(&queue).is_empty()).then_some(())).await;
    let (results, stored) = (reported(&queue), queue.requests("/runs/0/checkpoint"));
    assert_eq!((&results[0]["outcome"], &results[0]["delay"]), (&json!("released"), &json!(600)), "delay of a fault");
    let last = &stored[stored.len() - 1].body["checkpoint"];
    assert_eq!((&last["machine"]["state"]["name"], &last["checkpoint"]), (&json!("fault"), &json!("large")));
    assert_eq!(last["machine"]["errors"][0]["error"], "");
    running.stop().await;
}
