//! The poll API: runs as messages behind signed URLs, one message queue per priority.
//!
//! A message is a hint that a run may be claimed, hidden from other workers for a while. The
//! receiver claims the run ([`Client::claim_task`]), and deletes the message once the claim is
//! granted or finally refused. A signed URL suffices to use it, so URLs are never printed, and
//! requests to them carry no other signature.

mod xml;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, Url};
use serde::Deserialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tokio::time::Instant;

use crate::client::{Answer, Call, Own, TIMEOUT, header, parameter, refusal_in_words};
use crate::{Client, Error};

const MESSAGES_MAX: usize = 32;
/// Before the URLs expire, but at most half of their lifetime.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// Regardless of the server's dates.
const SHORTEST_USE: Duration = Duration::from_secs(1);
const ID_PLACE: &str = "{{messageId}}";
const RECEIPT_PLACE: &str = "{{popReceipt}}";
const ERROR_CODE: &str = "x-ms-error-code";

/// Signed URLs of a message queue. Secret, so not printable.
///
/// ```no_run
/// use tenure_client::MessageQueue;
///
/// # use tenure_client::{Client, Error, PollUrls};
/// # async fn example(client: &Client, urls: &PollUrls) -> Result<(), Error> {
/// let highest: Option<&MessageQueue> = urls.queues.first();
/// if let Some(queue) = highest {
///     println!("{} messages", client.messages(queue, 32).await?.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageQueue {
    signed_poll_url: String,
    signed_delete_url: String,
}

/// Message queues of a task queue.
///
/// ```no_run
/// use tenure_client::PollUrls;
///
/// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let PollUrls { queues, expires, .. } = client.poll_task_urls(&"proj/linux".parse()?).await?;
/// println!("{} message queues until {expires}", queues.len());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PollUrls {
    /// Highest priority first.
    pub queues: Vec<MessageQueue>,
    /// By the server's clock.
    pub expires: Timestamp,
    renew_at: Instant,
    ends: Instant,
}

/// A message received by a poll.
///
/// ```no_run
/// # use tenure_client::{Client, Message, MessageQueue, WorkerName};
/// # async fn example(client: &Client, queue: &MessageQueue, message: Message, me: &WorkerName)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let (task_id, run_id) = message.run()?;
/// let claim = client.claim_task(task_id, run_id, me).await?;
/// client.delete_message(queue, &message).await?;
/// claim.complete().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Message {
    id: String,
    pop_receipt: String,
    dequeue_count: u32,
    text: String,
}

/// Reason why a message does not name a run.
///
/// ```
/// use tenure_client::Undecodable;
///
/// # fn example(message: &tenure_client::Message) {
/// match message.run() {
///     Ok((task_id, run_id)) => println!("run {run_id} of {task_id}"),
///     Err(Undecodable::Base64(_)) => println!("the text is not base64"),
///     Err(other) => println!("message {}: {other}", message.id()),
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Undecodable {
    /// The text is not base64.
    #[error("its text is not base64")]
    Base64(#[source] base64::DecodeError),
    #[error("its text does not name a task and a run")]
    Json(#[source] serde_json::Error),
}

#[derive(Deserialize)]
struct PollUrlsAnswer {
    queues: Vec<MessageQueue>,
    expires: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hint {
    task_id: TaskId,
    run_id: RunId,
}

impl Client {
    /// Returns signed URLs for polling the runs of a queue.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let urls = client.poll_task_urls(&"proj/linux".parse()?).await?;
    /// for queue in &urls.queues {
    ///     println!("{} messages", client.messages(queue, 32).await?.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn poll_task_urls(&self, queue: &TaskQueueId) -> Result<PollUrls, Error> {
        let (provisioner, worker_type) = (queue.provisioner_id(), queue.worker_type());
        let path = format!("/poll-task-url/{}/{}", parameter(&provisioner), parameter(&worker_type));
        let call = Call { method: Method::GET, path, body: None, timeout: TIMEOUT, own: Own::default() };
        let Answer { value, date, sent, .. } = self.call::<PollUrlsAnswer>(&call).await?;
        let life = value.expires.time() - date.unwrap_or_else(|| self.now()).time();
        let life = life.to_std().unwrap_or_default();
        let renew_at = sent + usable(life);
        Ok(PollUrls { queues: value.queues, expires: value.expires, renew_at, ends: sent + life })
    }

    /// Receives up to `most` messages (1 to 32), hidden from others until their visibility timeout
    /// passes. Not retried: a lost request may have hidden messages already.
    ///
    /// # Errors
    /// The URL has expired (403).
    ///
    /// ```no_run
    /// # use tenure_client::{Client, PollUrls};
    /// # async fn example(client: &Client, urls: &PollUrls) -> Result<(), tenure_client::Error> {
    /// for queue in &urls.queues {
    ///     for message in client.messages(queue, 4).await? {
    ///         println!("message {}, {} times", message.id(), message.dequeue_count());
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn messages(&self, queue: &MessageQueue, most: usize) -> Result<Vec<Message>, Error> {
        let text = self.use_signed(Method::GET, &queue.poll_url(most)).await?;
        let message = |entry: xml::MessageXml| Message {
            id: entry.message_id,
            pop_receipt: entry.pop_receipt,
            dequeue_count: entry.dequeue_count,
            text: entry.message_text,
        };
        Ok(xml::messages(&text).map_err(Error::BadMessages)?.into_iter().map(message).collect())
    }

    /// Deletes a message; a missing message counts as deleted. Not retried.
    ///
    /// # Errors
    /// Another worker has received the message since (400), or the URL has expired (403).
    ///
    /// ```no_run
    /// # use tenure_client::{Client, Error, MessageQueue};
    /// # async fn example(client: &Client, queue: &MessageQueue) -> Result<(), Error> {
    /// for message in client.messages(queue, 32).await? {
    ///     if message.run().is_err() {
    ///         client.delete_message(queue, &message).await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn delete_message(&self, queue: &MessageQueue, message: &Message) -> Result<(), Error> {
        match self.use_signed(Method::DELETE, &queue.delete_url(message)?).await {
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(404) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn use_signed(&self, method: Method, url: &str) -> Result<String, Error> {
        let url = Url::parse(url).map_err(|_| Error::SignedUrl("it is not a URL"))?;
        let network = |error: reqwest::Error| Error::Network(error.without_url());
        let answer = self.http().request(method, url).timeout(TIMEOUT).send().await;
        self.note_call(&answer);
        let response = answer.map_err(network)?;
        let status = response.status();
        let retry_after = header(response.headers(), RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok());
        let code = header(response.headers(), ERROR_CODE).map(str::to_owned);
        let text = response.text().await.map_err(network)?;
        if status.is_success() {
            return Ok(text);
        }
        let (written, message) = xml::explanation(&text);
        let code = code.unwrap_or(written);
        Err(refusal_in_words(status.as_u16(), code, &message, retry_after.map(Duration::from_secs)))
    }
}

impl PollUrls {
    /// When to request new URLs: up to five minutes before these expire.
    ///
    /// ```
    /// # use tokio::time::Instant;
    /// # fn example(urls: &tenure_client::PollUrls) {
    /// if urls.renew_at() <= Instant::now() {
    ///     println!("request new URLs");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn renew_at(&self) -> Instant {
        self.renew_at
    }

    /// Expiry of the URLs, by the server's dates.
    ///
    /// ```
    /// # use tokio::time::Instant;
    /// # fn example(urls: &tenure_client::PollUrls) {
    /// println!("{} s are left", urls.ends().saturating_duration_since(Instant::now()).as_secs());
    /// # }
    /// ```
    #[must_use]
    pub fn ends(&self) -> Instant {
        self.ends
    }
}

fn usable(life: Duration) -> Duration {
    (life - RENEW_BEFORE.min(life / 2)).max(SHORTEST_USE)
}

impl MessageQueue {
    fn poll_url(&self, most: usize) -> String {
        format!("{}&numofmessages={}", self.signed_poll_url, most.clamp(1, MESSAGES_MAX))
    }

    fn delete_url(&self, message: &Message) -> Result<String, Error> {
        // Without the id this could delete all messages.
        if !(self.signed_delete_url.contains(ID_PLACE) && self.signed_delete_url.contains(RECEIPT_PLACE)) {
            return Err(Error::SignedUrl("the URL for deletions has no placeholders for a message's id and receipt"));
        }
        // Encoded values have no braces, so the second replacement cannot match them.
        let with_id = self.signed_delete_url.replace(ID_PLACE, &parameter(&message.id));
        Ok(with_id.replace(RECEIPT_PLACE, &parameter(&message.pop_receipt)))
    }
}

impl Message {
    /// Returns the id, the same each time the message is received.
    ///
    /// ```
    /// # fn example(message: &tenure_client::Message) {
    /// println!("message {}", message.id());
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Number of receipts, this one included.
    ///
    /// ```
    /// # fn example(message: &tenure_client::Message) {
    /// if message.dequeue_count() > 10 {
    ///     println!("message {} was received {} times", message.id(), message.dequeue_count());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn dequeue_count(&self) -> u32 {
        self.dequeue_count
    }

    /// Decodes the run that the message names.
    ///
    /// # Errors
    /// The message names no run; delete it.
    ///
    /// ```
    /// # fn example(message: &tenure_client::Message) -> Result<(), tenure_client::Undecodable> {
    /// let (task_id, run_id) = message.run()?;
    /// println!("run {run_id} of task {task_id}");
    /// # Ok(()) }
    /// ```
    pub fn run(&self) -> Result<(TaskId, RunId), Undecodable> {
        let json = STANDARD.decode(self.text.trim()).map_err(Undecodable::Base64)?;
        let hint: Hint = serde_json::from_slice(&json).map_err(Undecodable::Json)?;
        Ok((hint.task_id, hint.run_id))
    }
}

#[cfg(test)]
mod tests;
