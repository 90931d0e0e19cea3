//! Counts of a client's calls, for monitoring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Calls of a [`Client`](crate::Client) and its clones.
///
/// ```
/// # fn example(client: &tenure_client::Client) {
/// let counts = client.calls();
/// println!("{} failed calls, no answer for {} s", counts.failed, counts.silent_for.as_secs());
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// Attempts without an answer, or with one of 408, 429 and 5xx; most were retried.
    pub failed: u64,
    /// Time since the last answer of the server, or since the client was built.
    pub silent_for: Duration,
}

#[derive(Debug)]
pub(crate) struct Calls {
    built: Instant,
    failed: AtomicU64,
    /// Time of the last answer, in milliseconds since `built`.
    answered: AtomicU64,
}

impl Default for Calls {
    fn default() -> Self {
        Self { built: Instant::now(), failed: AtomicU64::new(0), answered: AtomicU64::new(0) }
    }
}

impl Calls {
    pub(crate) fn note(&self, answer: &Result<reqwest::Response, reqwest::Error>) {
        if answer.is_ok() {
            let millis = u64::try_from(self.built.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.answered.fetch_max(millis, Ordering::Relaxed);
        }
        let has_failed = match answer {
            Ok(answer) => answer.status().is_server_error() || matches!(answer.status().as_u16(), 408 | 429),
            Err(_) => true,
        };
        if has_failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> CallCounts {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        CallCounts {
            failed: self.failed.load(Ordering::Relaxed),
            silent_for: self.built.elapsed().saturating_sub(answered),
        }
    }
}
