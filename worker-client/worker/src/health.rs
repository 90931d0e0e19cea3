//! How this worker fares: whether there is room for another task, and whether all that it does fails.
//!
//! A machine on which everything fails would otherwise empty the queue within seconds.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::Outcome;
use tenure_client::ExceptionReason;

/// After so many tasks in a row that failed there is a pause before the next claim.
const FAILURES_IN_A_ROW: u32 = 5;
/// A task that failed after a longer time is no sign of a broken machine.
const FAILED_FAST: Duration = Duration::from_secs(10);
/// The first pause; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a full disk is checked.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What a worker knows about its own state. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Health(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    failures: u32,
    not_before: Option<Instant>,
    /// The disk was too full when it was last checked.
    full: bool,
}

impl Health {
    /// Takes note of how a task ended, after this time.
    pub(super) fn ended(&self, outcome: Outcome, took: Duration) {
        let mut state = self.lock();
        match counts(outcome, took) {
            Counts::Success => *state = State { full: state.full, ..State::default() },
            Counts::Nothing => {}
            Counts::Failure => {
                state.failures = state.failures.saturating_add(1);
                let Some(pause) = pause_after(state.failures) else { return };
                state.not_before = Some(Instant::now() + pause);
                tracing::warn!(
                    failures = state.failures,
                    seconds = pause.as_secs(),
                    "tasks fail one after the other; the next claim waits: look whether this machine is at fault"
                );
            }
        }
    }

    /// Until when to wait before work is requested; none to go ahead.
    pub(super) fn wait_until(&self, work_dir: &Path, disk_free_min: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        let free = free_bytes(work_dir);
        let full = free.as_ref().is_ok_and(|free| *free < disk_free_min);
        if full && !state.full {
            tracing::warn!(
                free_bytes = free.unwrap_or_default(), disk_free_min, directory = %work_dir.display(),
                "too little space for another task; nothing is claimed until there is more"
            );
        } else if !full && state.full {
            tracing::info!(directory = %work_dir.display(), "there is space again");
        }
        state.full = full;
        if full { Some(now + LOOK_AGAIN) } else { state.not_before.filter(|until| *until > now) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing in between can fail, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to wait after so many failures in a row.
fn pause_after(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(FAILURES_IN_A_ROW)?;
    Some(FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE))
}

/// What an outcome means for the health of the machine.
#[derive(Debug, PartialEq, Eq)]
enum Counts {
    Success,
    Failure,
    Nothing,
}

fn counts(outcome: Outcome, took: Duration) -> Counts {
    match outcome {
        Outcome::Completed => Counts::Success,
        Outcome::Failed if took > FAILED_FAST => Counts::Nothing,
        Outcome::Failed => Counts::Failure,
        // The task is to blame; or it was stopped.
        Outcome::Exception(ExceptionReason::MalformedPayload) | Outcome::Stopped => Counts::Nothing,
        Outcome::Exception(_) | Outcome::NoSpace => Counts::Failure,
    }
}

/// How much this user may still write where a directory is.
fn free_bytes(dir: &Path) -> io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(dir)?;
    // How large the two numbers are depends on the system.
    let free = u128::from(found.blocks_available()) * u128::from(found.fragment_size());
    Ok(u64::try_from(free).unwrap_or(u64::MAX))
}

/// Whether something failed because there was no room for it.
pub(super) fn no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    #[test]
    fn five_failures_in_a_row_make_a_pause_that_doubles_and_a_success_ends_it() {
        for (failures, seconds) in
            [(1, None), (4, None), (5, Some(1)), (6, Some(2)), (10, Some(32)), (11, Some(60)), (u32::MAX, Some(60))]
        {
            assert_eq!(pause_after(failures), seconds.map(Duration::from_secs), "{failures}");
        }
        let (health, here) = (Health::default(), Path::new("/"));
        for _ in 0..4 {
            health.ended(Outcome::Failed, SOON);
        }
        assert!(health.wait_until(here, 0).is_none());
        health.ended(Outcome::Exception(ExceptionReason::InternalError), SOON);
        assert!(health.wait_until(here, 0).is_some());
        health.ended(Outcome::Completed, SOON);
        assert!(health.wait_until(here, 0).is_none());
    }

    #[test]
    fn only_what_the_machine_may_be_to_blame_for_counts() {
        use ExceptionReason::{InternalError, MalformedPayload, ResourceUnavailable};
        for (outcome, took, expected) in [
            (Outcome::Completed, SOON, Counts::Success),
            (Outcome::Failed, SOON, Counts::Failure),
            (Outcome::Failed, FAILED_FAST + SOON, Counts::Nothing),
            (Outcome::Exception(MalformedPayload), SOON, Counts::Nothing),
            (Outcome::Exception(InternalError), FAILED_FAST + SOON, Counts::Failure),
            (Outcome::Exception(ResourceUnavailable), SOON, Counts::Failure),
            (Outcome::NoSpace, SOON, Counts::Failure),
            (Outcome::Stopped, SOON, Counts::Nothing),
        ] {
            assert_eq!(counts(outcome, took), expected, "{outcome:?}");
        }
    }

    #[test]
    fn a_disk_with_less_than_the_least_space_is_waited_for() {
        let health = Health::default();
        assert_eq!(health.wait_until(Path::new("/"), 0), None);
        assert!(health.wait_until(Path::new("/"), u64::MAX).is_some());
        assert_eq!(health.wait_until(Path::new("/"), 0), None);
    }
}
