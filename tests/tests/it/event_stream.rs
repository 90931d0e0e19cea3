//! Events as a stream: order, filters, resumption, and readers that are slow, disconnected,
//! unauthorized or too many.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Server;

use crate::rig::{LOOK_EVERY, Rig, call, claim, client_of, definition, eventually, new_task, ok, report};
use crate::sse::{Item, Stream, position_of};

const STREAMS_MAX: usize = 500;

async fn log(server: &Server, who: &Credentials, mut after: i64, filter: &str) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let path = format!("{TENURE_API}/events?after={after}&limit=400{filter}");
        let answer = ok(call(&mut client_of(server), who, "GET", &path, None).await);
        all.extend(answer["events"].as_array().unwrap().iter().cloned());
        let on = answer["after"].as_i64().unwrap();
        if on == after {
            return all;
        }
        after = on;
    }
}

async fn newest(server: &Server, who: &Credentials) -> i64 {
    let path = format!("{TENURE_API}/events?after=latest");
    let answer = call(&mut client_of(server), who, "GET", &path, None).await;
    assert_eq!((answer.status, &answer.body["events"]), (200, &json!([])), "{}", answer.body);
    answer.body["after"].as_i64().unwrap()
}

async fn create(server: &Server, who: &Credentials, body: &Value) {
    let path = format!("/task/{}", new_task());
    ok(call(&mut client_of(server), who, "PUT", &path, Some(body)).await);
}

/// Puts a task into a group that stays unresolved while the task does, so that the group has no
/// events.
fn in_open_group(mut body: Value) -> Value {
    body["taskGroupId"] = json!("AAAAAAAAQAqAAAAAAAAAAA");
    body
}

/// Creates tasks on one server, claims and reports them on the other; every fifth is retried first.
async fn lives(creator: &Server, worker: &Server, who: &Credentials, queue: &str, tasks: usize) {
    let body = in_open_group(definition(queue));
    for n in 0..tasks {
        create(creator, who, &body).await;
        let mut claims = claim(&mut client_of(worker), who, queue, 1).await;
        if n % 5 == 0 {
            let again = json!({"reason": "intermittent-task"});
            report(worker, &claims.remove(0), "exception", Some(&again)).await;
            claims = claim(&mut client_of(worker), who, queue, 1).await;
        }
        report(worker, &claims.remove(0), if n % 7 == 0 { "failed" } else { "completed" }, None).await;
    }
}

async fn metric(server: &Server, name: &str) -> f64 {
    let reply = crate::rig::Raw::new("GET", "/metrics").send(server.root_url()).await;
    let line = reply.text().lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    line.map_or(0.0, |number| number.trim().parse().unwrap())
}

const STREAMS: &str = "tenure_event_streams";
const READS_FOR_ALL: &str = "tenure_event_reads_total{who=\"all\"}";
const READS_FOR_ONE: &str = "tenure_event_reads_total{who=\"one\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_two_servers_equal_the_log() {
    const TASKS: usize = 40;
    let rig = Rig::start().await;
    let other = rig.another("second").await;
    let (here, who) = (&rig.server, &rig.root);
    create(here, who, &in_open_group(definition("stream/before"))).await;
    let begun = newest(here, who).await;
    assert_eq!(begun, 2);
    let mut from_now = Stream::open(here, who, "").await.begun().await;
    let mut from_now_there = Stream::open(&other, who, "").await.begun().await;
    let (from_now, from_now_there) = (&mut from_now, &mut from_now_there);
    // Four actors with 40 tasks each. Meanwhile other readers start at the beginning or in the
    // middle.
    let working = async {
        tokio::join!(
            lives(here, &other, who, "stream/a", TASKS),
            lives(&other, here, who, "stream/b", TASKS),
            lives(here, here, who, "stream/c", TASKS),
            lives(&other, &other, who, "stream/d", TASKS),
        );
    };
    let joining = async {
        let mut late = Vec::new();
        for n in 0..6_i64 {
            eventually("the log grows", async || (newest(here, who).await > n * 80).then_some(())).await;
            let query = if n % 2 == 0 { "?after=0".to_owned() } else { format!("?after={}", n * 30) };
            let server = if n < 3 { here } else { &other };
            late.push((if n % 2 == 0 { 0 } else { n * 30 }, Stream::open(server, who, &query).await));
        }
        late
    };
    let ((), mut late) = tokio::join!(working, joining);
    let end = newest(here, who).await;
    assert_eq!(end, 2 + 160 * 4 + 32 * 3);
    let all = log(here, who, 0, "").await;
    let positions: Vec<i64> = all.iter().map(|event| event["position"].as_i64().unwrap()).collect();
    assert_eq!(positions, (1..=end).collect::<Vec<_>>());
    let since = |after: i64| &all[usize::try_from(after).unwrap()..];
    assert_eq!(from_now.up_to(end).await, since(begun));
    assert_eq!(from_now_there.up_to(end).await, since(begun));
    for (after, stream) in &mut late {
        assert_eq!(stream.up_to(end).await, since(*after));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_hold_on_the_stream_and_on_the_log() {
    let rig = Rig::start().await;
    let (server, who) = (&rig.server, &rig.root);
    create(server, who, &in_open_group(definition("stream/stays"))).await;
    let mut routed = in_open_group(definition("stream/routed"));
    routed["routes"] = json!(["index.a.b", "notify.x"]);
    create(server, who, &routed).await;
    lives(server, server, who, "stream/plain", 8).await;
    let claims = claim(&mut client_of(server), who, "stream/routed", 1).await;
    report(server, &claims[0], "completed", None).await;
    let (all, end) = (log(server, who, 0, "").await, newest(server, who).await);
    let short = |event: &Value| event["exchange"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let is_routed = |event: &Value| event["routingKey"].as_str().unwrap().contains(".stream.routed.");
    let routed_task = claims[0]["status"]["taskId"].as_str().unwrap();
    let by_task = format!("routingKeyPattern=primary.{routed_task}.%23");
    type Wanted<'a> = &'a dyn Fn(&Value) -> bool;
    let cases: [(&str, Wanted<'_>); 9] = [
        ("exchange=task-completed", &|event| short(event) == "task-completed"),
        ("exchange=exchange%2Ftaskcluster-queue%2Fv1%2Ftask-failed,task-exception", &|event| {
            ["task-failed", "task-exception"].contains(&short(event).as_str())
        }),
        ("routingKeyPattern=primary.*.*.*.*.stream.routed.%23", &is_routed),
        (&by_task, &is_routed),
        ("route=index.a.b", &is_routed),
        ("route=notify.*", &is_routed),
        ("route=%23.b", &is_routed),
        ("route=notify.*.*", &|_| false),
        ("route=index.%23&exchange=task-running&routingKeyPattern=%23", &|event| {
            is_routed(event) && short(event) == "task-running"
        }),
    ];
    for (query, wanted) in cases {
        let expected: Vec<Value> = all.iter().filter(|event| wanted(event)).cloned().collect();
        assert!(!expected.is_empty() || query == "route=notify.*.*", "{query}");
        assert_eq!(log(server, who, 0, &format!("&{query}")).await, expected, "{query}");
        let mut stream = Stream::open(server, who, &format!("?after=0&{query}")).await;
        assert_eq!(stream.up_to(position_of(&expected)).await, expected, "{query}");
        // No other event comes, but the cursor moves: a keep-alive follows (see below).
        let none = tokio::time::timeout(Duration::from_millis(50), stream.event()).await;
        assert!(none.is_err(), "{query}: {none:?}");
    }
    // A page of the log ends at its limit, with or without a filter.
    let path = format!("{TENURE_API}/events?after=0&limit=2&exchange=task-completed");
    let cut = rig.call("GET", &path, None).await;
    let page = cut.body["events"].as_array().unwrap();
    assert_eq!((page.len(), &cut.body["after"]), (2, &json!(position_of(page))));
    assert!(log(server, who, 0, "&exchange=artifact-created,task-group-priority-changed").await.is_empty());
    assert_eq!(newest(server, who).await, end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_refused_with_advice() {
    let rig = Rig::start().await;
    create(&rig.server, &rig.root, &definition("stream/q")).await;
    let long = format!("routingKeyPattern={}", "a".repeat(256));
    for (query, hint) in [
        ("exchange=task-done", "task-completed"),
        ("exchange=", "task-completed"),
        ("routingKeyPattern=primary.", "%23"),
        ("routingKeyPattern=", "%23"),
        (long.as_str(), "255"),
        ("route=a..b", "%23"),
        ("after=-1", "`after`"),
        ("after=first", "latest"),
        ("after=1&after=2", "twice"),
        ("before=1", "`before`"),
    ] {
        let refused = Stream::try_open(&rig.server, Some(&rig.root), &format!("?{query}"), None).await.err();
        let message = refused.expect(query).refused(400, "InvalidRequestArguments");
        assert!(message.contains(hint), "{query}: {message}");
        let answer = rig.call("GET", &format!("{TENURE_API}/events?{query}"), None).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidRequestArguments"), "{query}");
    }
    for (query, id, code) in [
        ("?limit=5", None, "InvalidRequestArguments"),
        ("", Some("x"), "InvalidRequestArguments"),
        ("", Some("-1"), "InvalidRequestArguments"),
        // A valid number that is not in this log.
        ("?after=3", None, "InputError"),
        ("", Some("3"), "InputError"),
    ] {
        let refused = Stream::try_open(&rig.server, Some(&rig.root), query, id).await.err().expect(query);
        refused.refused(400, code);
    }
    let refused = Stream::try_open(&rig.server, None, "", None).await.err().expect("no credentials");
    refused.refused(403, "InsufficientScopes");
    let other = rig.make_client("other", &["queue:*"]).await;
    let refused = Stream::try_open(&rig.server, Some(&other), "", None).await.err().expect("no scopes");
    refused.refused(403, "InsufficientScopes");
    assert_eq!(metric(&rig.server, STREAMS).await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_connection_was_cut_goes_on_where_it_was() {
    let rig = Rig::start().await;
    let other = rig.another("second").await;
    let (server, who) = (&rig.server, &rig.root);
    create(server, who, &in_open_group(definition("stream/stays"))).await;
    lives(server, server, who, "stream/q", 5).await;
    let mut first = Stream::open(server, who, "?after=0").await;
    let mut seen = first.up_to(5).await;
    seen.truncate(5);
    drop(first);
    lives(server, &other, who, "stream/q", 5).await;
    // On the other server; the header overrides the cursor in the URL.
    let mut second = Stream::try_open(&other, Some(who), "?after=0", Some("5")).await.ok().expect("it goes on");
    let end = newest(server, who).await;
    seen.extend(second.up_to(end).await);
    create(server, who, &definition("stream/q")).await;
    seen.extend(second.up_to(end + 2).await);
    assert_eq!(seen, log(server, who, 0, "").await);

    // A reader of new events, cut before the first one, has a cursor too.
    let idle = Stream::open(server, who, "").await.begun().await;
    let place = idle.last_id.clone();
    assert_eq!(place, (end + 2).to_string());
    drop(idle);
    create(server, who, &definition("stream/q")).await;
    let mut back = Stream::try_open(server, Some(who), "", Some(&place)).await.ok().expect("it goes on");
    assert_eq!(back.up_to(end + 4).await.len(), 2);
}

fn memory(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// A task whose events are some 80 kB each.
fn large(queue: &str) -> Value {
    let mut body = in_open_group(definition(queue));
    body["tags"] =
        (0..20).map(|n| (format!("tag{n}"), json!("x".repeat(4000)))).collect::<serde_json::Map<_, _>>().into();
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_readers_delay_nothing_and_miss_nothing() {
    const READERS: usize = 4;
    /// All their events would be some 150 MB.
    const GROWTH_MAX: usize = 120 << 20;
    // Some readers read nothing until all work is done.
    let rig = Rig::start_with(|launch| launch.flag("--write-timeout", "1h")).await;
    let (server, who) = (&rig.server, &rig.root);
    let mut slow = Vec::new();
    for n in 0..READERS {
        slow.push(Stream::open(server, who, if n % 2 == 0 { "" } else { "?after=0" }).await.begun().await);
    }
    let mut quick = Stream::open(server, who, "").await.begun().await;
    let before = memory(server);
    let body = large("stream/large");
    let working = async {
        create(server, who, &in_open_group(definition("stream/stays"))).await;
        for _ in 0..3 {
            for _ in 0..40 {
                create(server, who, &body).await;
            }
            for _ in 0..2 {
                for claim in claim(&mut client_of(server), who, "stream/large", 20).await {
                    report(server, &claim, "completed", None).await;
                }
            }
        }
        newest(server, who).await
    };
    let (reading, end) = tokio::join!(quick.up_to(482), working);
    assert_eq!((reading.len(), end), (482, 482));
    let grown = memory(server).saturating_sub(before);
    println!("{READERS} readers who do not read: {} MB", grown >> 20);
    assert!(grown < GROWTH_MAX, "the server has grown by {} MB", grown >> 20);
    let received = slow.iter_mut().map(|stream| async { stream.up_to(482).await });
    for received in futures_util::future::join_all(received).await {
        assert!(received == reading, "a slow reader gets the same as a quick one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_next_event_is_purged_reports_it_and_ends() {
    let rig = Rig::start().await;
    let (server, who) = (&rig.server, &rig.root);
    let mut early = Stream::open(server, who, "?after=0").await.begun().await;
    // More than sockets and buffers hold.
    for _ in 0..200 {
        create(server, who, &large("stream/large")).await;
    }
    // A new stream moves all events into the log.
    drop(Stream::open(server, who, "?after=400").await);
    let mut database = rig.database.connect("test").await;
    sqlx::query("UPDATE outbox SET at = at - interval '8 days' WHERE id < (SELECT max(id) FROM outbox)")
        .execute(&mut database)
        .await
        .unwrap();
    let refused = eventually("the old events are purged", async || {
        Stream::try_open(server, Some(who), "?after=397", None).await.err()
    })
    .await;
    let message = refused.refused(410, "ResourceExpired");
    assert!(message.contains("after=398"), "{message}");
    let by_header = Stream::try_open(server, Some(who), "", Some("0")).await.err().expect("gone");
    by_header.refused(410, "ResourceExpired");

    let mut received = 0;
    let (kind, data) = loop {
        let (kind, data) = early.event().await;
        if data["position"] != json!(received + 1) {
            break (kind, data);
        }
        received += 1;
    };
    assert!(received < 398, "the reader was to be behind");
    assert_eq!((kind.as_str(), data), ("gone", json!({"after": 398})));
    assert_eq!(early.last_id, received.to_string(), "coming back with the last id is refused, not silently moved on");
    assert!(matches!(early.next().await, Item::End));
    let mut on = Stream::open(server, who, "?after=398").await;
    assert_eq!(on.up_to(400).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_open_streams_drains_at_once() {
    /// Ten seconds are promised. Requests in flight may take six seconds; streams must not.
    const DRAINED_WITHIN: Duration = Duration::from_secs(5);
    let mut rig = Rig::start().await;
    let (server, who) = (&rig.server, &rig.root);
    let _stuck = Stream::open(server, who, "").await.begun().await;
    let mut idle = Stream::open(server, who, "?exchange=task-failed").await.begun().await;
    for _ in 0..200 {
        create(server, who, &large("stream/large")).await;
    }
    let signalled = Instant::now();
    server.terminate().unwrap();
    assert!(idle.is_ended_in_order().await);
    assert!(signalled.elapsed() < DRAINED_WITHIN, "{:?}", signalled.elapsed());
    assert!(rig.server.ended().await.success());
    assert!(signalled.elapsed() < DRAINED_WITHIN, "{:?}", signalled.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_of_a_client_that_is_deleted_ends_and_others_go_on() {
    let rig = Rig::start().await;
    let reader = rig.make_client("reader", &["tenure:list-events"]).await;
    let mut theirs = Stream::open(&rig.server, &reader, "").await.begun().await;
    let mut mine = Stream::open(&rig.server, &rig.root, "").await.begun().await;
    create(&rig.server, &rig.root, &definition("stream/q")).await;
    assert_eq!(theirs.up_to(2).await, mine.up_to(2).await);
    assert!(rig.administrate(&["delete", "reader"]).await.status.success());
    let deleted = Instant::now();
    assert!(theirs.is_ended_in_order().await);
    assert!(deleted.elapsed() < Duration::from_secs(10), "{:?}", deleted.elapsed());
    let refused = Stream::try_open(&rig.server, Some(&reader), "", None).await.err().expect("it is deleted");
    refused.refused(401, "AuthenticationFailed");
    create(&rig.server, &rig.root, &definition("stream/q")).await;
    assert_eq!(mine.up_to(4).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_is_stuck_is_shut_out_as_well() {
    let rig = Rig::start().await;
    let (server, who) = (&rig.server, &rig.root);
    let reader = rig.make_client("reader", &["tenure:list-events"]).await;
    let mut stuck = Stream::open(server, &reader, "").await.begun().await;
    for _ in 0..160 {
        create(server, who, &large("stream/large")).await;
    }
    assert_eq!(metric(server, STREAMS).await, 1.0);
    assert!(rig.administrate(&["delete", "reader"]).await.status.success());
    eventually("the stream ends", async || (metric(server, STREAMS).await == 0.0).then_some(())).await;
    let mut received = 0;
    while let Item::Event { .. } = stuck.next().await {
        received += 1;
    }
    assert!(received < 320, "the reader was to be stuck");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_do_not_grow_with_streams_and_stop_without_them() {
    let rig = Rig::start().await;
    let (server, who) = (&rig.server, &rig.root);
    assert_eq!(metric(server, READS_FOR_ALL).await, 0.0);
    let mut streams = Vec::new();
    for _ in 0..60 {
        streams.push(Stream::open(server, who, "").await.begun().await);
    }
    assert_eq!(metric(server, STREAMS).await, 60.0);
    create(server, who, &in_open_group(definition("stream/stays"))).await;
    lives(server, server, who, "stream/q", 10).await;
    let end = newest(server, who).await;
    let received = futures_util::future::join_all(streams.iter_mut().map(|stream| stream.up_to(end))).await;
    let all = log(server, who, 0, "").await;
    assert!(received.iter().all(|received| *received == all));
    // A stream may start before the reading task of all streams: then it reads once for itself.
    assert!(metric(server, READS_FOR_ONE).await <= 60.0);

    let (reads, since) = (metric(server, READS_FOR_ALL).await, Instant::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (reads, seconds) = (metric(server, READS_FOR_ALL).await - reads, since.elapsed().as_secs_f64());
    assert!(reads > 0.0 && reads <= 11.0 * seconds + 1.0, "{reads} reads in {seconds} s");

    drop(streams);
    eventually("hung-up streams are gone", async || (metric(server, STREAMS).await == 0.0).then_some(())).await;
    let quiet = eventually("no streams, no reads", async || {
        let reads = metric(server, READS_FOR_ALL).await;
        tokio::time::sleep(LOOK_EVERY * 15).await;
        (metric(server, READS_FOR_ALL).await == reads).then_some(reads)
    })
    .await;
    create(server, who, &definition("stream/q")).await;
    assert_eq!(metric(server, READS_FOR_ALL).await, quiet);
    let mut again = Stream::open(server, who, &format!("?after={end}")).await;
    assert_eq!(again.up_to(end + 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_too_many_is_refused_until_another_ends() {
    let rig = Rig::start().await;
    let (server, who) = (&rig.server, &rig.root);
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        streams.push(Stream::open(server, who, "").await);
    }
    let refused = Stream::try_open(server, Some(who), "", None).await.err().expect("there is a limit");
    let message = refused.refused(503, "ServiceUnavailable");
    assert!(message.contains("500 streams"), "{message}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(streams.pop());
    let mut last =
        eventually("a place is free", async || Stream::try_open(server, Some(who), "", None).await.ok()).await;
    create(server, who, &definition("stream/q")).await;
    assert_eq!(last.up_to(2).await.len(), 2);
    assert_eq!(streams[0].up_to(2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stream_shows_that_it_lives_and_moves_its_cursor_on() {
    let rig = Rig::start().await;
    let mut stream = Stream::open(&rig.server, &rig.root, "?exchange=task-failed").await.begun().await;
    assert_eq!((stream.last_id.as_str(), stream.comments), ("0", 0));
    create(&rig.server, &rig.root, &definition("stream/q")).await;
    let asked = Instant::now();
    assert!(matches!(stream.next().await, Item::Other));
    assert_eq!((stream.last_id.as_str(), stream.comments), ("2", 1));
    assert!((10..25).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_server_does_is_sent_soon() {
    let rig = Rig::start().await;
    let other = rig.another("second").await;
    let mut stream = Stream::open(&rig.server, &rig.root, "").await.begun().await;
    let mut taken = Vec::new();
    for n in 1..=10 {
        create(&other, &rig.root, &definition("stream/q")).await;
        let claims = claim(&mut client_of(&other), &rig.root, "stream/q", 1).await;
        stream.up_to(n * 4 - 1).await;
        report(&other, &claims[0], "completed", None).await;
        // A report makes nothing claimable, so it sends no notification.
        let reported = Instant::now();
        stream.up_to(n * 4).await;
        taken.push(reported.elapsed());
    }
    taken.sort();
    println!("sent after {taken:?}");
    assert!(taken[9] < Duration::from_millis(2_500), "{taken:?}");
}
