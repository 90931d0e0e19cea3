//! One job from its claim to its report: the handler works, and its claim is renewed meanwhile ([`crate::keep`]).
//!
//! A claim ends for its handler in one of two ways. **Gone**: the server says that the run is another's, or has ended, in the inbox of the
//! session or to a renewal; then nothing more is sent for it. **Unrenewable**: no renewal was answered until `takenUntil`
//! less the grace, or the session cannot be reached; then the handler has the grace to stop before another worker may start, and what
//! it returns is still reported until the lease ends. A session that could not be reached may go on: then the run is ours all the same,
//! and otherwise the server refuses the report.
//!
//! Times are the server's dates on the monotonic clock (see [`crate::Lease`]); the local wall clock is never asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::handler::{Given, HowLost, StopReason};
use super::log::Outgoing;
use super::outcome::Outcome;
use super::report::{last_call, report};
use super::shared::{Control, Hold, Membership, Settings, Shared};
use crate::Claim;
use crate::keep::{Terms, Unkept};

type Handler = AbortOnDropHandle<Outcome>;

/// Does a claimed job and reports how it went.
pub(super) async fn run(shared: Arc<Shared>, mut claim: Claim, control: Arc<Control>) {
    tracing::info!("task claimed");
    let _listed = shared.listed(&control);
    let given = Given::of(&claim, &shared, &control);
    let (log, afterwards) = (Outgoing::of(&given), given.afterwards.clone());
    let running = Arc::clone(&shared.handler).run(given, control.stop());
    // A task of its own: one that blocks its thread or panics does not keep its claim from being renewed or reported.
    let mut handler = AbortOnDropHandle::new(tokio::spawn(running.in_current_span()));
    let ended = tokio::select! {
        biased;
        ended = &mut handler => Some(ended),
        () = keep(&mut claim, &control, &shared.settings) => None,
        () = log.send() => unreachable!("it has no end"),
    };
    let ended = match ended {
        Some(ended) => ended,
        None => outlive(&mut handler, claim.lease().ends(), &control, &shared).await,
    };
    control.reporting.store(true, Ordering::Relaxed);
    let outcome = ended.unwrap_or_else(|error| after_panic(&shared.settings, error));
    if !log.is_empty() {
        upload(&log, &mut claim, &control, &shared).await;
    }
    report(&shared, claim, &control, outcome).await;
    afterwards.run().await;
}

/// Uploads the log of a job that has ended, while its claim is renewed. Of a run that is not ours or cannot be renewed, nothing is sent.
async fn upload(log: &Outgoing, claim: &mut Claim, control: &Control, shared: &Shared) {
    tokio::select! {
        biased;
        () = keep_for_its_log(claim, control, shared) => tracing::warn!("the log of a job is not uploaded: its run is lost, or cannot be renewed"),
        () = last_call(shared) => tracing::warn!("the log of a job could not be uploaded before the shutdown"),
        () = log.upload() => {}
    }
}

/// Renews the claim until it is ours no longer or cannot be renewed. The handler has been asked to stop then.
async fn keep(claim: &mut Claim, control: &Control, settings: &Settings) {
    let terms = Terms { heartbeat: settings.heartbeat, grace: settings.grace };
    tokio::select! {
        biased;
        () = control.not_ours() => {}
        unkept = claim.keep(terms) => match unkept {
            Unkept::Lost(lost) => {
                control.say_how_lost(HowLost::Refused(lost));
                control.lose(StopReason::Lost);
            }
            Unkept::Unanswered => {
                tracing::warn!("the claim could not be renewed; the job stops before its lease ends");
                control.say_how_lost(HowLost::Unanswered);
                control.stop_renewing(claim.lease().ends());
            }
        },
    }
}

/// Returns when nothing more is to be sent for the run. One whose session could not be reached for a while, and goes on, is ours until its
/// lease ends.
async fn keep_for_its_log(claim: &mut Claim, control: &Control, shared: &Shared) {
    keep(claim, control, &shared.settings).await;
    let lease_ends = claim.lease().ends();
    let ends_with_session = control.ends.get().is_some_and(|ends| *ends < lease_ends);
    let goes_on = matches!(*shared.membership.borrow(), Membership::Live(_));
    if control.hold() == Hold::Unrenewable && ends_with_session && goes_on {
        tokio::select! {
            () = control.gone() => {}
            () = tokio::time::sleep_until(lease_ends) => {}
        }
    }
}

/// Waits for a handler that was asked to stop because its run is lost, or cannot be renewed, and counts it if it takes too long.
async fn outlive(
    handler: &mut Handler,
    lease_ends: Instant,
    control: &Control,
    shared: &Shared,
) -> Result<Outcome, tokio::task::JoinError> {
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
        let grace_ends = Instant::now().checked_add(shared.settings.grace);
        let at = grace_ends.map_or(overrun_at, |ends| overrun_at.min(ends));
        tokio::select! {
            biased;
            ended = &mut *handler => return ended,
            () = tokio::time::sleep_until(at) => {}
        }
    }
    if lease_ends <= Instant::now() {
        control.lose(StopReason::Lost);
    }
    shared.count_overrun();
    tracing::warn!(
        "a handler goes on although its run is lost, or may be; unless the task has ended, another worker may be at it too"
    );
    // Its session may have survived: until the lease ends the server judges what is reported.
    tokio::select! {
        biased;
        ended = &mut *handler => return ended,
        () = control.gone() => {}
        () = tokio::time::sleep_until(lease_ends) => {}
    }
    control.lose(StopReason::Lost);
    handler.await
}

fn after_panic(settings: &Settings, error: tokio::task::JoinError) -> Outcome {
    let Ok(panic) = error.try_into_panic() else {
        // The runtime ends.
        return Outcome::Release { after: None };
    };
    let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(message, on_panic = ?settings.on_panic, "a handler panicked");
    settings.on_panic.outcome(&message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::shared::tests::{control, shared};
    use super::super::{Consumer, Job, Stop};
    use super::*;

    #[tokio::test]
    async fn a_handler_may_have_a_grace_without_end() {
        let client = crate::Client::builder().root_url("http://127.0.0.1:1").build().unwrap();
        let consumer = Consumer::builder(client, "p/q".parse().unwrap()).name("group", "worker").grace(Duration::MAX);
        let consumer = consumer.handler(|_job: Job, _stop: Stop| async {}).build().unwrap();
        let (shared, control) = (consumer.handle().shared, control());
        control.lose(StopReason::Lost);
        let mut handler = AbortOnDropHandle::new(tokio::spawn(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Outcome::Completed(None)
        }));
        let lease_ends = Instant::now() + Duration::from_secs(600);
        let ended = outlive(&mut handler, lease_ends, &control, &shared).await;
        assert_eq!(ended.unwrap(), Outcome::Completed(None));
        assert_eq!(shared.claims_overrun.load(Ordering::Relaxed), 0, "it has until the end of its lease");
    }

    #[tokio::test]
    async fn a_handler_that_overruns_is_counted_and_its_run_is_ours_until_its_lease_ends() {
        let now = Instant::now();
        for (lease_ends, hold) in [(now + Duration::from_secs(600), Hold::Unrenewable), (now, Hold::Gone)] {
            let (shared, control) = (shared(), control());
            // The time of its session is over at once.
            control.stop_renewing(now);
            let mut handler = AbortOnDropHandle::new(tokio::spawn(async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Outcome::Completed(None)
            }));
            let ended = outlive(&mut handler, lease_ends, &control, &shared).await;
            assert_eq!((ended.unwrap(), control.hold()), (Outcome::Completed(None), hold));
            assert_eq!(shared.claims_overrun.load(Ordering::Relaxed), 1);
        }
    }
}
