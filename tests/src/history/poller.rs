//! Finds work by messages: polls one, sometimes deletes it too early or updates its timeout, and
//! claims its run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use tenure_api::ids::SlugId;

use super::POLLED_QUEUE;
use super::record::{Event, RunKey};
use super::world::Actor;
use crate::http::QUEUE_API;

const EARLY_PERCENT: u64 = 15;
const UPDATE_PERCENT: u64 = 15;
/// Visibility timeout, in seconds of the server's clock.
const HIDDEN_SECONDS: u64 = 20;
const MESSAGES_MAX: u64 = 4;

struct Urls {
    poll: String,
    delete: String,
}

struct Message {
    id: String,
    receipt: String,
    run: RunKey,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    task_id: SlugId,
    run_id: u16,
}

pub(super) async fn poll(actor: &mut Actor) -> Vec<RunKey> {
    let Some(urls) = ask_for_urls(actor).await else { return Vec::new() };
    let count = 1 + actor.random.below(MESSAGES_MAX);
    let poll = urls.poll.replace("visibilitytimeout=300", &format!("visibilitytimeout={HIDDEN_SECONDS}"));
    let start = actor.world.stamp();
    let Some((200, list)) = actor.fetch("GET", &format!("{poll}&numofmessages={count}")).await else {
        return Vec::new();
    };
    let messages: Vec<Message> = list.split("<QueueMessage>").skip(1).map(read).collect();
    let polled = messages.iter().map(|message| message.run).collect();
    actor.world.write(start, Event::Poll { queue: POLLED_QUEUE, runs: polled });
    let mut runs = Vec::new();
    for mut message in messages {
        if actor.random.percent(UPDATE_PERCENT) {
            update(actor, &urls, &mut message).await;
        }
        if actor.random.percent(EARLY_PERCENT) {
            delete(actor, &urls, &message).await;
        }
        runs.push(message.run);
    }
    runs
}

async fn ask_for_urls(actor: &mut Actor) -> Option<Urls> {
    let queue = actor.world.queues[POLLED_QUEUE].clone();
    let (status, body) = actor.fetch("GET", &format!("{QUEUE_API}/poll-task-url/{queue}")).await?;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("URLs come as JSON");
    let queues = body["queues"].as_array().expect("there is a list of queues");
    let one = actor.random.pick(queues)?;
    // Each server signs for all, and each has another root URL.
    let path = |name: &str| {
        let url = one[name].as_str().expect("a URL is a text");
        url[url.find("/api/").expect("it leads into the API")..].to_owned()
    };
    Some(Urls { poll: path("signedPollUrl"), delete: path("signedDeleteUrl") })
}

fn read(xml: &str) -> Message {
    let element = |name: &str| {
        let text = xml.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once("</"));
        text.expect("a message has all of its elements").0.to_owned()
    };
    let content = STANDARD.decode(element("MessageText")).expect("a text is base64");
    let content: Content = serde_json::from_slice(&content).expect("a text is JSON");
    Message { id: element("MessageId"), receipt: element("PopReceipt"), run: (content.task_id, content.run_id) }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn delete(actor: &mut Actor, urls: &Urls, message: &Message) {
    let url = urls.delete.replace("{{messageId}}", &message.id).replace("{{popReceipt}}", &encoded(&message.receipt));
    if let Some((status, body)) = actor.fetch("DELETE", &url).await {
        // Another worker may have claimed the run by claimWork, or got the message after its
        // timeout.
        assert!([204, 400, 404, 503].contains(&status), "a deletion was answered with {status}: {body}");
    }
}

/// Shows the message at once or hides it again, which needs the newest receipt.
async fn update(actor: &mut Actor, urls: &Urls, message: &mut Message) {
    let seconds = if actor.random.percent(50) { 0 } else { HIDDEN_SECONDS };
    let url = urls.poll.replace("/messages?", &format!("/messages/{}?", message.id));
    let url = url.replace("visibilitytimeout=300", &format!("visibilitytimeout={seconds}"));
    let url = format!("{url}&popreceipt={}", encoded(&message.receipt));
    if let Some((status, body)) = actor.fetch("PUT", &url).await {
        assert!([204, 400, 404, 503].contains(&status), "an update was answered with {status}: {body}");
    }
}
