//! Messages: getting, hiding and deleting, in Azure's protocol.

use super::*;
use crate::fleet::{NOTIFIED_WITHIN, another_without_fallbacks, until_they_hear};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_priority_has_a_queue_and_the_highest_comes_first() {
    let rig = Rig::start().await;
    let urls = Urls::ask(&rig).await;
    assert_eq!(urls.0.len(), 7);
    let priorities = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"];
    for (priority, (poll, delete)) in priorities.iter().zip(&urls.0) {
        let task = create(&rig, priority).await;
        let found = messages(&get(&rig, poll).await);
        assert_eq!(found.iter().map(|one| (one.task.clone(), one.run)).collect::<Vec<_>>(), [(task.to_string(), 0)]);
        assert!(poll.contains("?visibilitytimeout=300&") && !poll.contains("spr="), "{poll}");
        assert!(delete.contains("/messages/{{messageId}}?popreceipt={{popReceipt}}&"), "{delete}");
        let rest = delete.replacen("{{messageId}}", "", 1).replacen("{{popReceipt}}", "", 1);
        assert!(!format!("{poll}{rest}").contains(['{', '}']), "no other braces: {delete}");
    }
    assert_eq!(get(&rig, urls.poll()).await.text(), r#"<?xml version="1.0" encoding="utf-8"?><QueueMessagesList />"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q2_list_has_each_field_and_as_many_messages_as_asked() {
    const MOST: usize = 32;
    let rig = Rig::start().await;
    let urls = Urls::ask(&rig).await;
    let many = |count: &str| format!("{}&numofmessages={count}", urls.poll());
    for (bad, code) in
        [("0", "OutOfRange"), ("33", "OutOfRange"), ("-1", "OutOfRange"), ("abc", "Invalid"), ("", "Invalid")]
    {
        assert_error(&get(&rig, &many(bad)).await, 400, &format!("{code}QueryParameterValue"));
    }
    let mut created = Vec::new();
    for _ in 0..=MOST {
        created.push(create(&rig, "lowest").await.to_string());
    }
    let reply = get(&rig, urls.poll()).await;
    let mut got = messages(&reply);
    assert_eq!(got.len(), 1, "one by default");
    let text = reply.text();
    let fields = ["MessageId", "InsertionTime", "ExpirationTime", "PopReceipt", "TimeNextVisible", "DequeueCount"];
    let places: Vec<usize> = fields.iter().map(|field| text.find(&format!("<{field}>")).expect(field)).collect();
    assert!(places.is_sorted() && text.find("<MessageText>").unwrap() > places[5], "in Azure's order: {text}");
    assert_eq!(element(&text, "DequeueCount"), Some("1"));
    got.extend(messages(&get(&rig, &many("32")).await));
    let tasks: Vec<String> = got.iter().map(|message| message.task.clone()).collect();
    assert_eq!(tasks, created, "the oldest first");
    assert!(messages(&get(&rig, &many("32")).await).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q9_undeleted_messages_do_not_count_and_end_with_their_task() {
    let rig = Rig::manual().await;
    let mut urls = Urls::ask(&rig).await;
    let pending = async || {
        let counts = rig.call("GET", "/task-queues/poll%2Fplane/counts", None).await;
        counts.body["pendingTasks"].as_i64().unwrap()
    };
    let (claimed, left) = (create(&rig, "lowest").await, create(&rig, "lowest").await);
    let two = format!("{}&numofmessages=2", urls.poll());
    assert_eq!(messages(&get(&rig, &two).await).len(), 2);
    assert_eq!(pending().await, 2);
    let worker = json!({"workerGroup": "group", "workerId": "worker"});
    ok(rig.call("POST", &format!("/task/{claimed}/runs/0/claim"), Some(&worker)).await);
    assert_eq!(pending().await, 1, "runs count, not messages");
    rig.advance(301).await;
    let found = messages(&get(&rig, &two).await);
    assert_eq!(found.iter().map(|message| message.task.clone()).collect::<Vec<_>>(), [left.to_string()]);
    assert_eq!(found[0].dequeued, "2");
    // The deadline is an hour after the creation.
    rig.advance(3_600).await;
    let status = eventually("the deadline has ended it", async || {
        let status = rig.status(left).await;
        (status["state"] == "exception").then_some(status)
    })
    .await;
    assert_eq!(status["runs"][0]["reasonResolved"], "deadline-exceeded");
    urls = Urls::ask(&rig).await;
    assert!(messages(&get(&rig, urls.poll()).await).is_empty());
    let reply = send(&rig.server, "HEAD", &urls.at("", "&comp=metadata")).await;
    assert_eq!((reply.header("x-ms-approximate-messages-count"), pending().await), (Some("0"), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn legacy_scopes_allow_claims_and_creates() {
    let rig = Rig::start().await;
    let submitter = rig.make_client("submitter", &[&format!("queue:create-task:{QUEUE}")]).await;
    let (task, body) = (new_task(), definition(QUEUE));
    ok(call(&mut rig.client(), &submitter, "PUT", &format!("/task/{task}"), Some(&body)).await);
    let mut urgent = body.clone();
    urgent["priority"] = json!("low");
    let refused = call(&mut rig.client(), &submitter, "PUT", &format!("/task/{}", new_task()), Some(&urgent)).await;
    assert_eq!(refused.code(), "InsufficientScopes", "scopes without a priority are for the lowest one");
    let role = format!("assume:worker-type:{QUEUE}");
    let worker = rig.make_client("worker", &["queue:claim-task", &role, "assume:worker-id:g/w"]).await;
    let path = format!("/task/{task}/runs/0/claim");
    let other = json!({"workerGroup": "g", "workerId": "other"});
    assert_eq!(call(&mut rig.client(), &worker, "POST", &path, Some(&other)).await.code(), "InsufficientScopes");
    let own = json!({"workerGroup": "g", "workerId": "w"});
    ok(call(&mut rig.client(), &worker, "POST", &path, Some(&own)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unencoded_receipt_fails_and_raw_slash_works() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--message-visibility", "1s")).await;
    let urls = Urls::ask(&rig).await;
    create(&rig, "lowest").await;
    for _ in 0..20 {
        let message = messages(&get(&rig, urls.poll()).await).remove(0);
        let raw = send(&rig.server, "DELETE", &urls.delete_with(&message.id, &message.receipt)).await;
        assert_error(&raw, 400, "PopReceiptMismatch");
        let only_plus = message.receipt.replace('+', "%2B");
        assert!(only_plus.contains('/') && only_plus.ends_with('='), "{only_plus}");
        let reply = send(&rig.server, "DELETE", &urls.delete_with(&message.id, &only_plus)).await;
        assert_eq!((reply.status, reply.body.len()), (204, 0), "{}", reply.text());
        // The message after a deleted one is hidden for the server's visibility timeout.
        rig.advance(2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_changes_nothing_and_an_update_hides_or_shows() {
    let rig = Rig::manual().await;
    let urls = Urls::ask(&rig).await;
    let task = create(&rig, "lowest").await;
    let peek = async || messages(&get(&rig, &format!("{}&peekonly=true&numofmessages=32", urls.poll())).await);
    for _ in 0..2 {
        let seen = peek().await.remove(0);
        assert_eq!((seen.task, seen.receipt.as_str(), seen.dequeued.as_str()), (task.to_string(), "", "0"));
    }
    let count = async || {
        let reply = send(&rig.server, "HEAD", &urls.at("", "&comp=metadata")).await;
        assert_eq!(reply.status, 200);
        reply.header("x-ms-approximate-messages-count").unwrap().to_owned()
    };
    let got = messages(&get(&rig, urls.poll()).await).remove(0);
    assert_eq!((peek().await.len(), count().await.as_str()), (0, "1"));
    let update = async |message: &Message, seconds: &str, body: Option<&str>| {
        let more = format!("&popreceipt={}", encoded(&message.receipt));
        let target = urls.at(&format!("/messages/{}", message.id), &more);
        let target = target.replace("visibilitytimeout=300", &format!("visibilitytimeout={seconds}"));
        let mut raw = Raw::new("PUT", &target);
        raw.body = body.map(|body| body.as_bytes().to_vec());
        raw.send(rig.server.root_url()).await
    };
    for (seconds, code) in [("-1", "OutOfRange"), ("604801", "OutOfRange"), ("x", "Invalid")] {
        assert_error(&update(&got, seconds, None).await, 400, &format!("{code}QueryParameterValue"));
    }
    let document = |text: &str| format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>");
    assert_error(&update(&got, "600", Some(&document("b3RoZXI="))).await, 400, "InvalidXmlNodeValue");
    assert_error(&update(&got, "600", Some("<x")).await, 400, "InvalidXmlDocument");
    let huge = document(&"a".repeat(100 << 10));
    assert_error(&update(&got, "600", Some(&huge)).await, 413, "RequestBodyTooLarge");
    let same = STANDARD.encode(format!(r#"{{"taskId":"{task}","runId":0}}"#));
    let updated = update(&got, "600", Some(&document(&same))).await;
    assert_eq!(updated.status, 204, "{}", updated.text());
    assert!(updated.header("x-ms-time-next-visible").unwrap().ends_with(" GMT"));
    let renewed = Message { receipt: updated.header("x-ms-popreceipt").unwrap().to_owned(), ..got.clone() };
    assert_error(&update(&got, "600", None).await, 400, "PopReceiptMismatch");
    rig.advance(301).await;
    assert_eq!(peek().await.len(), 0, "hidden for longer");
    assert_eq!(update(&renewed, "0", None).await.status, 204);
    let again = messages(&get(&rig, urls.poll()).await);
    assert_eq!((again.len(), again[0].dequeued.as_str()), (1, "2"), "visible at once");
    assert_error(&get(&rig, &urls.at("", "")).await, 400, "InvalidQueryParameterValue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_have_azures_headers() {
    let rig = Rig::start().await;
    let urls = Urls::ask(&rig).await;
    let raw =
        Raw::new("GET", urls.poll()).header("x-ms-version", "2026-10-06").header("x-ms-client-request-id", "mine");
    let reply = raw.send(rig.server.root_url()).await;
    assert_eq!(reply.header("x-ms-version"), Some("2026-10-06"));
    assert_eq!(reply.header("x-ms-client-request-id"), Some("mine"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert!(reply.header("server").unwrap().starts_with("Tenure/") && reply.header("date").is_some());
    create(&rig, "lowest").await;
    let text = get(&rig, urls.poll()).await.text();
    for name in ["InsertionTime", "ExpirationTime", "TimeNextVisible"] {
        let time = element(&text, name).unwrap();
        chrono::NaiveDateTime::parse_from_str(time, "%a, %d %b %Y %H:%M:%S GMT").expect(time);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_again_and_again_is_logged_once() {
    let rig = Rig::manual().await;
    let urls = Urls::ask(&rig).await;
    let task = create(&rig, "lowest").await;
    for _ in 0..12 {
        assert_eq!(messages(&get(&rig, &urls.poll_for(1)).await).len(), 1);
        rig.advance(2).await;
    }
    let log = rig.server.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("received many times")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains(&task.to_string()) && warnings[0].contains(QUEUE), "{}", warnings[0]);
    let gauge = format!(r#"tenure_messages_alarming{{task_queue="{QUEUE}"}} 1"#);
    let metrics = async || send(&rig.server, "GET", "/metrics").await.text();
    eventually("the metrics show it", async || metrics().await.contains(&gauge).then_some(())).await;
    let text = metrics().await;
    assert!(text.contains(r#"tenure_messages_total{what="alarming"} 1"#), "{text}");
    assert!(text.contains(r#"tenure_messages_total{what="returned"} 12"#), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_appears_at_other_server_with_or_without_notification() {
    let rig = Rig::start().await;
    let (notified, other) = (another_without_fallbacks(&rig, "notified").await, rig.another("other").await);
    let urls = Urls::ask(&rig).await;
    let seen_after = async |server: &Server| {
        assert!(messages(&send(server, "GET", urls.poll()).await).is_empty());
        create(&rig, "lowest").await;
        let made = Instant::now();
        eventually("the other server shows it", async || {
            (!messages(&send(server, "GET", urls.poll()).await).is_empty()).then_some(())
        })
        .await;
        made.elapsed()
    };
    until_they_hear(&mut rig.database.connect("test").await, 3).await;
    let with_bell = seen_after(&notified).await;
    assert!(with_bell < NOTIFIED_WITHIN, "{with_bell:?}");
    let mut admin = rig.database.connect("saboteur").await;
    let silence = tokio::spawn(async move {
        loop {
            let listeners = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                             WHERE datname = current_database() AND application_name LIKE 'tenure/% listener'";
            sqlx::query(listeners).execute(&mut admin).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let without = seen_after(&other).await;
    silence.abort();
    assert!(without < SEEN_WITHOUT_BELL_WITHIN, "{without:?}");
}
