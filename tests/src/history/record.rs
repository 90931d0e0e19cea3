//! What is written down: every call with its answer, and when it began and ended.

use tenure_api::ids::SlugId;

use super::policy::{Options, Policy, Start};

use super::sessions::SessionCall;

/// Microseconds since the history began, by one monotonic clock for all actors.
pub type Stamp = u64;

/// The priorities from lowest to highest: a greater index is handed out first.
pub const PRIORITIES: [&str; 7] = ["lowest", "very-low", "low", "medium", "high", "very-high", "highest"];

/// One line of a history. The server acted on it, if at all, at some time from `start` to `end`; where the answer is
/// [`Answer::Unknown`] it may also have acted a little later, when the caller had gone.
#[derive(Debug, Clone)]
pub struct Record {
    /// When the call began.
    pub start: Stamp,
    /// When its answer was complete, or when the caller gave up.
    pub end: Stamp,
    /// What was done.
    pub event: Event,
}

/// The answer that the caller got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    /// It was done.
    Done(T),
    /// It was refused with this status, so it was not done.
    Refused(u16),
    /// There was no answer, or one that means "perhaps": it was done or it was not.
    Unknown,
}

impl<T> Answer<T> {
    /// What was done, if it was done for certain.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(what) => Some(what),
            Self::Refused(_) | Self::Unknown => None,
        }
    }

    /// Whether it was done, without what.
    pub fn without_content(self) -> Answer<()> {
        self.map(|_| ())
    }

    /// The same answer with other content.
    pub(crate) fn map<U>(self, content: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Done(what) => Answer::Done(content(what)),
            Self::Refused(status) => Answer::Refused(status),
            Self::Unknown => Answer::Unknown,
        }
    }

    /// Whether it may have been done.
    pub fn may_be_done(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// Names a run; the fencing token of a claim.
pub type RunKey = (SlugId, u16);

/// The call or the deed.
#[derive(Debug, Clone)]
pub enum Event {
    /// createTask.
    Create {
        /// What was to be created.
        task: TaskSpec,
        /// Whether it was.
        answer: Answer<()>,
    },
    /// claimWork.
    ClaimWork {
        /// Number of the queue.
        queue: usize,
        /// Who claimed.
        worker: usize,
        /// The runs that were handed out.
        answer: Answer<Vec<RunKey>>,
    },
    /// claimTask.
    ClaimTask {
        /// The run that was asked for.
        run: RunKey,
        /// Who claimed.
        worker: usize,
        /// Whether the worker got it.
        answer: Answer<()>,
    },
    /// reclaimTask.
    Reclaim {
        /// The run whose claim was renewed.
        run: RunKey,
        /// Whether it was.
        answer: Answer<()>,
    },
    /// One of the three reports.
    Report {
        /// The run that was reported.
        run: RunKey,
        /// As what.
        verdict: Verdict,
        /// Whether the report was accepted.
        answer: Answer<()>,
    },
    /// scheduleTask, rerunTask, cancelTask or changeTaskPriority.
    Change {
        /// The task.
        task: SlugId,
        /// What was asked for.
        change: Change,
        /// Whether it was done.
        answer: Answer<()>,
    },
    /// A run that its worker releases.
    Release {
        /// The run.
        run: RunKey,
        /// When the next run may start.
        start: Option<Start>,
        /// Whether it was released.
        answer: Answer<()>,
    },
    /// The result that came with a report, which has a record of its own.
    Returned {
        /// The run that was reported.
        run: RunKey,
        /// What it returned.
        result: u64,
        /// Whether the report was accepted.
        answer: Answer<()>,
    },
    /// A policy was put in the place of the one before, or removed.
    Policy {
        /// Number of the queue.
        queue: usize,
        /// As it is to be.
        policy: Policy,
        /// Whether it was changed.
        answer: Answer<()>,
    },
    /// A queue was paused.
    Pause {
        /// Number of the queue.
        queue: usize,
        /// When it resumes by itself, in milliseconds since 1970 of the server's clock.
        until: Option<i64>,
        /// Whether it was.
        answer: Answer<()>,
    },
    /// A queue was resumed.
    Resume {
        /// Number of the queue.
        queue: usize,
        /// Whether it was.
        answer: Answer<()>,
    },
    /// Messages of these runs were given to a poller.
    Poll {
        /// Number of the queue.
        queue: usize,
        /// Their runs.
        runs: Vec<RunKey>,
    },
    /// The server's clock showed this, in milliseconds since 1970.
    Clock(i64),
    /// A call of a worker for its session.
    Session(SessionCall),
    /// A foreign transaction held locks on rows of tasks for this time.
    RowsLocked,
    /// Sessions of a server were killed.
    SessionsKilled,
    /// A server answered that its database fails, or did not answer although the caller waited.
    DatabaseFault,
    /// The database lost the end of its log: what was answered in this time may never have been done.
    TailLost,
}

/// What is requested for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Run without waiting for dependencies.
    Schedule,
    /// Run once more.
    Rerun,
    /// End.
    Cancel,
    /// Have another priority, an index into [`PRIORITIES`].
    Priority(usize),
}

/// What a test chose for a task. Two creates with the same id and different content are a conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// The task's id.
    pub task: SlugId,
    /// Number of its queue.
    pub queue: usize,
    /// Index into [`PRIORITIES`].
    pub priority: usize,
    /// How often it may be retried.
    pub retries: u32,
    /// Which of several contents under one id this is; equal numbers are equal bodies.
    pub content: u32,
    /// The tasks that it waits for.
    pub dependencies: Vec<SlugId>,
    /// Whether any end of them will do, or only that they are completed.
    pub any_end: bool,
    /// What it says itself in the place of its queue's policy.
    pub options: Options,
}

/// What a worker reports about a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// reportCompleted.
    Completed,
    /// reportFailed.
    Failed,
    /// reportException with this reason, which may give the task another run.
    WorkerShutdown,
    /// Likewise.
    IntermittentTask,
    /// reportException with this reason, which is final.
    MalformedPayload,
    /// Likewise.
    ResourceUnavailable,
    /// Likewise.
    InternalError,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Completed,
        Self::Failed,
        Self::WorkerShutdown,
        Self::IntermittentTask,
        Self::MalformedPayload,
        Self::ResourceUnavailable,
        Self::InternalError,
    ];

    /// The run's state and reasonResolved that say this verdict.
    #[must_use]
    pub fn wire(self) -> (&'static str, &'static str) {
        match self {
            Self::Completed => ("completed", "completed"),
            Self::Failed => ("failed", "failed"),
            Self::WorkerShutdown => ("exception", "worker-shutdown"),
            Self::IntermittentTask => ("exception", "intermittent-task"),
            Self::MalformedPayload => ("exception", "malformed-payload"),
            Self::ResourceUnavailable => ("exception", "resource-unavailable"),
            Self::InternalError => ("exception", "internal-error"),
        }
    }

    /// Whether the task gets another run after it, while retries are left.
    #[must_use]
    pub fn retries(self) -> bool {
        matches!(self, Self::WorkerShutdown | Self::IntermittentTask)
    }
}
