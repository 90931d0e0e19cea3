//! Claims that were lost, renewed, or ended too early.

use serde_json::{Value, json};
use sqlx::Executor as _;
use tenure_tests::http::QUEUE_API;

use super::{QUEUE, advance, change, counts, emitted_exchanges, send_report, times, with_a_clock};
use crate::rig::{Rig, TIMEOUT, claim_path, client_of, definition, eventually, new_task, status, worker};

/// Workers that wait.
const WAITING: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_6681_a_claim_whose_answer_could_not_be_sent_goes_to_the_next_worker() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut body = definition(QUEUE);
    // More than the sockets take, so that the answer cannot be flushed.
    body["payload"] = json!({"large": "x".repeat(9 << 20)});
    assert_eq!(rig.create(task, &body).await.status, 200);
    let mut lost = rig.client();
    let path = format!("{QUEUE_API}{}", claim_path(QUEUE));
    lost.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    eventually("it is claimed", async || (rig.status(task).await["state"] == "running").then_some(())).await;
    lost.hang_up();
    let next = eventually("the next worker has it", async || rig.claim(QUEUE, 1).await.pop()).await;
    assert_eq!((&next["runId"], &next["status"]["retriesLeft"]), (&json!(1), &json!(5)), "no retry is used up");
    assert_eq!(send_report(&rig, &next, "completed", None).await.status, 200);
}

/// Errors of one shared reader failed all requests with 500. Here the statement that fails is answered with 503, which clients
/// repeat; no caller is left waiting, and no task is lost or run twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_6634_a_database_that_hiccups_leaves_nobody_behind_who_waits_for_work() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "20s")).await;
    let path = format!("{QUEUE_API}{}", claim_path(QUEUE));
    let mut waiting: Vec<_> = (0..WAITING).map(|_| rig.client()).collect();
    for client in &mut waiting {
        client.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    }
    let mut database = rig.database.connect("test").await;
    eventually("they are in the wait list", async || {
        let known = sqlx::query("SELECT FROM task_queues WHERE name = $1").bind(QUEUE);
        known.fetch_optional(&mut database).await.unwrap()
    })
    .await;
    let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.execute(all).await.unwrap();
    for _ in 0..WAITING {
        let task = new_task();
        let created = async || (rig.create(task, &definition(QUEUE)).await.status == 200).then_some(());
        eventually("it is created", created).await;
    }
    let mut claimed = Vec::new();
    for client in &mut waiting {
        let reply = tokio::time::timeout(TIMEOUT, client.finish()).await.unwrap().unwrap();
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        assert!([200, 503].contains(&reply.status), "{body}");
        claimed.extend(body["tasks"].as_array().cloned().unwrap_or_default());
    }
    while claimed.len() < WAITING {
        claimed.push(eventually("the rest can be claimed", async || rig.claim(QUEUE, 1).await.pop()).await);
    }
    for claim in &claimed {
        assert_eq!(claim["status"]["retriesLeft"], 5, "{claim}");
        assert_eq!(send_report(&rig, claim, "completed", None).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_6617_a_renewed_claim_does_not_end_when_its_first_term_does() {
    let rig = with_a_clock().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let mut claim = rig.claim(QUEUE, 1).await.remove(0);
    for _ in 0..2 {
        advance(&rig, 15 * 60).await;
        let renewed = send_report(&rig, &claim, "reclaim", None).await;
        assert_eq!(renewed.status, 200, "{}", renewed.body);
        claim = renewed.body;
    }
    assert_eq!(rig.status(task).await["runs"].as_array().map(Vec::len), Some(1));
    assert_eq!(send_report(&rig, &claim, "completed", None).await.status, 200);
    assert_eq!(times(&emitted_exchanges(&rig, task).await, "task-exception"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7856_a_claim_that_was_renewed_counts_once() {
    let rig = Rig::start().await;
    assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    for _ in 0..3 {
        assert_eq!(send_report(&rig, &claim, "reclaim", None).await.status, 200);
        assert_eq!(counts(&rig, QUEUE).await, (json!(0), json!(1)));
    }
    assert_eq!(send_report(&rig, &claim, "completed", None).await.status, 200);
    assert_eq!(counts(&rig, QUEUE).await, (json!(0), json!(0)));
}

/// Contract section 8, hole 4: a wrong key is read, so that the slower one of two renewals moves the end of the lease back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_8_4_of_many_renewals_at_once_none_shortens_the_lease() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let renewals = (0..20).map(|_| send_report(&rig, &claim, "reclaim", None));
    let answers = futures_util::future::join_all(renewals).await;
    let until = |answer: &tenure_tests::http::Answer| answer.body["takenUntil"].as_str().unwrap_or_default().to_owned();
    for answer in &answers {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let longest = answers.iter().map(until).max().unwrap();
    assert_eq!(rig.status(task).await["runs"][0]["takenUntil"], longest);
}

/// Contract section 8, hole 3: a crash between the cancel and the event loses the event and leaves dependents behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_8_3_a_server_that_dies_at_a_deadline_loses_neither_event_nor_dependents() {
    let mut rig = Rig::start().await;
    let (task, dependent) = (new_task(), new_task());
    let mut soon = definition(QUEUE);
    soon["deadline"] = json!(tenure_tests::clock::wire_date(tenure_tests::clock::unix_millis() + 5_000));
    assert_eq!(rig.create(task, &soon).await.status, 200);
    let mut after = definition(QUEUE);
    (after["dependencies"], after["requires"]) = (json!([task]), json!("all-resolved"));
    assert_eq!(rig.create(dependent, &after).await.status, 200);
    let resolved = async || (rig.status(task).await["state"] == "exception").then_some(());
    eventually("the deadline has passed", resolved).await;
    rig.server.kill().unwrap();
    let second = rig.another("second").await;
    eventually("the dependent is scheduled", async || {
        (status(&mut client_of(&second), &rig.root, dependent).await["state"] == "pending").then_some(())
    })
    .await;
    rig.server = second;
    assert_eq!(times(&emitted_exchanges(&rig, task).await, "task-exception"), 1);
}

/// Contract section 7: the default run 0 is used when the count of a later run is cleared, and a claim that ended with a
/// retry stays counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_7_a_run_that_ends_with_a_retry_is_not_counted_as_claimed() {
    let rig = Rig::start().await;
    assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    for _ in 0..3 {
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        let reason = json!({"reason": "intermittent-task"});
        assert_eq!(send_report(&rig, &claim, "exception", Some(&reason)).await.status, 200);
        assert_eq!(counts(&rig, QUEUE).await, (json!(1), json!(0)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_8804_an_exception_is_told_once_although_two_servers_look_for_it() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-timeout", "1s")).await;
    let _second = rig.another("second").await;
    let task = new_task();
    let mut body = definition(QUEUE);
    body["retries"] = json!(0);
    assert_eq!(rig.create(task, &body).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    eventually("the claim has ended", async || (rig.status(task).await["state"] == "exception").then_some(())).await;
    assert_eq!(
        send_report(&rig, &claim, "exception", Some(&json!({"reason": "worker-shutdown"}))).await.code(),
        "RequestConflict"
    );
    assert_eq!(change(&rig, task, "cancel", None).await.status, 200);
    assert_eq!(times(&emitted_exchanges(&rig, task).await, "task-exception"), 1);
}
