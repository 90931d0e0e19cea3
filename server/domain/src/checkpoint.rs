//! Checkpoints of tasks, and commands for tasks: what may be stored, and for how long.

use std::time::Duration;

use serde_json::value::RawValue;
use tenure_api::checkpoints::{CheckpointRequest, TaskCommandRequest};
use tenure_api::states::TaskCommand;

use crate::json;
use crate::unacceptable::Unacceptable;

/// Bytes of a checkpoint, as compact JSON.
pub const CHECKPOINT_BYTES_MAX: usize = 65_536;
/// How long a command is kept that no worker carries out.
pub const COMMAND_KEPT: Duration = Duration::from_hours(7 * 24);

/// A checkpoint as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// Any JSON, without the whitespace between its parts.
    pub text: String,
    /// The command that was carried out before it.
    pub command: Option<i64>,
}

impl NewCheckpoint {
    /// Checks a checkpoint that was sent.
    ///
    /// # Errors
    /// It is too large, or the id of its command cannot be one.
    pub fn from_request(sent: &CheckpointRequest<'_>) -> Result<Self, Unacceptable> {
        if sent.command_id.is_some_and(|id| id < 1) {
            return Err(Unacceptable::Rule("`commandId` must be the id of a command: 1 or more".to_owned()));
        }
        Ok(Self { text: text(sent.checkpoint)?, command: sent.command_id })
    }
}

fn text(sent: &RawValue) -> Result<String, Unacceptable> {
    let text = json::compact(sent.get());
    if text.len() > CHECKPOINT_BYTES_MAX {
        return Err(Unacceptable::Rule(format!(
            "`checkpoint` must have at most {CHECKPOINT_BYTES_MAX} bytes as compact JSON; it has {}: make an artifact of it",
            text.len()
        )));
    }
    Ok(text)
}

/// Checks a command for a task.
///
/// # Errors
/// `sleep` does not say until when, or another command does.
pub fn check_command(sent: &TaskCommandRequest) -> Result<(), Unacceptable> {
    match (sent.command, sent.until) {
        (TaskCommand::Sleep, None) => Err(Unacceptable::Rule("`sleep` needs `until`".to_owned())),
        (TaskCommand::Sleep, Some(_)) | (_, None) => Ok(()),
        (command, Some(_)) => Err(Unacceptable::Rule(format!("`until` is for `sleep` only, not for `{command}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(body: &str) -> Result<NewCheckpoint, Unacceptable> {
        NewCheckpoint::from_request(&serde_json::from_str(body).unwrap())
    }

    #[test]
    fn a_checkpoint_is_kept_as_it_is_without_whitespace() {
        let stored = checked(r#"{"checkpoint": { "a b": [1.50, "x  y"] }, "commandId": 3}"#).unwrap();
        assert_eq!(stored, NewCheckpoint { text: r#"{"a b":[1.50,"x  y"]}"#.to_owned(), command: Some(3) });
    }

    #[test]
    fn a_checkpoint_of_64_kib_is_stored_and_one_of_a_byte_more_is_not() {
        let of = |bytes: usize| format!(r#"{{"checkpoint": [ "{}" ]}}"#, "x".repeat(bytes - 4));
        assert_eq!(checked(&of(CHECKPOINT_BYTES_MAX)).unwrap().text.len(), CHECKPOINT_BYTES_MAX);
        let refused = checked(&of(CHECKPOINT_BYTES_MAX + 1));
        assert!(matches!(refused, Err(Unacceptable::Rule(why)) if why.contains("it has 65537")));
    }

    #[test]
    fn an_id_below_one_is_no_command() {
        for id in ["0", "-1"] {
            let refused = checked(&format!(r#"{{"checkpoint": 1, "commandId": {id}}}"#));
            assert!(matches!(refused, Err(Unacceptable::Rule(why)) if why.contains("commandId")));
        }
    }

    #[test]
    fn only_a_command_to_sleep_says_until_when_and_it_must() {
        let until = Some(chrono::DateTime::UNIX_EPOCH.into());
        for &command in TaskCommand::ALL {
            for until in [None, until] {
                let allowed = (command == TaskCommand::Sleep) == until.is_some();
                assert_eq!(
                    check_command(&TaskCommandRequest { command, until }).is_ok(),
                    allowed,
                    "{command}, {until:?}"
                );
            }
        }
    }
}
