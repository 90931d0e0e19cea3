//! Polls the message queues, highest priority first.
//!
//! A search ends at the first queue with messages, so the next search starts with the highest
//! priority again. The URLs are renewed before they expire, and at once when a poll is refused with
//! 403.

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

/// Pause after a round without messages.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval until a failed renewal of still valid URLs is retried.
const RENEW_AGAIN: Duration = Duration::from_secs(30);
/// The set is cleared when full.
const ALARMED_MAX: usize = 1000;

pub(super) struct Poller {
    settings: Arc<Settings>,
    inbox: Arc<Inbox>,
    urls: Option<InUse>,
    /// The queue has returned URLs.
    has_worked: bool,
    /// Messages received too often and already logged.
    alarmed: HashSet<String>,
}

struct InUse {
    urls: Arc<PollUrls>,
    renew_at: Instant,
    /// A poll was answered, so a later 403 means that the URLs have expired.
    proven: bool,
}

impl Source for Poller {
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        let received = self.search(room).await?;
        Ok(received.into_iter().map(|received| Found::to_claim(received.claim())).collect())
    }

    /// After a success a refusal counts as temporary.
    fn is_refused(&self, error: &Error) -> bool {
        !self.has_worked && refuses(error)
    }

    fn rest_until(&self, _begun: Instant) -> Instant {
        Instant::now() + POLL_INTERVAL
    }

    async fn close(&mut self) {
        self.inbox.close().await;
    }
}

impl Poller {
    pub(super) fn new(settings: &Arc<Settings>, shutdown: &CancellationToken) -> Self {
        let inbox = Arc::new(Inbox::new(settings, shutdown));
        Self { settings: Arc::clone(settings), inbox, urls: None, has_worked: false, alarmed: HashSet::new() }
    }

    /// Returns messages of one queue, the highest that has any.
    async fn search(&mut self, room: usize) -> Result<Vec<Received>, Error> {
        // Otherwise claims that are never granted would hide or delete message after message.
        tokio::time::sleep(self.inbox.pause()).await;
        loop {
            let urls = self.urls().await?;
            match self.round(&urls, room).await {
                Err(error) if error.status() == Some(403) => {
                    tracing::info!(error = chain(&error), "the message URLs were refused; requesting new ones");
                    if !self.urls.take().is_some_and(|urls| urls.proven) {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

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
                // The other queues would fail the same way.
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
        // Surplus messages reappear when their visibility timeout passes.
        let counted = Arc::new(AtomicBool::new(false));
        let received = |message| Received::new(message, queue.clone(), &self.inbox, &counted);
        messages.into_iter().take(room).map(received).collect()
    }

    /// Logs a message once if it is received repeatedly.
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
            "a message was received more often than the alarm threshold: check why it is not claimed or not deleted"
        );
    }

    /// Renews the URLs if they expire soon.
    async fn urls(&mut self) -> Result<Arc<PollUrls>, Error> {
        if let Some(InUse { urls, renew_at, .. }) = &self.urls
            && Instant::now() < *renew_at
        {
            return Ok(Arc::clone(urls));
        }
        match self.settings.client.poll_task_urls(&self.settings.queue).await {
            Ok(urls) => {
                tracing::debug!(queues = urls.queues.len(), expires = %urls.expires, "received new message URLs");
                let urls = Arc::new(urls);
                self.has_worked = true;
                self.urls = Some(InUse { renew_at: urls.renew_at(), urls: Arc::clone(&urls), proven: false });
                Ok(urls)
            }
            Err(error) => match &mut self.urls {
                Some(old) if Instant::now() < old.urls.ends() => {
                    tracing::warn!(error = chain(&error), "the message URLs could not be renewed; trying again");
                    old.renew_at = Instant::now() + RENEW_AGAIN;
                    Ok(Arc::clone(&old.urls))
                }
                _ => Err(error),
            },
        }
    }
}
