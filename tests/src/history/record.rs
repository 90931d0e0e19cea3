//! Records: every call with its answer, its start and its end.

use tenure_api::ids::SlugId;

use super::policy::{Options, Policy, Start};

use super::sessions::SessionCall;

/// Microseconds since the history began, by one monotonic clock for all actors.
pub type Stamp = u64;

/// Priorities from lowest to highest: a greater index is handed out first.
pub const PRIORITIES: [&str; 7] = ["lowest", "very-low", "low", "medium", "high", "very-high", "highest"];

/// One record of a history. The server acted on the call, if at all, between `start` and `end`.
/// After [`Answer::Unknown`] it may also have acted a little later.
#[derive(Debug, Clone)]
pub struct Record {
    pub start: Stamp,
    /// When the answer was complete, or the caller gave up.
    pub end: Stamp,
    pub event: Event,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<T> {
    Done(T),
    Refused(u16),
    /// No answer, or an answer that leaves open if the call was done.
    Unknown,
}

impl<T> Answer<T> {
    /// The content, if the call was certainly done.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(what) => Some(what),
            Self::Refused(_) | Self::Unknown => None,
        }
    }

    pub fn without_content(self) -> Answer<()> {
        self.map(|_| ())
    }

    pub(crate) fn map<U>(self, content: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Done(what) => Answer::Done(content(what)),
            Self::Refused(status) => Answer::Refused(status),
            Self::Unknown => Answer::Unknown,
        }
    }

    pub fn may_be_done(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// Identifies a run; the fencing token of a claim.
pub type RunKey = (SlugId, u16);

#[derive(Debug, Clone)]
pub enum Event {
    Create {
        task: TaskSpec,
        answer: Answer<()>,
    },
    /// A task enqueued from SQL; refused if its transaction was rolled back. Its creation, by a
    /// server, has a record of its own.
    Enqueue {
        task: SlugId,
        answer: Answer<()>,
    },
    ClaimWork {
        queue: usize,
        worker: usize,
        answer: Answer<Vec<RunKey>>,
    },
    ClaimTask {
        run: RunKey,
        worker: usize,
        answer: Answer<()>,
    },
    Reclaim {
        run: RunKey,
        answer: Answer<()>,
    },
    Report {
        run: RunKey,
        verdict: Verdict,
        answer: Answer<()>,
    },
    Change {
        task: SlugId,
        change: Change,
        answer: Answer<()>,
    },
    /// A dead letter that was to be run again.
    Redrive {
        task: SlugId,
        answer: Answer<()>,
    },
    Release {
        run: RunKey,
        start: Option<Start>,
        answer: Answer<()>,
    },
    /// The result in a report, which has its own record.
    Returned {
        run: RunKey,
        result: u64,
        answer: Answer<()>,
    },
    Policy {
        queue: usize,
        policy: Policy,
        answer: Answer<()>,
    },
    Pause {
        queue: usize,
        /// When the queue resumes by itself, in milliseconds since 1970 of the server's clock.
        until: Option<i64>,
        answer: Answer<()>,
    },
    Resume {
        queue: usize,
        answer: Answer<()>,
    },
    Poll {
        queue: usize,
        runs: Vec<RunKey>,
    },
    /// A reading of a task's status.
    Read {
        task: SlugId,
        answer: Answer<()>,
    },
    /// A reading of the server's clock, in milliseconds since 1970.
    Clock(i64),
    Session(SessionCall),
    /// A foreign transaction held locks on rows of tasks in this period.
    RowsLocked,
    SessionsKilled,
    /// A server reported a database failure, or did not answer although the caller waited.
    DatabaseFault,
    /// The database lost the end of its log: calls answered in this period may be undone.
    TailLost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Schedule without waiting for dependencies.
    Schedule,
    Rerun,
    Cancel,
    Priority(usize),
}

/// Content chosen for a task. Two creates with the same id and different content conflict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    pub task: SlugId,
    pub queue: usize,
    /// Index into [`PRIORITIES`].
    pub priority: usize,
    pub retries: u32,
    /// Distinguishes contents under one id; equal numbers mean equal bodies.
    pub content: u32,
    pub dependencies: Vec<SlugId>,
    /// True if any resolution of the dependencies suffices, false if they must be completed.
    pub any_end: bool,
    pub options: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Completed,
    Failed,
    /// Failed, and no other run may follow.
    FailedForGood,
    WorkerShutdown,
    IntermittentTask,
    MalformedPayload,
    ResourceUnavailable,
    InternalError,
}

impl Verdict {
    pub const ALL: [Self; 8] = [
        Self::Completed,
        Self::Failed,
        Self::FailedForGood,
        Self::WorkerShutdown,
        Self::IntermittentTask,
        Self::MalformedPayload,
        Self::ResourceUnavailable,
        Self::InternalError,
    ];

    /// The state and reasonResolved of a run with this verdict.
    #[must_use]
    pub fn wire(self) -> (&'static str, &'static str) {
        match self {
            Self::Completed => ("completed", "completed"),
            Self::Failed | Self::FailedForGood => ("failed", "failed"),
            Self::WorkerShutdown => ("exception", "worker-shutdown"),
            Self::IntermittentTask => ("exception", "intermittent-task"),
            Self::MalformedPayload => ("exception", "malformed-payload"),
            Self::ResourceUnavailable => ("exception", "resource-unavailable"),
            Self::InternalError => ("exception", "internal-error"),
        }
    }

    /// True if another run follows while retries are left, under every policy and options.
    #[must_use]
    pub fn retries(self) -> bool {
        matches!(self, Self::WorkerShutdown | Self::IntermittentTask)
    }
}
