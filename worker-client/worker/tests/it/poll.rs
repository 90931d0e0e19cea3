//! The worker on the poll API: polls and messages.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_worker::Plane;

use crate::mailbox::{Mailbox, QUEUES, URLS, list, message, number_of_messages};
use crate::queue::{Reply, TASK_IDS, claim, ok, refuse, until};
use crate::worker::{Running, shell};

/// Runs until the test allows it to end.
const WAITS: &str = "while ! test -e ../go; do sleep 0.05; done";
/// Long enough for another round over the queues.
const ROUND: Duration = Duration::from_millis(1500);
/// Less than the pause between two rounds.
const SOON_ENOUGH: Duration = Duration::from_millis(900);

fn start(mailbox: &Mailbox, capacity: usize) -> Running {
    Running::start_on(Plane::Poll, mailbox.queue.clone(), capacity)
}

#[tokio::test]
async fn queues_are_polled_in_order_and_restart_after_message() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.post(QUEUES[4], [message(0)]);
    mailbox.post(QUEUES[1], [message(1)]);
    let running = start(&mailbox, 4);
    mailbox.queue.wait_for("completed", 2).await;
    until("three rounds", || (mailbox.polls().len() >= 14).then_some(())).await;
    let polls: String = mailbox.polls().iter().take(14).collect();
    assert_eq!(polls, "76765437654321");
    let claims = mailbox.queue.requests("claim");
    let tasks: Vec<&str> = claims.iter().map(|request| request.call.split('/').nth(5).unwrap()).collect();
    assert_eq!(tasks, [TASK_IDS[1], TASK_IDS[0]]);
    assert_eq!(claims[0].body, json!({"workerGroup": "g", "workerId": "w"}));
    assert_eq!(mailbox.queue.requests("p%2Fw").len(), 0, "claimWork was called");
    running.stop().await;
}

#[tokio::test]
async fn signed_urls_need_no_other_signature() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.post(QUEUES[0], [message(0)]);
    let running = start(&mailbox, 1);
    let deletion = until("a deletion", || mailbox.deletions().pop()).await;
    assert_eq!((deletion.signed_by.as_str(), mailbox.queue.requests(QUEUES[0])[0].signed_by.as_str()), ("", ""));
    assert_eq!(mailbox.queue.requests("claim")[0].signed_by, "worker");
    assert_eq!(mailbox.queue.requests(URLS)[0].signed_by, "worker");
    assert_eq!(mailbox.queue.requests(URLS)[0].call, "GET /api/queue/v1/poll-task-url/p/w");
    assert_eq!(mailbox.queue.wait_for("completed", 1).await[0].signed_by, "task-0");
    running.stop().await;
}

#[tokio::test]
async fn poll_requests_free_capacity_up_to_32() {
    let mailbox = Mailbox::open(shell(WAITS)).await;
    mailbox.post(QUEUES[0], [message(0), message(1)]);
    let running = start(&mailbox, 3);
    mailbox.queue.wait_for("claim", 2).await;
    let requests = mailbox.queue.wait_for(QUEUES[6], 1).await;
    assert_eq!(number_of_messages(&mailbox.queue.requests(QUEUES[0])[0]), 3);
    assert_eq!(number_of_messages(&requests[0]), 1);
    mailbox.post(QUEUES[0], [message(2)]);
    mailbox.queue.wait_for("claim", 3).await;
    let polls = mailbox.polls().len();
    tokio::time::sleep(ROUND).await;
    assert_eq!(mailbox.polls().len(), polls);
    std::fs::write(running.dir.path().join("work/go"), "").unwrap();
    mailbox.queue.wait_for("completed", 3).await;
    running.stop().await;

    let mailbox = Mailbox::open(shell("true")).await;
    let running = start(&mailbox, 40);
    assert_eq!(number_of_messages(&mailbox.queue.wait_for(QUEUES[0], 1).await[0]), 32);
    running.stop().await;
}

#[tokio::test]
async fn messages_beyond_capacity_are_left() {
    let mailbox = Mailbox::open(shell(WAITS)).await;
    mailbox.queue.once(QUEUES[0], list([message(0), message(1), message(2)]));
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for("claim", 1).await;
    std::fs::write(running.dir.path().join("work/go"), "").unwrap();
    mailbox.queue.wait_for("completed", 1).await;
    mailbox.queue.wait_for(QUEUES[0], 2).await;
    assert_eq!((mailbox.queue.requests("claim").len(), mailbox.deletions().len()), (1, 1));
    running.stop().await;
}

#[tokio::test]
async fn empty_round_is_followed_by_pause_of_a_second() {
    let mailbox = Mailbox::open(shell("true")).await;
    let running = start(&mailbox, 1);
    let rounds = mailbox.queue.wait_for(QUEUES[0], 3).await;
    for pair in rounds.windows(2) {
        let pause = pair[1].at.duration_since(pair[0].at).as_millis();
        assert!((1000..3000).contains(&pause), "{pause} ms");
    }
    assert_eq!(mailbox.queue.requests(URLS).len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn urls_are_renewed_before_they_expire() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.issue(Duration::from_secs(4));
    let running = start(&mailbox, 1);
    let requests = mailbox.queue.wait_for(URLS, 2).await;
    let after = requests[1].at.duration_since(requests[0].at).as_millis();
    assert!((2000..4000).contains(&after), "{after} ms");
    running.stop().await;
}

#[tokio::test]
async fn urls_are_used_until_expiry_if_renewal_fails() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.issue(Duration::from_secs(20));
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for(QUEUES[6], 1).await;
    mailbox.queue.on(URLS, |_| refuse(500));
    // Half of the URLs' lifetime, and one call with its retries.
    mailbox.queue.wait_for(URLS, 7).await;
    mailbox.post(QUEUES[6], [message(0)]);
    mailbox.queue.wait_for("completed", 1).await;
    running.stop().await;
}

#[tokio::test]
async fn poll_refused_with_403_renews_urls_at_once() {
    let mailbox = Mailbox::open(shell("true")).await;
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for(QUEUES[6], 1).await;
    mailbox.queue.once(QUEUES[3], refuse(403));
    let renewed = mailbox.queue.wait_for(URLS, 2).await[1].at;
    let refused = mailbox.queue.requests(QUEUES[3])[1].at;
    assert!(renewed.duration_since(refused) < SOON_ENOUGH);
    let again = mailbox.queue.wait_for(QUEUES[0], 3).await[2].at;
    assert!(again.duration_since(renewed) < SOON_ENOUGH);
    running.stop().await;
}

#[tokio::test]
async fn refused_urls_are_not_renewed_without_pause() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.queue.on(QUEUES[0], |_| refuse(403));
    let running = start(&mailbox, 1);
    tokio::time::sleep(ROUND).await;
    let calls = mailbox.queue.requests(URLS).len();
    assert!((2..20).contains(&calls), "{calls}");
    running.stop().await;
}

#[tokio::test]
async fn failing_queue_does_not_stop_other_polls() {
    let mailbox = Mailbox::open(shell("true")).await;
    mailbox.queue.on(QUEUES[0], |_| refuse(500));
    mailbox.queue.on(QUEUES[1], |_| Reply { xml: Some("<html>busy</html>".into()), ..refuse(200) });
    mailbox.post(QUEUES[2], [message(0)]);
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for("completed", 1).await;
    running.stop().await;
}

#[tokio::test]
async fn missing_server_does_not_end_worker() {
    let mailbox = Mailbox::open(shell("true")).await;
    // Expired URLs, which must be renewed before each round.
    mailbox.issue(Duration::ZERO);
    let running = start(&mailbox, 1);
    mailbox.queue.wait_for(QUEUES[6], 1).await;
    for status in [500, 403, 503, 404, 401] {
        mailbox.queue.once(URLS, refuse(status));
    }
    mailbox.queue.once(QUEUES[0], Reply { cut: true, ..Reply::default() });
    mailbox.post(QUEUES[0], [message(0)]);
    mailbox.queue.wait_for("completed", 1).await;
    running.stop().await;
}

#[tokio::test]
async fn claim_in_progress_at_shutdown_is_reported() {
    let mailbox = Mailbox::open(shell("echo ran > ran")).await;
    let granted = ok(claim(TASK_IDS[0], Duration::from_secs(60), &shell("echo ran > ran")));
    mailbox.queue.once("claim", Reply { after: Duration::from_millis(700), ..granted });
    mailbox.post(QUEUES[0], [message(0)]);
    let running = start(&mailbox, 2);
    mailbox.queue.wait_for("claim", 1).await;
    let (directory, begun) = (running.directory(), Instant::now());
    running.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    let reports = mailbox.queue.reports();
    assert_eq!((reports.len(), &reports[0].body), (1, &json!({"reason": "worker-shutdown"})));
    assert!(!directory.join("ran").exists());
    assert_eq!(mailbox.deletions().len(), 1);
}

#[tokio::test]
async fn kept_directory_is_renamed_when_run_comes_again() {
    let mailbox = Mailbox::open(shell("echo x >> file")).await;
    let running = start(&mailbox, 1);
    // The second of three tasks is claimed once the worker is done with the first.
    for (ended, task) in [0, 1, 0].into_iter().enumerate() {
        mailbox.post(QUEUES[0], [message(task)]);
        mailbox.queue.wait_for("completed", ended + 1).await;
    }
    let aside = running.dir.path().join(format!("work/{}-0.1", TASK_IDS[0]));
    for directory in [running.directory(), aside] {
        assert_eq!(std::fs::read_to_string(directory.join("file")).unwrap(), "x\n", "{}", directory.display());
    }
    assert_eq!(mailbox.queue.reports().len(), 3);
    running.stop().await;
}
