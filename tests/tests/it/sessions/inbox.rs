//! The inbox: its items, their delay, and their acknowledgement.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Launch;

use super::{QUEUE, claim, command, create, date, end, id, inbox, items, path, refused, renew, report, start};
use crate::fleet::{NOTIFIED_WITHIN, without_fallbacks, without_notifications};
use crate::rig::{Raw, Rig, call, client_of, eventually, minutes_from_now, new_task, ok};

/// Ten times the interval between two checks for other servers' changes.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
const READERS: usize = 60;
/// Far less than the time in which an inbox does not repeat a renewal.
const RENEWED_AFTER: Duration = Duration::from_millis(200);
/// Connections of the server; more readers than this ask it.
const CONNECTIONS: usize = 20;

/// Waits until the inbox has an item; it must come before the wait ends.
async fn one_item(rig: &Rig, session: &str, after: i64) -> Value {
    let answer = inbox(rig, session, &format!("after={after}&wait=30")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut items = answer.body["items"].as_array().unwrap().clone();
    assert_eq!(items.len(), 1, "{}", answer.body);
    items.remove(0)
}

fn ids(items: &[Value]) -> Vec<i64> {
    items.iter().map(|item| item["id"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_reader_is_notified_of_cancel_command_and_end() {
    let rig = Rig::start_with(without_fallbacks).await;
    let task = create(&rig, 1).await[0];
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let held = claim(&rig, "w1", Some(session), 1).await.remove(0);
    let cancel = async {
        until_waiting(&rig, 1).await;
        assert_eq!(rig.call("POST", &format!("/task/{task}/cancel"), None).await.status, 200);
        Instant::now()
    };
    let (item, cancelled) = tokio::join!(one_item(&rig, session, 0), cancel);
    assert!(cancelled.elapsed() < NOTIFIED_WITHIN, "{:?}", cancelled.elapsed());
    let expected = json!({"id": item["id"], "kind": "run-ended", "taskId": task, "runId": 0, "state": "exception",
        "reasonResolved": "canceled"});
    assert_eq!(item, expected);
    assert_eq!(report(&rig, &held, "completed").await.status, 409);

    let after = item["id"].as_i64().unwrap();
    let freeze = async {
        until_waiting(&rig, 1).await;
        assert_eq!(command(&rig, session, json!({"command": "freeze"})).await.status, 202);
        Instant::now()
    };
    let (item, sent) = tokio::join!(one_item(&rig, session, after), freeze);
    assert!(sent.elapsed() < NOTIFIED_WITHIN, "{:?}", sent.elapsed());
    assert_eq!((&item["kind"], &item["command"]), (&json!("command"), &json!("freeze")), "{item}");
    assert!(item["id"].as_i64().unwrap() > after);

    let ending = async {
        until_waiting(&rig, 1).await;
        assert_eq!(end(&rig, session).await.status, 200);
        Instant::now()
    };
    let query = format!("after={}&wait=30", item["id"]);
    let (answer, ended) = tokio::join!(inbox(&rig, session, &query), ending);
    refused(&answer, 410, "SessionEnded");
    assert!(ended.elapsed() < NOTIFIED_WITHIN, "{:?}", ended.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_runs_by_time_are_notified() {
    let rig = Rig::start_with(|launch| without_fallbacks(launch).flag("--clock", "manual")).await;
    let session = start(&rig, "w1", json!({"ttl": 3600})).await;
    let (session, mut after) = (id(&session), 0);
    for (policy, seconds, ended) in [
        (json!({"claimTimeout": 10}), 11.0, json!(["claim-expired", "lease"])),
        (json!({"completeTime": 10}), 11.0, json!(["claim-expired", "complete-time"])),
        (json!({"claimTimeout": 1200}), 601.0, json!(["deadline-exceeded", null])),
    ] {
        ok(rig.call("PUT", &format!("{TENURE_API}/queues/sessions%2Flinux/policy"), Some(&policy)).await);
        // Without retries, so that the next task is claimed instead of a next run.
        let task = rig
            .create_with(QUEUE, |body| {
                body["deadline"] = minutes_from_now(10).into();
                body["retries"] = json!(0);
            })
            .await;
        assert_eq!(claim(&rig, "w1", Some(session), 1).await.len(), 1);
        let pass_time = async {
            until_waiting(&rig, 1).await;
            rig.advance(seconds).await;
            Instant::now()
        };
        let (item, passed) = tokio::join!(one_item(&rig, session, after), pass_time);
        assert!(passed.elapsed() < NOTIFIED_WITHIN, "{policy}: {:?}", passed.elapsed());
        assert_eq!(item["taskId"], json!(task));
        assert_eq!(json!([item["reasonResolved"], item["endedBy"]]), ended, "{policy}");
        after = item["id"].as_i64().unwrap();
    }
}

async fn until_waiting(rig: &Rig, requests: usize) {
    let line = format!("tenure_inbox_waiters {requests}");
    eventually(&line, async || {
        let metrics = rig.send(&Raw::new("GET", "/metrics")).await;
        metrics.text().lines().any(|found| found == line).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox_shows_renewal_and_policy_version_of_other_server() {
    let rig = Rig::start().await;
    let second = rig.another("second").await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    // From here on this server renews for an inbox only sessions without a recent renewal.
    let first = inbox(&rig, session, "wait=0").await;
    assert_eq!(first.body["policyVersion"], 0, "{}", first.body);
    for (another, version) in [(false, 1), (true, 2)] {
        let policy = format!("{TENURE_API}/queues/sessions%2Flinux/policy");
        let changed = rig.call("PUT", &policy, Some(&json!({"delay": version}))).await;
        assert_eq!((changed.status, &changed.body["version"]), (200, &json!(version)), "{}", changed.body);
        tokio::time::sleep(RENEWED_AFTER).await;
        let renewed = match another {
            true => call(&mut client_of(&second), &rig.root, "POST", &path(session, "/renew"), Some(&json!({}))).await,
            false => renew(&rig, session, json!({})).await,
        };
        let read = inbox(&rig, session, "wait=1").await;
        assert_eq!((renewed.status, read.status), (200, 200), "{} {}", renewed.body, read.body);
        assert!(date(&renewed.body["expires"]) >= date(&first.body["expires"]) + RENEWED_AFTER);
        assert!(date(&read.body["expires"]) >= date(&renewed.body["expires"]), "another server: {another}");
        assert_eq!(read.body["policyVersion"], version, "another server: {another}");
    }
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_found_without_notifications() {
    let rig = Rig::start_with(without_notifications).await;
    let launch = without_notifications(Launch::on_database(rig.database.url(), &rig.secret_key));
    let second = launch.start(rig.folder.path(), "second").await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let tasks = create(&rig, 2).await;
    assert_eq!(claim(&rig, "w1", Some(session), 2).await.len(), 2);
    let mut after = 0;
    for (server, task) in [&rig.server, &second].into_iter().zip(tasks) {
        let cancel = (format!("/task/{task}/cancel"), None, 200, json!("run-ended"));
        let command = (path(session, "/commands"), Some(json!({"command": "balance"})), 202, json!("command"));
        for (path, body, status, kind) in [cancel, command] {
            let call = async {
                until_waiting(&rig, 1).await;
                let answer = call(&mut client_of(server), &rig.root, "POST", &path, body.as_ref()).await;
                assert_eq!(answer.status, status, "{}", answer.body);
                Instant::now()
            };
            let (item, called) = tokio::join!(one_item(&rig, session, after), call);
            assert!(called.elapsed() < SEEN_WITHIN, "{:?}", called.elapsed());
            assert_eq!(item["kind"], kind, "{item}");
            after = item["id"].as_i64().unwrap();
        }
    }
    second.stop().await;
}

/// Proves the assumption of the tests of notifications and of the fallback: there is no third
/// mechanism.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox_finds_nothing_without_notifications_and_fallback() {
    let rig = Rig::start_with(|launch| without_notifications(without_fallbacks(launch))).await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let send = async {
        until_waiting(&rig, 1).await;
        assert_eq!(command(&rig, session, json!({"command": "freeze"})).await.status, 202);
    };
    let (answer, ()) = tokio::join!(inbox(&rig, session, "wait=6"), send);
    assert_eq!((answer.status, &answer.body["items"]), (200, &json!([])));
    // A later request checks the inbox, so nothing is lost.
    assert_eq!(items(&rig, session, 0).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_is_cut_on_the_way_loses_no_item() {
    let rig = Rig::start().await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let mut expected = Vec::new();
    for round in 0..10 {
        let target = path(session, "/inbox?after=0&wait=30");
        let mut client = rig.client();
        client.start(&rig.root, "GET", &target, None).await.unwrap();
        let sent = command(&rig, session, json!({"command": "stop-task", "taskId": new_task()})).await;
        assert_eq!(sent.status, 202, "{}", sent.body);
        expected.push(sent.body["id"].as_i64().unwrap());
        // At any time before, while, or after the answer is written.
        tokio::time::sleep(Duration::from_millis(3 * round)).await;
        client.hang_up();
        assert_eq!(ids(&items(&rig, session, 0).await), expected, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox_waits_for_at_most_a_third_of_the_ttl() {
    let rig = Rig::start().await;
    let session = start(&rig, "w1", json!({"ttl": 15})).await;
    for (query, least) in [("wait=0", 0), ("wait=1", 1), ("wait=30", 5), ("", 5)] {
        let asked = Instant::now();
        let answer = inbox(&rig, id(&session), query).await;
        assert_eq!((answer.status, &answer.body["items"]), (200, &json!([])), "{}", answer.body);
        let took = asked.elapsed();
        assert!(took >= Duration::from_secs(least), "`{query}` took {took:?}");
        let left = date(&answer.body["expires"]) - date(&answer.body["serverTime"]);
        let spent = chrono::TimeDelta::seconds(15) - left;
        assert!(
            spent >= chrono::TimeDelta::milliseconds(1_000 * i64::try_from(least).unwrap() - 100),
            "`{query}`: the time of the answer"
        );
        assert!(left > chrono::TimeDelta::zero(), "`{query}`: it asks again in time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_commands_wait_for_a_worker_and_no_more() {
    let rig = Rig::start().await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let task = new_task();
    let kinds = [
        json!({"command": "freeze"}),
        json!({"command": "unfreeze"}),
        json!({"command": "balance"}),
        json!({"command": "stop-task", "taskId": task}),
        json!({"command": "shutdown"}),
    ];
    for body in kinds.iter().cycle().take(100) {
        let sent = command(&rig, session, body.clone()).await;
        assert_eq!(sent.status, 202, "{}", sent.body);
    }
    for body in &kinds {
        let why = refused(&command(&rig, session, body.clone()).await, 409, "RequestConflict");
        assert!(why.contains("100"), "{why}");
    }
    let there = items(&rig, session, 0).await;
    assert_eq!(there.len(), 100);
    for (item, body) in there.iter().zip(kinds.iter().cycle()) {
        assert_eq!(item["kind"], "command");
        assert_eq!((&item["command"], &item["taskId"]), (&body["command"], &body["taskId"]), "{item}");
    }
    assert_eq!(items(&rig, session, ids(&there)[0]).await.len(), 99);
    assert_eq!(command(&rig, session, kinds[0].clone()).await.status, 202);
    refused(&command(&rig, session, kinds[0].clone()).await, 409, "RequestConflict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m13_unread_commands_end_with_their_session() {
    let rig = Rig::start().await;
    let first = start(&rig, "w1", json!({})).await;
    let first = id(&first);
    assert_eq!(command(&rig, first, json!({"command": "dance"})).await.status, 400);
    assert_eq!(items(&rig, first, 0).await, Vec::<Value>::new(), "an unknown command reaches nobody");
    for kind in ["freeze", "shutdown"] {
        assert_eq!(command(&rig, first, json!({"command": kind})).await.status, 202);
    }
    assert_eq!(end(&rig, first).await.status, 200);
    let second = start(&rig, "w1", json!({})).await;
    assert_eq!(items(&rig, id(&second), 0).await, Vec::<Value>::new());
    assert_eq!(command(&rig, first, json!({"command": "freeze"})).await.status, 404);
    // A command that was read is not there again.
    assert_eq!(command(&rig, id(&second), json!({"command": "unfreeze"})).await.status, 202);
    let read = ids(&items(&rig, id(&second), 0).await);
    assert_eq!(read.len(), 1);
    assert_eq!(items(&rig, id(&second), read[0]).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_inboxes_use_only_connections() {
    let rig = Rig::start_with(|launch| launch.flag("--connections-max", CONNECTIONS.to_string())).await;
    let mut sessions = Vec::new();
    for number in 0..READERS {
        sessions.push(start(&rig, &format!("w{number}"), json!({})).await);
    }
    let read = async |session: &Value| {
        let mut client = rig.client();
        let answer = client.call(&rig.root, "GET", &path(id(session), "/inbox?wait=1"), None).await;
        answer.map_or(0, |answer| answer.status)
    };
    let mut database = rig.database.connect("test").await;
    let transactions = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut database).await.unwrap()
    };
    let (statuses, open) = tokio::join!(join_all(sessions.iter().map(read)), transactions);
    assert!(open < 3, "a waiting reader has no session of the database; a pass may have one: {open}");
    assert!(statuses.contains(&200), "{statuses:?}");
    let refused = statuses.iter().filter(|status| **status != 200).count();
    assert!(refused >= READERS - 2 * CONNECTIONS, "they count as any other request that waits: {statuses:?}");
    assert!(statuses.iter().all(|status| [0, 200, 503].contains(status)), "{statuses:?}");
    eventually("slots are free again", async || {
        let answer =
            rig.client().call(&rig.root, "GET", &format!("{TENURE_API}/queues/sessions%2Flinux/workers"), None).await;
        answer
            .is_ok_and(|answer| answer.status == 200 && answer.body["workers"].as_array().unwrap().len() == READERS)
            .then_some(())
    })
    .await;
}
