//! The servers of a database, and the queues whose tasks they give out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{ServerId, TaskQueueId};

/// The servers of a database.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct Servers {
    /// By name.
    pub servers: Vec<ListedServer>,
}

/// A server.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedServer {
    /// New at each start.
    pub server_id: ServerId,
    /// For people; absent for a server of a release without names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The live server of the greatest weight is the scheduler of queues that assign their tasks; 0 never is.
    pub weight: u32,
    /// When it started.
    pub started: Timestamp,
    /// When it gave its last sign of life: it gives one each second.
    pub beat: Timestamp,
    /// Whether that is no longer ago than the activation time. A server that was killed is listed for a day.
    pub live: bool,
    /// The queues whose scheduler it is, by name.
    pub queues: Vec<SchedulerTerm>,
}

/// The term of a server as the scheduler of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerTerm {
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Greater than every earlier one of the queue.
    pub term: i64,
    /// Since when.
    pub since: Timestamp,
}

/// The scheduler of a queue after it was replaced.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerReplaced {
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// The new term.
    pub term: i64,
    /// The server whose term it is; absent if none is live whose weight is above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_id: Option<ServerId>,
}
