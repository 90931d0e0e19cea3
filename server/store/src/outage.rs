//! Outages of the database: backoff, and logging.

use std::io;
use std::path::Path;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

/// Before the second attempt.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Maximum before a later attempt.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Up to a quarter of a pause is random, so that servers do not reconnect in step.
const JITTER_PART: u32 = 4;
/// A directory without a socket: a pool with it fails at once, without network access.
const NO_SOCKET: &str = "/dev/null";

/// Error in place of an attempt that is not due yet.
#[derive(Debug, thiserror::Error)]
#[error("the database cannot be reached: {0}")]
struct Unreachable(String);

/// Returns the backoff after this many failures; `chance` shortens it by up to a quarter.
pub(crate) fn pause_after(failures: u32, chance: u8) -> Duration {
    let longest = PAUSE_MIN.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(PAUSE_MAX);
    longest - longest / JITTER_PART * u32::from(chance) / u32::from(u8::MAX)
}

/// Returns the error for callers during an outage that began with `error`.
pub fn unreachable(error: &str) -> sqlx::Error {
    io::Error::new(io::ErrorKind::NotConnected, Unreachable(error.to_owned())).into()
}

/// Returns options with which a pool fails at once.
pub(crate) fn without_attempts(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().socket(Path::new(NO_SOCKET))
}

/// True if an error only reports an outage that was logged already.
pub fn is_known(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Unreachable>());
            cause.is_some() || error.kind() == io::ErrorKind::NotADirectory
        }
        _ => false,
    }
}

/// Logs a recoverable error, unless it reports an outage that was logged already.
pub fn warn_unless_known(error: &sqlx::Error, message: &'static str) {
    if !is_known(error) {
        tracing::warn!(error = %error, "{message}");
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, PgConnection};

    use super::*;

    #[test]
    fn pauses_double_to_one_second_with_jitter() {
        let pauses = [1, 2, 3, 4, 5, 6, 7, 100, u32::MAX].map(|failures| pause_after(failures, 0).as_millis());
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000, 1000, 1000]);
        assert_eq!(pause_after(0, 0), PAUSE_MIN);
        assert_eq!(pause_after(6, u8::MAX), Duration::from_millis(750));
        let half = pause_after(6, u8::MAX / 2);
        assert!(half > pause_after(6, u8::MAX) && half < PAUSE_MAX, "{half:?}");
    }

    #[tokio::test]
    async fn only_outage_errors_are_known() {
        assert!(is_known(&unreachable("refused")));
        let options = without_attempts(&"postgres://u@127.0.0.1:1/d".parse().unwrap());
        assert!(is_known(&PgConnection::connect_with(&options).await.unwrap_err()));
        assert!(!is_known(&sqlx::Error::Io(io::ErrorKind::ConnectionRefused.into())));
        assert!(!is_known(&sqlx::Error::PoolTimedOut));
    }
}
