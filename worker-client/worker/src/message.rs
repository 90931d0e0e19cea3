//! Handles one message from the poll to its deletion.
//!
//! A message is deleted once its run was claimed, or the claim was finally refused. Otherwise it is
//! left and reappears: the claim may succeed later or for another worker, or the outcome is
//! unknown. Deletions run concurrently. A failed deletion does no harm: the message reappears and
//! its claim is refused.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::source::refuses;
use super::{LAST_WORDS, Settings, last_call};
use tenure_client::error::chain;
use tenure_client::{Claim, Error, Message, MessageQueue, retry};

const DELETE_TRIES: u32 = 8;
/// Further messages are left to reappear.
const DELETIONS_MAX: usize = 256;

/// State shared by the messages of a worker.
pub(super) struct Inbox {
    settings: Arc<Settings>,
    shutdown: CancellationToken,
    /// Runs in progress. A repeated claim would be granted, and the run would execute twice.
    in_hand: Mutex<HashSet<(TaskId, RunId)>>,
    /// Consecutive polls with a refused claim, since the last granted claim.
    failures: AtomicU32,
    /// The queue has accepted a claim of this worker.
    has_claimed: AtomicBool,
    deletions: TaskTracker,
    deletions_room: Arc<Semaphore>,
}

/// A received message, until it is deleted or visible to others again.
pub(super) struct Received {
    message: Message,
    queue: MessageQueue,
    inbox: Arc<Inbox>,
    /// Set once a claim of the same poll has counted as a failure: a cancelled task group counts
    /// once.
    counted: Arc<AtomicBool>,
}

/// Marks a run as in progress.
pub(super) struct Hold {
    run: (TaskId, RunId),
    inbox: Arc<Inbox>,
}

impl Inbox {
    pub(super) fn new(settings: &Arc<Settings>, shutdown: &CancellationToken) -> Self {
        Self {
            settings: Arc::clone(settings),
            shutdown: shutdown.clone(),
            in_hand: Mutex::default(),
            failures: AtomicU32::new(0),
            has_claimed: AtomicBool::new(false),
            deletions: TaskTracker::new(),
            deletions_room: Arc::new(Semaphore::new(DELETIONS_MAX)),
        }
    }

    /// Pause before the next poll.
    pub(super) fn pause(&self) -> Duration {
        match self.failures.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            failures => self.settings.client.retry_policy().backoff(failures, retry::jitter()),
        }
    }

    /// Awaits deletions in progress.
    pub(super) async fn close(&self) {
        self.deletions.close();
        if tokio::time::timeout(LAST_WORDS, self.deletions.wait()).await.is_err() {
            tracing::warn!(messages = self.deletions.len(), "messages were not deleted before the shutdown");
        }
    }
}

impl Hold {
    /// Returns none if the run is in progress.
    fn take(run: (TaskId, RunId), inbox: &Arc<Inbox>) -> Option<Self> {
        let mut in_hand = inbox.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        in_hand.insert(run).then(|| Self { run, inbox: Arc::clone(inbox) })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inbox.in_hand.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.run);
    }
}

impl Received {
    /// Messages of one poll share `counted`.
    pub(super) fn new(message: Message, queue: MessageQueue, inbox: &Arc<Inbox>, counted: &Arc<AtomicBool>) -> Self {
        Self { message, queue, inbox: Arc::clone(inbox), counted: Arc::clone(counted) }
    }

    /// Claims the run that the message names, and deletes the message if it is no longer needed.
    ///
    /// # Errors
    /// The first claim shows that the worker may not claim at all.
    pub(super) async fn claim(self) -> Result<Option<(Claim, Hold)>, Error> {
        let run @ (task_id, run_id) = match self.message.run() {
            Ok(run) => run,
            Err(error) => {
                tracing::warn!(
                    message.id = self.message.id(),
                    error = chain(&error),
                    "an unreadable message is deleted"
                );
                self.delete();
                return Ok(None);
            }
        };
        let Some(hold) = Hold::take(run, &self.inbox) else {
            tracing::warn!(
                task.id = %task_id, run.id = run_id.number(),
                "a message names a run that this worker already holds; ignoring it"
            );
            return Ok(None);
        };
        let Some(answer) = self.ask(run).await else { return Ok(None) };
        match answer {
            Ok(claim) => {
                self.inbox.has_claimed.store(true, Ordering::Relaxed);
                self.inbox.failures.store(0, Ordering::Relaxed);
                self.delete();
                Ok(Some((claim, hold)))
            }
            Err(error) if settles(&error) => {
                tracing::info!(task.id = %task_id, run.id = run_id.number(), error = chain(&error), "the run is not claimable");
                self.inbox.has_claimed.store(true, Ordering::Relaxed);
                // This worker may be quarantined: others must get the next messages.
                self.count_failure();
                self.delete();
                Ok(None)
            }
            Err(error) if refuses(&error) && !self.inbox.has_claimed.load(Ordering::Relaxed) => Err(error),
            Err(error) => {
                self.count_failure();
                tracing::warn!(
                    task.id = %task_id, run.id = run_id.number(), message.id = self.message.id(), error = chain(&error),
                    "the run could not be claimed; its message will reappear"
                );
                Ok(None)
            }
        }
    }

    fn count_failure(&self) {
        if !self.counted.swap(true, Ordering::Relaxed) {
            self.inbox.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns none if the worker shuts down without an answer.
    ///
    /// A claim in progress at a shutdown may be granted, so its answer is awaited; the claim is
    /// then reported as worker-shutdown. Messages not yet claimed are left to other workers.
    async fn ask(&self, (task_id, run_id): (TaskId, RunId)) -> Option<Result<Claim, Error>> {
        let Inbox { settings, shutdown, .. } = &*self.inbox;
        if shutdown.is_cancelled() {
            return None;
        }
        tokio::select! {
            answer = settings.client.claim_task(task_id, run_id, &settings.name) => Some(answer),
            () = last_call(shutdown) => {
                tracing::warn!(
                    task.id = %task_id, run.id = run_id.number(),
                    "no answer to a claim before the shutdown; if it was granted, it ends with its lease"
                );
                None
            }
        }
    }

    fn delete(self) {
        let Ok(room) = Arc::clone(&self.inbox.deletions_room).try_acquire_owned() else {
            tracing::warn!(
                message.id = self.message.id(),
                "too many deletions are in progress; the message is not deleted"
            );
            return;
        };
        let deletions = self.inbox.deletions.clone();
        deletions.spawn(async move {
            self.delete_with_patience().await;
            drop(room);
        });
    }

    async fn delete_with_patience(&self) {
        let Inbox { settings, shutdown, .. } = &*self.inbox;
        for tried in 1..=DELETE_TRIES {
            let Err(error) = settings.client.delete_message(&self.queue, &self.message).await else { return };
            let message_id = self.message.id();
            if tried == DELETE_TRIES || !error.is_transient() || shutdown.is_cancelled() {
                tracing::warn!(message.id = message_id, tried, error = chain(&error), "a message could not be deleted");
                return;
            }
            let why = chain(&error);
            tracing::warn!(message.id = message_id, tried, error = why, "a message could not be deleted; trying again");
            let pause = settings.client.retry_policy().pause_of(tried, &error, retry::jitter());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // One last attempt follows.
                () = shutdown.cancelled() => {}
            }
        }
    }
}

/// True if the refusal is final. An unclear answer is not final: a proxy may have sent it.
fn settles(error: &Error) -> bool {
    !error.is_unclear()
        && error.status().is_some_and(|status| matches!(status, 400..=499) && !matches!(status, 401 | 403 | 408 | 429))
}
