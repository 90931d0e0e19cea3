//! A machine during one run.

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
use crate::{Error, Failure, retry};

/// Limit of the server. Each run is released at most once, so earlier runs may have used all
/// releases.
const RELEASES_MAX: u16 = 200;
/// The server shortens a delay to the task's deadline.
const LONGEST: Duration = Duration::from_secs(31_622_400);
/// Delay of a release if the state cannot be read or stored.
const AFTER_TROUBLE: Duration = Duration::from_secs(10);
/// Between attempts to store that a command was carried out.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Wait for a store in progress after the handler has ended.
const STORED_WITHIN: Duration = Duration::from_secs(5);
/// Timeout after the run is lost: an answer would only confirm the loss.
const AFTER_LOSS: Duration = Duration::from_secs(5);

/// A handler whose tasks have a state: see [`statemachine`](super).
///
/// ```
/// use tenure_client::consumer::statemachine::Machine;
/// use tenure_client::consumer::{Handler, Job, Outcome, Stop};
/// use tenure_client::testing;
///
/// async fn double(job: Job<u32>, _stop: Stop) -> Outcome {
///     Outcome::completed(job.payload() * 2)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let outcome = Machine::new(double).run(testing::job(21), testing::stop()).await;
/// assert_eq!(outcome, Outcome::completed(42));
/// # }
/// ```
pub struct Machine<H> {
    handler: Arc<H>,
    /// Idle runs are released.
    releases: bool,
}

impl<H> Machine<H> {
    /// Wraps a handler.
    ///
    /// ```
    /// # use tenure_client::consumer::statemachine::Machine;
    /// # use tenure_client::consumer::{Job, Stop};
    /// # async fn crawl(_job: Job, _stop: Stop) {}
    /// let machine = Machine::new(crawl);
    /// # drop(machine);
    /// ```
    pub fn new(handler: H) -> Self {
        Self { handler: Arc::new(handler), releases: true }
    }

    /// Keeps sleeping and paused tasks on their worker, each in a slot of its capacity. For
    /// handlers that leave state on their machine. Without a session a command takes up to 20 s to
    /// arrive, or as set by
    /// [`ConsumerBuilder::commands_every`](crate::consumer::ConsumerBuilder::commands_every).
    ///
    /// ```
    /// # use tenure_client::consumer::statemachine::Machine;
    /// # use tenure_client::consumer::{Job, Stop};
    /// # async fn crawl(_job: Job, _stop: Stop) {}
    /// let machine = Machine::new(crawl).within_the_run();
    /// # drop(machine);
    /// ```
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
        // After a rerun only the handler's checkpoint is kept, until one of the new runs has stored
        // a state.
        let is_anew = stored_by.zip(job.rerun()).is_some_and(|(stored_by, rerun)| stored_by < rerun);
        let record = if is_anew { Record::default() } else { stored.record.clone() };
        let progress = job.progress().of_machine(stored);
        let job = job.with_progress(progress.clone());
        let (handler, releases) = (Arc::clone(&self.handler), self.releases);
        let mut turn = Turn { handler, releases, job, stop, progress, record, is_anew, seen: 0, unstored: None };
        match turn.run().await {
            Ok(outcome) => outcome,
            // A lost run is not reported.
            Err(trouble) => {
                trouble.say("the state of the task could not be stored");
                Outcome::Release { after: Some(AFTER_TROUBLE) }
            }
        }
    }
}

enum Trouble {
    Lost,
    Error(Error),
}

impl Trouble {
    fn say(&self, what: &str) {
        match self {
            Self::Lost => warning!("{what}: the run is lost"),
            Self::Error(error) => warning!(error = chain(error), "{what}"),
        }
    }
}

/// Gives a request up shortly after the run is lost, so that a machine stops within the grace like
/// its handler.
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
    /// The stored record is from before the rerun.
    is_anew: bool,
    /// Id of the last command taken.
    seen: i64,
    /// Id of a taken command that is not stored yet.
    unstored: Option<i64>,
}

impl<P: Clone + Send + Sync + 'static, H: Handler<P>> Turn<P, H> {
    async fn run(&mut self) -> Result<Outcome, Trouble> {
        if self.is_anew {
            self.store().await?;
        }
        // First, because a command may be why the task became claimable.
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
                State::Failed | State::Killed => return Ok(self.verdict()),
            }
        }
    }

    /// Runs the handler until it ends, or a command stops it.
    async fn work(&mut self) -> Result<Worked, Trouble> {
        let asked = watch::Sender::new(self.stop.reason());
        let (handler, job, stop) =
            (Arc::clone(&self.handler), self.job.duplicate(), self.stop.asked_by(asked.subscribe()));
        // A separate task: a panic is an error of the machine and does not end it.
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
        let (outcome, failure) = outcome.into_parts();
        let message = match outcome {
            Outcome::Completed(value) => {
                // Stored by the report. A checkpoint would keep the state without the result if the
                // report were lost.
                self.record = self.record.take(Message::Complete, self.now());
                return Ok(Worked::Has(value));
            }
            Outcome::Failed(value) => Message::Error(error_text(failure, value.as_ref())),
            Outcome::Retry { .. } => Message::Error(
                failure.map_or_else(|| "the handler asks for another try".to_owned(), |failure| failure.message),
            ),
            Outcome::Release { after: Some(after) } => Message::Sleep { until: self.now() + after.min(LONGEST) },
            Outcome::Release { after: None } => return Ok(Worked::Goes(Outcome::Release { after: None })),
            Outcome::FailedForGood(_) | Outcome::Exception(_) | Outcome::Unreported | Outcome::Because(..) => {
                return Ok(Worked::Goes(match failure {
                    Some(failure) => outcome.because_of(failure),
                    None => outcome,
                }));
            }
        };
        self.take(message, None).await?;
        Ok(Worked::Has(None))
    }

    /// Waits for the handler to end, and forwards requests to stop. Also returns the last command
    /// that interrupted it.
    async fn attend(
        &mut self,
        working: &mut AbortOnDropHandle<Outcome>,
        asked: &watch::Sender<Option<StopReason>>,
    ) -> (Result<Outcome, JoinError>, Option<CommandOfTask>) {
        let (progress, outer) = (self.progress.clone(), self.stop.clone());
        let mut command: Option<CommandOfTask> = None;
        let storing = watch::Sender::new(false);
        // Not dropped while the handler is asked to stop: a cancelled store could take effect after
        // the handler's next one.
        let mut interruption = std::pin::pin!(self.interruption(&storing));
        loop {
            let before = *asked.borrow();
            let last = command.as_ref().map_or(0, |command| command.id);
            tokio::select! {
                biased;
                ended = &mut *working => {
                    // Nor may it take effect after the machine's next store.
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
                // The last command wins: the handler has been asked to stop, and restarts.
                next = progress.next_command(last), if command.is_some() => command = Some(next),
            }
        }
    }

    /// Waits for a command that interrupts the handler, and carries out others. `storing` is true
    /// during a store.
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
                // For a lost run no command is carried out.
                () = stop.lost() => std::future::pending().await,
                next = self.obey_at_last(command, storing) => next,
            };
        }
    }

    /// Takes a command and stores that, retrying until the server has answered or has a later
    /// command, which is returned. After a refusal the handler learns of the loss of its run as
    /// usual.
    async fn obey_at_last(&mut self, command: CommandOfTask, storing: &watch::Sender<bool>) -> Option<CommandOfTask> {
        let mut failures = 0;
        loop {
            storing.send_replace(true);
            let obeyed = self.obey(command).await;
            storing.send_replace(false);
            let Err(Trouble::Error(error)) = obeyed else { return None };
            if !error.is_transient() && !error.is_unclear() {
                warning!(error = chain(&error), "the server refuses to store that a command was carried out");
                return None;
            }
            failures += 1;
            warning!(failures = failures, error = chain(&error), "a command could not be stored; trying again");
            let pause = self.job.client().retry_policy().backoff(failures, retry::jitter());
            tokio::select! {
                later = self.progress.next_command(self.seen) => return Some(later),
                () = tokio::time::sleep(pause.min(LONGEST_PAUSE)) => {}
            }
        }
    }

    async fn obey(&mut self, command: CommandOfTask) -> Result<(), Trouble> {
        self.seen = command.id;
        let until = command.until.map(Timestamp::time);
        let message = Message::of(command.command, until)
            .unwrap_or_else(|| Message::Error("a sleep command has no `until`".to_owned()));
        self.take(message, Some(command.id)).await?;
        tracing::info!(command = %command.command, state = %self.record.state, "command for the task taken");
        Ok(())
    }

    /// Applies a message and stores the new record.
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

    /// Returns none if it has passed.
    fn left(&self, until: DateTime<Utc>) -> Option<Duration> {
        (until - self.now()).to_std().ok().filter(|left| !left.is_zero())
    }

    /// Releases the run, or waits within it if the release may be refused, until a message arrives.
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

    /// Outcome of a failed or killed task. Another run would find the same state.
    fn verdict(&self) -> Outcome {
        let error = match self.record.state {
            State::Killed => "killed by a command",
            _ => self.record.errors.last().map_or("", |last| last.error.as_str()),
        };
        Outcome::FailedForGood(Some(json!({"errors": self.record.errors}))).because(error)
    }
}

enum Worked {
    /// The run ends, regardless of the state.
    Goes(Outcome),
    /// The state decides; contains the result of a completed handler.
    Has(Option<Value>),
}

fn may_release(run: u16) -> bool {
    run < RELEASES_MAX
}

/// True if the handler must stop.
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

async fn has_stored(storing: &watch::Sender<bool>) {
    // Cannot fail: the caller has the sender.
    drop(storing.subscribe().wait_for(|storing| !*storing).await);
}

/// Waits for a reason that replaces `before`.
async fn changed(stop: &Stop, before: Option<StopReason>) -> StopReason {
    let mut stop = stop.asked.clone();
    loop {
        let now = *stop.borrow_and_update();
        // The machine's own reason is replaced only by a final one.
        if let Some(reason) = now.filter(|reason| before.is_none_or(|before| reason.is_final() && !before.is_final())) {
            return reason;
        }
        if stop.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn error_text(failure: Option<Failure>, value: Option<&Value>) -> String {
    match (failure, value) {
        (Some(failure), _) => failure.message,
        (None, Some(value)) => value.to_string(),
        (None, None) => "the handler has failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m17_only_certainly_releasable_runs_are_released() {
        assert!(may_release(0) && may_release(199));
        assert!(!may_release(200) && !may_release(999));
    }

    #[test]
    fn error_text_is_the_handlers() {
        let failure = Failure { message: "no disk".to_owned(), kind: None, exit_code: None };
        for (failure, value, text) in [
            (None, None, "the handler has failed"),
            (Some(failure.clone()), None, "no disk"),
            (Some(failure), Some(json!(5)), "no disk"),
            (None, Some(json!({"step": 5})), r#"{"step":5}"#),
        ] {
            assert_eq!(error_text(failure, value.as_ref()), text);
        }
    }

    #[tokio::test]
    async fn loss_replaces_reason_of_machine() {
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
