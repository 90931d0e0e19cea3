//! The exchanges: names, fields of messages, and routing keys.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchange {
    TaskDefined,
    TaskPending,
    TaskRunning,
    TaskCompleted,
    TaskFailed,
    /// A run ended for a reason outside the task.
    TaskException,
    TaskPriorityChanged,
    /// Every task of the group is resolved.
    TaskGroupResolved,
    TaskGroupSealed,
    TaskGroupPriorityChanged,
    ArtifactCreated,
}

#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Present in every message.
    pub always: &'static [&'static str],
    pub sometimes: &'static [&'static str],
}

impl Exchange {
    pub const ALL: [Self; 11] = [
        Self::TaskDefined,
        Self::TaskPending,
        Self::TaskRunning,
        Self::TaskCompleted,
        Self::TaskFailed,
        Self::TaskException,
        Self::TaskPriorityChanged,
        Self::TaskGroupResolved,
        Self::TaskGroupSealed,
        Self::TaskGroupPriorityChanged,
        Self::ArtifactCreated,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TaskDefined => "exchange/taskcluster-queue/v1/task-defined",
            Self::TaskPending => "exchange/taskcluster-queue/v1/task-pending",
            Self::TaskRunning => "exchange/taskcluster-queue/v1/task-running",
            Self::TaskCompleted => "exchange/taskcluster-queue/v1/task-completed",
            Self::TaskFailed => "exchange/taskcluster-queue/v1/task-failed",
            Self::TaskException => "exchange/taskcluster-queue/v1/task-exception",
            Self::TaskPriorityChanged => "exchange/taskcluster-queue/v1/task-priority-changed",
            Self::TaskGroupResolved => "exchange/taskcluster-queue/v1/task-group-resolved",
            Self::TaskGroupSealed => "exchange/taskcluster-queue/v1/task-group-sealed",
            Self::TaskGroupPriorityChanged => "exchange/taskcluster-queue/v1/task-group-priority-changed",
            Self::ArtifactCreated => "exchange/taskcluster-queue/v1/artifact-created",
        }
    }

    /// Describes when events are published.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::TaskDefined => "A task was created.",
            Self::TaskPending => "A run became pending.",
            Self::TaskRunning => "A worker has claimed a run.",
            Self::TaskCompleted => "A run succeeded.",
            Self::TaskFailed => "A run failed.",
            Self::TaskException => "A run ended for a reason outside the task; it may be tried again.",
            Self::TaskPriorityChanged => "A task's priority was changed.",
            Self::TaskGroupResolved => {
                "All tasks of a group were resolved; sent again after each further resolution. `quiescent` is true \
                 if all are resolved now."
            }
            Self::TaskGroupSealed => "A group was sealed: no task can be added to it.",
            Self::TaskGroupPriorityChanged => "The priority of a group's tasks was changed.",
            Self::ArtifactCreated => "An artifact can be read; not sent for artifacts of type `s3`.",
        }
    }

    #[must_use]
    pub fn fields(self) -> Fields {
        let (always, sometimes): (&[&str], &[&str]) = match self {
            Self::TaskDefined => (&["version", "status", "task"], &[]),
            Self::TaskPending => (&["version", "status", "runId", "task"], &[]),
            Self::TaskRunning => {
                (&["version", "status", "runId", "workerGroup", "workerId", "takenUntil", "task"], &[])
            }
            Self::TaskCompleted | Self::TaskFailed => {
                (&["version", "status", "runId", "workerGroup", "workerId", "task"], &[])
            }
            Self::TaskException => (&["version", "status", "runId", "task"], &["workerGroup", "workerId"]),
            Self::ArtifactCreated => (&["version", "status", "runId", "workerGroup", "workerId", "artifact"], &[]),
            Self::TaskPriorityChanged => (&["version", "status", "oldPriority", "newPriority"], &[]),
            Self::TaskGroupResolved => {
                (&["version", "taskGroupId", "schedulerId", "expires"], &["sealed", "quiescent"])
            }
            Self::TaskGroupSealed => (&["version", "taskGroupId", "schedulerId", "expires"], &["sealed"]),
            Self::TaskGroupPriorityChanged => {
                (&["version", "taskGroupId", "schedulerId", "newPriority", "tasksAffected"], &[])
            }
        };
        Fields { always, sometimes }
    }

    /// True for events about groups.
    #[must_use]
    pub fn is_about_group(self) -> bool {
        match self {
            Self::TaskGroupResolved | Self::TaskGroupSealed | Self::TaskGroupPriorityChanged => true,
            Self::TaskDefined
            | Self::TaskPending
            | Self::TaskRunning
            | Self::TaskCompleted
            | Self::TaskFailed
            | Self::TaskException
            | Self::TaskPriorityChanged
            | Self::ArtifactCreated => false,
        }
    }

    /// Words of the primary routing key, in order. True marks words that are always present, as in
    /// Taskcluster's reference; a missing word is `_`. The first is always `primary`, the last is
    /// reserved.
    #[must_use]
    pub fn routing_key(self) -> &'static [(&'static str, bool)] {
        match self {
            Self::TaskGroupResolved | Self::TaskGroupSealed | Self::TaskGroupPriorityChanged => &GROUP_KEY,
            Self::TaskDefined | Self::TaskFailed | Self::TaskException | Self::TaskPriorityChanged => &TASK_KEY,
            Self::TaskPending => &RUN_KEY,
            Self::TaskRunning | Self::TaskCompleted | Self::ArtifactCreated => &WORKER_KEY,
        }
    }
}

const GROUP_KEY: [(&str, bool); 4] =
    [("routingKeyKind", true), ("taskGroupId", true), ("schedulerId", true), ("reserved", false)];
const TASK_KEY: [(&str, bool); 10] = task_key(false, false);
const RUN_KEY: [(&str, bool); 10] = task_key(true, false);
const WORKER_KEY: [(&str, bool); 10] = task_key(true, true);

const fn task_key(has_run: bool, has_worker: bool) -> [(&'static str, bool); 10] {
    [
        ("routingKeyKind", true),
        ("taskId", true),
        ("runId", has_run),
        ("workerGroup", has_worker),
        ("workerId", has_worker),
        ("provisionerId", true),
        ("workerType", true),
        ("schedulerId", true),
        ("taskGroupId", true),
        ("reserved", false),
    ]
}
