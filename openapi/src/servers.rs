//! The servers of a database, and the queues that they schedule.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{ServerId, TaskQueueId};

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct Servers {
    /// Ordered by name.
    pub servers: Vec<ListedServer>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedServer {
    /// New at each start.
    pub server_id: ServerId,
    /// For people; absent for a server of a release without names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The live server with the greatest weight schedules the queues that assign their tasks; never
    /// with 0.
    pub weight: u32,
    pub started: Timestamp,
    /// Its last heartbeat; one is sent each second.
    pub beat: Timestamp,
    /// True if the heartbeat is no older than the activation time. A killed server is listed for a
    /// day.
    pub live: bool,
    /// The queues that it schedules, by name.
    pub queues: Vec<SchedulerTerm>,
}

/// The term of a server as the scheduler of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerTerm {
    pub task_queue_id: TaskQueueId,
    /// Greater than every earlier term of the queue.
    pub term: i64,
    /// Start of the term.
    pub since: Timestamp,
}

/// The new scheduler of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerReplaced {
    pub task_queue_id: TaskQueueId,
    pub term: i64,
    /// Absent if no live server has a weight above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_id: Option<ServerId>,
}
