//! Requests to stop a job, and the loss of its run.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{EndedBy, ReasonResolved, RunState};
use tokio::sync::watch;

use crate::Lost;

/// Why a job must stop.
///
/// ```
/// use tenure_client::consumer::{Outcome, Stop, StopReason};
///
/// fn outcome(stop: &Stop) -> Outcome {
///     match stop.reason() {
///         None => Outcome::Completed(None),
///         Some(StopReason::Shutdown) => Outcome::Release { after: None },
///         Some(_) => Outcome::failed("stopped before the end"),
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The outcome is ignored.
    Canceled,
    /// The outcome is ignored.
    DeadlineExceeded,
    /// The run is another worker's, or soon may be: stop within the grace. The outcome is reported
    /// if there is time.
    Lost,
    /// The outcome is reported.
    Shutdown,
    /// A request of an operator or balancer. The outcome is reported.
    Command,
}

impl StopReason {
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::DeadlineExceeded | Self::Lost)
    }
}

/// How a job's run was lost. `Display` describes it in words.
///
/// ```
/// use tenure_client::consumer::HowLost;
///
/// assert_eq!(HowLost::Unanswered.to_string(), "no renewal was answered in time");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HowLost {
    /// The server refused to renew the claim.
    Refused(Lost),
    /// No renewal was answered in time. The run is held until its lease ends.
    Unanswered,
    /// The run has ended, as the session's inbox says.
    Ended(EndedRun),
    /// The run is another worker's, or waits for one.
    SessionEnded,
    /// The session could not be renewed in time. If it has survived, the run is held until its
    /// lease ends.
    SessionUnanswered,
}

impl fmt::Display for HowLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(lost) => write!(f, "{}", lost.because),
            Self::Unanswered => f.write_str("no renewal was answered in time"),
            Self::Ended(ended) => write!(f, "{ended}"),
            Self::SessionEnded => f.write_str("the session of the worker has ended"),
            Self::SessionUnanswered => f.write_str("the session of the worker could not be renewed in time"),
        }
    }
}

/// Tells a handler when to stop. Stopping is up to the handler: nothing is aborted.
///
/// ```
/// # use std::time::Duration;
/// # use tenure_client::consumer::{Job, Outcome, Stop};
/// async fn count(job: Job<u64>, stop: Stop) -> Outcome {
///     for number in 0..*job.payload() {
///         tokio::select! {
///             () = tokio::time::sleep(Duration::from_secs(1)) => println!("{number}"),
///             () = stop.requested() => return Outcome::Release { after: None },
///         }
///     }
///     Outcome::Completed(None)
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Stop {
    pub(super) asked: watch::Receiver<Option<StopReason>>,
    how_lost: Arc<OnceLock<HowLost>>,
}

impl Stop {
    pub(super) fn new(asked: watch::Receiver<Option<StopReason>>, how_lost: Arc<OnceLock<HowLost>>) -> Self {
        Self { asked, how_lost }
    }

    pub(super) fn asked_by(&self, asked: watch::Receiver<Option<StopReason>>) -> Self {
        Self { asked, how_lost: Arc::clone(&self.how_lost) }
    }

    /// Waits for a request. May be called repeatedly.
    ///
    /// ```
    /// # use tenure_client::consumer::{Outcome, Stop};
    /// # async fn work() {}
    /// # async fn example(stop: &Stop) -> Outcome {
    /// tokio::select! {
    ///     () = work() => Outcome::Completed(None),
    ///     () = stop.requested() => Outcome::Release { after: None },
    /// }
    /// # }
    /// ```
    pub async fn requested(&self) {
        self.wait_for(Option::is_some).await;
    }

    /// Waits until the run is lost ([`Canceled`](StopReason::Canceled),
    /// [`DeadlineExceeded`](StopReason::DeadlineExceeded) or [`Lost`](StopReason::Lost)), even
    /// after another request. May be called repeatedly.
    ///
    /// ```
    /// # use tenure_client::consumer::Stop;
    /// # async fn work(stop: &Stop) {}
    /// # async fn example(stop: &Stop) {
    /// tokio::select! {
    ///     () = work(stop) => {}
    ///     () = stop.lost() => println!("{}", stop.how_lost().map_or_else(String::new, ToString::to_string)),
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) {
        self.wait_for(|asked| asked.is_some_and(StopReason::is_final)).await;
    }

    async fn wait_for(&self, asked: impl FnMut(&Option<StopReason>) -> bool) {
        // Without a consumer no request can follow.
        if self.asked.clone().wait_for(asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// How the run was lost, if it was.
    ///
    /// ```
    /// # use tenure_client::consumer::Stop;
    /// # fn example(stop: &Stop) {
    /// if let Some(how) = stop.how_lost() {
    ///     println!("stopping: {how}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn how_lost(&self) -> Option<&HowLost> {
        self.how_lost.get()
    }

    /// Returns why the job must stop. The loss of the run replaces an earlier reason.
    ///
    /// ```
    /// # use tenure_client::consumer::{Outcome, Stop, StopReason};
    /// # fn example(stop: &Stop) -> Outcome {
    /// match stop.reason() {
    ///     Some(StopReason::Shutdown) => Outcome::Release { after: None },
    ///     _ => Outcome::failed("stopped"),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        *self.asked.borrow()
    }
}

/// A run that ended without a report of its worker. `Display` describes it in words.
///
/// ```
/// use tenure_client::consumer::HowLost;
///
/// # fn example(stop: &tenure_client::consumer::Stop) {
/// if let Some(HowLost::Ended(run)) = stop.how_lost() {
///     println!("run {} of task {}: {run}", run.run_id, run.task_id);
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedRun {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub state: RunState,
    pub reason_resolved: ReasonResolved,
    /// Set where the reason does not imply it.
    pub ended_by: Option<EndedBy>,
}

impl EndedRun {
    pub(super) fn stop_reason(&self) -> StopReason {
        match self.reason_resolved {
            ReasonResolved::Canceled => StopReason::Canceled,
            ReasonResolved::DeadlineExceeded => StopReason::DeadlineExceeded,
            _ => StopReason::Lost,
        }
    }
}

impl fmt::Display for EndedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, reason_resolved, ended_by, .. } = self;
        match reason_resolved {
            ReasonResolved::Canceled => f.write_str("the task was cancelled"),
            ReasonResolved::DeadlineExceeded => f.write_str("the deadline of the task has passed"),
            reason => {
                write!(f, "the run has ended as {state}: {reason}")?;
                ended_by.map_or(Ok(()), |ended_by| write!(f, ", by {ended_by}"))
            }
        }
    }
}
