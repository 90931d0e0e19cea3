//! Polls the queues of messages, the highest priority first.
//!
//! A search ends at the first queue that has something, so that the next one starts with the highest priority again.
//! The URLs are renewed before they end, and at once when a poll is refused with 403.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::message::{Inbox, Received};
use super::source::refuses;
use tenure_client::consumer::source::{Found, Source};
use tenure_client::error::chain;
use tenure_client::{Error, Message, MessageQueue, PollUrls};

/// The pause after a round over all queues that found none.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long URLs that are still good are used after they could not be renewed, before that is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(30);
/// How many messages that raised an alarm are remembered; beyond that, the memory is cleared.
const ALARMED_MAX: usize = 1000;

/// Polls the queues.
pub(super) struct Poller {
    settings: Arc<Settings>,
    inbox: Arc<Inbox>,
    urls: Option<InUse>,
    /// The queue gave URLs at least once.
    has_worked: bool,
    /// Messages that came too often and that the log has already.
    alarmed: HashSet<String>,
}

/// The URLs that are used now.
struct InUse {
    urls: Arc<PollUrls>,
    renew_at: Instant,
    /// Some poll was answered, so that a 403 means that they have ended since.
    proven: bool,
}

impl Source for Poller {
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        let received = self.search(room).await?;
        Ok(received.into_iter().map(|received| Found::to_claim(received.claim())).collect())
    }

    /// What has worked once is only in trouble.
    fn is_refused(&self, error: &Error) -> bool {
        !self.has_worked && refuses(error)
    }

    /// A round over all queues has found none.
    fn rest_until(&self, _begun: Instant) -> Instant {
        Instant::now() + POLL_INTERVAL
    }

    /// Ends the deletions that are under way.
    async fn close(&mut self) {
        self.inbox.close().await;
    }
}

impl Poller {
    pub(super) fn new(settings: &Arc<Settings>, shutdown: &CancellationToken) -> Self {
        let inbox = Arc::new(Inbox::new(settings, shutdown));
        Self { settings: Arc::clone(settings), inbox, urls: None, has_worked: false, alarmed: HashSet::new() }
    }

    /// Gets at most `room` messages, all from one queue: from the highest that has any.
    async fn search(&mut self, room: usize) -> Result<Vec<Received>, Error> {
        // Without the pause, claims that are never granted would hide or delete one message after the other.
        tokio::time::sleep(self.inbox.pause()).await;
        loop {
            let urls = self.urls().await?;
            match self.round(&urls, room).await {
                Err(error) if error.status() == Some(403) => {
                    tracing::info!(error = chain(&error), "the URLs of the messages are refused and asked for again");
                    if !self.urls.take().is_some_and(|urls| urls.proven) {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// One poll of each queue until one has messages.
    async fn round(&mut self, urls: &PollUrls, room: usize) -> Result<Vec<Received>, Error> {
        let mut failed = None;
        for queue in &urls.queues {
            match self.settings.client.messages(queue, room).await {
                Ok(messages) => {
                    if let Some(urls) = &mut self.urls {
                        urls.proven = true;
                    }
                    if !messages.is_empty() {
                        return Ok(self.receive(queue, messages, room));
                    }
                }
                // Nothing would be different in the other queues.
                Err(error) if error.status() == Some(403) || matches!(error, Error::Network(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "a queue of messages could not be polled");
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(Vec::new()), Err)
    }

    fn receive(&mut self, queue: &MessageQueue, messages: Vec<Message>, room: usize) -> Vec<Received> {
        messages.iter().for_each(|message| self.alarm(message));
        // What a server sends beyond what was asked for comes back when its visibility timeout is over.
        let counted = Arc::new(AtomicBool::new(false));
        let received = |message| Received::new(message, queue.clone(), &self.inbox, &counted);
        messages.into_iter().take(room).map(received).collect()
    }

    /// Logs once a message that comes again and again: something keeps workers from claiming or deleting it.
    fn alarm(&mut self, message: &Message) {
        if message.dequeue_count() <= self.settings.dequeue_alarm || self.alarmed.contains(message.id()) {
            return;
        }
        if self.alarmed.len() >= ALARMED_MAX {
            self.alarmed.clear();
        }
        self.alarmed.insert(message.id().to_owned());
        let run = message.run().ok();
        tracing::warn!(
            message.id = message.id(),
            task.id = run.map(|(task, _)| tracing::field::display(task)),
            run.id = run.map(|(_, run)| run.number()),
            dequeue_count = message.dequeue_count(),
            dequeue_alarm = self.settings.dequeue_alarm,
            "a message was received more often than the alarm allows: find out why it is not claimed or not deleted"
        );
    }

    /// URLs to poll with: those in use, or new ones if they end soon.
    async fn urls(&mut self) -> Result<Arc<PollUrls>, Error> {
        if let Some(InUse { urls, renew_at, .. }) = &self.urls
            && Instant::now() < *renew_at
        {
            return Ok(Arc::clone(urls));
        }
        match self.settings.client.poll_task_urls(&self.settings.queue).await {
            Ok(urls) => {
                tracing::debug!(queues = urls.queues.len(), expires = %urls.expires, "new URLs of messages");
                let urls = Arc::new(urls);
                self.has_worked = true;
                self.urls = Some(InUse { renew_at: urls.renew_at(), urls: Arc::clone(&urls), proven: false });
                Ok(urls)
            }
            Err(error) => match &mut self.urls {
                Some(old) if Instant::now() < old.urls.ends() => {
                    tracing::warn!(error = chain(&error), "the URLs of the messages could not be renewed yet");
                    old.renew_at = Instant::now() + RENEW_AGAIN;
                    Ok(Arc::clone(&old.urls))
                }
                _ => Err(error),
            },
        }
    }
}
