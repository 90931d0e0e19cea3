//! Checkpoints and commands of tasks: checks, sizes and lifetimes.

use std::time::Duration;

use serde_json::value::RawValue;
use tenure_api::checkpoints::{CheckpointRequest, TaskCommandRequest};
use tenure_api::states::TaskCommand;

use crate::json;
use crate::unacceptable::Unacceptable;

/// Maximum bytes of a checkpoint as compact JSON.
pub const CHECKPOINT_BYTES_MAX: usize = 65_536;
pub const COMMAND_KEPT: Duration = Duration::from_hours(7 * 24);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// Compact JSON.
    pub text: String,
    /// The command that the worker carried out before it.
    pub command: Option<i64>,
}

impl NewCheckpoint {
    /// Checks the size and the id of the command.
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

/// `sleep` needs `until`; other commands must not have it.
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
    fn checkpoint_is_stored_as_compact_json() {
        let stored = checked(r#"{"checkpoint": { "a b": [1.50, "x  y"] }, "commandId": 3}"#).unwrap();
        assert_eq!(stored, NewCheckpoint { text: r#"{"a b":[1.50,"x  y"]}"#.to_owned(), command: Some(3) });
    }

    #[test]
    fn checkpoint_is_limited_to_64_kib() {
        let of = |bytes: usize| format!(r#"{{"checkpoint": [ "{}" ]}}"#, "x".repeat(bytes - 4));
        assert_eq!(checked(&of(CHECKPOINT_BYTES_MAX)).unwrap().text.len(), CHECKPOINT_BYTES_MAX);
        let refused = checked(&of(CHECKPOINT_BYTES_MAX + 1));
        assert!(matches!(refused, Err(Unacceptable::Rule(why)) if why.contains("it has 65537")));
    }

    #[test]
    fn command_id_below_one_is_refused() {
        for id in ["0", "-1"] {
            let refused = checked(&format!(r#"{{"checkpoint": 1, "commandId": {id}}}"#));
            assert!(matches!(refused, Err(Unacceptable::Rule(why)) if why.contains("commandId")));
        }
    }

    #[test]
    fn only_sleep_has_until_and_requires_it() {
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
