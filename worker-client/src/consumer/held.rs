//! One claimed run from its claim to its report: owns the claim, its renewal ([`crate::keep`]) and
//! its end.
//!
//! A claim ends for its handler in one of two ways:
//!
//! - **Gone**: the session's inbox or the answer to a renewal says that the run ended or is another
//!   worker's. No further requests are sent for it.
//! - **Unrenewable**: no renewal was answered until `takenUntil` less the grace, or the session
//!   cannot be reached. The handler has the grace to stop before another worker may start. Its
//!   outcome is reported until the lease ends. If the session has survived, the run is still held;
//!   otherwise the server refuses the report.
//!
//! With [`keep_late`](super::ConsumerBuilder::keep_late) a run that has ended may be *late* instead:
//! its handler goes on, and only a completed result is reported, without a limit of time.
//!
//! Times are server dates on the monotonic clock (see [`crate::Lease`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;
use tracing::field::display;

use super::control::{Control, Hold};
use super::handler::{Afterwards, Core};
use super::inner::Inner;
use super::log::Outgoing;
use super::membership::Membership;
use super::outcome::{OnPanic, Outcome, panic_text, to_result};
use super::progress::ASK_EVERY_IN_SESSION;
use super::settings::LAST_REPORT;
use super::stop::{HowLost, StopReason};
use crate::error::chain;
use crate::keep::{Terms, Unkept};
use crate::notice::{self, JOB};
use crate::{Claim, Error, ExceptionReason, Failure, RunOutcome, RunResult, retry};

/// Time of the session's inbox to tell of an ended run, twice as long as it promises.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// Between two attempts of a report.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

type Handler = AbortOnDropHandle<Outcome>;

struct HeldRun {
    inner: Arc<Inner>,
    claim: Claim,
    control: Arc<Control>,
}

/// Runs the job, or gives the claim back if it may no longer start.
pub(super) fn begin(inner: Arc<Inner>, terms: Membership, claim: Claim) -> impl Future<Output = ()> + Send + 'static {
    let run = (claim.task_id(), claim.run_id());
    let span = tracing::info_span!("task", task.id = %run.0, run.id = run.1.number());
    // Entered before the future is polled, to recognize a claim that arrives twice.
    let control = inner.may_start(terms).then(|| inner.jobs.enter(run));
    let work = async move {
        let Some(control) = control else { return give_back(&inner, &claim).await };
        // A shutdown in between has not asked this job.
        if inner.orders.shutdown.is_cancelled() {
            control.ask_to_stop(StopReason::Shutdown);
        }
        HeldRun { inner, claim, control }.run().await;
    };
    JOB.scope(run, work).instrument(span)
}

impl HeldRun {
    async fn run(mut self) {
        tracing::info!("task claimed");
        let (inner, control) = (Arc::clone(&self.inner), Arc::clone(&self.control));
        let _listed = inner.jobs.listed(&control);
        let core = self.core();
        let (task_id, run_id, expires) = (self.claim.task_id(), self.claim.run_id(), self.claim.task().expires);
        let log = Outgoing::new(core.log.clone(), core.client.clone(), task_id, run_id, expires);
        let afterwards = core.afterwards.clone();
        let working = Arc::clone(&inner.handler).run(core, control.stop());
        let begun = Instant::now();
        // A separate task: a handler that blocks its thread or panics does not prevent renewal and
        // report.
        let mut handler = AbortOnDropHandle::new(tokio::spawn(JOB.scope((task_id, run_id), working.in_current_span())));
        let ended = tokio::select! {
            biased;
            ended = &mut handler => Some(ended),
            () = self.keep() => None,
            () = log.send() => unreachable!("it has no end"),
        };
        let ended = match ended {
            Some(ended) => ended,
            None => outlive(&mut handler, self.claim.lease().ends(), &control, &inner).await,
        };
        inner.jobs.note_length(begun.elapsed());
        control.reporting.store(true, Ordering::Relaxed);
        let outcome = ended.unwrap_or_else(|error| after_panic(inner.settings.on_panic, error));
        // The server makes the artifact of an ended run.
        if !log.is_empty() && control.hold() != Hold::Late {
            self.upload(&log).await;
        }
        self.report(&outcome, &afterwards).await;
        afterwards.run().await;
    }

    fn core(&self) -> Core {
        let settings = &self.inner.settings;
        let commands_every = match *self.inner.membership.borrow() {
            Membership::Alone => settings.commands_every,
            Membership::Waiting | Membership::Live(_) => ASK_EVERY_IN_SESSION,
        };
        Core::new(&self.claim, &self.control, settings.client.retry_policy(), commands_every)
    }

    /// Renews the claim until it is lost or cannot be renewed, and the handler was asked to stop.
    async fn keep(&mut self) {
        let Self { inner, claim, control } = self;
        let terms = Terms { heartbeat: inner.settings.heartbeat, grace: inner.settings.grace };
        tokio::select! {
            biased;
            () = control.not_ours() => {}
            unkept = claim.keep(terms) => match unkept {
                Unkept::Lost(lost) => {
                    // The refusal does not tell whether the result of the run may count.
                    if inner.settings.keep_late {
                        let _told = tokio::time::timeout(TOLD_WITHIN, control.not_ours()).await;
                    }
                    control.lose(StopReason::Lost, Some(HowLost::Refused(lost)));
                }
                Unkept::Unanswered => {
                    warning!("the claim could not be renewed; the job is stopped before its lease ends");
                    control.stop_renewing(claim.lease().ends(), HowLost::Unanswered);
                }
            },
        }
    }

    /// Uploads the log of an ended job while its claim is renewed.
    async fn upload(&mut self, log: &Outgoing) {
        let inner = Arc::clone(&self.inner);
        tokio::select! {
            biased;
            () = self.keep_for_its_log() => warning!("the log of a job is not uploaded: its run is lost, or cannot be renewed"),
            () = last_call(&inner) => warning!("the log of a job could not be uploaded before the shutdown"),
            () = log.upload() => {}
        }
    }

    /// Returns when no more requests may be sent for the run. If its session was unreachable but
    /// has survived, that is the end of the lease.
    async fn keep_for_its_log(&mut self) {
        self.keep().await;
        let Self { inner, claim, control } = self;
        let lease_ends = claim.lease().ends();
        let ends_with_session = control.ends.get().is_some_and(|ends| *ends < lease_ends);
        let goes_on = matches!(*inner.membership.borrow(), Membership::Live(_));
        if control.hold() == Hold::Unrenewable && ends_with_session && goes_on {
            tokio::select! {
                () = control.gone() => {}
                () = tokio::time::sleep_until(lease_ends) => {}
            }
        }
    }

    async fn report(&self, outcome: &Outcome, afterwards: &Afterwards) {
        let Self { inner, claim, control } = self;
        let is_late = control.hold() == Hold::Late;
        if control.hold() == Hold::Gone || *outcome == Outcome::Unreported {
            return warning!(because = control.lost_because(), "claim lost; nothing is reported");
        }
        if is_late && !matches!(outcome, Outcome::Completed(_)) {
            return tracing::info!(?outcome, "only a completed result counts late; nothing is reported");
        }
        tokio::select! {
            biased;
            () = control.gone() => {
                warning!(outcome = format!("{outcome:?}"), "the run was lost before its outcome could be reported");
            }
            () = tokio::time::sleep_until(claim.lease().ends()), if !is_late => {
                control.lose(StopReason::Lost, None);
                warning!(outcome = format!("{outcome:?}"), "the claim ended before its outcome could be reported");
            }
            () = last_call(inner) => {
                warning!(outcome = format!("{outcome:?}"), "the outcome could not be reported before the shutdown");
            }
            () = send(inner, claim, outcome, afterwards) => {}
        }
    }
}

async fn give_back(inner: &Inner, claim: &Claim) {
    let until = claim.lease().ends().min(Instant::now() + LAST_REPORT);
    let (release, nothing) = (Outcome::Release { after: None }, Afterwards::default());
    if tokio::time::timeout_at(until, send(inner, claim, &release, &nothing)).await.is_err() {
        warning!(task.id = display(claim.task_id()), "a claim could not be released");
    }
}

/// Sends an outcome until it is answered: first with the next call for work if one is due, then
/// apart. With a source that is by the calls of the Queue API, which know neither releases nor
/// delays.
async fn send(inner: &Inner, claim: &Claim, outcome: &Outcome, afterwards: &Afterwards) {
    let Some(mut result) = to_result(claim.task_id(), claim.run_id(), outcome) else { return };
    let shutdown = || claim.result(RunOutcome::Exception, Some(ExceptionReason::WorkerShutdown));
    let has_source = inner.settings.has_source;
    if has_source && result.outcome == RunOutcome::Released {
        result = shutdown();
    }
    let failure = result.failure.clone();
    // A call for work would claim a run for the slot that the job still occupies.
    let (mut apart, mut failures) = (!has_source && !afterwards.is_empty(), 0);
    let ends = if afterwards.is_empty() { tokio::task::try_id() } else { None };
    loop {
        apart |= gives_back(&result);
        let answer = match (apart, has_source) {
            (false, _) => inner.outbox.send(result.clone(), ends).await,
            (true, false) => inner.outbox.send_apart(result.clone()).await,
            (true, true) => Some(claim.send_result(&result).await),
        };
        match answer {
            Some(Ok(status)) => {
                say_failure(result.reason, failure.as_ref());
                return tracing::info!(?outcome, state = ?status.state, "task reported");
            }
            // After too many releases a task can still be given up, at the cost of a retry.
            Some(Err(Error::Refused { status: 409, message, .. })) if result.outcome == RunOutcome::Released => {
                tracing::info!(message, "a release was refused; the run ends as worker-shutdown");
                result = shutdown();
                continue;
            }
            // Servers other than Tenure, and its earlier releases, know no failures.
            Some(Err(error)) if result.failure.is_some() && error.status() == Some(400) && !error.is_unclear() => {
                tracing::info!(error = chain(&error), "a failure was refused; the run is reported without it");
                (result.failure, result.retry) = (None, None);
                continue;
            }
            Some(Err(error)) if !error.is_transient() && !error.is_unclear() => {
                return warning!(
                    outcome = format!("{outcome:?}"),
                    error = chain(&error),
                    "the report was refused and changed nothing"
                );
            }
            Some(Err(error)) => warning!(error = chain(&error), "the report failed; trying again"),
            None => {}
        }
        if !std::mem::replace(&mut apart, true) && has_source {
            continue;
        }
        failures += 1;
        let pause = claim.client().retry_policy().backoff(failures, retry::jitter());
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
}

/// True if the task may be claimed again at once. A server refuses such a result with a call for
/// work, which could return the same task.
fn gives_back(RunResult { outcome, reason, delay, .. }: &RunResult) -> bool {
    *reason == Some(ExceptionReason::WorkerShutdown)
        || (*outcome == RunOutcome::Released && delay.is_none_or(|seconds| seconds == 0))
}

/// A program with a subscriber has it in the event of the report.
fn say_failure(reason: Option<ExceptionReason>, failure: Option<&Failure>) {
    if let Some(Failure { message, kind: _, exit_code: _ }) = failure
        && notice::is_unheard()
    {
        let ended_as = reason.map_or("failed", ExceptionReason::as_str);
        notice::say(format_args!("the run ended as {ended_as}: {message}"), &[]);
    }
}

async fn last_call(inner: &Inner) {
    inner.orders.shutdown.cancelled().await;
    tokio::time::sleep(LAST_REPORT).await;
}

/// Waits for a handler that was asked to stop, and counts it as an overrun if it takes too long.
async fn outlive(
    handler: &mut Handler,
    lease_ends: Instant,
    control: &Control,
    inner: &Inner,
) -> Result<Outcome, JoinError> {
    if control.hold() == Hold::Late {
        return handler.await;
    }
    let overrun_at = control.ends.get().map_or(lease_ends, |ends| lease_ends.min(*ends));
    if control.hold() != Hold::Gone {
        tokio::select! {
            biased;
            ended = &mut *handler => return ended,
            () = control.gone() => {}
            () = tokio::time::sleep_until(overrun_at) => {}
        }
    }
    if control.hold() == Hold::Gone {
        let grace_ends = Instant::now().checked_add(inner.settings.grace);
        let at = grace_ends.map_or(overrun_at, |ends| overrun_at.min(ends));
        tokio::select! {
            biased;
            ended = &mut *handler => return ended,
            () = tokio::time::sleep_until(at) => {}
        }
    }
    if lease_ends <= Instant::now() {
        control.lose(StopReason::Lost, None);
    }
    inner.jobs.count_overrun();
    warning!(
        "a handler is still running although its run is or may be lost; another worker may be running the task too"
    );
    // The session may have survived: until the lease ends, the server decides about a report.
    tokio::select! {
        biased;
        ended = &mut *handler => return ended,
        () = control.gone() => {}
        () = tokio::time::sleep_until(lease_ends) => {}
    }
    control.lose(StopReason::Lost, None);
    handler.await
}

fn after_panic(on_panic: OnPanic, error: JoinError) -> Outcome {
    // Without a panic the runtime is shutting down.
    let Some(message) = panic_text(error) else { return Outcome::Release { after: None } };
    tracing::error!(message, ?on_panic, "a handler panicked");
    on_panic.outcome(&message)
}

#[cfg(test)]
mod tests {
    use super::super::control::tests::control;
    use super::super::inner::tests::builder;
    use super::*;

    #[tokio::test]
    async fn handler_may_have_a_grace_without_end() {
        let (inner, control) = (builder().grace(Duration::MAX).build().unwrap().inner, control());
        control.lose(StopReason::Lost, None);
        let mut handler = AbortOnDropHandle::new(tokio::spawn(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Outcome::Completed(None)
        }));
        let lease_ends = Instant::now() + Duration::from_secs(600);
        let ended = outlive(&mut handler, lease_ends, &control, &inner).await;
        assert_eq!(ended.unwrap(), Outcome::Completed(None));
        assert_eq!(inner.jobs.overruns(), 0, "overrun before the lease ended");
    }
}
