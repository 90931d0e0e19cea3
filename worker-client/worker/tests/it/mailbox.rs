//! The poll API of the scripted queue.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::queue::{Queue, RecordedRequest, Reply, TASK_IDS, claim, ok};

/// Highest priority first.
pub const QUEUES: [&str; 7] =
    ["q7/messages", "q6/messages", "q5/messages", "q4/messages", "q3/messages", "q2/messages", "q1/messages"];
/// Must not appear in any output.
pub const SIGNATURE: &str = "a-secret%2Bsignature%3D";
/// Has every character that must be encoded.
pub const RECEIPT: &str = "A+/b==";
pub const URLS: &str = "poll-task-url/p/w";
const LEASE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Posted {
    id: String,
    text: String,
    count: u32,
}

/// A message for run 0 of the task with this number.
pub fn message(task: usize) -> Posted {
    let hint = json!({"taskId": TASK_IDS[task], "runId": 0});
    Posted { id: format!("m-{task}"), text: STANDARD.encode(hint.to_string()), count: 1 }
}

impl Posted {
    pub fn id(self, id: &str) -> Self {
        Self { id: id.into(), ..self }
    }

    pub fn text(self, text: &str) -> Self {
        Self { text: text.into(), ..self }
    }

    pub fn count(self, count: u32) -> Self {
        Self { count, ..self }
    }
}

/// Each message is returned once.
#[derive(Clone)]
pub struct Mailbox {
    pub queue: Queue,
    posted: Arc<Mutex<HashMap<&'static str, VecDeque<Posted>>>>,
}

impl Mailbox {
    /// Opens empty queues with long-lived URLs that grant every claim.
    pub async fn open(payload: Value) -> Self {
        let mailbox = Self { queue: Queue::start().await, posted: Arc::default() };
        mailbox.issue(Duration::from_secs(1800));
        for name in QUEUES {
            let of_queue = mailbox.clone();
            mailbox.queue.on(name, move |request| of_queue.give(name, request));
        }
        mailbox.queue.on("claim", move |request| {
            let task = request.call.split('/').nth(5).expect("…/task/<taskId>/runs/0/claim").to_owned();
            ok(claim(&task, LEASE, &payload))
        });
        mailbox
    }

    /// Sets the lifetime of further URLs.
    pub fn issue(&self, life: Duration) {
        let root = self.queue.root_url();
        self.queue.on(URLS, move |_| urls(&root, life));
    }

    pub fn post(&self, name: &'static str, messages: impl IntoIterator<Item = Posted>) {
        self.posted.lock().unwrap().entry(name).or_default().extend(messages);
    }

    fn give(&self, name: &'static str, request: &RecordedRequest) -> Reply {
        let mut posted = self.posted.lock().unwrap();
        let waiting = posted.entry(name).or_default();
        let count = number_of_messages(request).min(waiting.len());
        list(waiting.drain(..count))
    }

    /// Numbers of the polled queues; 7 has the highest priority.
    pub fn polls(&self) -> Vec<char> {
        let name =
            |request: &RecordedRequest| request.call.strip_suffix("/messages").and_then(|path| path.chars().last());
        self.queue.requests("/messages").iter().filter_map(name).collect()
    }

    pub fn deletions(&self) -> Vec<RecordedRequest> {
        self.queue.requests("").into_iter().filter(|request| request.call.starts_with("DELETE")).collect()
    }
}

pub fn number_of_messages(request: &RecordedRequest) -> usize {
    let query = request.query.strip_prefix(&format!("visibilitytimeout=300&sig={SIGNATURE}&numofmessages="));
    query.expect("the URL as it was given, and a number").parse().unwrap()
}

pub fn list(messages: impl IntoIterator<Item = Posted>) -> Reply {
    let one = |Posted { id, text, count }| {
        format!(
            "<QueueMessage><MessageId>{id}</MessageId><InsertionTime>Thu, 09 May 2019 01:19:44 GMT</InsertionTime>\
             <ExpirationTime>Thu, 16 May 2019 01:19:44 GMT</ExpirationTime><PopReceipt>{RECEIPT}</PopReceipt>\
             <TimeNextVisible>Thu, 09 May 2019 01:24:44 GMT</TimeNextVisible><DequeueCount>{count}</DequeueCount>\
             <MessageText>{text}</MessageText></QueueMessage>"
        )
    };
    let inner: String = messages.into_iter().map(one).collect();
    let list = if inner.is_empty() {
        "<QueueMessagesList />".to_owned()
    } else {
        format!("<QueueMessagesList>{inner}</QueueMessagesList>")
    };
    Reply { xml: Some(format!("<?xml version=\"1.0\" encoding=\"utf-8\"?>{list}")), ..ok(Value::Null) }
}

/// The server's clock differs much from ours.
fn urls(root: &str, life: Duration) -> Reply {
    let one = |name: &str| {
        json!({
            "signedPollUrl": format!("{root}/m/{name}?visibilitytimeout=300&sig={SIGNATURE}"),
            "signedDeleteUrl": format!("{root}/m/{name}/{{{{messageId}}}}?popreceipt={{{{popReceipt}}}}&sig={SIGNATURE}"),
        })
    };
    let expires = format!("2100-01-01T00:{:02}:{:02}.000Z", life.as_secs() / 60, life.as_secs() % 60);
    let date = vec![("date", "Fri, 01 Jan 2100 00:00:00 GMT".to_owned())];
    Reply { headers: date, ..ok(json!({"queues": QUEUES.map(one), "expires": expires})) }
}
