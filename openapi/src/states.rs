//! The closed sets of words of the wire. Each word has its wire form and the small number that databases store.

use serde::Serialize;

use crate::schema::word_enum;

/// An enum whose variants have a wire word and a stored code.
macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal $word:literal),+ $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// Every word, in the order of the stored codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The wire form.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The number that the database stores.
            #[must_use]
            pub fn code(self) -> i16 {
                match self { $(Self::$variant => $code),+ }
            }

            /// The word for a stored number.
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
        /// See [`Priority`].
        VeryHigh = 1 "very-high",
        /// See [`Priority`].
        High = 2 "high",
        /// See [`Priority`].
        Medium = 3 "medium",
        /// See [`Priority`].
        Low = 4 "low",
        /// See [`Priority`].
        VeryLow = 5 "very-low",
        /// Served last; the default.
        Lowest = 6 "lowest",
    }
}

words! {
    /// What the results of a task's dependencies must be before it may run.
    Requires {
        /// Each of them completed.
        AllCompleted = 0 "all-completed",
        /// Each of them resolved, well or badly.
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
        /// A worker holds a claim on the last run.
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
        /// Waits for a worker.
        Pending = 1 "pending",
        /// A worker holds a claim on it.
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
    /// Why a run was made.
    ReasonCreated {
        /// The task became ready to run.
        Scheduled = 0 "scheduled",
        /// The run before it was lost, or its worker shut down.
        Retry = 1 "retry",
        /// The task itself asked for another try (intermittent-task).
        TaskRetry = 2 "task-retry",
        /// A rerun was requested.
        Rerun = 3 "rerun",
        /// Made only to record an exception on a task that had no run.
        Exception = 4 "exception",
    }
}

words! {
    /// Why a run ended.
    ReasonResolved {
        /// Reported as a success.
        Completed = 0 "completed",
        /// Reported as a failure.
        Failed = 1 "failed",
        /// The task's deadline passed.
        DeadlineExceeded = 2 "deadline-exceeded",
        /// The task was cancelled.
        Canceled = 3 "canceled",
        /// The worker did not renew its claim in time.
        ClaimExpired = 4 "claim-expired",
        /// The worker shut down, or its claim never reached it.
        WorkerShutdown = 5 "worker-shutdown",
        /// The worker could not understand the payload.
        MalformedPayload = 6 "malformed-payload",
        /// Something that the task needs could not be had.
        ResourceUnavailable = 7 "resource-unavailable",
        /// The worker's own fault.
        InternalError = 8 "internal-error",
        /// The task asked for another try.
        IntermittentTask = 9 "intermittent-task",
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
        /// An object of the object service.
        Object = 2 "object",
        /// A URL somewhere else.
        Reference = 3 "reference",
        /// Another artifact of the same run.
        Link = 4 "link",
        /// Why there is no artifact.
        Error = 5 "error",
    }
}

words! {
    /// Why a worker could not make an artifact.
    ArtifactErrorReason {
        /// There was no such file.
        FileMissing = 0 "file-missing-on-worker",
        /// What was asked for is no file.
        InvalidResource = 1 "invalid-resource-on-worker",
        /// The file is larger than the worker uploads.
        TooLarge = 2 "too-large-file-on-worker",
        /// The worker may not read the file.
        NotReadable = 3 "file-not-readable-on-worker",
    }
}

words! {
    /// What a lost or slow worker costs a task.
    Delivery {
        /// A retry; without one left, the task.
        Retries = 0 "retries",
        /// Nothing: the task is tried again, 200 times without using up a retry.
        AtLeastOnce = 1 "at-least-once",
        /// The task: it is never started twice.
        AtMostOnce = 2 "at-most-once",
    }
}

words! {
    /// Who decides which worker has a run.
    Dispatch {
        /// The first worker that asks for work.
        Pull = 0 "pull",
        /// The queue, by what its sessions say of themselves.
        Assign = 1 "assign",
    }
}

words! {
    /// What the key of a task is, by which limits and turns go.
    KeyBy {
        /// Its option `key`.
        Key = 0 "key",
        /// Its project.
        ProjectId = 1 "projectId",
        /// Its scheduler.
        SchedulerId = 2 "schedulerId",
        /// Its group.
        TaskGroupId = 3 "taskGroupId",
    }
}

words! {
    /// What becomes of runs that are assigned or claimed when the server that gave them out is replaced.
    OnSchedulerLoss {
        /// They stay where they are.
        Keep = 0 "keep",
        /// They are given out again, except those that may not start twice.
        Reassign = 1 "reassign",
    }
}

words! {
    /// What ended a run, where its `reasonResolved` does not say it. Absent for a run that its worker reported, and for one
    /// that was cancelled or met its deadline.
    EndedBy {
        /// The claim was not renewed in time.
        Lease = 1 "lease",
        /// The answer that carried the claim was not delivered.
        Undelivered = 2 "undelivered",
        /// The worker released the run.
        Released = 3 "released",
        /// The session that held the run ended.
        SessionEnded = 4 "session-ended",
        /// The worker was removed.
        WorkerRemoved = 5 "worker-removed",
        /// The worker that the run was assigned to did not accept it within the `acceptTime`.
        NotAccepted = 6 "accept-time",
        /// The worker took longer than the run's `completeTime`.
        CompleteTime = 7 "complete-time",
        /// The server that gave out the runs of the queue was replaced.
        SchedulerReplaced = 8 "scheduler-replaced",
    }
}

words! {
    /// What ended a session.
    SessionEnd {
        /// It was not renewed in time.
        Expired = 1 "expired",
        /// Its worker ended it.
        Closed = 2 "closed",
        /// Another session of the same worker took its place.
        Takeover = 3 "takeover",
        /// The worker was removed.
        WorkerRemoved = 4 "worker-removed",
    }
}

words! {
    /// Why a server is not the scheduler of a queue any more.
    SchedulerEnd {
        /// It was silent for longer than the activation time.
        Lost = 1 "lost",
        /// It was replaced by hand, as if it were lost.
        Replaced = 2 "replaced",
        /// It has handed the queue over to a server that is to be preferred.
        HandedOver = 3 "handed-over",
        /// It has stopped.
        Stopped = 4 "stopped",
        /// The queue does not assign its runs any more.
        PolicyChanged = 5 "policy-changed",
    }
}

words! {
    /// What a worker is to do.
    WorkerCommand {
        /// Take no more tasks until further notice.
        Freeze = 1 "freeze",
        /// Take tasks again.
        Unfreeze = 2 "unfreeze",
        /// Give away tasks that other workers have more room for.
        Balance = 3 "balance",
        /// Stop working on one task.
        StopTask = 4 "stop-task",
        /// Finish, and end.
        Shutdown = 5 "shutdown",
    }
}

words! {
    /// What the worker of one task is to do. The words are the messages of the state machine that the client library has; what they
    /// mean to another worker is up to it.
    TaskCommand {
        /// Go on, whether it slept, was paused or was at fault.
        Run = 1 "run",
        /// Do nothing until a certain time.
        Sleep = 2 "sleep",
        /// Do nothing until another command.
        Pause = 3 "pause",
        /// Give the task up for good.
        Kill = 4 "kill",
        /// Treat it as if it had failed for the moment.
        Error = 5 "error",
        /// Treat it as done.
        Complete = 6 "complete",
        /// Store a checkpoint.
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
        /// `retryDelay`, after a failure that is tried again.
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
    /// Why no session of a worker can be given a run.
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
    fn every_code_reads_back_as_its_word() {
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
        for &word in KeyBy::ALL {
            assert_eq!(KeyBy::from_code(word.code()), Some(word));
        }
        for &word in OnSchedulerLoss::ALL {
            assert_eq!(OnSchedulerLoss::from_code(word.code()), Some(word));
        }
        for &word in EndedBy::ALL {
            assert_eq!(EndedBy::from_code(word.code()), Some(word));
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
    fn an_exception_reason_keeps_its_code() {
        for &reason in ExceptionReason::ALL {
            assert_eq!(ReasonResolved::from(reason).code(), reason.code());
        }
    }

    #[test]
    fn a_word_is_read_from_a_text_and_from_nothing_else() {
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
