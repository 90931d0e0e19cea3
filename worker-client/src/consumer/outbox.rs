//! Results to send. Results that arrive during a request go with the next one, so many short jobs
//! cost few requests. With a source, they go with its calls for work, which open and close the
//! outbox.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::work::{RESULTS_MAX, RunResult};
use tokio::sync::{Notify, oneshot};

use super::settings::Settings;
use crate::error::chain;
use crate::{Client, Error, RetryPolicy, TaskStatus};

/// Leases may be as short as 10 s.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Per request, more than the limit of one result. A server accepts 10 MiB.
const RESULT_BYTES: usize = 1 << 20;

pub(super) struct Outbox {
    results: Mutex<Results>,
    arrived: Notify,
}

struct Results {
    is_open: bool,
    waiting: VecDeque<Waiting>,
}

/// A result; dropping it leaves it unanswered.
pub(super) struct Waiting {
    pub result: RunResult,
    answer: oneshot::Sender<Verdict>,
}

type Verdict = Result<TaskStatus, Error>;

impl Outbox {
    pub(super) fn new(is_open: bool) -> Self {
        Self { results: Mutex::new(Results { is_open, waiting: VecDeque::new() }), arrived: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the answer. None if the outbox is closed or no usable answer came.
    pub(super) async fn send(&self, result: RunResult) -> Option<Verdict> {
        let (answer, answered) = oneshot::channel();
        {
            let mut results = self.lock();
            if !results.is_open {
                return None;
            }
            results.waiting.push_back(Waiting { result, answer });
        }
        self.arrived.notify_one();
        answered.await.ok()
    }

    /// Closing drops the waiting results.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut results = self.lock();
        results.is_open = is_open;
        if !is_open {
            results.waiting.clear();
        }
    }

    pub(super) fn take(&self) -> Vec<Waiting> {
        let mut results = self.lock();
        // An abandoned report must not be sent: its run may be another worker's.
        results.waiting.retain(|waiting| !waiting.answer.is_closed());
        let (mut count, mut bytes) = (0, 0);
        for waiting in results.waiting.iter().take(RESULTS_MAX) {
            bytes += waiting.result.result.as_ref().map_or(0, |result| result.get().len());
            if bytes > RESULT_BYTES {
                break;
            }
            count += 1;
        }
        results.waiting.drain(..count).collect()
    }

    /// May return without a result.
    pub(super) async fn arrival(&self) {
        self.arrived.notified().await;
    }
}

impl Waiting {
    pub(super) fn answer(self, verdict: Verdict) {
        // Fails if the job's lease is over.
        drop(self.answer.send(verdict));
    }
}

/// Sends the results of a consumer without a source. Never returns.
pub(super) async fn run(outbox: &Outbox, settings: &Settings) {
    if settings.has_source {
        return std::future::pending().await;
    }
    let client = settings.client.with_retry_policy(RetryPolicy::never());
    loop {
        let batch = outbox.take();
        if batch.is_empty() {
            outbox.arrival().await;
            continue;
        }
        for waiting in send(&client, settings, batch).await {
            send(&client, settings, vec![waiting]).await;
        }
    }
}

/// Returns a batch that was refused as a whole, to send each result separately.
async fn send(client: &Client, Settings { queue, name, .. }: &Settings, mut batch: Vec<Waiting>) -> Vec<Waiting> {
    let results: Vec<RunResult> = batch.iter().map(|waiting| waiting.result.clone()).collect();
    let sent = client.work(queue, name, &results, 0, Duration::ZERO);
    match tokio::time::timeout(REPORT_TIMEOUT, sent).await {
        Ok(Ok(worked)) => {
            for (waiting, verdict) in batch.into_iter().zip(worked.results) {
                waiting.answer(verdict);
            }
        }
        Ok(Err(error)) if error.is_transient() => {
            warning!(reports = results.len(), error = chain(&error), "reports got no answer");
        }
        Ok(Err(_)) if batch.len() > 1 => return batch,
        Ok(Err(error)) => {
            if let Some(waiting) = batch.pop() {
                waiting.answer(Err(error));
            }
        }
        Err(_elapsed) => warning!(reports = results.len(), "reports got no answer in time"),
    }
    Vec::new()
}
