//! That a job is to stop, why, and how its run was lost.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{EndedBy, ReasonResolved, RunState};
use tokio::sync::watch;

use crate::Lost;

/// Why a job is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The task was cancelled; nothing that is returned counts any more.
    Canceled,
    /// The task's deadline passed; nothing that is returned counts any more.
    DeadlineExceeded,
    /// The run is another worker's, or may soon be one's: stop within the grace. What is returned is reported if there is time.
    Lost,
    /// The consumer shuts down. What is returned is reported.
    Shutdown,
    /// An operator, or a balancer, wants it. What is returned is reported.
    Command,
}

impl StopReason {
    /// Whether the run is ours no longer, or cannot be kept.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::DeadlineExceeded | Self::Lost)
    }
}

/// How the run of a job was lost. Shown, it says so in words.
///
/// ```
/// use tenure_client::consumer::HowLost;
///
/// assert_eq!(HowLost::Unanswered.to_string(), "no renewal was answered in time");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HowLost {
    /// The server refused to renew its claim.
    Refused(Lost),
    /// No renewal was answered in time: it is ours until its lease ends.
    Unanswered,
    /// The session says that the run has ended, and how.
    Ended(EndedRun),
    /// The session has ended: the run is another worker's, or waits for one.
    SessionEnded,
    /// The session could not be renewed in time. If it has survived, the run is ours until its lease ends.
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

/// Word that a job is to stop. Stopping is up to the handler: nothing is aborted.
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

    /// The same job, asked to stop by another one.
    pub(super) fn asked_by(&self, asked: watch::Receiver<Option<StopReason>>) -> Self {
        Self { asked, how_lost: Arc::clone(&self.how_lost) }
    }

    /// Waits until the job is to stop; may be called any number of times.
    pub async fn requested(&self) {
        self.wait_for(Option::is_some).await;
    }

    /// Waits until the run is lost for this job ([`Canceled`](StopReason::Canceled), [`DeadlineExceeded`](StopReason::DeadlineExceeded)
    /// or [`Lost`](StopReason::Lost)), also if it was asked to stop for another reason before. May be called any number of times.
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
        // Without a consumer there is no one left to ask for it.
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

    /// Why the job is to stop; none while it is to go on. A reason by which the run is lost takes the place of another.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        *self.asked.borrow()
    }
}

/// A run that ended without a report of its worker, as the inbox of the session says. Shown, it says how in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedRun {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// How it ended.
    pub state: RunState,
    /// Why.
    pub reason_resolved: ReasonResolved,
    /// What ended it, where the reason does not say it.
    pub ended_by: Option<EndedBy>,
}

impl EndedRun {
    /// What the handler is told.
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
