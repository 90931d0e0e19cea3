//! Problems that need somebody, in words.

use serde::Serialize;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{TaskGroupId, TaskQueueId};

/// Problems that need an operator (`now`), or that an operator caused (`known`).
#[derive(Serialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct Problems {
    /// Sorted by severity (`now` first), kind and age.
    pub problems: Vec<Problem>,
}

/// Something that needs somebody. It ends when its condition does.
#[derive(Serialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct Problem {
    pub kind: ProblemKind,
    pub severity: ProblemSeverity,
    pub object: ProblemObject,
    /// Start of the problem, as far as it is known.
    pub since: Timestamp,
    /// A sentence for people.
    pub message: String,
    /// What to do, often a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

/// Object of a problem. A problem of the whole database has no field.
#[derive(Serialize, Debug, Clone, Default, PartialEq, Eq, ToSchema)]
pub struct ProblemObject {
    /// The task queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<TaskQueueId>,
    /// The worker, as `<workerGroup>/<workerId>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The task group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<TaskGroupId>,
    /// The server, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The background pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass: Option<String>,
    /// The subscription, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
}

/// Kinds of problems. Causes of others come first.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// The database, its disk, its clock or the artifact store is at risk.
    Database,
    /// A server died or was cut off.
    Server,
    /// No server assigns the tasks of a queue.
    Scheduler,
    /// A background pass fails.
    Pass,
    /// A changed policy has been applied for over a minute.
    Refile,
    /// Tasks can start, and no worker asks for them.
    NoWorker,
    /// A task that can start has waited for over 15 minutes.
    WaitsLong,
    /// A limit has held a task for over an hour.
    HeldLong,
    /// Far more tasks fail than before.
    Fails,
    /// Runs are lost with their workers.
    LosesWorkers,
    /// Tasks can never run, because a task that they need failed.
    Never,
    /// Tasks miss their deadlines.
    Deadlines,
    /// A subscription is suspended, or will be soon.
    Subscription,
    /// A queue is paused.
    Paused,
    /// All workers of a queue are quarantined or frozen.
    Quarantined,
}

impl ProblemKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 15] = [
        Self::Database,
        Self::Server,
        Self::Scheduler,
        Self::Pass,
        Self::Refile,
        Self::NoWorker,
        Self::WaitsLong,
        Self::HeldLong,
        Self::Fails,
        Self::LosesWorkers,
        Self::Never,
        Self::Deadlines,
        Self::Subscription,
        Self::Paused,
        Self::Quarantined,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Server => "server",
            Self::Scheduler => "scheduler",
            Self::Pass => "pass",
            Self::Refile => "refile",
            Self::NoWorker => "no-worker",
            Self::WaitsLong => "waits-long",
            Self::HeldLong => "held-long",
            Self::Fails => "fails",
            Self::LosesWorkers => "loses-workers",
            Self::Never => "never",
            Self::Deadlines => "deadlines",
            Self::Subscription => "subscription",
            Self::Paused => "paused",
            Self::Quarantined => "quarantined",
        }
    }

    /// An operator pauses queues and quarantines workers; all other problems are unforeseen.
    #[must_use]
    pub fn severity(self) -> ProblemSeverity {
        match self {
            Self::Paused | Self::Quarantined => ProblemSeverity::Known,
            Self::Database
            | Self::Server
            | Self::Scheduler
            | Self::Pass
            | Self::Refile
            | Self::NoWorker
            | Self::WaitsLong
            | Self::HeldLong
            | Self::Fails
            | Self::LosesWorkers
            | Self::Never
            | Self::Deadlines
            | Self::Subscription => ProblemSeverity::Now,
        }
    }
}

/// How urgent a problem is.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemSeverity {
    /// Somebody should look at it.
    Now,
    /// An operator has caused it on purpose.
    Known,
}

impl ProblemSeverity {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Known => "known",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_one_word() {
        let words: BTreeSet<&str> = ProblemKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(words.len(), ProblemKind::ALL.len());
        for kind in ProblemKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert!(ProblemKind::ALL.is_sorted());
    }
}
