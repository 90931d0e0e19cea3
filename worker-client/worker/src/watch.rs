//! Learns at once that the run of a task has ended without this worker: its task was cancelled, has met its deadline, or was given
//! to another worker. One request waits for all runs that are being worked on; when others have come, it is sent anew.
//!
//! A task that is done within moments is never watched. Where the queue does not have this call, or the worker may not use it, a run
//! that has ended is noticed at its next renewal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{ReasonResolved, RunState};
use tokio::sync::{Notify, oneshot};

use tenure_client::error::chain;
use tenure_client::{Client, EndedClaim, Error, RetryPolicy, WatchedRun, retry};

/// The least time between two requests, and how long a task runs before it is watched.
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(250);
/// How long the queue is asked to wait.
const WAIT: Duration = Duration::from_secs(30);
/// The longest pause after a failure: the next try may say what is to be stopped.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// When a queue is asked again that refuses the call: it may be another release by then.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// The runs of a worker that are watched.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    runs: Mutex<Runs>,
    /// Notified when a run has come or gone.
    changed: Notify,
}

type Runs = BTreeMap<(TaskId, RunId), oneshot::Sender<EndedClaim>>;

/// A run that is watched for as long as this is kept.
pub(super) struct Watching {
    run: (TaskId, RunId),
    ended: oneshot::Receiver<EndedClaim>,
    watch: Watch,
}

/// How a run ended, in words.
pub(super) struct InWords<'a>(pub &'a EndedClaim);

impl Watching {
    /// Waits until the run has ended, and says how.
    pub(super) async fn ended(&mut self) -> EndedClaim {
        match (&mut self.ended).await {
            Ok(ended) => ended,
            // Dropped by another entry of the same run, which there is not.
            Err(_dropped) => std::future::pending().await,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.lock().remove(&self.run);
        self.watch.0.changed.notify_one();
    }
}

impl Watch {
    /// Watches a run.
    pub(super) fn begin(&self, task_id: TaskId, run_id: RunId) -> Watching {
        let run = (task_id, run_id);
        let (sender, ended) = oneshot::channel();
        self.lock().insert(run, sender);
        self.0.changed.notify_one();
        Watching { run, ended, watch: self.clone() }
    }

    /// Asks the queue again and again. Never returns.
    pub(super) async fn ask(&self, client: &Client) {
        let client = client.with_retry_policy(RetryPolicy::never());
        let mut failures = 0;
        loop {
            let runs = self.settled().await;
            if runs.is_empty() {
                self.0.changed.notified().await;
                continue;
            }
            let answer = tokio::select! {
                answer = client.watch_claims(&runs, WAIT) => answer,
                () = self.other_than(&runs) => continue,
            };
            match answer {
                Ok(ended) => {
                    failures = 0;
                    ended.into_iter().for_each(|ended| self.tell(ended));
                }
                Err(error) if is_refusal(&error) => {
                    tracing::info!(
                        error = chain(&error),
                        "the queue cannot be asked whether runs have ended: that is noticed at their renewals"
                    );
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
                Err(error) => {
                    failures += 1;
                    tracing::debug!(failures, error = chain(&error), "the runs of this worker could not be watched");
                    let pause = client.retry_policy().pause_of(failures, &error, retry::jitter());
                    tokio::time::sleep(pause.min(PAUSE_MAX)).await;
                }
            }
        }
    }

    /// The runs that are there when nothing more comes for the moment.
    async fn settled(&self) -> Vec<WatchedRun> {
        tokio::time::sleep(ASK_AT_MOST_EVERY).await;
        self.lock().keys().map(|&(task_id, run_id)| WatchedRun { task_id, run_id }).collect()
    }

    /// Returns when there is a run that is none of these, or none at all.
    async fn other_than(&self, runs: &[WatchedRun]) {
        loop {
            self.0.changed.notified().await;
            let now = self.settled().await;
            if now.is_empty() || now.iter().any(|run| !runs.contains(run)) {
                return;
            }
        }
    }

    /// A run has ended; one that the worker has just reported itself is not watched any more.
    fn tell(&self, ended: EndedClaim) {
        if let Some(watching) = self.lock().remove(&(ended.task_id, ended.run_id)) {
            // Its handler may have ended just now.
            let _gone = watching.send(ended);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a later try would be answered in the same way.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Refused { status: 400..=407 | 409..=428, .. } | Error::BadAnswer(_))
}

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EndedClaim { state, reason_resolved, ended_by, .. } = self.0;
        match (state, reason_resolved) {
            (Some(RunState::Exception), Some(ReasonResolved::Canceled)) => f.write_str("the task was cancelled"),
            (Some(RunState::Exception), Some(ReasonResolved::DeadlineExceeded)) => {
                f.write_str("the deadline of the task has passed")
            }
            (Some(RunState::Pending), _) => f.write_str("the run waits for a worker again"),
            (Some(state), Some(reason)) => {
                write!(f, "the run has ended as {state}: {reason}")?;
                ended_by.map_or(Ok(()), |ended_by| write!(f, ", by {ended_by}"))
            }
            (Some(state), None) => write!(f, "the run has ended as {state}"),
            (None, _) => f.write_str("the queue has no such run any more"),
        }
    }
}
