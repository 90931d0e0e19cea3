//! Failover to an asynchronous standby that lagged: the log and the positions of subscriptions are
//! taken back together.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use tenure_tests::http::TENURE_API;
use tenure_tests::replication::Replicated;
use tenure_tests::webhooks::{Manner, Message, Receiver};

use super::Stage;
use super::loss::ask;
use crate::rig::{claim_path, definition, eventually, new_task, ok, report, worker};

const QUEUE: &str = "failover/hooks";
const TASKS: usize = 5;

/// Completes tasks, and returns their ids.
async fn complete(stage: &Stage, tasks: usize) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..tasks {
        let task = new_task();
        ok(ask(stage, 0, "PUT", &format!("/task/{task}"), Some(&definition(QUEUE))).await);
        let claims = eventually("the task is claimed", async || {
            let answer = ask(stage, 0, "POST", &claim_path(QUEUE), Some(&worker(1))).await;
            answer.body["tasks"].as_array().filter(|claims| !claims.is_empty()).cloned()
        })
        .await;
        report(&stage.servers[0], &claims[0], "completed", None).await;
        done.push(task.to_string());
    }
    done
}

/// Position and id of each arrival, by task.
fn arrivals(seen: &[Message]) -> BTreeMap<String, Vec<(i64, String)>> {
    let mut arrivals: BTreeMap<String, Vec<(i64, String)>> = BTreeMap::new();
    for (id, event) in seen.iter().flat_map(Message::events) {
        let task = event["payload"]["status"]["taskId"].as_str().expect("it is about a task").to_owned();
        arrivals.entry(task).or_default().push((event["position"].as_i64().expect("a position"), id));
    }
    arrivals
}

async fn until_arrived(receiver: &Receiver, tasks: &[String]) {
    eventually("the completions have arrived", async || {
        let arrived = arrivals(&receiver.seen());
        tasks.iter().all(|task| arrived.contains_key(task)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commits_skip_no_event_of_a_subscription() {
    let mut stage = Stage::on(Replicated::asynchronous().await).await;
    let receiver = Receiver::start().await;
    let body = json!({"to": {"webhook": {"url": receiver.url()}}, "exchange": ["task-completed"]});
    ok(ask(&stage, 0, "PUT", &format!("{TENURE_API}/subscriptions/hooks"), Some(&body)).await);
    let kept = complete(&stage, TASKS).await;
    until_arrived(&receiver, &kept).await;
    // Its event survives, its acknowledgement is lost.
    receiver.set(Manner::Answers(500));
    let survivor = complete(&stage, 1).await;
    until_arrived(&receiver, &survivor).await;
    stage.database.caught_up().await;

    let stall = stage.database.stall().await;
    receiver.set(Manner::Accepts);
    let lost = complete(&stage, TASKS).await;
    until_arrived(&receiver, &lost).await;
    stage.database.primary.kill();
    drop(stage.database.promote().await);
    drop(stall);
    let before = arrivals(&receiver.seen());
    stage.database.forward();

    let later = complete(&stage, 2 * TASKS).await;
    until_arrived(&receiver, &later).await;
    let arrived = arrivals(&receiver.seen());
    let repeats = &arrived[&survivor[0]];
    assert!(repeats.len() > before[&survivor[0]].len(), "its acknowledgement was lost");
    assert_eq!(repeats.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len(), 1, "it keeps its id: {repeats:?}");
    let ids: BTreeSet<&String> = arrived.values().map(|arrivals| &arrivals[0].1).collect();
    assert_eq!(ids.len(), arrived.len(), "no two events have one id");
    let positions = |tasks: &[String]| -> BTreeSet<i64> { tasks.iter().map(|task| arrived[task][0].0).collect() };
    assert!(positions(&later).first() <= positions(&lost).last(), "lost positions are used again");
    for server in stage.servers {
        assert!(server.stop().await.success());
    }
}
