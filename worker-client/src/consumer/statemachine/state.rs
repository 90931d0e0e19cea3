//! States of a machine and the effect of each message. Pure: the caller passes the time.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tenure_api::states::TaskCommand;

/// How long a machine idles after an error.
pub const FAULT_SLEEP: Duration = Duration::from_secs(600);
/// This many errors within [`ERRORS_WITHIN`] fail the task; this many are kept.
///
/// ```
/// use tenure_client::consumer::statemachine::{ERRORS_MAX, Message, Record, State};
///
/// # let now = chrono::DateTime::UNIX_EPOCH;
/// let errors = std::iter::repeat_n(Message::Error("no disk".to_owned()), ERRORS_MAX);
/// let after = errors.fold(Record::default(), |record, error| record.take(error, now));
/// assert_eq!(after.state, State::Failed);
/// ```
pub const ERRORS_MAX: usize = 8;
/// See [`ERRORS_MAX`].
pub const ERRORS_WITHIN: Duration = Duration::from_secs(4 * 3600);
const ERROR_CHARS: usize = 500;

/// State of a machine.
///
/// ```
/// use tenure_client::consumer::statemachine::State;
///
/// assert_eq!(State::Paused.to_string(), "paused");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum State {
    /// The handler works or is about to.
    Runnable,
    Sleeping {
        until: DateTime<Utc>,
    },
    Paused,
    /// Sleeping after an error.
    Fault {
        until: DateTime<Utc>,
    },
    Completed,
    /// There were too many errors.
    Failed,
    Killed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runnable => "runnable",
            Self::Sleeping { .. } => "sleeping",
            Self::Paused => "paused",
            Self::Fault { .. } => "at fault",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Killed => "killed",
        })
    }
}

/// Changes the state: a command, or a handler's outcome.
///
/// ```
/// use tenure_client::consumer::statemachine::Message;
///
/// assert_eq!(Message::Error("no disk".to_owned()).to_string(), "error");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Run,
    Sleep {
        until: DateTime<Utc>,
    },
    Pause,
    Kill,
    Error(String),
    Complete,
    Checkpoint,
    /// Let another worker continue.
    Release,
}

impl Message {
    /// Returns none for a command to sleep without a time.
    ///
    /// ```
    /// use tenure_client::TaskCommand;
    /// use tenure_client::consumer::statemachine::Message;
    ///
    /// assert_eq!(Message::of(TaskCommand::Pause, None), Some(Message::Pause));
    /// assert_eq!(Message::of(TaskCommand::Sleep, None), None);
    /// ```
    #[must_use]
    pub fn of(command: TaskCommand, until: Option<DateTime<Utc>>) -> Option<Self> {
        Some(match command {
            TaskCommand::Run => Self::Run,
            TaskCommand::Sleep => Self::Sleep { until: until? },
            TaskCommand::Pause => Self::Pause,
            TaskCommand::Kill => Self::Kill,
            TaskCommand::Error => Self::Error("a command said so".to_owned()),
            TaskCommand::Complete => Self::Complete,
            TaskCommand::Checkpoint => Self::Checkpoint,
            TaskCommand::Release => Self::Release,
        })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "run",
            Self::Sleep { .. } => "sleep",
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Error(_) => "error",
            Self::Complete => "complete",
            Self::Checkpoint => "checkpoint",
            Self::Release => "release",
        })
    }
}

/// The state does not accept the message.
///
/// ```
/// use tenure_client::consumer::statemachine::{Message, Refused, State};
///
/// let refused = Refused { state: State::Killed, message: Message::Run };
/// assert_eq!(refused.to_string(), "a task that is killed cannot take the message `run`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {state} cannot take the message `{message}`")]
pub struct Refused {
    pub state: State,
    pub message: Message,
}

/// An error of a task.
///
/// ```
/// use tenure_client::consumer::statemachine::{ErrorNote, Record};
///
/// fn last_error(record: &Record) -> Option<&str> {
///     record.errors.last().map(|ErrorNote { error, .. }| error.as_str())
/// }
/// # assert_eq!(last_error(&Record::default()), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorNote {
    pub at: DateTime<Utc>,
    /// First 500 characters. Empty if they did not fit into the checkpoint beside the handler's.
    pub error: String,
}

/// A machine as stored.
///
/// ```
/// use tenure_client::consumer::statemachine::{Record, State};
///
/// let record: Record = serde_json::from_str(r#"{"state": {"name": "paused"}}"#)?;
/// assert_eq!(record, Record { state: State::Paused, errors: Vec::new() });
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub state: State,
    /// Last eight, oldest first.
    #[serde(default)]
    pub errors: Vec<ErrorNote>,
}

impl Default for Record {
    fn default() -> Self {
        Self { state: State::Runnable, errors: Vec::new() }
    }
}

impl Record {
    /// Returns the machine after a message.
    ///
    /// An error is recorded in every state that is not terminal, and the eighth within four hours
    /// fails the task. An error puts a machine that is runnable or at fault at fault for ten
    /// minutes. A sleeping or paused machine keeps its state.
    ///
    /// # Errors
    /// The state does not accept the message.
    ///
    /// ```
    /// use tenure_client::consumer::statemachine::{FAULT_SLEEP, Message, Record, State};
    ///
    /// # let now = chrono::DateTime::UNIX_EPOCH;
    /// let after = Record::default().apply(Message::Error("no disk".to_owned()), now)?;
    /// assert_eq!(after.state, State::Fault { until: now + FAULT_SLEEP });
    /// # Ok::<(), tenure_client::consumer::statemachine::Refused>(())
    /// ```
    pub fn apply(&self, message: Message, now: DateTime<Utc>) -> Result<Self, Refused> {
        let state = match self.state {
            State::Runnable => match message {
                Message::Run | Message::Checkpoint | Message::Release => State::Runnable,
                Message::Sleep { until } => State::Sleeping { until },
                Message::Pause => State::Paused,
                Message::Kill => State::Killed,
                Message::Complete => State::Completed,
                Message::Error(error) => return Ok(self.after(&error, fault(now), now)),
            },
            State::Fault { until } => match message {
                Message::Run => State::Runnable,
                Message::Checkpoint | Message::Release => State::Fault { until },
                Message::Sleep { until } => State::Sleeping { until },
                Message::Pause => State::Paused,
                Message::Kill => State::Killed,
                Message::Complete => return self.refuse(Message::Complete),
                Message::Error(error) => return Ok(self.after(&error, fault(now), now)),
            },
            State::Sleeping { until } => match message {
                Message::Run => State::Runnable,
                Message::Checkpoint | Message::Release => State::Sleeping { until },
                Message::Sleep { until } => State::Sleeping { until },
                Message::Pause => State::Paused,
                Message::Kill => State::Killed,
                Message::Complete => return self.refuse(Message::Complete),
                Message::Error(error) => return Ok(self.after(&error, self.state, now)),
            },
            State::Paused => match message {
                Message::Run => State::Runnable,
                Message::Pause | Message::Checkpoint | Message::Release => State::Paused,
                Message::Sleep { until } => State::Sleeping { until },
                Message::Kill => State::Killed,
                Message::Complete => return self.refuse(Message::Complete),
                Message::Error(error) => return Ok(self.after(&error, State::Paused, now)),
            },
            State::Completed | State::Failed | State::Killed => return self.refuse(message),
        };
        Ok(Self { state, errors: self.errors.clone() })
    }

    /// Like [`apply`](Self::apply), but a refused message is an error. An ended machine stays as it
    /// is.
    ///
    /// ```
    /// use tenure_client::consumer::statemachine::{Message, Record, State};
    ///
    /// # let now = chrono::DateTime::UNIX_EPOCH;
    /// let paused = Record { state: State::Paused, errors: Vec::new() };
    /// let after = paused.take(Message::Complete, now);
    /// assert_eq!((after.state, after.errors.len()), (State::Paused, 1));
    /// ```
    #[must_use]
    pub fn take(&self, message: Message, now: DateTime<Utc>) -> Self {
        let refused = match self.apply(message, now) {
            Ok(machine) => return machine,
            Err(refused) => refused,
        };
        self.apply(Message::Error(refused.to_string()), now).unwrap_or_else(|_ended| self.clone())
    }

    fn refuse(&self, message: Message) -> Result<Self, Refused> {
        Err(Refused { state: self.state, message })
    }

    /// In `state`, or failed after too many errors.
    fn after(&self, error: &str, state: State, now: DateTime<Utc>) -> Self {
        let mut errors = self.errors.clone();
        errors.push(ErrorNote { at: now, error: error.chars().take(ERROR_CHARS).collect() });
        let surplus = errors.len().saturating_sub(ERRORS_MAX);
        errors.drain(..surplus);
        let too_many = errors.len() == ERRORS_MAX && errors[0].at >= now - ERRORS_WITHIN;
        Self { state: if too_many { State::Failed } else { state }, errors }
    }
}

fn fault(now: DateTime<Utc>) -> State {
    State::Fault { until: now + FAULT_SLEEP }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_900_000_000 + seconds, 0).unwrap()
    }

    fn states() -> [State; 7] {
        let (sleeping, fault) = (State::Sleeping { until: at(50) }, State::Fault { until: at(60) });
        [State::Runnable, sleeping, State::Paused, fault, State::Completed, State::Failed, State::Killed]
    }

    fn messages() -> [Message; 8] {
        let (sleep, error) = (Message::Sleep { until: at(99) }, Message::Error("no disk".to_owned()));
        [
            Message::Run,
            sleep,
            Message::Pause,
            Message::Kill,
            error,
            Message::Complete,
            Message::Checkpoint,
            Message::Release,
        ]
    }

    #[test]
    fn m17_every_message_follows_table_of_states() {
        let until = |seconds| Some(State::Sleeping { until: at(seconds) });
        let fault = |seconds| Some(State::Fault { until: at(seconds) });
        let (run, pause, kill, none) = (Some(State::Runnable), Some(State::Paused), Some(State::Killed), None);
        // Columns: run, sleep, pause, kill, error, complete, checkpoint, release. None is a
        // refusal.
        let table = [
            [run, until(99), pause, kill, fault(600), Some(State::Completed), run, run],
            [run, until(99), pause, kill, until(50), none, until(50), until(50)],
            [run, until(99), pause, kill, pause, none, pause, pause],
            [run, until(99), pause, kill, fault(600), none, fault(60), fault(60)],
            [none; 8],
            [none; 8],
            [none; 8],
        ];
        for (state, row) in states().into_iter().zip(table) {
            for (message, expected) in messages().into_iter().zip(row) {
                let machine = Record { state, errors: Vec::new() };
                let after = machine.apply(message.clone(), at(0));
                assert_eq!(after.as_ref().ok().map(|after| after.state), expected, "{state}, {message}");
                let noted = after.as_ref().map_or(0, |after| after.errors.len());
                assert_eq!(
                    noted,
                    usize::from(after.is_ok() && matches!(message, Message::Error(_))),
                    "{state}, {message}"
                );
                if let Err(refused) = after {
                    assert_eq!((refused.state, &refused.message), (state, &message));
                }
            }
        }
    }

    #[test]
    fn m17_illegal_message_is_error_unless_machine_ended() {
        for state in states() {
            let machine = Record { state, errors: Vec::new() };
            let after = machine.take(Message::Complete, at(0));
            match state {
                State::Runnable => assert_eq!(after, Record { state: State::Completed, errors: Vec::new() }),
                State::Completed | State::Failed | State::Killed => assert_eq!(after, machine),
                State::Sleeping { .. } | State::Paused | State::Fault { .. } => {
                    assert_eq!(
                        after.errors[0].error,
                        format!("a task that is {state} cannot take the message `complete`")
                    );
                }
            }
        }
    }

    #[test]
    fn m17_eighth_error_within_four_hours_fails_task() {
        let four_hours = TimeDelta::from_std(ERRORS_WITHIN).unwrap().num_seconds();
        for (last, failed) in [(four_hours, true), (four_hours + 1, false)] {
            let mut machine = Record::default();
            for n in 0..7 {
                machine = machine.take(Message::Error(format!("error {n}")), at(n)).take(Message::Run, at(n));
                assert_eq!(machine.state, State::Runnable, "error {n}");
            }
            let after = machine.take(Message::Error("error 7".to_owned()), at(last));
            assert_eq!(after.state == State::Failed, failed, "after {last} s");
            assert_eq!(after.errors.len(), 8);
        }
        let paused = (0..7)
            .fold(Record::default().take(Message::Pause, at(0)), |machine, n| machine.take(Message::Complete, at(n)));
        assert_eq!(paused.state, State::Paused);
        assert_eq!(paused.take(Message::Complete, at(9)).state, State::Failed);
    }

    #[test]
    fn m17_last_eight_errors_are_kept_shortened() {
        let mut machine = Record::default();
        for n in 0..12 {
            // Never eight within four hours.
            machine = machine
                .take(Message::Error(format!("{n} {}", "é".repeat(1_000))), at(n * 3_600))
                .take(Message::Run, at(n * 3_600));
        }
        assert_eq!(machine.state, State::Runnable);
        let kept: Vec<i64> = machine.errors.iter().map(|note| (note.at - at(0)).num_hours()).collect();
        assert_eq!(kept, (4..12).collect::<Vec<_>>());
        assert!(machine.errors.iter().all(|note| note.error.chars().count() == ERROR_CHARS));
    }

    #[test]
    fn m17_state_survives_storage() {
        for state in states() {
            let machine = Record { state, errors: vec![ErrorNote { at: at(1), error: "no disk".to_owned() }] };
            let text = serde_json::to_string(&machine).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), machine, "{text}");
        }
    }

    #[test]
    fn commands_and_messages_have_equal_names() {
        for &command in TaskCommand::ALL {
            assert_eq!(Message::of(command, Some(at(0))).unwrap().to_string(), command.as_str());
        }
        assert_eq!(Message::of(TaskCommand::Sleep, None), None);
    }
}
