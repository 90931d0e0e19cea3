//! The enums of the wire format. Each variant has a word and a small number for the database.

use serde::Serialize;

use crate::schema::word_enum;

/// Defines an enum whose variants have a wire word and a stored code.
macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $word:literal),+ $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// All variants, ordered by stored code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            #[must_use]
            pub fn code(self) -> i16 {
                match self { $(Self::$variant => $code),+ }
            }

            #[must_use]
            pub fn from_code(code: i16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }

        word_enum!($name, concat!($($doc),*), $($variant $word),+);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// How urgent a task is. The order of the variants, and of the codes, is the order of service.
    Priority {
        /// Served first.
        Highest = 0 "highest",
        VeryHigh = 1 "very-high",
        High = 2 "high",
        Medium = 3 "medium",
        Low = 4 "low",
        VeryLow = 5 "very-low",
        /// Served last; the default.
        Lowest = 6 "lowest",
    }
}

words! {
    /// How a task's dependencies must end before it may run.
    Requires {
        /// All must be completed.
        AllCompleted = 0 "all-completed",
        /// All must be resolved, successfully or not.
        AllResolved = 1 "all-resolved",
    }
}

words! {
    /// The state of a task: that of its last run, or unscheduled while it has none.
    TaskState {
        /// No run exists yet.
        Unscheduled = 0 "unscheduled",
        /// The last run waits for a worker.
        Pending = 1 "pending",
        /// A worker has claimed the last run.
        Running = 2 "running",
        /// Reported as a success.
        Completed = 3 "completed",
        /// Reported as a failure of the task itself.
        Failed = 4 "failed",
        /// Ended for a reason outside the task.
        Exception = 5 "exception",
    }
}

words! {
    /// The state of one run.
    RunState {
        Pending = 1 "pending",
        Running = 2 "running",
        Completed = 3 "completed",
        Failed = 4 "failed",
        Exception = 5 "exception",
    }
}

words! {
    /// Why a run was created.
    ReasonCreated {
        Scheduled = 0 "scheduled",
        /// The previous run was lost, or its worker shut down.
        Retry = 1 "retry",
        /// The task requested a retry (intermittent-task).
        TaskRetry = 2 "task-retry",
        Rerun = 3 "rerun",
        /// Created only to record an exception on a task without a run.
        Exception = 4 "exception",
    }
}

words! {
    /// Why a run ended.
    ReasonResolved {
        Completed = 0 "completed",
        Failed = 1 "failed",
        DeadlineExceeded = 2 "deadline-exceeded",
        Canceled = 3 "canceled",
        /// The worker did not renew its claim in time.
        ClaimExpired = 4 "claim-expired",
        /// The worker shut down, or its claim never reached it.
        WorkerShutdown = 5 "worker-shutdown",
        /// The worker could not understand the payload.
        MalformedPayload = 6 "malformed-payload",
        /// A resource that the task needs was unavailable.
        ResourceUnavailable = 7 "resource-unavailable",
        /// The worker's own fault.
        InternalError = 8 "internal-error",
        IntermittentTask = 9 "intermittent-task",
        /// The late result of an earlier run counted first.
        Superseded = 10 "superseded",
    }
}

words! {
    /// The reasons with which a worker may end a run as an exception.
    ExceptionReason {
        /// Retried while retries are left.
        WorkerShutdown = 5 "worker-shutdown",
        /// Final.
        MalformedPayload = 6 "malformed-payload",
        /// Final.
        ResourceUnavailable = 7 "resource-unavailable",
        /// Final.
        InternalError = 8 "internal-error",
        /// Retried while retries are left.
        IntermittentTask = 9 "intermittent-task",
    }
}

impl From<ExceptionReason> for ReasonResolved {
    fn from(reason: ExceptionReason) -> Self {
        match reason {
            ExceptionReason::WorkerShutdown => Self::WorkerShutdown,
            ExceptionReason::MalformedPayload => Self::MalformedPayload,
            ExceptionReason::ResourceUnavailable => Self::ResourceUnavailable,
            ExceptionReason::InternalError => Self::InternalError,
            ExceptionReason::IntermittentTask => Self::IntermittentTask,
        }
    }
}

impl From<RunState> for TaskState {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Pending => Self::Pending,
            RunState::Running => Self::Running,
            RunState::Completed => Self::Completed,
            RunState::Failed => Self::Failed,
            RunState::Exception => Self::Exception,
        }
    }
}

words! {
    /// How an artifact is stored.
    StorageType {
        /// Bytes that were uploaded to a signed URL.
        S3 = 1 "s3",
        Object = 2 "object",
        /// A URL elsewhere.
        Reference = 3 "reference",
        /// Another artifact of the same run.
        Link = 4 "link",
        /// The reason why it does not exist.
        Error = 5 "error",
    }
}

words! {
    /// Why a worker could not create an artifact.
    ArtifactErrorReason {
        FileMissing = 0 "file-missing-on-worker",
        /// The path is not a file.
        InvalidResource = 1 "invalid-resource-on-worker",
        /// The file is larger than the worker uploads.
        TooLarge = 2 "too-large-file-on-worker",
        NotReadable = 3 "file-not-readable-on-worker",
    }
}

words! {
    /// The cost of a lost or slow worker for a task.
    Delivery {
        /// A retry; without one left, the task fails.
        Retries = 0 "retries",
        /// Nothing: the task is retried, 200 times without using up a retry.
        AtLeastOnce = 1 "at-least-once",
        /// The task, which is never started twice.
        AtMostOnce = 2 "at-most-once",
    }
}

words! {
    /// Who decides which worker gets a run.
    Dispatch {
        /// The first worker that asks for work.
        Pull = 0 "pull",
        /// The queue, based on the state of its sessions.
        Assign = 1 "assign",
    }
}

words! {
    /// Treatment of times at which no server ran.
    CatchUp {
        /// No task for a time that is over a minute late.
        None = 0 "none",
        /// One task, for the latest time.
        Last = 1 "last",
        /// A task for each of the latest hundred times.
        All = 2 "all",
    }
}

words! {
    /// How a time of a schedule ended.
    ScheduleOutcome {
        /// A task was created.
        Created = 1 "created",
        /// An unresolved task has the unique name of the task.
        Skipped = 2 "skipped",
        /// The task was refused.
        Failed = 3 "failed",
    }
}

words! {
    /// The state of a subscription.
    SubscriptionState {
        /// Events are sent as they happen.
        Active = 0 "active",
        /// The last message was not accepted. It is sent again.
        Failing = 1 "failing",
        /// Nothing is sent until it is resumed.
        Suspended = 2 "suspended",
    }
}

words! {
    /// Why a subscription was suspended.
    SuspendedBy {
        /// The oldest event was not accepted in time.
        Age = 1 "age",
        /// The receiver answered 410.
        Gone = 2 "gone",
        /// The next events are no longer in the log.
        EventsLost = 3 "events-lost",
    }
}

words! {
    /// Change that a job makes to each of its tasks.
    JobAction {
        /// As cancelTask.
        Cancel = 1 "cancel",
        /// As rerunTask.
        Rerun = 2 "rerun",
        /// As changeTaskPriority.
        Priority = 3 "priority",
    }
}

words! {
    /// The state of a job.
    JobState {
        /// Tasks are left.
        Running = 0 "running",
        /// All tasks were tried.
        Completed = 1 "completed",
        /// Someone stopped it.
        Stopped = 2 "stopped",
        /// It ended before all tasks were tried; `error` has the reason.
        Failed = 3 "failed",
    }
}

words! {
    /// The state of a partition group, or of one of its members.
    PartitionState {
        /// Without a share.
        Waiting = 0 "waiting",
        /// The share of the active map holds.
        Active = 1 "active",
        /// Only work that is in the shares of both the active and the next map may begin.
        Draining = 2 "draining",
    }
}

words! {
    /// The source of a task's key for limits and fair sharing.
    KeyBy {
        Key = 0 "key",
        ProjectId = 1 "projectId",
        SchedulerId = 2 "schedulerId",
        TaskGroupId = 3 "taskGroupId",
    }
}

words! {
    /// Treatment of a new task while an unresolved task has its unique name.
    OnDuplicate {
        /// The new task is refused.
        Reject = 0 "reject",
        /// The existing task takes its place.
        Coalesce = 1 "coalesce",
        /// The new task waits until the others have ended.
        Queue = 2 "queue",
    }
}

words! {
    /// Treatment of assigned and claimed runs when their scheduler is replaced.
    OnSchedulerLoss {
        /// Runs stay with their workers.
        Keep = 0 "keep",
        /// Runs are given out again, except runs that may not start twice.
        Reassign = 1 "reassign",
    }
}

words! {
    /// The cause that ended a run, where its `reasonResolved` does not tell it. Absent after a
    /// report, a cancellation or the deadline.
    EndedBy {
        /// The claim was not renewed in time.
        Lease = 1 "lease",
        /// The response that carried the claim was not delivered.
        Undelivered = 2 "undelivered",
        Released = 3 "released",
        SessionEnded = 4 "session-ended",
        WorkerRemoved = 5 "worker-removed",
        /// The assigned worker did not accept the run within the `acceptTime`.
        NotAccepted = 6 "accept-time",
        CompleteTime = 7 "complete-time",
        SchedulerReplaced = 8 "scheduler-replaced",
        /// Its worker reported it after it had lost the run. This run was made for the result.
        LateResult = 9 "late-result",
    }
}

words! {
    /// Treatment of the result of a run that was taken from its worker by the `completeTime`, or
    /// because the scheduler was replaced.
    LateResult {
        /// The report gets 409.
        Reject = 0 "reject",
        /// While the task is unresolved, a report as completed resolves it.
        FirstWins = 1 "first-wins",
    }
}

words! {
    /// What ended a session.
    SessionEnd {
        /// The session was not renewed in time.
        Expired = 1 "expired",
        /// The worker ended the session.
        Closed = 2 "closed",
        /// Another session of the same worker replaced it.
        Takeover = 3 "takeover",
        WorkerRemoved = 4 "worker-removed",
    }
}

words! {
    /// Why a server is no longer the scheduler of a queue.
    SchedulerEnd {
        /// The server was silent for longer than the activation time.
        Lost = 1 "lost",
        /// Replaced manually, as if the server were lost.
        Replaced = 2 "replaced",
        /// Handed over to a preferred server.
        HandedOver = 3 "handed-over",
        Stopped = 4 "stopped",
        /// The queue no longer assigns its runs.
        PolicyChanged = 5 "policy-changed",
    }
}

words! {
    /// A command for a worker.
    WorkerCommand {
        /// Take no more tasks until further notice.
        Freeze = 1 "freeze",
        Unfreeze = 2 "unfreeze",
        /// Give away tasks that other workers have more capacity for.
        Balance = 3 "balance",
        StopTask = 4 "stop-task",
        /// Finish, and end.
        Shutdown = 5 "shutdown",
    }
}

words! {
    /// A command for the worker of one task. The words are messages of the client library's state
    /// machine; other workers may interpret them freely.
    TaskCommand {
        /// Go on, after a sleep, a pause or an error.
        Run = 1 "run",
        /// Do nothing until a certain time.
        Sleep = 2 "sleep",
        /// Do nothing until another command.
        Pause = 3 "pause",
        /// Give the task up for good.
        Kill = 4 "kill",
        /// Treat it as failed for the moment.
        Error = 5 "error",
        /// Treat it as done.
        Complete = 6 "complete",
        Checkpoint = 7 "checkpoint",
        /// Give the run to another worker.
        Release = 8 "release",
    }
}

words! {
    /// Why a pending run is delayed.
    DelayedBy {
        /// The task's `delay` or `notBefore`, or the `delay` of its queue.
        Delay = 0 "delay",
        /// `retryDelay`, after a retried failure.
        RetryDelay = 1 "retry-delay",
        /// More than three workers in a row were lost with the task.
        Backoff = 2 "backoff",
        /// The worker released the run with a delay.
        Release = 3 "release",
        /// The worker reported the run with `retryAfter`.
        RetryAfter = 4 "retry-after",
    }
}

words! {
    /// Why no session of a worker can be assigned a run.
    NoSession {
        /// No worker has a live session in the queue.
        NoneLive = 0 "none-live",
        /// Each is at its capacity, frozen or quarantined.
        NoneFree = 1 "none-free",
        /// None has been renewed since an outage of the servers.
        AllExtended = 2 "all-extended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for &word in Priority::ALL {
            assert_eq!(Priority::from_code(word.code()), Some(word));
        }
        for &word in ReasonResolved::ALL {
            assert_eq!(ReasonResolved::from_code(word.code()), Some(word));
            assert_eq!(serde_json::to_value(word).unwrap(), word.as_str());
        }
        for &word in Delivery::ALL {
            assert_eq!(Delivery::from_code(word.code()), Some(word));
        }
        for &word in Dispatch::ALL {
            assert_eq!(Dispatch::from_code(word.code()), Some(word));
        }
        for &word in CatchUp::ALL {
            assert_eq!(CatchUp::from_code(word.code()), Some(word));
        }
        for &word in ScheduleOutcome::ALL {
            assert_eq!(ScheduleOutcome::from_code(word.code()), Some(word));
        }
        for &word in SubscriptionState::ALL {
            assert_eq!(SubscriptionState::from_code(word.code()), Some(word));
        }
        for &word in SuspendedBy::ALL {
            assert_eq!(SuspendedBy::from_code(word.code()), Some(word));
        }
        for &word in JobAction::ALL {
            assert_eq!(JobAction::from_code(word.code()), Some(word));
        }
        for &word in JobState::ALL {
            assert_eq!(JobState::from_code(word.code()), Some(word));
        }
        for &word in PartitionState::ALL {
            assert_eq!(PartitionState::from_code(word.code()), Some(word));
        }
        for &word in KeyBy::ALL {
            assert_eq!(KeyBy::from_code(word.code()), Some(word));
        }
        for &word in OnDuplicate::ALL {
            assert_eq!(OnDuplicate::from_code(word.code()), Some(word));
        }
        for &word in OnSchedulerLoss::ALL {
            assert_eq!(OnSchedulerLoss::from_code(word.code()), Some(word));
        }
        for &word in EndedBy::ALL {
            assert_eq!(EndedBy::from_code(word.code()), Some(word));
        }
        for &word in LateResult::ALL {
            assert_eq!(LateResult::from_code(word.code()), Some(word));
        }
        for &word in SessionEnd::ALL {
            assert_eq!(SessionEnd::from_code(word.code()), Some(word));
        }
        for &word in WorkerCommand::ALL {
            assert_eq!(WorkerCommand::from_code(word.code()), Some(word));
        }
        for &word in NoSession::ALL {
            assert_eq!(NoSession::from_code(word.code()), Some(word));
        }
        for &word in DelayedBy::ALL {
            assert_eq!(DelayedBy::from_code(word.code()), Some(word));
        }
        assert_eq!(Priority::from_code(7), None);
    }

    #[test]
    fn exception_reason_keeps_its_code() {
        for &reason in ExceptionReason::ALL {
            assert_eq!(ReasonResolved::from(reason).code(), reason.code());
        }
    }

    #[test]
    fn word_is_read_only_from_text() {
        let read = |text: &str| serde_json::from_str::<Priority>(text).map_err(|error| error.to_string());
        assert_eq!(read(r#""very-high""#), Ok(Priority::VeryHigh));
        for (text, message) in [
            (r#""normal""#, "unknown variant `normal`, expected one of `highest`, `very-high`, `high`"),
            (r#"{"high": null}"#, "expected a string"),
            ("null", "expected a string"),
            ("2", "expected a string"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(message), "{text}: {refused}");
        }
    }
}
