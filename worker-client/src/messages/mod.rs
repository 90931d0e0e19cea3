//! The poll API: runs as messages behind signed URLs, one queue of messages for each priority.
//!
//! A message is a hint that a run may be claimed. The worker that gets it hides it from others for a while, claims the run
//! ([`Client::claim_task`]), and deletes the message if the claim was granted or refused for good. The URLs are
//! signed: a URL alone is enough to use it, so they are never printed, and requests to them carry no other signature.

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

/// No poll may ask for more.
const MESSAGES_MAX: usize = 32;
/// How long before their end URLs are renewed, if they live twice as long or more.
const RENEW_BEFORE: Duration = Duration::from_secs(5 * 60);
/// The least time between two renewals, whatever the server's dates say.
const SHORTEST_USE: Duration = Duration::from_secs(1);
/// Where a URL for deletions has the message's id, and its receipt.
const ID_PLACE: &str = "{{messageId}}";
const RECEIPT_PLACE: &str = "{{popReceipt}}";
/// The header that has the code of an error.
const ERROR_CODE: &str = "x-ms-error-code";

/// The signed URLs of one queue of messages. It cannot be printed: a URL is all that one needs to use it.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageQueue {
    signed_poll_url: String,
    signed_delete_url: String,
}

/// The queues of messages of a task queue, and how long their URLs are good for.
#[derive(Clone)]
pub struct PollUrls {
    /// The queue of the highest priority comes first; it should be polled first.
    pub queues: Vec<MessageQueue>,
    /// When the URLs end, by the server's clock.
    pub expires: Timestamp,
    renew_at: Instant,
    ends: Instant,
}

/// A message as it came from a poll.
#[derive(Clone)]
pub struct Message {
    id: String,
    pop_receipt: String,
    dequeue_count: u32,
    text: String,
}

/// Why a message does not name a run.
#[derive(Debug, thiserror::Error)]
pub enum Undecodable {
    /// It is not base64.
    #[error("its text is not base64")]
    Base64(#[source] base64::DecodeError),
    /// What was encoded has no `taskId` and `runId`.
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
    /// Asks for the URLs under which the runs of a queue can be polled as messages.
    ///
    /// # Errors
    /// The caller lacks the scope, or the server could not be reached.
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

    /// Gets up to `most` messages (1 to 32); others do not see them until their visibility timeout is over.
    ///
    /// The request is sent once, because one that was lost may have hidden messages already.
    ///
    /// # Errors
    /// The URL has expired (403), or no usable answer came.
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
        let message = |entry: xml::Entry| Message {
            id: entry.message_id,
            pop_receipt: entry.pop_receipt,
            dequeue_count: entry.dequeue_count,
            text: entry.message_text,
        };
        Ok(xml::messages(&text).map_err(Error::BadMessages)?.into_iter().map(message).collect())
    }

    /// Deletes a message; one that is gone already counts as deleted. The request is sent once.
    ///
    /// # Errors
    /// The message may still be there: another worker got it meanwhile (400), the URL has expired (403), or no usable
    /// answer came.
    pub async fn delete_message(&self, queue: &MessageQueue, message: &Message) -> Result<(), Error> {
        match self.use_signed(Method::DELETE, &queue.delete_url(message)?).await {
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(404) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Uses a signed URL once, and reads the answer as text.
    async fn use_signed(&self, method: Method, url: &str) -> Result<String, Error> {
        let url = Url::parse(url).map_err(|_| Error::SignedUrl("it is not a URL"))?;
        let network = |error: reqwest::Error| Error::Network(error.without_url());
        let response = self.http().request(method, url).timeout(TIMEOUT).send().await.map_err(network)?;
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
    /// When to ask for new URLs: some minutes before these end.
    #[must_use]
    pub fn renew_at(&self) -> Instant {
        self.renew_at
    }

    /// When the URLs end, by the server's dates.
    #[must_use]
    pub fn ends(&self) -> Instant {
        self.ends
    }
}

/// How long URLs are used that live so long.
fn usable(life: Duration) -> Duration {
    (life - RENEW_BEFORE.min(life / 2)).max(SHORTEST_USE)
}

impl MessageQueue {
    fn poll_url(&self, most: usize) -> String {
        format!("{}&numofmessages={}", self.signed_poll_url, most.clamp(1, MESSAGES_MAX))
    }

    fn delete_url(&self, message: &Message) -> Result<String, Error> {
        // Without the message's id this could be the request that deletes all messages.
        if !(self.signed_delete_url.contains(ID_PLACE) && self.signed_delete_url.contains(RECEIPT_PLACE)) {
            return Err(Error::SignedUrl("the one for deletions has no place for a message's id and receipt"));
        }
        // Encoded values have no braces, so that the second replacement finds only its own place.
        let with_id = self.signed_delete_url.replace(ID_PLACE, &parameter(&message.id));
        Ok(with_id.replace(RECEIPT_PLACE, &parameter(&message.pop_receipt)))
    }
}

impl Message {
    /// The message's id, which stays the same however often it is got.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How often the message was got, this time included.
    #[must_use]
    pub fn dequeue_count(&self) -> u32 {
        self.dequeue_count
    }

    /// The run that the message is a hint of.
    ///
    /// # Errors
    /// The message does not name a run; it should be deleted.
    pub fn run(&self) -> Result<(TaskId, RunId), Undecodable> {
        let json = STANDARD.decode(self.text.trim()).map_err(Undecodable::Base64)?;
        let hint: Hint = serde_json::from_slice(&json).map_err(Undecodable::Json)?;
        Ok((hint.task_id, hint.run_id))
    }
}

#[cfg(test)]
mod tests;
