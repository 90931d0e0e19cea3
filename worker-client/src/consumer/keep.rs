//! One job from its claim to its report: the handler works, and its claim is renewed meanwhile.
//!
//! A claim ends for its handler in one of two ways. **Gone**: the server says that the run is another's, or has ended, when it is asked
//! ([`super::ended`]) or to a renewal; then nothing more is sent for it. **Unrenewable**: no renewal was answered until `takenUntil`
//! less the grace, or the session cannot be reached; then the handler has the grace to stop before another worker may start, and what
//! it returns in that time is still reported.
//!
//! Times are the server's dates on the monotonic clock (see [`crate::Lease`]); the local wall clock is never asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::ended::until_ended;
use super::handler::{Given, StopReason};
use super::log::Outgoing;
use super::outcome::Outcome;
use super::report::{last_call, report};
use super::shared::{Control, Hold, Settings, Shared};
use crate::error::chain;
use crate::{Claim, Lease, Lost, Renewal, retry};

/// Even when the lease is nearly over, renewals are at least this far apart.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest pause between two tries of a renewal.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The grace takes at most this part of a lease.
const GRACE_SHARE: u32 = 3;
/// For repeats of a renewal there is at least this part of a lease.
const REPEAT_SHARE: u32 = 8;

type Handler = AbortOnDropHandle<Outcome>;

/// Does a claimed job and reports how it went.
pub(super) async fn run(shared: Arc<Shared>, mut claim: Claim, control: Arc<Control>) {
    tracing::info!("job claimed");
    let _listed = shared.listed(&control);
    let given = Given::of(&claim);
    let log = Outgoing::of(&given);
    let running = Arc::clone(&shared.handler).run(given, control.stop());
    // A task of its own: one that blocks its thread or panics does not keep its claim from being renewed or reported.
    let mut handler = AbortOnDropHandle::new(tokio::spawn(running.in_current_span()));
    let mut watching = shared.watching(&claim);
    let ended = tokio::select! {
        biased;
        ended = &mut handler => Some(ended),
        () = keep(&mut claim, &control, &shared.settings) => None,
        () = until_ended(watching.as_mut(), &control) => None,
        () = log.send() => unreachable!("it has no end"),
    };
    // From here on the server hears of the run's end from us.
    drop(watching);
    let ended = match ended {
        Some(ended) => ended,
        None => outlive(&mut handler, &claim, &control, &shared).await,
    };
    control.reporting.store(true, Ordering::Relaxed);
    let outcome = ended.unwrap_or_else(|error| after_panic(&shared.settings, error));
    if !log.is_empty() {
        upload(&log, &mut claim, &control, &shared).await;
    }
    report(&shared, &claim, &control, outcome).await;
}

/// Uploads the log of a job that has ended, while its claim is renewed. Of a run that is not ours or cannot be renewed, nothing is sent.
async fn upload(log: &Outgoing, claim: &mut Claim, control: &Control, shared: &Shared) {
    tokio::select! {
        biased;
        () = keep(claim, control, &shared.settings) => tracing::warn!("the log of a job is not uploaded: its run is lost, or cannot be renewed"),
        () = last_call(shared) => tracing::warn!("the log of a job could not be uploaded before the shutdown"),
        () = log.upload() => {}
    }
}

/// Renews the claim until it is ours no longer or cannot be renewed. The handler has been asked to stop then.
async fn keep(claim: &mut Claim, control: &Control, settings: &Settings) {
    loop {
        let times = Times::of(claim.lease(), settings.heartbeat, settings.grace);
        let renew_at = times.renew_at.max(Instant::now() + RENEWAL_INTERVAL);
        tokio::select! {
            biased;
            () = control.not_ours() => return,
            () = tokio::time::sleep_until(renew_at) => {}
        }
        tokio::select! {
            biased;
            () = control.not_ours() => return,
            renewed = tokio::time::timeout_at(times.stop_at, renew(claim)) => match renewed {
                Ok(None) => tracing::debug!("claim renewed"),
                Ok(Some(lost)) => {
                    tracing::warn!(because = %lost.because, "claim lost");
                    return control.lose(StopReason::Lost);
                }
                Err(_elapsed) => {
                    tracing::warn!("the claim could not be renewed; the job stops before its lease ends");
                    return control.stop_renewing();
                }
            },
        }
    }
}

/// Renews the claim once, however many tries it takes; answers whether the claim turned out to be lost.
async fn renew(claim: &mut Claim) -> Option<Lost> {
    let mut failures = 0;
    loop {
        match claim.reclaim().await {
            Ok(Renewal::Renewed) => return None,
            Ok(Renewal::Lost(lost)) => return Some(lost),
            Err(error) => {
                failures += 1;
                tracing::warn!(failures, error = chain(&error), "the claim could not be renewed; trying again");
                let pause = claim.client().retry_policy().backoff(failures, retry::jitter());
                tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            }
        }
    }
}

/// Waits for a handler that was asked to stop because its run is lost, and counts it if it takes too long.
async fn outlive(
    handler: &mut Handler,
    claim: &Claim,
    control: &Control,
    shared: &Shared,
) -> Result<Outcome, tokio::task::JoinError> {
    let ends = claim.lease().ends();
    let overrun_at = match control.hold() {
        Hold::Gone => ends.min(Instant::now() + shared.settings.grace),
        Hold::Ours | Hold::Unrenewable => ends,
    };
    tokio::select! {
        biased;
        ended = &mut *handler => return ended,
        () = tokio::time::sleep_until(overrun_at) => {}
    }
    control.lose(StopReason::Lost);
    shared.count_overrun();
    tracing::warn!("a handler goes on although its run is lost: another worker may be at the task too");
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

/// When a lease is renewed, and when its job is stopped if that fails.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    renew_at: Instant,
    stop_at: Instant,
}

impl Times {
    fn of(lease: Lease, heartbeat: f64, grace: Duration) -> Self {
        let length = lease.length();
        let stop_after = length - grace.min(length / GRACE_SHARE);
        let renew_after = length.mul_f64(heartbeat).min(stop_after.saturating_sub(length / REPEAT_SHARE));
        let begins = lease.ends() - length;
        Self { renew_at: begins + renew_after, stop_at: begins + stop_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seconds: u64, heartbeat: f64, grace: u64) -> (Duration, Duration) {
        let now = Instant::now();
        let date = |text: &str| serde_json::from_value(text.into()).unwrap();
        let until = format!("2001-01-01T00:{:02}:{:02}Z", seconds / 60, seconds % 60);
        let lease = Lease::of_claim(date(&until), Some(date("2001-01-01T00:00:00Z")), now);
        let Times { renew_at, stop_at } = Times::of(lease, heartbeat, Duration::from_secs(grace));
        (renew_at - now, stop_at - now)
    }

    #[test]
    fn m1_renewals_come_at_three_quarters_and_leave_room_for_repeats_and_the_grace() {
        let ms = Duration::from_millis;
        assert_eq!(of(1200, 0.75, 30), (ms(900_000), ms(1_170_000)));
        assert_eq!(of(1200, 0.5, 30), (ms(600_000), ms(1_170_000)));
        // 30 s less than the lease would be no time for a repeat.
        assert_eq!(of(80, 0.9, 20), (ms(50_000), ms(60_000)));
        assert_eq!(of(12, 0.75, 1), (ms(9_000), ms(11_000)));
        // Never more than a third.
        assert_eq!(of(24, 0.75, 30), (ms(13_000), ms(16_000)));
    }
}
