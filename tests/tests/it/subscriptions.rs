//! Subscriptions: receivers that fail in every way, servers that are killed while they send, and
//! addresses that must not be reached.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::server::{Launch, Server};
use tenure_tests::tls::Authority;
use tenure_tests::webhooks::{Manner, Message, Receiver};

use crate::rig::{Raw, Rig, call, eventually, minutes_from_now, new_folder, ok};

const QUEUE: &str = "hooks/linux";
const NAME: &str = "billing";
/// Tasks that are completed in each phase.
const TASKS: usize = 8;
const HERE: &str = "127.0.0.0/8";

pub fn path(rest: &str) -> String {
    format!("{TENURE_API}/subscriptions/{rest}")
}

pub async fn allowed() -> Rig {
    Rig::start_with(|launch| launch.flag("--deliver-to", HERE)).await
}

/// A subscription to completed tasks at this receiver.
pub fn to(receiver: &Receiver) -> Value {
    json!({"to": {"webhook": {"url": receiver.url()}}, "exchange": ["task-completed"]})
}

pub async fn subscribe(rig: &Rig, body: &Value) -> String {
    let stored = ok(rig.call("PUT", &path(NAME), Some(body)).await);
    stored["to"]["webhook"]["secret"].as_str().expect("it is shown once").to_owned()
}

async fn stored(rig: &Rig) -> Value {
    ok(rig.call("GET", &path(NAME), None).await)
}

/// Sends the message in flight again at once.
async fn retry(rig: &Rig) {
    ok(rig.call("POST", &path(&format!("{NAME}/resume")), None).await);
}

async fn complete_one(rig: &Rig) -> String {
    let task = rig.create_one(QUEUE).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", None).await;
    task.to_string()
}

async fn complete(rig: &Rig, tasks: usize) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..tasks {
        done.push(complete_one(rig).await);
    }
    done
}

/// Events in the order of their first arrival.
fn events(seen: &[Message]) -> Vec<(String, Value)> {
    let mut known = BTreeSet::new();
    let all = seen.iter().flat_map(Message::events);
    all.filter(|(id, _)| known.insert(id.clone())).collect()
}

fn task_of(event: &Value) -> String {
    event["payload"]["status"]["taskId"].as_str().expect("it is about a task").to_owned()
}

async fn until_all_arrived(receiver: &Receiver, tasks: &[String]) {
    eventually("every completion has arrived", async || {
        let seen = events(&receiver.seen());
        // The event of a test is about no task.
        let arrived: BTreeSet<&str> =
            seen.iter().filter_map(|(_, event)| event["payload"]["status"]["taskId"].as_str()).collect();
        tasks.iter().all(|task| arrived.contains(task.as_str())).then_some(())
    })
    .await;
}

async fn until_delivered(rig: &Rig) {
    eventually("the subscription has caught up", async || {
        let shown = stored(rig).await;
        (shown["state"] == "active" && shown["lagEvents"] == 0).then_some(())
    })
    .await;
}

/// Name of the server that sends, if one does.
pub async fn sending_server(rig: &Rig) -> Option<String> {
    let mut database = rig.database.connect("test").await;
    let sql = "SELECT s.name FROM subscriptions x JOIN servers s ON s.id = x.server
               WHERE x.lease_until > clock_timestamp()";
    sqlx::query_scalar(sql).fetch_optional(&mut database).await.unwrap()
}

/// As if the lease of a dead server had run out.
pub async fn end_lease(rig: &Rig) {
    let mut database = rig.database.connect("test").await;
    sqlx::query("UPDATE subscriptions SET lease_until = clock_timestamp()").execute(&mut database).await.unwrap();
}

fn server_named(rig: &Rig, name: &str) -> Launch {
    Launch::on_database(rig.database.url(), &rig.secret_key).flag("--deliver-to", HERE).flag("--server-name", name)
}

/// Asserts that each id has one body, ids belong to one event, and events came in order.
fn assert_promise(seen: &[Message], secret: &str) {
    let mut bodies: BTreeMap<&str, &str> = BTreeMap::new();
    for message in seen {
        assert!(message.is_signed_by(secret), "{message:?}");
        let known = bodies.entry(message.id()).or_insert(&message.body);
        assert_eq!(*known, message.body, "a repeat has the same body");
    }
    let positions: Vec<i64> =
        seen.iter().flat_map(Message::events).map(|(_, event)| event["position"].as_i64().unwrap()).collect();
    let firsts: Vec<i64> = events(seen).iter().map(|(_, event)| event["position"].as_i64().unwrap()).collect();
    assert!(firsts.is_sorted(), "{positions:?}");
    let tasks: Vec<String> = events(seen).iter().map(|(_, event)| task_of(event)).collect();
    assert_eq!(tasks.iter().collect::<BTreeSet<_>>().len(), tasks.len(), "an event has one id");
}

async fn everything_arrives(batch: u8) {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let mut body = to(&receiver);
    body["batch"] = batch.into();
    let secret = subscribe(&rig, &body).await;
    let mut other: Server = server_named(&rig, "other").start(rig.folder.path(), "other-0").await;
    let mut tasks = Vec::new();
    let manners = [Manner::Answers(500), Manner::Dies, Manner::Cuts, Manner::Hangs, Manner::Answers(404)];
    for (number, manner) in manners.into_iter().enumerate() {
        receiver.set(manner);
        tasks.extend(complete(&rig, TASKS).await);
        eventually("the message fails or hangs", async || {
            (stored(&rig).await["state"] == "failing" || manner == Manner::Hangs).then_some(())
        })
        .await;
        // Killed while it sends or waits, if it is this server.
        eventually("the other server sends", async || {
            if sending_server(&rig).await.as_deref() == Some("other") {
                return Some(());
            }
            end_lease(&rig).await;
            None
        })
        .await;
        other.kill().unwrap();
        receiver.set(Manner::Accepts);
        end_lease(&rig).await;
        other = server_named(&rig, "other").start(rig.folder.path(), &format!("other-{}", number + 1)).await;
        retry(&rig).await;
        until_all_arrived(&receiver, &tasks).await;
    }
    until_delivered(&rig).await;
    let seen = receiver.seen();
    assert_promise(&seen, &secret);
    assert_eq!(events(&seen).len(), tasks.len());
    assert!(seen.iter().all(|message| message.events().len() <= batch.into()), "a message has at most a batch");
    assert!(seen.len() > events(&seen).len().div_ceil(batch.into()), "some were repeated");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_completion_arrives_alone() {
    everything_arrives(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_completion_arrives_in_batches() {
    everything_arrives(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z10_results_of_before_a_restart_arrive_after_it() {
    let mut rig = allowed().await;
    let receiver = Receiver::start().await;
    receiver.set(Manner::Answers(503));
    let secret = subscribe(&rig, &to(&receiver)).await;
    let done = complete(&rig, 2).await;
    rig.server.kill().unwrap();
    receiver.set(Manner::Accepts);
    rig.server = server_named(&rig, "next").start(rig.folder.path(), "next").await;
    end_lease(&rig).await;
    retry(&rig).await;
    until_all_arrived(&receiver, &done).await;
    assert_promise(&receiver.seen(), &secret);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_receiver_misses_nothing_that_expires_meanwhile() {
    let rig = Rig::start_with(|launch| {
        let launch = launch.flag("--clock", "manual").flag("--claim-work-wait", "0s");
        launch.flag("--deliver-to", HERE).flag("--event-retention", "1s")
    })
    .await;
    let receiver = Receiver::start().await;
    let secret = subscribe(&rig, &to(&receiver)).await;
    let position = async || stored(&rig).await["position"].as_i64();
    let begin = position().await;
    rig.create_one("hooks/other").await;
    // Until then the subscription may have caught up with an empty log.
    eventually("the event is passed over", async || (position().await > begin).then_some(())).await;
    until_delivered(&rig).await;
    receiver.set(Manner::Answers(503));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let expires = minutes_from_now(61);
        let task = rig.create_with(QUEUE, |body| body["expires"] = expires.clone().into()).await;
        let claims = rig.claim(QUEUE, 1).await;
        rig.report(&claims[0], "completed", None).await;
        tasks.push(task.to_string());
    }
    rig.advance(7_200).await;
    eventually("events are purged", async || {
        let read = rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await;
        (read.code() == "ResourceExpired").then_some(())
    })
    .await;
    rig.advance(7_200).await;
    let newest = ok(rig.call("GET", &format!("{TENURE_API}/events?after=latest"), None).await)["after"].clone();
    assert!(stored(&rig).await["position"].as_i64() < newest.as_i64());
    receiver.set(Manner::Accepts);
    retry(&rig).await;
    until_all_arrived(&receiver, &tasks).await;
    assert_promise(&receiver.seen(), &secret);
    until_delivered(&rig).await;
    rig.advance(7_200).await;
    for task in &tasks {
        assert_eq!(rig.call("GET", &format!("/task/{task}/status"), None).await.status, 404, "it is purged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_back_events_end_a_subscription_loudly() {
    let rig = Rig::start_with(|launch| {
        launch.flag("--clock", "manual").flag("--claim-work-wait", "0s").flag("--deliver-to", HERE)
    })
    .await;
    let receiver = Receiver::start().await;
    subscribe(&rig, &to(&receiver)).await;
    receiver.set(Manner::Answers(500));
    complete_one(&rig).await;
    eventually("the message fails", async || (stored(&rig).await["state"] == "failing").then_some(())).await;
    rig.advance(6 * 86_400).await;
    // As if it had been stored six days ago.
    let mut database = rig.database.connect("test").await;
    let sql = "UPDATE subscriptions SET counted_from = counted_from - interval '6 days'";
    sqlx::query(sql).execute(&mut database).await.unwrap();
    let suspended = eventually("it is suspended", async || {
        let shown = stored(&rig).await;
        (shown["state"] == "suspended").then_some(shown)
    })
    .await;
    assert_eq!(
        (&suspended["suspendedBy"], &suspended["lastError"]),
        (&json!("age"), &json!("the receiver answered 500"))
    );
    let notes = format!("{TENURE_API}/events?exchange=subscription-suspended");
    let note = ok(rig.call("GET", &notes, None).await)["events"][0]["payload"].clone();
    assert_eq!((&note["name"], &note["suspendedBy"]), (&json!(NAME), &json!("age")));
    let metrics = rig.send(&Raw::new("GET", "/metrics")).await.text();
    assert!(metrics.contains("\ntenure_subscriptions_suspended "), "{metrics}");
    let before = receiver.seen().len();
    receiver.set(Manner::Accepts);
    retry(&rig).await;
    eventually("its message is accepted", async || (receiver.seen().len() > before).then_some(())).await;
    until_delivered(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gone_receiver_suspends_its_subscription() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let secret = subscribe(&rig, &to(&receiver)).await;
    receiver.set(Manner::Answers(410));
    complete_one(&rig).await;
    let suspended = eventually("it is suspended", async || {
        let shown = stored(&rig).await;
        (shown["state"] == "suspended").then_some(shown)
    })
    .await;
    assert_eq!(
        (&suspended["suspendedBy"], &suspended["lastError"]),
        (&json!("gone"), &json!("the receiver answered 410"))
    );
    receiver.set(Manner::Accepts);
    retry(&rig).await;
    until_delivered(&rig).await;
    let seen = receiver.seen();
    assert_eq!((seen.len(), seen[0].id(), &seen[0].body), (2, seen[1].id(), &seen[1].body));
    assert_promise(&seen, &secret);
}

/// Z12: the name is free when its task has ended, also while the delivery of its end is held up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_have_task_and_unique_name() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    subscribe(&rig, &to(&receiver)).await;
    receiver.set(Manner::Answers(500));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let task = rig.create_with(QUEUE, |body| body["extra"] = json!({"tenure": {"unique": "invoice 7"}})).await;
        let claims = rig.claim(QUEUE, 1).await;
        rig.report(&claims[0], "completed", None).await;
        tasks.push(task.to_string());
    }
    receiver.set(Manner::Accepts);
    retry(&rig).await;
    until_all_arrived(&receiver, &tasks).await;
    let events = events(&receiver.seen());
    assert!(events.iter().all(|(_, event)| event["unique"] == "invoice 7"), "{events:?}");
    assert_eq!(events.iter().map(|(_, event)| task_of(event)).collect::<Vec<_>>(), tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_sent_if_asked_for() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let mut body = to(&receiver);
    body["result"] = true.into();
    let owner = rig.make_client("owner", &["tenure:manage-subscription:*", "tenure:list-events"]).await;
    let refused = call(&mut rig.client(), &owner, "PUT", &path(NAME), Some(&body)).await;
    assert_eq!(refused.code(), "InsufficientScopes", "{}", refused.body);
    subscribe(&rig, &body).await;
    let task = rig.create_one(QUEUE).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", Some(&json!({"result": {"rows": 12}}))).await;
    until_all_arrived(&receiver, &[task.to_string()]).await;
    assert_eq!(events(&receiver.seen())[0].1["result"], json!({"rows": 12}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_without_scopes_gets_nothing() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let owner = rig.make_client("owner", &["tenure:manage-subscription:*", "tenure:list-events"]).await;
    ok(call(&mut rig.client(), &owner, "PUT", &path(NAME), Some(&to(&receiver))).await);
    ok(rig.call("POST", "/api/auth/v1/clients/owner/disable", None).await);
    // Caches of clients are a second old.
    let task = eventually("the owner is missed", async || {
        let task = complete_one(&rig).await;
        let shown = stored(&rig).await;
        shown["lastError"].as_str().is_some_and(|error| error.contains("owner")).then_some(task)
    })
    .await;
    ok(rig.call("POST", "/api/auth/v1/clients/owner/enable", None).await);
    until_all_arrived(&receiver, &[task]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_secret_signs_beside_the_one_before() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let old = subscribe(&rig, &to(&receiver)).await;
    assert_eq!(stored(&rig).await["to"]["webhook"]["secret"], "***");
    let new = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let mut body = to(&receiver);
    body["to"]["webhook"]["secret"] = new.into();
    assert_eq!(ok(rig.call("PUT", &path(NAME), Some(&body)).await)["to"]["webhook"]["secret"], "***");
    let task = complete_one(&rig).await;
    until_all_arrived(&receiver, &[task]).await;
    let message = receiver.seen().pop().unwrap();
    assert!(message.is_signed_by(&old) && message.is_signed_by(new), "{message:?}");
    // Also while one server goes on sending.
    let mut database = rig.database.connect("test").await;
    let sql = "UPDATE subscriptions SET previous_until = clock_timestamp() + interval '4 seconds',
               server = NULL, term = term + 1, lease_until = clock_timestamp()";
    sqlx::query(sql).execute(&mut database).await.unwrap();
    eventually("only the new secret signs", async || {
        complete_one(&rig).await;
        let message = receiver.seen().pop().unwrap();
        (message.is_signed_by(new) && !message.is_signed_by(&old)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_message_shows_what_the_receiver_answers() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let secret = subscribe(&rig, &to(&receiver)).await;
    let test = async || ok(rig.call("POST", &path(&format!("{NAME}/test")), None).await);
    let accepted = test().await;
    assert_eq!((&accepted["delivered"], &accepted["status"]), (&json!(true), &json!(204)));
    let message = receiver.seen().pop().unwrap();
    assert_eq!((message.json()["type"].as_str(), message.is_signed_by(&secret)), (Some("test"), true));
    receiver.set(Manner::Answers(418));
    let refused = test().await;
    assert_eq!(
        (&refused["delivered"], &refused["status"], &refused["body"]),
        (&json!(false), &json!(418), &json!("hello"))
    );
    receiver.set(Manner::Redirects);
    let redirected = test().await;
    assert_eq!((&redirected["delivered"], &redirected["status"]), (&json!(false), &json!(307)));
    assert!(receiver.seen().iter().all(|message| message.path == "/hook"), "a redirect is not followed");
    receiver.set(Manner::Floods);
    let flooded = test().await;
    assert_eq!((&flooded["delivered"], flooded["body"].as_str().map(str::len)), (&json!(true), Some(1_024)));
    assert!(flooded["milliseconds"].as_u64().is_some_and(|time| time < 14_000), "the rest is not read: {flooded}");
    receiver.set(Manner::Cuts);
    assert!(test().await["error"].is_string());
    receiver.set(Manner::Hangs);
    let testing = path(&format!("{NAME}/test"));
    let answers = join_all((0..11).map(|_| rig.call("POST", &testing, None))).await;
    let (hung, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    let patient = |answer: &&Answer| answer.body["milliseconds"].as_u64().is_some_and(|time| time >= 14_000);
    assert!(hung.len() == 10 && hung.iter().all(patient), "{hung:?}");
    assert_eq!(refused[0].code(), "ServiceUnavailable", "ten at the same time are enough");
}

/// Section of attacks: a URL of a client must not reach addresses within the operator's network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_not_reached() {
    let (rig, receiver) = (Rig::start().await, Receiver::start().await);
    let port = receiver.port;
    let body = |url: &str| json!({"to": {"webhook": {"url": url}}});
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        format!("https://127.1:{port}/"),
        format!("https://2130706433:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        "https://169.254.169.254/latest/meta-data/".to_owned(),
        "https://[fd00:ec2::254]/".to_owned(),
        "http://example.com/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "https://user:secret@example.com/".to_owned(),
        "example.com".to_owned(),
    ] {
        let refused = rig.call("PUT", &path(NAME), Some(&body(&url))).await;
        assert_eq!((refused.status, refused.code()), (400, "InputError"), "{url}: {}", refused.body);
        assert!(refused.body["message"].as_str().is_some_and(|message| message.contains("`url`")), "{}", refused.body);
    }
    // A name is resolved when it is connected to.
    subscribe(&rig, &body(&format!("https://localhost:{port}/"))).await;
    let result = ok(rig.call("POST", &path(&format!("{NAME}/test")), None).await);
    assert_eq!(result["delivered"], false);
    assert!(result["error"].as_str().is_some_and(|error| error.contains("not public")), "{result}");
    complete_one(&rig).await;
    let shown = eventually("the message fails", async || {
        Some(stored(&rig).await).filter(|shown| shown["lastError"].is_string())
    })
    .await;
    assert!(shown["lastError"].as_str().is_some_and(|error| error.contains("not public")), "{shown}");
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_needs_no_certificates_and_no_proxy() {
    let rig = Rig::start_with(|launch| {
        let launch = launch.env("SSL_CERT_FILE", "/dev/null").env("http_proxy", "http://127.0.0.1:1");
        launch.flag("--deliver-to", HERE)
    })
    .await;
    let receiver = Receiver::start().await;
    subscribe(&rig, &to(&receiver)).await;
    let result = ok(rig.call("POST", &path(&format!("{NAME}/test")), None).await);
    assert_eq!(result["delivered"], true, "{result}");
}

/// A server that trusts the authority, in addition to those of the system, or not.
pub async fn trusting(authority: Option<&Authority>) -> Rig {
    Rig::start_with(|launch| {
        let launch = launch.flag("--deliver-to", HERE);
        match authority {
            Some(authority) => launch.env("SSL_CERT_FILE", authority.file()).env("SSL_CERT_DIR", "/etc/ssl/certs"),
            None => launch,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_authority_in_ssl_cert_file_is_trusted() {
    let (folder, receiver) = (new_folder(), Receiver::start().await);
    let authority = Authority::create(folder.path());
    let tls = authority.forward_to(receiver.port).await;
    let mut body = to(&receiver);
    body["to"]["webhook"]["url"] = format!("https://127.0.0.1:{}/hook", tls.port).into();
    let test = path(&format!("{NAME}/test"));

    let rig = trusting(None).await;
    subscribe(&rig, &body).await;
    let refused = ok(rig.call("POST", &test, None).await);
    assert_eq!((&refused["delivered"], receiver.seen().len()), (&json!(false), 0), "{refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("certificate")), "{refused}");

    let rig = trusting(Some(&authority)).await;
    let secret = subscribe(&rig, &body).await;
    let accepted = ok(rig.call("POST", &test, None).await);
    assert_eq!(accepted["delivered"], true, "{accepted}");
    let task = complete_one(&rig).await;
    until_all_arrived(&receiver, &[task]).await;
    assert!(receiver.seen().iter().all(|message| message.is_signed_by(&secret)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_server_hands_its_message_to_another() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let secret = subscribe(&rig, &to(&receiver)).await;
    receiver.set(Manner::Hangs);
    let task = complete_one(&rig).await;
    eventually("it is sent", async || (!receiver.seen().is_empty()).then_some(())).await;
    receiver.set(Manner::Accepts);
    let other = server_named(&rig, "other").start(rig.folder.path(), "other").await;
    let mut rig = rig;
    rig.server.terminate().unwrap();
    rig.server.ended().await;
    rig.server = other;
    until_all_arrived(&receiver, &[task]).await;
    until_delivered(&rig).await;
    assert_promise(&receiver.seen(), &secret);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_receiver_does_not_delay_others() {
    let (rig, dead, alive) = (allowed().await, Receiver::start().await, Receiver::start().await);
    dead.set(Manner::Hangs);
    for n in 0..20 {
        ok(rig.call("PUT", &path(&format!("dead-{n}")), Some(&to(&dead))).await);
    }
    subscribe(&rig, &to(&alive)).await;
    let tasks = complete(&rig, TASKS).await;
    until_all_arrived(&alive, &tasks).await;
    ok(rig.call("DELETE", &path(NAME), None).await);
    let shown = rig.call("GET", &path(NAME), None).await;
    assert_eq!(shown.code(), "ResourceNotFound");
    let listed = ok(rig.call("GET", &format!("{TENURE_API}/subscriptions"), None).await);
    assert_eq!(listed["subscriptions"].as_array().map(Vec::len), Some(20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_subscription_is_refused() {
    let rig = allowed().await;
    let receiver = Receiver::start().await;
    let with = |field: &str, value: Value| {
        let mut body = to(&receiver);
        body[field] = value;
        body
    };
    for (body, named) in [
        (with("exchange", json!(["task-done"])), "exchange"),
        (with("batch", json!(101)), "batch"),
        (with("giveUpAfter", json!(60)), "giveUpAfter"),
        (with("routingKeyPattern", json!("a..b")), "routingKeyPattern"),
        (with("to", json!({"webhook": {"url": receiver.url(), "secret": "whsec_short"}})), "secret"),
        (with("after", json!(1_000_000)), "1000000"),
        (with("after", json!("soon")), "after"),
    ] {
        let refused = rig.call("PUT", &path(NAME), Some(&body)).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert!(refused.body["message"].as_str().is_some_and(|message| message.contains(named)), "{}", refused.body);
    }
    for (method, rest) in [("GET", ""), ("DELETE", ""), ("POST", "/test"), ("POST", "/resume")] {
        let missing = rig.call(method, &path(&format!("none{rest}")), None).await;
        assert_eq!(missing.code(), "ResourceNotFound", "{method} {rest}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_in_flight_is_known_before_it_is_sent() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    subscribe(&rig, &to(&receiver)).await;
    receiver.set(Manner::Hangs);
    complete_one(&rig).await;
    let message = eventually("it is sent", async || receiver.seen().pop()).await;
    let mut database = rig.database.connect("test").await;
    let (position, in_flight): (i64, i64) =
        sqlx::query_as("SELECT position, in_flight FROM subscriptions").fetch_one(&mut database).await.unwrap();
    let sent = message.events()[0].1["position"].as_i64().unwrap();
    assert!(position < sent && sent <= in_flight, "{position} {sent} {in_flight}");
}
