//! Bodies about checkpoints and commands of tasks.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, TaskId};
use crate::policy::present_seconds;
use crate::states::TaskCommand;
use crate::structure::present;

/// The progress of a run, reported by its worker.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointRequest<'a> {
    /// Any JSON, up to 65,536 bytes without whitespace. It replaces the previous checkpoint.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    pub checkpoint: &'a RawValue,
    /// The id of a command that the worker has carried out. It is deleted when the checkpoint is
    /// stored; a later command stays.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub command_id: Option<i64>,
}

/// The answer to a stored checkpoint.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct CheckpointStored {
    pub updated: Timestamp,
}

/// The last checkpoint of a task.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint<'a> {
    pub task_id: TaskId,
    /// The run whose worker stored it: the last one, or an earlier one.
    pub run_id: RunId,
    /// Any JSON.
    #[schema(value_type = serde_json::Value)]
    pub checkpoint: &'a RawValue,
    pub updated: Timestamp,
}

/// A command for the worker of a task.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskCommandRequest {
    pub command: TaskCommand,
    /// End of the sleep: required with `sleep`, and only allowed there.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A command for a task that its worker has not carried out yet.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandOfTask {
    pub task_id: TaskId,
    /// Later commands of the task have higher ids.
    pub id: i64,
    pub command: TaskCommand,
    /// End of the sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Time of sending. The command is kept for a week.
    pub sent: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_is_any_json_and_required() {
        for (text, checkpoint, command) in [
            (r#"{"checkpoint": null}"#, "null", None),
            (r#"{"checkpoint": {"a": 1.50}, "commandId": 7}"#, r#"{"a": 1.50}"#, Some(7)),
            (r#"{"commandId": 7.0, "checkpoint": [ ]}"#, "[ ]", Some(7)),
        ] {
            let read: CheckpointRequest<'_> = serde_json::from_str(text).unwrap();
            assert_eq!((read.checkpoint.get(), read.command_id), (checkpoint, command), "{text}");
        }
        for text in [
            "{}",
            r#"{"commandId": 7}"#,
            r#"{"checkpoint": 1, "commandId": null}"#,
            r#"{"checkpoint": 1, "commandId": "7"}"#,
            r#"{"checkpoint": 1, "more": 2}"#,
        ] {
            assert!(serde_json::from_str::<CheckpointRequest<'_>>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_command_is_refused() {
        for text in [
            "{}",
            r#"{"command": "freeze"}"#,
            r#"{"command": null}"#,
            r#"{"command": "sleep", "until": null}"#,
            r#"{"command": "sleep", "until": "soon"}"#,
            r#"{"command": "run", "taskId": "x"}"#,
        ] {
            assert!(serde_json::from_str::<TaskCommandRequest>(text).is_err(), "{text}");
        }
    }
}
