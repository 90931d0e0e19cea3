//! Subscriptions to RabbitMQ: it and the server are killed while events are sent.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::{Value, json};
use tenure_tests::rabbitmq::RabbitMq;
use tenure_tests::server::{Launch, Server};
use tenure_tests::tls::Authority;
use tokio::net::TcpListener;

use crate::rig::{Rig, eventually, new_folder, ok};
use crate::subscriptions::{allowed, end_lease, path, sending_server, trusting};

const QUEUE: &str = "hooks/amqp";
const NAME: &str = "pulse";
const EXCHANGE: &str = "prod/exchange/taskcluster-queue/v1/task-completed";
const INBOX: &str = "inbox";
/// Tasks that are completed in each phase.
const TASKS: usize = 20;

async fn connect(rabbit: &RabbitMq) -> (Connection, Channel) {
    let connection = eventually("RabbitMQ accepts a connection", async || {
        Connection::connect(&rabbit.url(), ConnectionProperties::default()).await.ok()
    })
    .await;
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// A durable queue that gets all messages of the exchange.
async fn bind(rabbit: &RabbitMq) {
    let (_connection, channel) = connect(rabbit).await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, FieldTable::default()).await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(INBOX.into(), durable, FieldTable::default()).await.unwrap();
    let all = QueueBindOptions::default();
    channel.queue_bind(INBOX.into(), EXCHANGE.into(), "#".into(), all, FieldTable::default()).await.unwrap();
}

struct Arrived {
    id: String,
    position: i64,
    routing_key: String,
    body: String,
}

impl Arrived {
    fn task(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["status"]["taskId"].as_str().unwrap().to_owned()
    }
}

/// Takes messages until each of these tasks has been seen.
async fn receive(rabbit: &RabbitMq, tasks: &[String]) -> Vec<Arrived> {
    let (_connection, channel) = connect(rabbit).await;
    let options = BasicConsumeOptions::default();
    let mut consumer = channel.basic_consume(INBOX.into(), "".into(), options, FieldTable::default()).await.unwrap();
    let (mut arrived, mut missing) = (Vec::new(), tasks.iter().cloned().collect::<BTreeSet<_>>());
    while !missing.is_empty() {
        let next = tokio::time::timeout(Duration::from_secs(120), consumer.next()).await;
        let delivery = next.unwrap_or_else(|_| panic!("{missing:?} never came")).unwrap().unwrap();
        delivery.ack(BasicAckOptions::default()).await.unwrap();
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        let Some(AMQPValue::LongLongInt(position)) = headers.inner().get("position") else {
            panic!("{headers:?} has the position")
        };
        let message = Arrived {
            id: delivery.properties.message_id().as_ref().unwrap().to_string(),
            position: *position,
            routing_key: delivery.routing_key.to_string(),
            body: String::from_utf8(delivery.data.clone()).unwrap(),
        };
        missing.remove(&message.task());
        arrived.push(message);
    }
    arrived
}

async fn complete(rig: &Rig, tasks: usize) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..tasks {
        done.push(rig.create_one(QUEUE).await.to_string());
        let claims = rig.claim(QUEUE, 1).await;
        rig.report(&claims[0], "completed", None).await;
    }
    done
}

async fn subscribe(rig: &Rig, url: &str, batch: u8) -> Value {
    let to = json!({"amqp": {"url": url, "prefix": "prod/"}});
    let body = json!({"to": to, "exchange": ["task-completed"], "batch": batch});
    ok(rig.call("PUT", &path(NAME), Some(&body)).await)
}

async fn stored(rig: &Rig) -> Value {
    ok(rig.call("GET", &path(NAME), None).await)
}

async fn fails(rig: &Rig) -> String {
    eventually("the subscription fails", async || {
        let shown = stored(rig).await;
        (shown["state"] == "failing").then(|| shown["lastError"].as_str().unwrap().to_owned())
    })
    .await
}

#[tokio::test]
async fn events_reach_a_broker_that_is_killed() {
    let rig = allowed().await;
    let mut rabbit = RabbitMq::start(rig.folder.path()).await;
    bind(&rabbit).await;
    let shown = subscribe(&rig, &rabbit.url(), 10).await;
    assert!(!shown.to_string().contains("guest"), "the password is not shown: {shown}");
    let tested = ok(rig.call("POST", &path(&format!("{NAME}/test")), None).await);
    assert_eq!(tested["delivered"], true, "{tested}");

    let mut tasks = complete(&rig, TASKS).await;
    let mut arrived = receive(&rabbit, &tasks).await;
    rabbit.kill();
    tasks.extend(complete(&rig, TASKS).await);
    fails(&rig).await;
    rabbit.start_again().await;
    ok(rig.call("POST", &path(&format!("{NAME}/resume")), None).await);
    arrived.extend(receive(&rabbit, &tasks[TASKS..]).await);

    let firsts: Vec<i64> = {
        let mut known = BTreeSet::new();
        arrived.iter().filter(|message| known.insert(&message.id)).map(|message| message.position).collect()
    };
    assert!(firsts.is_sorted() && firsts.len() == tasks.len(), "{firsts:?}");
    assert!(arrived.iter().all(|message| message.id.starts_with("evt_")));
    assert!(arrived.iter().all(|message| message.routing_key.starts_with("primary.")));
}

#[tokio::test]
async fn killed_server_loses_no_event() {
    let rig = allowed().await;
    let rabbit = RabbitMq::start(rig.folder.path()).await;
    bind(&rabbit).await;
    let launch = || {
        Launch::on_database(rig.database.url(), &rig.secret_key)
            .flag("--deliver-to", "127.0.0.0/8")
            .flag("--server-name", "other")
    };
    let mut other: Server = launch().start(rig.folder.path(), "other-0").await;
    subscribe(&rig, &rabbit.url(), 1).await;
    let mut tasks = Vec::new();
    for phase in 1..4 {
        eventually("the other server sends", async || {
            if sending_server(&rig).await.as_deref() == Some("other") {
                return Some(());
            }
            end_lease(&rig).await;
            None
        })
        .await;
        tasks.extend(complete(&rig, TASKS).await);
        other.kill().unwrap();
        tasks.extend(complete(&rig, TASKS).await);
        end_lease(&rig).await;
        other = launch().start(rig.folder.path(), &format!("other-{phase}")).await;
    }
    let arrived = receive(&rabbit, &tasks).await;
    let bodies: BTreeSet<_> = arrived.iter().map(|message| (&message.id, &message.body)).collect();
    let ids: BTreeSet<_> = arrived.iter().map(|message| &message.id).collect();
    assert_eq!((bodies.len(), ids.len()), (tasks.len(), tasks.len()), "a repeat is the same message");
}

#[tokio::test]
async fn private_authority_of_a_broker_is_trusted() {
    let folder = new_folder();
    let authority = Authority::create(folder.path());
    let rabbit = RabbitMq::start(folder.path()).await;
    bind(&rabbit).await;
    let tls = authority.forward_to(rabbit.port()).await;
    let url = format!("amqps://guest:guest@127.0.0.1:{}/%2f", tls.port);
    let test = path(&format!("{NAME}/test"));

    let rig = trusting(None).await;
    subscribe(&rig, &url, 10).await;
    let refused = ok(rig.call("POST", &test, None).await);
    assert_eq!(refused["delivered"], false, "{refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("certificate")), "{refused}");

    let rig = trusting(Some(&authority)).await;
    subscribe(&rig, &url, 10).await;
    assert_eq!(ok(rig.call("POST", &test, None).await)["delivered"], true);
    let tasks = complete(&rig, TASKS).await;
    assert_eq!(receive(&rabbit, &tasks).await.len(), TASKS);
}

#[tokio::test]
async fn silent_broker_costs_a_thread_only_while_it_is_tried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let held = tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.push(stream);
        }
    });
    let rig = allowed().await;
    let body = json!({"to": {"amqp": {"url": format!("amqp://guest:guest@127.0.0.1:{port}/")}}});
    let set = ok(rig.call("PUT", &path(NAME), Some(&body)).await);
    assert_eq!(set["batch"], 100, "the default of a broker");
    complete(&rig, 1).await;
    let why = fails(&rig).await;
    assert!(why.contains("15 seconds") && !why.contains("guest"), "{why}");
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", rig.server.pid())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("lapin")).count()
    };
    ok(rig.call("DELETE", &path(NAME), None).await);
    eventually("the threads have ended", async || (threads() == 0).then_some(())).await;
    held.abort();
}

#[tokio::test]
async fn broker_that_may_not_be_reached_is_refused() {
    let rig = Rig::start().await;
    for url in [
        "amqp://guest:guest@127.0.0.1:5672/",
        "amqps://127.0.0.1/",
        "amqps://[::1]/",
        "https://127.0.0.1/",
        // A broker must be listed even if its address is public.
        "amqps://1.1.1.1/",
        "amqps://broker.example/",
    ] {
        let body = json!({"to": {"amqp": {"url": url}}});
        let answer = rig.call("PUT", &path(NAME), Some(&body)).await;
        assert_eq!(answer.status, 400, "{url}");
        assert!(answer.body.to_string().contains("url"), "{url}");
    }
}
