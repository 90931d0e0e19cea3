//! Pauses claims while the disk is full or all tasks fail. Otherwise a broken machine would empty
//! the queue within seconds.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::Outcome;
use tenure_client::ExceptionReason;

/// Consecutive failed tasks after which claims pause.
const FAILURES_IN_A_ROW: u32 = 5;
/// Slower failures do not indicate a broken machine.
const FAILED_FAST: Duration = Duration::from_secs(10);
/// Each further failure doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Clones share the state.
#[derive(Clone, Default)]
pub(super) struct Health(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    failures: u32,
    not_before: Option<Instant>,
    full: bool,
}

impl Health {
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
                    "several tasks in a row failed; the next claim is delayed: check this machine for a fault"
                );
            }
        }
    }

    /// Returns none if work may be requested now.
    pub(super) fn wait_until(&self, work_dir: &Path, disk_free_min: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        let free = free_bytes(work_dir);
        let full = free.as_ref().is_ok_and(|free| *free < disk_free_min);
        if full && !state.full {
            tracing::warn!(
                free_bytes = free.unwrap_or_default(), disk_free_min, directory = %work_dir.display(),
                "too little space for another task; nothing is claimed until space is free"
            );
        } else if !full && state.full {
            tracing::info!(directory = %work_dir.display(), "disk space is free again; claiming is resumed");
        }
        state.full = full;
        if full { Some(now + LOOK_AGAIN) } else { state.not_before.filter(|until| *until > now) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // No operation in between can fail, so a panic elsewhere leaves no partial state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause_after(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(FAILURES_IN_A_ROW)?;
    Some(FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE))
}

#[derive(Debug, PartialEq, Eq)]
enum Counts {
    Success,
    Failure,
    Nothing,
}

fn counts(outcome: Outcome, took: Duration) -> Counts {
    match outcome {
        Outcome::Completed => Counts::Success,
        Outcome::Failed | Outcome::Retry if took > FAILED_FAST => Counts::Nothing,
        Outcome::Failed | Outcome::Retry => Counts::Failure,
        Outcome::Exception(ExceptionReason::MalformedPayload) | Outcome::Stopped => Counts::Nothing,
        Outcome::Exception(_) | Outcome::NoSpace => Counts::Failure,
    }
}

/// Bytes that this user may still write.
fn free_bytes(dir: &Path) -> io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(dir)?;
    // The types depend on the system.
    let free = u128::from(found.blocks_available()) * u128::from(found.fragment_size());
    Ok(u64::try_from(free).unwrap_or(u64::MAX))
}

pub(super) fn no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    #[test]
    fn five_failures_pause_claims_until_success() {
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
    fn only_possible_machine_faults_count() {
        use ExceptionReason::{InternalError, MalformedPayload, ResourceUnavailable};
        for (outcome, took, expected) in [
            (Outcome::Completed, SOON, Counts::Success),
            (Outcome::Failed, SOON, Counts::Failure),
            (Outcome::Failed, FAILED_FAST + SOON, Counts::Nothing),
            (Outcome::Retry, SOON, Counts::Failure),
            (Outcome::Retry, FAILED_FAST + SOON, Counts::Nothing),
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
    fn full_disk_pauses_claims() {
        let health = Health::default();
        assert_eq!(health.wait_until(Path::new("/"), 0), None);
        assert!(health.wait_until(Path::new("/"), u64::MAX).is_some());
        assert_eq!(health.wait_until(Path::new("/"), 0), None);
    }
}
