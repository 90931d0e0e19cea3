//! The bodies about checkpoints of tasks, and about commands for them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, TaskId};
use crate::policy::present_seconds;
use crate::states::TaskCommand;
use crate::structure::present;

/// How far the worker of a run has come.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointRequest<'a> {
    /// Any JSON, up to 65,536 bytes without whitespace. It takes the place of the one before.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    pub checkpoint: &'a RawValue,
    /// The id of a command that the worker has carried out: with the checkpoint stored, that command is deleted. A later command stays.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub command_id: Option<i64>,
}

/// A checkpoint was stored.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct CheckpointStored {
    /// When.
    pub updated: Timestamp,
}

/// How far the workers of a task have come, as the last of them has said.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint<'a> {
    /// The task.
    pub task_id: TaskId,
    /// The run whose worker stored it: the last one, or one before it.
    pub run_id: RunId,
    /// What it stored: any JSON.
    #[schema(value_type = serde_json::Value)]
    pub checkpoint: &'a RawValue,
    /// When.
    pub updated: Timestamp,
}

/// What the worker of a task is to do.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskCommandRequest {
    /// What.
    pub command: TaskCommand,
    /// Until when the task is to sleep: with `sleep`, and only with it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A command for a task that its worker has not carried out yet.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandOfTask {
    /// The task.
    pub task_id: TaskId,
    /// Tells it from other commands: a later one of the task has a higher id.
    pub id: i64,
    /// What its worker is to do.
    pub command: TaskCommand,
    /// Until when the task is to sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// When it was given; it is kept for a week.
    pub sent: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_any_json_and_must_be_there() {
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
    fn a_command_of_another_form_is_refused() {
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
