//! The worker on the poll API when a message fails.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure_worker::Plane;
use tokio::task::JoinSet;

use crate::mailbox::{Mailbox, QUEUES, list, message};
use crate::queue::{Reply, TASK_IDS, claim, ok, refuse, until};
use crate::worker::{LEASE, Running, shell};

/// Longer than all attempts to delete a message in these tests.
const SETTLED: Duration = Duration::from_secs(3);
const DELETE_TRIES: usize = 8;

fn start(mailbox: &Mailbox, capacity: usize) -> Running {
    Running::start_on(Plane::Poll, mailbox.queue.clone(), capacity)
}

/// True if a worker deletes the message when each claim gets this answer.
async fn deletes_after(answer: Option<Reply>) -> bool {
    let (mailbox, running) = accepted_once().await;
    if let Some(answer) = answer {
        mailbox.queue.on("claim", move |_| answer.clone());
    }
    let rounds = mailbox.queue.requests(QUEUES[6]).len();
    mailbox.post(QUEUES[0], [message(0)]);
    // The claim is over by then.
    mailbox.queue.wait_for(QUEUES[6], rounds + 2).await;
    running.stop().await;
    assert!(mailbox.queue.requests("claim").len() > 1);
    let deletions = mailbox.deletions();
    assert!(deletions.iter().all(|request| request.call.starts_with("DELETE /m/q7/messages/m-")));
    deletions.iter().any(|request| request.call.ends_with("m-0"))
}

/// A worker with one accepted claim that came too late takes later refusals as temporary.
async fn accepted_once() -> (Mailbox, Running) {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.queue.once("claim", refuse(409));
    mailbox.post(QUEUES[0], [message(1)]);
    let running = start(&mailbox, 1);
    until("the message to be deleted", || mailbox.deletions().pop()).await;
    (mailbox, running)
}

#[tokio::test]
async fn message_is_deleted_only_after_claim_or_final_refusal() {
    let mut cases = JoinSet::new();
    let mut case = |name: &str, answer: Option<Reply>, expected: bool| {
        let name = name.to_owned();
        cases.spawn(async move { (name, deletes_after(answer).await, expected) });
    };
    case("200", None, true);
    for status in [400, 404, 409, 410, 413] {
        case(&status.to_string(), Some(refuse(status)), true);
    }
    for status in [401, 403, 408, 429, 500, 502, 503, 504] {
        case(&status.to_string(), Some(refuse(status)), false);
    }
    let page = || Some(b"<html>not here</html>".to_vec());
    for status in [404, 410] {
        case(&format!("{status} of a proxy"), Some(Reply { bytes: page(), ..refuse(status) }), false);
    }
    case("cut", Some(Reply { cut: true, ..Reply::default() }), false);
    case("200 that is no claim", Some(ok(Value::Null)), false);
    case("redirect", Some(refuse(303)), false);
    for (name, deleted, expected) in cases.join_all().await {
        assert_eq!(deleted, expected, "{name}");
    }
}

#[tokio::test]
async fn refused_claims_slow_down_polls() {
    // A worker without a scope, and a quarantined one.
    for (status, deletes) in [(403, false), (409, true)] {
        let (mailbox, running) = accepted_once().await;
        mailbox.queue.on("claim", move |_| refuse(status));
        mailbox.queue.on(QUEUES[0], |_| list([message(0)]));
        tokio::time::sleep(SETTLED).await;
        let claims = mailbox.queue.requests("claim").len();
        assert!((3..20).contains(&claims), "{status}: {claims}");
        assert_eq!(mailbox.deletions().len() > 1, deletes, "{status}");
        running.stop().await;
    }
}

#[tokio::test]
async fn refused_claims_of_one_poll_count_once() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.queue.on("claim", |request| {
        if request.call.contains(TASK_IDS[1]) { ok(claim(TASK_IDS[1], LEASE, &shell("true"))) } else { refuse(409) }
    });
    let refused = |run: u32| {
        let hint = json!({"taskId": TASK_IDS[0], "runId": run});
        message(0).id(&format!("m-0-{run}")).text(&STANDARD.encode(hint.to_string()))
    };
    mailbox.post(QUEUES[0], (0..32).map(refused));
    mailbox.post(QUEUES[0], [message(1)]);
    let running = start(&mailbox, 32);
    let completed = mailbox.queue.wait_for("completed", 1).await[0].at;
    let claims = mailbox.queue.requests("claim");
    assert_eq!(claims.len(), 33);
    // After 32 failures it would be at least 15 s.
    assert!(completed.duration_since(claims[0].at) < Duration::from_secs(10));
    running.stop().await;
}

#[tokio::test]
async fn unreadable_message_is_deleted() {
    let mailbox = Mailbox::open(shell("true")).await;
    let wrong = ["not base64!", "", &STANDARD.encode("{}"), &STANDARD.encode("not JSON")];
    let messages = wrong.iter().enumerate().map(|(at, text)| message(0).id(&format!("wrong-{at}")).text(text));
    mailbox.post(QUEUES[0], messages);
    mailbox.post(QUEUES[0], [message(0)]);
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for("completed", 1).await;
    until("all deletions", || (mailbox.deletions().len() == 5).then_some(())).await;
    assert_eq!(mailbox.queue.requests("claim").len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn run_in_progress_is_not_claimed_again() {
    let mailbox = Mailbox::open(shell("while ! test -e ../go; do sleep 0.05; done")).await;
    mailbox.post(QUEUES[0], [message(0), message(0).id("m-0-again")]);
    let running = start(&mailbox, 2);
    mailbox.queue.wait_for(QUEUES[6], 1).await;
    assert_eq!(mailbox.queue.requests("claim").len(), 1);
    std::fs::write(running.dir.path().join("work/go"), "").unwrap();
    mailbox.queue.wait_for("completed", 1).await;
    // The run's outcome is not known yet.
    assert_eq!(mailbox.deletions().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn failed_deletions_are_retried_in_background() {
    let mailbox = Mailbox::open(shell("true")).await;
    // The tasks end before the last attempt.
    mailbox.queue.on("m-0", |_| Reply { after: Duration::from_millis(500), ..refuse(503) });
    mailbox.queue.on("m-1", |_| Reply { cut: true, ..Reply::default() });
    mailbox.post(QUEUES[0], (0..3).map(message));
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for("completed", 3).await;
    let last_report = mailbox.queue.requests("completed")[2].at;
    mailbox.queue.wait_for("m-0", DELETE_TRIES).await;
    tokio::time::sleep(SETTLED).await;
    for (id, tries) in [("m-0", DELETE_TRIES), ("m-1", DELETE_TRIES), ("m-2", 1)] {
        assert_eq!(mailbox.queue.requests(id).len(), tries, "{id}");
    }
    assert!(mailbox.queue.requests("m-0").last().unwrap().at > last_report, "deletions delayed the work");
    running.stop().await;
}

#[tokio::test]
async fn deletion_ends_with_success_or_final_refusal() {
    let mut cases = JoinSet::new();
    // A missing message counts as deleted; an outdated receipt stays outdated.
    for (status, tries) in [(200, 1), (204, 1), (404, 1), (400, 1), (403, 1), (500, 2), (503, 2), (429, 2)] {
        cases.spawn(async move {
            let mailbox = Mailbox::open(shell("true")).await;
            mailbox.queue.once("m-0", refuse(status));
            mailbox.post(QUEUES[0], [message(0)]);
            let running = start(&mailbox, 1);
            mailbox.queue.wait_for("completed", 1).await;
            mailbox.queue.wait_for(QUEUES[6], 2).await;
            assert_eq!(mailbox.queue.requests("m-0").len(), tries, "{status}");
            running.stop().await;
        });
    }
    cases.join_all().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_long_for_deletions() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.queue.on("m-0", |_| Reply { headers: vec![("retry-after", "60".into())], ..refuse(429) });
    mailbox.post(QUEUES[0], [message(0)]);
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for("completed", 1).await;
    mailbox.queue.wait_for("m-0", 1).await;
    let begun = std::time::Instant::now();
    running.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(mailbox.queue.requests("m-0").len(), 2);
    assert!(mailbox.queue.requests("claim")[0].call.contains(TASK_IDS[0]));
}
