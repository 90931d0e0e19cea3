//! Reports. What ends while a report is on its way goes with the next one, so that many short jobs cost few requests; each is
//! repeated until it is answered or its lease is over. Those of a consumer with a source take another way: [`alone`](super::alone).

use std::time::Duration;

use tenure_api::work::{RESULTS_MAX, RunOutcome, RunResult};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::alone;
use super::handler::StopReason;
use super::outcome::{Outcome, to_result};
use super::shared::{Control, Hold, Settings, Shared};
use crate::error::chain;
use crate::{Claim, Client, Error, ExceptionReason, RetryPolicy, TaskStatus, retry};

/// After this a report counts as unanswered: leases may be as short as 10 s.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a consumer that shuts down waits for the answer to a report.
pub(super) const LAST_REPORT: Duration = Duration::from_secs(10);
/// The longest pause between two tries of a report.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How many bytes of results go in one request, roughly: a server takes 10 MiB.
const RESULT_BYTES: usize = 1 << 20;

/// Where reports are left.
#[derive(Clone)]
pub(super) struct Reports(mpsc::UnboundedSender<Waiting>);

/// Reports that are not on their way yet.
pub(super) type Waitings = mpsc::UnboundedReceiver<Waiting>;

/// One of them. Dropped, it is unanswered.
pub(super) struct Waiting {
    pub result: RunResult,
    answer: oneshot::Sender<Verdict>,
}

/// What the server answers to a report.
type Verdict = Result<TaskStatus, Error>;

/// What became of a report.
enum Answer {
    Accepted(Box<TaskStatus>),
    /// For good.
    Refused(Error),
    /// It may have been stored.
    Unanswered,
}

pub(super) fn channel() -> (Reports, Waitings) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Reports(sender), receiver)
}

impl Reports {
    async fn send(&self, result: RunResult) -> Answer {
        match self.leave(result).await {
            Some(Ok(status)) => Answer::Accepted(Box::new(status)),
            Some(Err(error)) => Answer::of(error),
            None => Answer::Unanswered,
        }
    }

    /// Leaves a report there; none if no one takes it.
    pub(super) async fn leave(&self, result: RunResult) -> Option<Verdict> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Waiting { result, answer }).ok()?;
        answered.await.ok()
    }
}

/// Sends what is left there, until there is no more to come; without anything to wait for it never returns.
pub(super) async fn run(settings: &Settings, waiting: Option<Waitings>) {
    let Some(mut waiting) = waiting else { return std::future::pending().await };
    let client = settings.client.with_retry_policy(RetryPolicy::never());
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match waiting.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let mut bytes = first.bytes();
        let mut batch = vec![first];
        while batch.len() < RESULTS_MAX
            && let Ok(more) = waiting.try_recv()
        {
            bytes += more.bytes();
            if bytes > RESULT_BYTES {
                next = Some(more);
                break;
            }
            batch.push(more);
        }
        send_all(&client, settings, batch).await;
    }
}

async fn send_all(client: &Client, settings: &Settings, mut batch: Vec<Waiting>) {
    // A report that is given up must not be sent: its run may be another worker's.
    batch.retain(Waiting::is_awaited);
    let Some(batch) = send(client, settings, batch).await else { return };
    for waiting in batch {
        send(client, settings, vec![waiting]).await;
    }
}

/// Sends a batch; gives it back if it was refused as a whole, so that each is judged by itself.
async fn send(client: &Client, Settings { queue, name, .. }: &Settings, batch: Vec<Waiting>) -> Option<Vec<Waiting>> {
    if batch.is_empty() {
        return None;
    }
    let results: Vec<RunResult> = batch.iter().map(|waiting| waiting.result.clone()).collect();
    let sent = client.work(queue, name, &results, 0, Duration::ZERO);
    match tokio::time::timeout(REPORT_TIMEOUT, sent).await {
        Ok(Ok(worked)) => {
            for (waiting, verdict) in batch.into_iter().zip(worked.results) {
                waiting.answer(verdict);
            }
            None
        }
        Ok(Err(error)) if error.is_transient() => {
            tracing::warn!(reports = results.len(), error = chain(&error), "reports got no answer");
            None
        }
        Ok(Err(error)) => {
            if batch.len() > 1 {
                return Some(batch);
            }
            let mut batch = batch;
            if let Some(waiting) = batch.pop() {
                waiting.answer(Err(error));
            }
            None
        }
        Err(_elapsed) => {
            tracing::warn!(reports = results.len(), "reports got no answer in time");
            None
        }
    }
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.result.result.as_ref().map_or(0, |result| result.get().len())
    }

    pub(super) fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }

    pub(super) fn answer(self, verdict: Verdict) {
        // A job whose lease is over does not wait any more.
        drop(self.answer.send(verdict));
    }
}

impl Answer {
    fn of(error: Error) -> Self {
        if error.is_transient() || error.is_unclear() { Self::Unanswered } else { Self::Refused(error) }
    }
}

/// Returns when a shutdown has waited long enough.
pub(super) async fn last_call(shared: &Shared) {
    shared.shutdown.cancelled().await;
    tokio::time::sleep(LAST_REPORT).await;
}

/// Reports the outcome of a job, as long as the run is ours.
pub(super) async fn report(shared: &Shared, claim: Claim, control: &Control, outcome: Outcome) {
    if control.hold() == Hold::Gone || outcome == Outcome::Unreported {
        return tracing::warn!(because = control.lost_because(), "claim lost; nothing is reported");
    }
    let ends = claim.lease().ends();
    tokio::select! {
        biased;
        () = control.gone() => tracing::warn!(?outcome, "the run was lost before its outcome could be reported"),
        () = tokio::time::sleep_until(ends) => {
            control.lose(StopReason::Lost);
            tracing::warn!(?outcome, "the claim ended before its outcome could be reported");
        }
        () = last_call(shared) => tracing::warn!(?outcome, "the outcome could not be reported before the shutdown"),
        () = send_by_its_way(shared, claim, &outcome) => {}
    }
}

async fn send_by_its_way(shared: &Shared, claim: Claim, outcome: &Outcome) {
    if shared.settings.has_source {
        alone::send(shared, claim, outcome).await;
    } else {
        send_until_answered(shared, &claim, outcome).await;
    }
}

async fn send_until_answered(shared: &Shared, claim: &Claim, outcome: &Outcome) {
    let (task_id, run_id) = (claim.task_id(), claim.run_id());
    let Some(mut result) = to_result(task_id, run_id, outcome) else { return };
    let mut released = matches!(outcome, Outcome::Release { .. });
    let mut failures = 0;
    loop {
        match shared.reports.send(result.clone()).await {
            Answer::Accepted(status) => return tracing::info!(?outcome, state = ?status.state, "task reported"),
            // A task that was released too often may still be given up at the cost of a retry.
            Answer::Refused(Error::Refused { status: 409, message, .. }) if released => {
                tracing::info!(message, "a release was refused; the run ends as worker-shutdown");
                released = false;
                let reason = Some(ExceptionReason::WorkerShutdown.into());
                result = RunResult { reason, ..RunResult::new(task_id, run_id, RunOutcome::Exception) };
            }
            Answer::Refused(error) => {
                return tracing::warn!(?outcome, error = chain(&error), "the report was refused and changed nothing");
            }
            Answer::Unanswered => {
                failures += 1;
                let pause = claim.client().retry_policy().backoff(failures, retry::jitter());
                tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            }
        }
    }
}

/// Gives back a claim that was not started.
pub(super) async fn give_back(shared: &Shared, claim: Claim) {
    let (task_id, until) = (claim.task_id(), claim.lease().ends().min(Instant::now() + LAST_REPORT));
    let release = send_by_its_way(shared, claim, &Outcome::Release { after: None });
    if tokio::time::timeout_at(until, release).await.is_err() {
        tracing::warn!(task.id = %task_id, "a claim could not be given back");
    }
}
