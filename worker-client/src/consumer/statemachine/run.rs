//! A machine at work on one run.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tenure_api::checkpoints::CommandOfTask;
use tenure_api::dates::Timestamp;
use tenure_api::states::TaskCommand;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::state::{Message, Record, State};
use crate::consumer::handler::{Handler, Job};
use crate::consumer::outcome::{Outcome, panic_text};
use crate::consumer::progress::Progress;
use crate::consumer::stop::{Stop, StopReason};
use crate::error::chain;
use crate::{Error, retry};

/// No server lets more runs of a task be released. As each run is released once at most, those before this one may all have been.
const RELEASES_MAX: u16 = 200;
/// The longest delay of a released run, which the server cuts at the task's deadline.
const LONGEST: Duration = Duration::from_secs(31_622_400);
/// When a task is tried again whose state could not be read or stored.
const AFTER_TROUBLE: Duration = Duration::from_secs(10);
/// The longest pause between two tries to store that a command was carried out.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a state that is being stored is waited for when its handler has ended.
const STORED_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer is waited for once the run is lost: it is good for nothing then but to say so.
const AFTER_LOSS: Duration = Duration::from_secs(5);

/// A handler whose tasks have a state: see [`statemachine`](super).
pub struct Machine<H> {
    handler: Arc<H>,
    /// Whether it releases runs that have nothing to do.
    releases: bool,
}

impl<H> Machine<H> {
    /// A machine around this handler.
    pub fn new(handler: H) -> Self {
        Self { handler: Arc::new(handler), releases: true }
    }

    /// Has tasks that sleep or are paused stay on their worker, each in the place of another: for handlers that leave something on their
    /// machine. A command reaches them by the session, and without one within 20 s, or as
    /// often as [`ConsumerBuilder::commands_every`](crate::consumer::ConsumerBuilder::commands_every) says.
    #[must_use]
    pub fn within_the_run(self) -> Self {
        Self { releases: false, ..self }
    }
}

impl<P: Clone + Send + Sync + 'static, H: Handler<P>> Handler<P> for Machine<H> {
    async fn run(&self, job: Job<P>, stop: Stop) -> Outcome {
        let (stored, stored_by) = match unless_lost(&stop, job.progress().read_stored()).await {
            Ok(stored) => stored,
            Err(trouble) => {
                trouble.say("the state of the task could not be read");
                return Outcome::Release { after: Some(AFTER_TROUBLE) };
            }
        };
        // Of a task that had ended and is to run again only what the handler stored counts, however many runs it takes until one of the
        // new ones has stored a state.
        let is_anew = stored_by.zip(job.rerun()).is_some_and(|(stored_by, rerun)| stored_by < rerun);
        let record = if is_anew { Record::default() } else { stored.record.clone() };
        let progress = job.progress().of_machine(stored);
        let job = job.with_progress(progress.clone());
        let (handler, releases) = (Arc::clone(&self.handler), self.releases);
        let mut turn = Turn { handler, releases, job, stop, progress, record, is_anew, seen: 0, unstored: None };
        match turn.run().await {
            Ok(outcome) => outcome,
            // Of a run that is lost nothing is reported.
            Err(trouble) => {
                trouble.say("the state of the task could not be stored");
                Outcome::Release { after: Some(AFTER_TROUBLE) }
            }
        }
    }
}

/// Why a machine got no answer about its state.
enum Trouble {
    /// Its run is lost.
    Lost,
    Error(Error),
}

impl Trouble {
    fn say(&self, what: &str) {
        match self {
            Self::Lost => tracing::warn!("{what}: the run is lost"),
            Self::Error(error) => tracing::warn!(error = chain(error), "{what}"),
        }
    }
}

/// Asks the server about the state of a task. Once the run is lost that is given up after a short time, so that a machine stops within
/// the grace like its handler.
async fn unless_lost<T>(stop: &Stop, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
    let lost = async {
        stop.lost().await;
        tokio::time::sleep(AFTER_LOSS).await;
    };
    tokio::select! {
        biased;
        answer = asked => answer.map_err(Trouble::Error),
        () = lost => Err(Trouble::Lost),
    }
}

/// One run of a machine.
struct Turn<P, H> {
    handler: Arc<H>,
    releases: bool,
    job: Job<P>,
    stop: Stop,
    progress: Progress,
    record: Record,
    /// Whether the record is not the one that is stored, which is from before the task was resolved.
    is_anew: bool,
    /// The id of the last command that was taken.
    seen: i64,
    /// The same, if it is not stored yet that it was.
    unstored: Option<i64>,
}

impl<P: Clone + Send + Sync + 'static, H: Handler<P>> Turn<P, H> {
    /// Until the run ends for the machine.
    async fn run(&mut self) -> Result<Outcome, Trouble> {
        if self.is_anew {
            self.store().await?;
        }
        // First of all: a command may be why the task has come back.
        if let Some(command) = unless_lost(&self.stop, self.progress.command()).await? {
            self.obey(command).await?;
        }
        let mut result = None;
        loop {
            match self.record.state {
                State::Runnable => match self.work().await? {
                    Worked::Goes(outcome) => return Ok(outcome),
                    Worked::Has(value) => result = value,
                },
                State::Sleeping { until } | State::Fault { until } => {
                    let Some(left) = self.left(until) else {
                        self.take(Message::Run, None).await?;
                        continue;
                    };
                    if let Some(outcome) = self.idle(left).await? {
                        return Ok(outcome);
                    }
                }
                State::Paused => {
                    if let Some(outcome) = self.idle(LONGEST).await? {
                        return Ok(outcome);
                    }
                }
                State::Completed => return Ok(Outcome::Completed(result)),
                State::Failed | State::Killed => return Ok(Outcome::Failed(Some(self.verdict()))),
            }
        }
    }

    /// Has the handler work until it ends, or until a command stops it.
    async fn work(&mut self) -> Result<Worked, Trouble> {
        let asked = watch::Sender::new(self.stop.reason());
        let (handler, job, stop) =
            (Arc::clone(&self.handler), self.job.duplicate(), self.stop.asked_by(asked.subscribe()));
        // A task of its own: a panic is an error of the machine and not the end of it.
        let working = async move { handler.run(job, stop).await };
        let mut working = AbortOnDropHandle::new(tokio::spawn(working.in_current_span()));
        let (ended, command) = self.attend(&mut working, &asked).await;
        let outcome = ended.unwrap_or_else(|error| {
            let panic = panic_text(error).map(|text| format!("the handler panicked: {text}"));
            Outcome::failed(panic.unwrap_or_else(|| "the handler was ended".to_owned()))
        });
        if let Some(command) = command.filter(|_| !matches!(outcome, Outcome::Completed(_))) {
            let releases = command.command == TaskCommand::Release;
            self.obey(command).await?;
            return Ok(if releases { Worked::Goes(Outcome::Release { after: None }) } else { Worked::Has(None) });
        }
        let message = match outcome {
            Outcome::Completed(value) => {
                // The report stores it. In the checkpoint the state would be without the result, should the report be lost.
                self.record = self.record.take(Message::Complete, self.now());
                return Ok(Worked::Has(value));
            }
            Outcome::Failed(value) => Message::Error(error_text(value.as_ref())),
            Outcome::Retry { .. } => Message::Error("the handler asks for another try".to_owned()),
            Outcome::Release { after: Some(after) } => Message::Sleep { until: self.now() + after.min(LONGEST) },
            Outcome::Release { after: None } => return Ok(Worked::Goes(Outcome::Release { after: None })),
            Outcome::Exception(_) | Outcome::Unreported => return Ok(Worked::Goes(outcome)),
        };
        self.take(message, None).await?;
        Ok(Worked::Has(None))
    }

    /// Waits for the handler to end, which hears meanwhile that it is to stop; and gives the last command for which it was to.
    async fn attend(
        &mut self,
        working: &mut AbortOnDropHandle<Outcome>,
        asked: &watch::Sender<Option<StopReason>>,
    ) -> (Result<Outcome, JoinError>, Option<CommandOfTask>) {
        let (progress, outer) = (self.progress.clone(), self.stop.clone());
        let mut command: Option<CommandOfTask> = None;
        let storing = watch::Sender::new(false);
        // It goes on while the handler is asked to stop: what is given up on its way may be stored after what the handler stores next.
        let mut interruption = std::pin::pin!(self.interruption(&storing));
        loop {
            let before = *asked.borrow();
            let last = command.as_ref().map_or(0, |command| command.id);
            tokio::select! {
                biased;
                ended = &mut *working => {
                    // Nor may it be stored after what the machine stores next.
                    tokio::select! {
                        biased;
                        () = has_stored(&storing) => {}
                        next = &mut interruption, if command.is_none() => command = Some(next),
                        () = outer.lost() => {}
                        () = tokio::time::sleep(STORED_WITHIN) => {}
                    }
                    return (ended, command);
                }
                reason = changed(&outer, before) => {
                    asked.send_replace(Some(reason));
                }
                next = &mut interruption, if command.is_none() => {
                    asked.send_if_modified(|asked| asked.is_none() && { *asked = Some(StopReason::Command); true });
                    command = Some(next);
                }
                // The last one counts: the handler has been asked to stop, and begins anew.
                next = progress.next_command(last), if command.is_some() => command = Some(next),
            }
        }
    }

    /// Waits for a command that interrupts the handler. Any other is carried out by being stored, however many tries that takes; says
    /// when one of them is under way.
    async fn interruption(&mut self, storing: &watch::Sender<bool>) -> CommandOfTask {
        let stop = self.stop.clone();
        let mut next = None;
        loop {
            let command = match next.take() {
                Some(command) => command,
                None => self.progress.next_command(self.seen).await,
            };
            if interrupts(&command) {
                return command;
            }
            next = tokio::select! {
                biased;
                // For a run that is lost nothing is stored, and no command counts.
                () = stop.lost() => std::future::pending().await,
                next = self.obey_at_last(command, storing) => next,
            };
        }
    }

    /// Takes a command, and stores that again and again until the server has answered, or has a later one, which is the answer. If it
    /// refuses that, the handler hears of the loss of its run as always.
    async fn obey_at_last(&mut self, command: CommandOfTask, storing: &watch::Sender<bool>) -> Option<CommandOfTask> {
        let mut failures = 0;
        loop {
            storing.send_replace(true);
            let obeyed = self.obey(command).await;
            storing.send_replace(false);
            let Err(Trouble::Error(error)) = obeyed else { return None };
            if !error.is_transient() && !error.is_unclear() {
                tracing::warn!(error = chain(&error), "that a command was carried out may not be stored");
                return None;
            }
            failures += 1;
            tracing::warn!(failures, error = chain(&error), "a command could not be stored; trying again");
            let pause = self.job.client().retry_policy().backoff(failures, retry::jitter());
            tokio::select! {
                later = self.progress.next_command(self.seen) => return Some(later),
                () = tokio::time::sleep(pause.min(LONGEST_PAUSE)) => {}
            }
        }
    }

    /// Takes a command, and says so.
    async fn obey(&mut self, command: CommandOfTask) -> Result<(), Trouble> {
        self.seen = command.id;
        let until = command.until.map(Timestamp::time);
        let message = Message::of(command.command, until)
            .unwrap_or_else(|| Message::Error("a command to sleep does not say until when".to_owned()));
        self.take(message, Some(command.id)).await?;
        tracing::info!(command = %command.command, state = %self.record.state, "command for the task taken");
        Ok(())
    }

    /// Takes a message, and stores what it makes of the machine.
    async fn take(&mut self, message: Message, command: Option<i64>) -> Result<(), Trouble> {
        self.record = self.record.take(message, self.now());
        self.unstored = command.or(self.unstored);
        self.store().await
    }

    async fn store(&mut self) -> Result<(), Trouble> {
        unless_lost(&self.stop, self.progress.store(&self.record, self.unstored)).await?;
        self.unstored = None;
        Ok(())
    }

    /// By the server's clock.
    fn now(&self) -> DateTime<Utc> {
        self.job.client().now().time()
    }

    /// How long it is until then; none if it is over.
    fn left(&self, until: DateTime<Utc>) -> Option<Duration> {
        (until - self.now()).to_std().ok().filter(|left| !left.is_zero())
    }

    /// With nothing to do for so long: releases the run, or if that may be refused waits within it, until something changes.
    async fn idle(&mut self, left: Duration) -> Result<Option<Outcome>, Trouble> {
        let release = Outcome::Release { after: Some(left) };
        if self.releases && may_release(self.job.run_id().number()) {
            return Ok(Some(release));
        }
        let command = tokio::select! {
            command = self.progress.next_command(self.seen) => command,
            () = self.stop.requested() => return Ok(Some(release)),
            () = tokio::time::sleep(left) => return Ok(None),
        };
        let releases = command.command == TaskCommand::Release;
        self.obey(command).await?;
        Ok(releases.then_some(release))
    }

    /// What the result of a task says that has failed or was killed.
    fn verdict(&self) -> Value {
        let error = match self.record.state {
            State::Killed => "killed by a command".to_owned(),
            _ => self.record.errors.last().map(|last| last.error.clone()).unwrap_or_default(),
        };
        json!({"error": error, "errors": self.record.errors})
    }
}

/// What became of a handler.
enum Worked {
    /// The run ends like this, whatever the state.
    Goes(Outcome),
    /// The state says what is next; a handler that completed has returned this.
    Has(Option<Value>),
}

/// Whether a run with this number may surely be released.
fn may_release(run: u16) -> bool {
    run < RELEASES_MAX
}

/// Whether a command is for a handler that does not work any more.
fn interrupts(command: &CommandOfTask) -> bool {
    match command.command {
        TaskCommand::Run | TaskCommand::Checkpoint => false,
        TaskCommand::Sleep
        | TaskCommand::Pause
        | TaskCommand::Kill
        | TaskCommand::Error
        | TaskCommand::Complete
        | TaskCommand::Release => true,
    }
}

/// Waits until nothing is being stored.
async fn has_stored(storing: &watch::Sender<bool>) {
    // The caller has the sender.
    drop(storing.subscribe().wait_for(|storing| !*storing).await);
}

/// Waits until the reason to stop is another one, and there is one.
async fn changed(stop: &Stop, before: Option<StopReason>) -> StopReason {
    let mut stop = stop.asked.clone();
    loop {
        let now = *stop.borrow_and_update();
        // The machine's own reason is not replaced by one of the same weight.
        if let Some(reason) = now.filter(|reason| before.is_none_or(|before| reason.is_final() && !before.is_final())) {
            return reason;
        }
        if stop.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn error_text(value: Option<&Value>) -> String {
    match value {
        None => "the handler has failed".to_owned(),
        Some(value) => value["error"].as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m17_only_runs_that_may_surely_be_released_are() {
        assert!(may_release(0) && may_release(199));
        assert!(!may_release(200) && !may_release(999));
    }

    #[test]
    fn an_error_is_in_the_words_of_the_handler() {
        for (value, text) in [
            (None, "the handler has failed"),
            (Some(json!({"error": "no disk"})), "no disk"),
            (Some(json!({"error": 5})), r#"{"error":5}"#),
            (Some(json!("no disk")), "\"no disk\""),
        ] {
            assert_eq!(error_text(value.as_ref()), text);
        }
    }

    #[tokio::test]
    async fn a_reason_by_which_the_run_is_lost_takes_the_place_of_the_machines_own() {
        let outer = watch::Sender::new(None);
        let stop = Stop::new(outer.subscribe(), std::sync::Arc::default());
        outer.send_replace(Some(StopReason::Shutdown));
        assert_eq!(changed(&stop, None).await, StopReason::Shutdown);
        let none = tokio::time::timeout(Duration::from_millis(20), changed(&stop, Some(StopReason::Command))).await;
        assert!(none.is_err());
        outer.send_replace(Some(StopReason::Lost));
        assert_eq!(changed(&stop, Some(StopReason::Command)).await, StopReason::Lost);
    }
}
