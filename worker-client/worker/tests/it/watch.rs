//! Runs that end without their worker, which learns it from the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_client::watch::Watch;
use tenure_client::{Client, RetryPolicy, WatchedRun};
use tenure_worker::Settings;

use crate::queue::{Queue, Reply, SOON, TASK_IDS, claim, ok, refuse, until};
use crate::worker::{LEASE, Running, pid_in, runs, shell};

const WATCH: &str = "/claims/watch";
const NOW: &str = "2001-01-01T00:00:01.000Z";
/// Ten times the second within which a task is stopped.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
/// Says that it was asked to end, which its whole group is.
const OBEDIENT: &str =
    "echo begun; trap 'echo asked; echo asked > asked; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done";
/// Does not end before it is killed, and neither does what it has started.
const STUBBORN: &str = "sh -c 'trap \"\" TERM; echo $$ > inner; while :; do sleep 0.05; done' & trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done";

fn answer(ended: &Value) -> Reply {
    ok(json!({"ended": ended, "serverTime": NOW}))
}

/// Waits, as far as a test has to.
fn nothing_ended() -> Reply {
    Reply { after: Duration::from_secs(1), ..answer(&json!([])) }
}

fn ended(task: &str, fields: &Value) -> Value {
    let mut item = json!({"taskId": task, "runId": 0});
    item.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!([item])
}

/// A queue that answers with this about runs that have ended from the time on when the switch is set.
async fn queue_with(ended: Value) -> (Queue, Arc<AtomicBool>) {
    let (queue, switch) = (Queue::start().await, Arc::new(AtomicBool::new(false)));
    let is_on = Arc::clone(&switch);
    queue.on(WATCH, move |_| {
        if is_on.load(Ordering::SeqCst) {
            answer(&ended)
        } else {
            Reply { after: Duration::from_millis(100), ..answer(&json!([])) }
        }
    });
    (queue, switch)
}

fn runs_of(body: &Value) -> Vec<&str> {
    body["runs"].as_array().unwrap().iter().map(|run| run["taskId"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_task_that_was_cancelled_is_asked_to_end_and_its_log_is_kept() {
    let canceled = json!({"state": "exception", "reasonResolved": "canceled"});
    let (queue, switch) = queue_with(ended(TASK_IDS[0], &canceled)).await;
    let running = Running::with_task(queue, LEASE, &shell(OBEDIENT)).await;
    let pid = pid_in(&running.directory().join("pid")).await;
    assert!(running.queue.wait_for(WATCH, 1).await[0].signed_by == "worker");
    assert!(runs(pid));
    switch.store(true, Ordering::SeqCst);
    let cancelled = Instant::now();
    until("the command to be asked", || running.directory().join("asked").exists().then_some(())).await;
    assert!(cancelled.elapsed() < STOPPED_WITHIN, "{:?}", cancelled.elapsed());
    // The next call for work shows that the worker is done with the task.
    running.queue.wait_for("p%2Fw", 2).await;
    assert!(!runs(pid));
    let log = running.queue.artifact(TASK_IDS[0], "public/logs/live_backing.log").text();
    assert!(log.contains("begun\n") && log.contains("asked\n"), "{log}");
    assert!(log.contains("the claim is lost (the task was cancelled); stopping"), "{log}");
    assert!(running.queue.artifacts(TASK_IDS[0]).contains(&"public/logs/live.log".to_owned()));
    assert_eq!((running.queue.reports().len(), running.queue.requests("reclaim").len()), (0, 0));
    running.stop().await;
}

#[tokio::test]
async fn a_task_that_does_not_end_is_killed_with_all_that_it_started() {
    let late = json!({"state": "exception", "reasonResolved": "deadline-exceeded"});
    let (queue, switch) = queue_with(ended(TASK_IDS[0], &late)).await;
    let running = Running::with_task(queue, LEASE, &shell(STUBBORN)).await;
    let pid = pid_in(&running.directory().join("pid")).await;
    let inner = pid_in(&running.directory().join("inner")).await;
    switch.store(true, Ordering::SeqCst);
    until("the group to end", || (!runs(inner) && !runs(pid)).then_some(())).await;
    running.queue.wait_for("p%2Fw", 2).await;
    assert!(running.log().contains("the deadline of the task has passed"), "{}", running.log());
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn the_log_of_a_run_that_is_no_exception_is_not_uploaded() {
    for (fields, words) in [
        (json!({"state": "pending"}), "the run waits for a worker again"),
        (json!({}), "the queue has no such run any more"),
        (json!({"state": "completed", "reasonResolved": "completed"}), "the run has ended as completed"),
    ] {
        let (queue, switch) = queue_with(ended(TASK_IDS[0], &fields)).await;
        switch.store(true, Ordering::SeqCst);
        let running = Running::with_task(queue, LEASE, &shell(OBEDIENT)).await;
        running.queue.wait_for("p%2Fw", 2).await;
        assert!(running.log().contains(words), "{}", running.log());
        assert!(running.queue.artifacts(TASK_IDS[0]).is_empty());
        assert_eq!(running.queue.reports().len(), 0);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_log_that_the_queue_does_not_take_any_more_stays_here() {
    let canceled = json!({"state": "exception", "reasonResolved": "canceled"});
    let (queue, switch) = queue_with(ended(TASK_IDS[0], &canceled)).await;
    queue.on("live_backing.log", |_| refuse(401));
    switch.store(true, Ordering::SeqCst);
    let running = Running::with_task(queue, LEASE, &shell(OBEDIENT)).await;
    running.queue.wait_for("p%2Fw", 2).await;
    assert!(running.log().contains("the task was cancelled"), "{}", running.log());
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}

/// Waits until so many runs are watched by one request; how many requests there were by then.
async fn until_watched(queue: &Queue, runs: usize) -> usize {
    until("they are watched", || {
        let requests = queue.requests(WATCH);
        requests.last().filter(|last| runs_of(&last.body).len() == runs).map(|_| requests.len())
    })
    .await
}

#[tokio::test]
async fn one_request_waits_for_all_tasks_and_is_sent_anew_when_others_come() {
    let queue = Queue::start().await;
    queue.on(WATCH, |_| Reply { after: Duration::from_secs(60), ..answer(&json!([])) });
    let waiting = |go: &str| shell(&format!("while ! test -e ../{go}; do sleep 0.05; done"));
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &waiting("a")), claim(TASK_IDS[1], LEASE, &waiting("b"))]);
    let running = Running::with_settings(queue, |settings| Settings { capacity: 3.try_into().unwrap(), ..settings });
    let queue = running.queue.clone();
    let requests = until_watched(&queue, 2).await;
    let request = &queue.requests(WATCH)[requests - 1];
    let mut watched = runs_of(&request.body);
    watched.sort_unstable();
    assert_eq!((watched, &request.body["wait"]), (vec![TASK_IDS[0], TASK_IDS[1]], &json!(30)));

    queue.hand_out(&[claim(TASK_IDS[2], LEASE, &waiting("c"))]);
    let requests = until_watched(&queue, 3).await;
    until("the others are given up", || (queue.hung_up(WATCH).len() == requests - 1).then_some(())).await;

    // That one is done is no reason to ask anew; that all are is one to stop.
    let go = |task: &str| std::fs::write(running.dir.path().join("work").join(task), "").unwrap();
    go("a");
    queue.wait_for("completed", 1).await;
    go("b");
    go("c");
    queue.wait_for("completed", 3).await;
    until("nothing is watched", || (queue.hung_up(WATCH).len() == requests).then_some(())).await;
    assert_eq!(queue.requests(WATCH).len(), requests);
    running.stop().await;
}

#[tokio::test]
async fn more_runs_than_a_request_may_name_are_watched_by_several() {
    let queue = Queue::start().await;
    queue.on(WATCH, |request| {
        if runs_of(&request.body).contains(&TASK_IDS[1]) {
            // By then the other request has come too.
            let ended = ended(TASK_IDS[1], &json!({"state": "pending"}));
            Reply { after: Duration::from_secs(1), ..answer(&ended) }
        } else {
            Reply { after: 3 * SOON, ..answer(&json!([])) }
        }
    });
    let run = |task: &str, run: usize| WatchedRun {
        task_id: task.parse().unwrap(),
        run_id: run.to_string().parse().unwrap(),
    };
    let mut runs: Vec<WatchedRun> = (0..1000).map(|number| run(TASK_IDS[0], number)).collect();
    runs.push(run(TASK_IDS[1], 0));
    let client = Client::builder().root_url(&queue.root_url()).build().unwrap();
    let ended = client.watch_claims(&runs, SOON).await.unwrap();
    assert_eq!(ended.iter().map(|ended| ended.task_id.to_string()).collect::<Vec<_>>(), [TASK_IDS[1]]);
    let mut named: Vec<usize> = queue.requests(WATCH).iter().map(|request| runs_of(&request.body).len()).collect();
    named.sort_unstable();
    assert_eq!(named, [1, 1000]);
    assert!(client.watch_claims(&[], SOON).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_queue_without_the_call_is_asked_once() {
    for status in [404, 405, 403] {
        let queue = Queue::start().await;
        queue.on(WATCH, move |_| refuse(status));
        let running = Running::with_task(queue, LEASE, &shell("while ! test -e ../go; do sleep 0.05; done")).await;
        running.queue.wait_for(WATCH, 1).await;
        std::fs::write(running.dir.path().join("work/go"), "").unwrap();
        running.queue.wait_for("completed", 1).await;
        running.queue.hand_out(&[claim(TASK_IDS[1], LEASE, &shell("sleep 1"))]);
        running.queue.wait_for("completed", 2).await;
        assert_eq!(running.queue.requests(WATCH).len(), 1, "{status}");
        running.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_never_answers_as_a_queue_does_is_not_asked_on_and_on() {
    let queue = Queue::start().await;
    queue.on(WATCH, |_| Reply { bytes: Some(b"<html>not here</html>".to_vec()), ..refuse(404) });
    let retry = RetryPolicy::default().first_pause(Duration::from_millis(1));
    let client = Client::builder().root_url(&queue.root_url()).retry_policy(retry).build().unwrap();
    let watch = Watch::default();
    let _watching = watch.begin(TASK_IDS[0].parse().unwrap(), "0".parse().unwrap());
    let asked = tokio::time::timeout(Duration::from_secs(6), watch.ask(&client)).await;
    assert!(asked.is_err(), "it has no end");
    let requests = queue.requests(WATCH).len();
    assert_eq!(requests, 9);
}

#[tokio::test]
async fn a_queue_that_is_away_for_a_moment_is_asked_again() {
    let canceled = json!({"state": "exception", "reasonResolved": "canceled"});
    let (queue, switch) = queue_with(ended(TASK_IDS[0], &canceled)).await;
    switch.store(true, Ordering::SeqCst);
    queue.once(WATCH, refuse(503));
    queue.once(WATCH, Reply { cut: true, ..nothing_ended() });
    // What a proxy says for it.
    for status in [404, 403, 200] {
        queue.once(WATCH, Reply { bytes: Some(b"<html>not here</html>".to_vec()), ..refuse(status) });
    }
    let running = Running::with_task(queue, LEASE, &shell(OBEDIENT)).await;
    running.queue.wait_for("p%2Fw", 2).await;
    assert!(running.log().contains("the task was cancelled"), "{}", running.log());
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}
