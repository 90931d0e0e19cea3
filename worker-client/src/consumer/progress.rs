//! Checkpoints of a running job, and commands for its task.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tenure_api::checkpoints::CommandOfTask;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::{Mutex, watch};

use super::statemachine::state::Record;
use crate::error::chain;
use crate::{Client, Error};

/// Default without a session.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(20);
/// In case an announcement was missed.
pub(super) const ASK_EVERY_IN_SESSION: Duration = Duration::from_secs(300);
/// Status for a checkpoint that is too large, and for other refusals.
const TOO_LARGE: u16 = 400;

/// Checkpoint of a job without a server.
pub(super) type Memory = Arc<std::sync::Mutex<Option<Box<RawValue>>>>;

/// Clones share the checkpoint.
#[derive(Clone)]
pub(super) struct Progress {
    client: Client,
    task_id: TaskId,
    run_id: RunId,
    /// Changes with each announced command for the task.
    commanded: watch::Receiver<u64>,
    ask_every: Duration,
    /// Set if the job's handler is a machine.
    machine: Option<Arc<Mutex<Stored>>>,
    /// Set in unit tests of handlers: replaces the server.
    memory: Option<Memory>,
}

/// Checkpoint of a task with a machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    #[serde(rename = "machine")]
    pub record: Record,
    /// The handler's own checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Box<RawValue>>,
}

impl Stored {
    /// A checkpoint without a record was stored by a handler without a machine.
    pub(super) fn read(checkpoint: Box<RawValue>) -> Self {
        match serde_json::from_str(checkpoint.get()) {
            // Derived deserialization also accepts an array of the fields.
            Ok(stored) if checkpoint.get().starts_with('{') => stored,
            _ => Self { record: Record::default(), checkpoint: Some(checkpoint) },
        }
    }
}

impl Progress {
    pub(super) fn new(
        client: Client,
        (task_id, run_id): (TaskId, RunId),
        commanded: watch::Receiver<u64>,
        ask_every: Duration,
    ) -> Self {
        Self { client, task_id, run_id, commanded, ask_every, machine: None, memory: None }
    }

    pub(super) fn in_memory(self, memory: Memory) -> Self {
        Self { memory: Some(memory), ..self }
    }

    pub(super) fn of_machine(&self, stored: Stored) -> Self {
        Self { machine: Some(Arc::new(Mutex::new(stored))), ..self.clone() }
    }

    pub(super) async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        let Some(machine) = &self.machine else {
            return self.put(checkpoint, None).await;
        };
        let checkpoint = to_raw_value(checkpoint).map_err(Error::NotJson)?;
        let mut stored = machine.lock().await;
        let before = stored.checkpoint.replace(checkpoint);
        // Locked until it is stored, to keep concurrent calls in order.
        let answer = self.put_fitting(&mut stored, None).await;
        if let Err(error) = &answer
            && !error.is_transient()
            && !error.is_unclear()
        {
            // It would be refused again with the machine's next state.
            stored.checkpoint = before;
        }
        answer
    }

    pub(super) async fn last_checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let Some(machine) = &self.machine else {
            return Ok(self.get::<T>().await?.map(|(checkpoint, _run)| checkpoint));
        };
        let checkpoint = machine.lock().await.checkpoint.clone();
        checkpoint.map(|raw| serde_json::from_str(raw.get())).transpose().map_err(Error::BadAnswer)
    }

    /// Also returns the run that stored it.
    pub(super) async fn read_stored(&self) -> Result<(Stored, Option<RunId>), Error> {
        let Some((checkpoint, run)) = self.get::<Box<RawValue>>().await? else {
            return Ok((Stored::default(), None));
        };
        Ok((Stored::read(checkpoint), run))
    }

    /// Stores a machine's record beside its handler's last checkpoint, and marks this command as
    /// carried out.
    pub(super) async fn store(&self, record: &Record, command: Option<i64>) -> Result<(), Error> {
        let own = Arc::default();
        let mut stored = self.machine.as_ref().unwrap_or(&own).lock().await;
        stored.record = record.clone();
        self.put_fitting(&mut stored, command).await
    }

    /// Stores it, if too large without the texts of the machine's errors: the handler's checkpoint
    /// may take all the space.
    async fn put_fitting(&self, stored: &mut Stored, command: Option<i64>) -> Result<(), Error> {
        let answer = self.put(stored, command).await;
        let may_be_too_large = matches!(&answer, Err(error) if error.status() == Some(TOO_LARGE));
        if !may_be_too_large || stored.record.errors.is_empty() {
            return answer;
        }
        let whole = stored.record.clone();
        stored.record.errors.iter_mut().for_each(|note| note.error.clear());
        let answer = self.put(stored, command).await;
        if answer.is_err() {
            stored.record = whole;
        }
        answer
    }

    async fn put(&self, checkpoint: &impl Serialize, command: Option<i64>) -> Result<(), Error> {
        let Some(memory) = &self.memory else {
            return self.client.store_checkpoint(self.task_id, self.run_id, checkpoint, command).await;
        };
        let checkpoint = to_raw_value(checkpoint).map_err(Error::NotJson)?;
        *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkpoint);
        Ok(())
    }

    /// Also returns the run that stored it, if known.
    async fn get<T: DeserializeOwned>(&self) -> Result<Option<(T, Option<RunId>)>, Error> {
        let Some(memory) = &self.memory else {
            let found = self.client.get_checkpoint::<T>(self.task_id).await?;
            return Ok(found.map(|found| (found.checkpoint, Some(found.run_id))));
        };
        let checkpoint = read_memory(memory).transpose().map_err(Error::BadAnswer)?;
        Ok(checkpoint.map(|checkpoint| (checkpoint, None)))
    }

    pub(super) async fn command(&self) -> Result<Option<CommandOfTask>, Error> {
        if self.memory.is_some() {
            return Ok(None);
        }
        self.client.get_task_command(self.task_id).await
    }

    /// Waits for a command with a higher id.
    pub(super) async fn next_command(&self, after: i64) -> CommandOfTask {
        let mut commanded = self.commanded.clone();
        loop {
            commanded.mark_unchanged();
            let ask_again_after = match self.command().await {
                Ok(Some(command)) if command.id > after => return command,
                Ok(_) => self.ask_every,
                Err(error) => {
                    warning!(error = chain(&error), "commands for the task could not be read; trying again");
                    after_failure(&error, self.ask_every)
                }
            };
            let heard = async {
                if commanded.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = heard => {}
                () = tokio::time::sleep(ask_again_after) => {}
            }
        }
    }
}

pub(super) fn read_memory<T: DeserializeOwned>(memory: &Memory) -> Option<Result<T, serde_json::Error>> {
    let checkpoint = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
    checkpoint.map(|checkpoint| serde_json::from_str(checkpoint.get()))
}

/// The session announces each command only once.
fn after_failure(error: &Error, ask_every: Duration) -> Duration {
    if error.is_transient() || error.is_unclear() { ask_every.min(ASK_EVERY) } else { ask_every }
}

#[cfg(test)]
mod tests {
    use super::super::statemachine::state::{Message, State};
    use super::*;

    #[test]
    fn checkpoint_without_machine_is_handlers() {
        let paused = r#"{"state": {"name": "paused"}}"#;
        for checkpoint in [
            "5",
            "null",
            r#"{"machine": 5}"#,
            &format!(r#"{{"machine": {paused}, "mine": 1}}"#),
            &format!(r#"[{paused}, 1]"#),
            "[1e400, 1.50]",
        ] {
            let read = Stored::read(RawValue::from_string(checkpoint.to_owned()).unwrap());
            assert_eq!((read.record, read.checkpoint.unwrap().get()), (Record::default(), checkpoint));
        }
    }

    #[test]
    fn failed_command_poll_is_retried_soon_in_session() {
        let refused = |status, code: &str| {
            let (code, message) = (code.to_owned(), String::new());
            Error::Refused { status, code, message, retry_after: None }
        };
        let second = Duration::from_secs(1);
        for (status, code, every, expected) in [
            (503, "ServiceUnavailable", ASK_EVERY_IN_SESSION, ASK_EVERY),
            (404, "", ASK_EVERY_IN_SESSION, ASK_EVERY),
            (503, "ServiceUnavailable", second, second),
            (403, "InsufficientScopes", ASK_EVERY_IN_SESSION, ASK_EVERY_IN_SESSION),
        ] {
            assert_eq!(after_failure(&refused(status, code), every), expected, "{status} {code}");
        }
    }

    #[test]
    fn stored_machine_record_is_read_unchanged() {
        let paused = Record::default().take(Message::Pause, chrono::DateTime::UNIX_EPOCH);
        assert_eq!(paused.state, State::Paused);
        for (checkpoint, expected) in
            [(None, None), (Some(r#"{"done": 1.50e400}"#), Some(r#"{"done": 1.50e400}"#)), (Some("null"), None)]
        {
            let checkpoint = checkpoint.map(|text| RawValue::from_string(text.to_owned()).unwrap());
            let read = Stored::read(to_raw_value(&Stored { record: paused.clone(), checkpoint }).unwrap());
            assert_eq!((read.record, read.checkpoint.as_deref().map(RawValue::get)), (paused.clone(), expected));
        }
    }
}
