//! Results to send. While a call for work is due, results wait for it: one request then reports and
//! claims. Otherwise a consumer without a source sends them in requests of their own. Results that
//! arrive during such a request go with the next one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::work::{RESULTS_MAX, RunResult};
use tokio::sync::{Notify, oneshot};
use tokio::task::Id;

use super::settings::Settings;
use crate::error::chain;
use crate::{Client, Error, RetryPolicy, TaskStatus};

/// Leases may be as short as 10 s.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Per request, more than the limit of one result. A server accepts 10 MiB.
const RESULT_BYTES: usize = 1 << 20;

pub(super) struct Outbox {
    /// Results then go with calls for work only; others are left to their jobs.
    has_source: bool,
    results: Mutex<Results>,
    /// Notified when a result for a call for work arrives.
    arrived: Notify,
    /// Notified when results for other requests arrive.
    due: Notify,
}

#[derive(Default)]
struct Results {
    /// A call for work is due, and takes the results of `waiting`.
    are_held: bool,
    /// Number of waiting results from which an arrival is notified.
    wake_at: usize,
    waiting: VecDeque<Waiting>,
    /// Results that must not go with a call for work.
    apart: VecDeque<Waiting>,
}

/// A result; dropping it leaves it unanswered.
pub(super) struct Waiting {
    pub result: RunResult,
    /// Job that ends once the result is accepted. None if it has work left to do.
    job: Option<Id>,
    answer: oneshot::Sender<Verdict>,
}

type Verdict = Result<TaskStatus, Error>;

impl Outbox {
    pub(super) fn new(has_source: bool) -> Self {
        Self { has_source, results: Mutex::default(), arrived: Notify::new(), due: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a result, with a call for work if one is due, and waits for the answer. `job` is the
    /// job that ends once the result is accepted. None if no usable answer came, or if a source has
    /// no call due.
    pub(super) async fn send(&self, result: RunResult, job: Option<Id>) -> Option<Verdict> {
        let (waiting, answered) = Waiting::new(result, job);
        {
            let mut results = self.lock();
            if !results.are_held && self.has_source {
                return None;
            }
            results.waiting.push_back(waiting);
            if !results.are_held {
                self.due.notify_one();
            } else if results.waiting.len() >= results.wake_at {
                self.arrived.notify_one();
            }
        }
        answered.await.ok()
    }

    /// Sends a result without a call for work, and waits for the answer. Not with a source.
    pub(super) async fn send_apart(&self, result: RunResult) -> Option<Verdict> {
        let (waiting, answered) = Waiting::new(result, None);
        self.report_apart(vec![waiting]);
        answered.await.ok()
    }

    /// Makes results wait for a call for work, or not. Then waiting results are sent without one, or
    /// dropped if the consumer has a source. Each arrival is notified.
    pub(super) fn hold(&self, hold: bool) {
        let mut results = self.lock();
        (results.are_held, results.wake_at) = (hold, 0);
        if hold || results.waiting.is_empty() {
            return;
        }
        if self.has_source {
            results.waiting.clear();
        } else {
            self.due.notify_one();
        }
    }

    /// Notifies arrivals only from this number of waiting results on, until the next
    /// [`hold`](Self::hold).
    pub(super) fn wake_at(&self, count: usize) {
        self.lock().wake_at = count;
    }

    /// Number of results that wait for a call for work.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Takes the results of a call for work.
    pub(super) fn take(&self) -> Vec<Waiting> {
        batch(&mut self.lock().waiting)
    }

    /// Takes the results of a further call for work, if at least `least` wait for one.
    pub(super) fn take_many(&self, least: usize) -> Vec<Waiting> {
        let mut results = self.lock();
        let are_many = results.are_held && results.waiting.len() >= least;
        if are_many { batch(&mut results.waiting) } else { Vec::new() }
    }

    /// Returns results that were taken for a call for work. [`hold`](Self::hold) must follow if
    /// there is none.
    pub(super) fn put_back(&self, taken: Vec<Waiting>) {
        let mut results = self.lock();
        for waiting in taken.into_iter().rev() {
            results.waiting.push_front(waiting);
        }
    }

    /// Reports results that were taken for a call for work, but must not wait for it.
    pub(super) fn report_apart(&self, taken: Vec<Waiting>) {
        if self.has_source {
            return;
        }
        self.lock().apart.extend(taken);
        self.due.notify_one();
    }

    /// Takes the results of a request without a call for work.
    fn take_due(&self) -> Vec<Waiting> {
        let mut results = self.lock();
        let Results { are_held, waiting, apart, wake_at: _ } = &mut *results;
        if !*are_held {
            apart.append(waiting);
        }
        batch(apart)
    }

    /// Waits for a result that is notified: see [`wake_at`](Self::wake_at). May return without one.
    pub(super) async fn arrival(&self) {
        self.arrived.notified().await;
    }
}

/// Takes results up to the limits of a request.
fn batch(results: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    // An abandoned report must not be sent: its run may be another worker's.
    results.retain(|waiting| !waiting.answer.is_closed());
    let (mut count, mut bytes) = (0, 0);
    for waiting in results.iter().take(RESULTS_MAX) {
        bytes += waiting.result.result.as_ref().map_or(0, |result| result.get().len());
        if bytes > RESULT_BYTES {
            break;
        }
        count += 1;
    }
    results.drain(..count).collect()
}

impl Waiting {
    fn new(result: RunResult, job: Option<Id>) -> (Self, oneshot::Receiver<Verdict>) {
        let (answer, answered) = oneshot::channel();
        (Self { result, job, answer }, answered)
    }

    /// Returns the job if it is about to end.
    pub(super) fn answer(self, verdict: Verdict) -> Option<Id> {
        let accepted = verdict.is_ok();
        // Fails if the job's lease is over.
        let heard = self.answer.send(verdict).is_ok();
        self.job.filter(|_| accepted && heard)
    }
}

/// Sends the results that do not go with calls for work, for a consumer without a source. Never
/// returns.
pub(super) async fn run(outbox: &Outbox, settings: &Settings) {
    if settings.has_source {
        return std::future::pending().await;
    }
    let client = settings.client.with_retry_policy(RetryPolicy::never());
    loop {
        let batch = outbox.take_due();
        if batch.is_empty() {
            outbox.due.notified().await;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_api::work::RunOutcome;
    use tokio::task::JoinHandle;

    use super::*;

    fn result(run: u16) -> RunResult {
        let (task_id, run_id) = ("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run.to_string().parse().unwrap());
        RunResult::new(task_id, run_id, RunOutcome::Completed)
    }

    async fn arrive(outbox: &Arc<Outbox>, run: u16) -> JoinHandle<Option<Verdict>> {
        let sending = Arc::clone(outbox);
        let sent = tokio::spawn(async move { sending.send(result(run), None).await });
        tokio::task::yield_now().await;
        sent
    }

    fn runs(taken: &[Waiting]) -> Vec<u16> {
        taken.iter().map(|waiting| waiting.result.run_id.number()).collect()
    }

    #[tokio::test]
    async fn held_results_wait_for_call_in_order() {
        let outbox = Arc::new(Outbox::new(false));
        outbox.hold(true);
        for run in 0..3 {
            arrive(&outbox, run).await;
        }
        let sending = Arc::clone(&outbox);
        tokio::spawn(async move { sending.send_apart(result(3)).await });
        tokio::task::yield_now().await;
        assert_eq!((outbox.waiting(), runs(&outbox.take_due())), (3, vec![3]));
        let taken = outbox.take();
        outbox.put_back(taken);
        let taken = outbox.take();
        assert_eq!((runs(&taken), outbox.waiting()), (vec![0, 1, 2], 0));
        outbox.put_back(taken);
        outbox.hold(false);
        assert_eq!(runs(&outbox.take_due()), [0, 1, 2]);
    }

    #[tokio::test]
    async fn further_call_takes_many_held_results_or_none() {
        let outbox = Arc::new(Outbox::new(false));
        outbox.hold(true);
        outbox.wake_at(2);
        arrive(&outbox, 0).await;
        assert!(outbox.take_many(2).is_empty());
        arrive(&outbox, 1).await;
        outbox.arrival().await;
        assert_eq!(runs(&outbox.take_many(2)), [0, 1]);
        for run in 2..4 {
            arrive(&outbox, run).await;
        }
        outbox.hold(false);
        assert!(outbox.take_many(2).is_empty(), "they are sent apart");
    }

    #[tokio::test]
    async fn source_without_call_leaves_results_to_jobs() {
        let outbox = Arc::new(Outbox::new(true));
        assert!(arrive(&outbox, 0).await.await.unwrap().is_none());
        outbox.hold(true);
        let (held, taken) = (arrive(&outbox, 1).await, arrive(&outbox, 2).await);
        assert_eq!(outbox.waiting(), 2);
        outbox.report_apart(outbox.take());
        let late = arrive(&outbox, 3).await;
        outbox.hold(false);
        for unanswered in [held, taken, late] {
            assert!(unanswered.await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn abandoned_result_is_not_sent() {
        let outbox = Arc::new(Outbox::new(false));
        let sent = arrive(&outbox, 0).await;
        arrive(&outbox, 1).await;
        sent.abort();
        assert!(sent.await.unwrap_err().is_cancelled());
        assert_eq!(runs(&outbox.take_due()), [1]);
    }
}
