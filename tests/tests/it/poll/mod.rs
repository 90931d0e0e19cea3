//! The poll API over HTTP.

mod messages;
mod urls;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::{QUEUE_API, TENURE_API};
use tenure_tests::server::{Launch, Server, fresh_secret_key, reset_root_token};

use crate::rig::{Raw, RawReply, Rig, call, client_of, definition, eventually, new_task, ok};

const QUEUE: &str = "poll/plane";
/// Time until another server without notifications shows a message: ten times the promise.
const SEEN_WITHOUT_BELL_WITHIN: Duration = Duration::from_secs(10);

/// Signed URLs of a task queue, without the root URL, highest priority first.
struct Urls(Vec<(String, String)>);

impl Urls {
    async fn ask(rig: &Rig) -> Self {
        let answer = ok(rig.call("GET", &format!("/poll-task-url/{QUEUE}"), None).await);
        Self::read(&answer, rig.server.root_url())
    }

    fn read(body: &Value, root_url: &str) -> Self {
        let url = |value: &Value| {
            value.as_str().unwrap().strip_prefix(root_url).expect("it starts with the root URL").to_owned()
        };
        let queues = body["queues"].as_array().unwrap();
        Self(queues.iter().map(|queue| (url(&queue["signedPollUrl"]), url(&queue["signedDeleteUrl"]))).collect())
    }

    /// URL of the lowest priority, the default of tasks.
    fn poll(&self) -> &str {
        &self.0[6].0
    }

    fn poll_for(&self, seconds: u32) -> String {
        self.poll().replace("visibilitytimeout=300", &format!("visibilitytimeout={seconds}"))
    }

    fn delete(&self, message: &Message) -> String {
        self.delete_with(&message.id, &encoded(&message.receipt))
    }

    fn delete_with(&self, id: &str, receipt: &str) -> String {
        self.0[6].1.replace("{{messageId}}", id).replace("{{popReceipt}}", receipt)
    }

    fn at(&self, place: &str, more: &str) -> String {
        let (path, query) = self.poll().split_once("/messages?").unwrap();
        format!("{path}{place}?{query}{more}")
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[derive(Debug, Clone, PartialEq)]
struct Message {
    id: String,
    receipt: String,
    dequeued: String,
    task: String,
    run: i64,
}

fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    xml.split_once(&format!("<{name}>"))?.1.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

fn messages(reply: &RawReply) -> Vec<Message> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/xml")), "{}", reply.text());
    let text = reply.text();
    let one = |xml: &str| {
        let content: Value =
            serde_json::from_slice(&STANDARD.decode(element(xml, "MessageText").unwrap()).unwrap()).unwrap();
        assert_eq!(content.as_object().unwrap().len(), 2, "{content}");
        Message {
            id: element(xml, "MessageId").unwrap().to_owned(),
            receipt: element(xml, "PopReceipt").unwrap_or_default().to_owned(),
            dequeued: element(xml, "DequeueCount").unwrap().to_owned(),
            task: content["taskId"].as_str().unwrap().to_owned(),
            run: content["runId"].as_i64().unwrap(),
        }
    };
    text.split("<QueueMessage>").skip(1).map(one).collect()
}

async fn send(server: &Server, method: &str, target: &str) -> RawReply {
    Raw::new(method, target).send(server.root_url()).await
}

async fn get(rig: &Rig, target: &str) -> RawReply {
    send(&rig.server, "GET", target).await
}

#[track_caller]
fn assert_error(reply: &RawReply, status: u16, code: &str) {
    let text = reply.text();
    assert_eq!(
        (reply.status, reply.header("x-ms-error-code"), element(&text, "Code"), reply.header("content-type")),
        (status, Some(code), Some(code), Some("application/xml")),
        "{text}"
    );
    assert!(text.starts_with("<?xml version=\"1.0\" encoding=\"utf-8\"?><Error>"), "{text}");
    assert!(["x-ms-request-id", "x-ms-version"].iter().all(|name| reply.header(name).is_some()), "{text}");
}

async fn create(rig: &Rig, priority: &str) -> SlugId {
    rig.create_with(QUEUE, |task| task["priority"] = json!(priority)).await
}
