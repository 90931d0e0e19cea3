//! Decides when failed requests are retried.
//!
//! Network errors, 408, 429 and 5xx are retried; all calls of the queue are safe to repeat. Other
//! 4xx are final. [`RetryPolicy::unclear_too`] adds answers that a proxy may have sent.

use std::time::Duration;

use crate::Error;

/// Number of retries and the pauses between them.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::RetryPolicy;
///
/// let patient = RetryPolicy::default().retries(20).longest_pause(Duration::from_secs(60));
/// assert_eq!(patient.backoff(20, 1.0), Duration::from_secs(60));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    retries: u32,
    first_pause: Duration,
    longest_pause: Duration,
    unclear_too: bool,
}

const RETRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { retries: RETRIES, first_pause: FIRST_PAUSE, longest_pause: LONGEST_PAUSE, unclear_too: false }
    }
}

impl RetryPolicy {
    /// Returns a policy without retries.
    ///
    /// ```
    /// # use tenure_client::{Error, RetryPolicy};
    /// let (code, message) = (String::new(), String::new());
    /// let busy = Error::Refused { status: 503, code, message, retry_after: None };
    /// assert!(RetryPolicy::never().pause_after(1, &busy, 0.5).is_none());
    /// ```
    #[must_use]
    pub fn never() -> Self {
        Self { retries: 0, ..Self::default() }
    }

    /// Sets the number of retries.
    ///
    /// ```
    /// # use tenure_client::{Error, RetryPolicy};
    /// let (code, message) = (String::new(), String::new());
    /// let busy = Error::Refused { status: 503, code, message, retry_after: None };
    /// let once = RetryPolicy::default().retries(1);
    /// assert!(once.pause_after(1, &busy, 0.5).is_some());
    /// assert!(once.pause_after(2, &busy, 0.5).is_none());
    /// ```
    #[must_use]
    pub fn retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    /// Sets the first pause; each further pause doubles.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::RetryPolicy;
    /// let policy = RetryPolicy::default().first_pause(Duration::from_secs(1));
    /// assert_eq!(policy.backoff(1, 1.0), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn first_pause(self, first_pause: Duration) -> Self {
        Self { first_pause, ..self }
    }

    /// Sets the longest pause.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::RetryPolicy;
    /// let policy = RetryPolicy::default().longest_pause(Duration::from_secs(2));
    /// assert_eq!(policy.backoff(20, 1.0), Duration::from_secs(2));
    /// ```
    #[must_use]
    pub fn longest_pause(self, longest_pause: Duration) -> Self {
        Self { longest_pause, ..self }
    }

    /// Also retries requests whose answer [may be a proxy's](Error::is_unclear). For servers known
    /// to accept such requests.
    ///
    /// ```
    /// # use tenure_client::{Error, RetryPolicy};
    /// let page = Error::Refused { status: 404, code: String::new(), message: String::new(), retry_after: None };
    /// assert!(RetryPolicy::default().pause_after(1, &page, 0.5).is_none());
    /// assert!(RetryPolicy::default().unclear_too().pause_after(1, &page, 0.5).is_some());
    /// ```
    #[must_use]
    pub fn unclear_too(self) -> Self {
        Self { unclear_too: true, ..self }
    }

    /// Returns the pause after attempt `tried` (from 1) failed, or none if no retry follows.
    /// `jitter` is from 0 to 1, as from [`jitter()`].
    ///
    /// ```no_run
    /// # use tenure_client::{Client, Error, RetryPolicy, retry};
    /// # async fn example(
    /// #     client: &Client,
    /// #     mut attempt: impl AsyncFnMut() -> Result<(), Error>,
    /// # ) -> Result<(), Error> {
    /// let mut tried = 0;
    /// while let Err(error) = attempt().await {
    ///     tried += 1;
    ///     match client.retry_policy().pause_after(tried, &error, retry::jitter()) {
    ///         Some(pause) => tokio::time::sleep(pause).await,
    ///         None => return Err(error),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn pause_after(&self, tried: u32, error: &Error, jitter: f64) -> Option<Duration> {
        let may_pass = error.is_transient() || self.unclear_too && error.is_unclear();
        // Nothing but a change of settings mends an untrusted certificate.
        if tried > self.retries || !may_pass || error.certificate_problem().is_some() {
            return None;
        }
        Some(self.pause_of(tried, error, jitter))
    }

    /// Returns the pause after consecutive failures (from 1), ignoring the number of retries. It is
    /// at least the pause that the server requested, and at most the longest pause.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::{Error, RetryPolicy};
    /// let retry_after = Some(Duration::from_secs(3));
    /// let busy = Error::Refused { status: 503, code: String::new(), message: String::new(), retry_after };
    /// assert_eq!(RetryPolicy::default().pause_of(1, &busy, 0.5), Duration::from_secs(3));
    /// ```
    #[must_use]
    pub fn pause_of(&self, failures: u32, error: &Error, jitter: f64) -> Duration {
        let requested = error.retry_after().unwrap_or_default().min(self.longest_pause);
        self.backoff(failures, jitter).max(requested)
    }

    /// Returns the backoff after consecutive failures (from 1), ignoring the number of retries. It
    /// doubles up to the longest pause; a jitter of 0 halves it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::RetryPolicy;
    /// let policy = RetryPolicy::default().first_pause(Duration::from_secs(1));
    /// assert_eq!(policy.backoff(3, 1.0), Duration::from_secs(4));
    /// assert_eq!(policy.backoff(3, 0.0), Duration::from_secs(2));
    /// ```
    #[must_use]
    pub fn backoff(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let pause = self.first_pause.saturating_mul(1 << doublings).min(self.longest_pause);
        // Spreads clients that failed together.
        pause.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

/// Returns a random number from 0 to 1.
///
/// ```
/// assert!((0.0..=1.0).contains(&tenure_client::retry::jitter()));
/// ```
#[must_use]
pub fn jitter() -> f64 {
    let bits = uuid::Uuid::new_v4().as_u128() & u128::from(u32::MAX);
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, retry_after: Option<Duration>) -> Error {
        Error::Refused { status, code: String::new(), message: String::new(), retry_after }
    }

    #[test]
    fn only_transient_errors_are_retried() {
        let policy = RetryPolicy::default();
        for (status, again) in [
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (408, true),
            (409, false),
            (410, false),
            (429, true),
            (500, true),
            (502, true),
            (503, true),
        ] {
            assert_eq!(policy.pause_after(1, &refused(status, None), 0.5).is_some(), again, "{status}");
        }
    }

    #[test]
    fn pauses_double_and_end() {
        let policy = RetryPolicy::default();
        let error = refused(503, None);
        let pauses: Vec<_> = (1..=6).map(|tried| policy.pause_after(tried, &error, 1.0)).collect();
        let millis = |n| Some(Duration::from_millis(n));
        assert_eq!(pauses, [millis(100), millis(200), millis(400), millis(800), millis(1600), None]);
        assert_eq!(policy.pause_after(1, &error, 0.0), millis(50));
        assert_eq!(RetryPolicy::never().pause_after(1, &error, 0.0), None);
        assert_eq!(policy.backoff(1000, 1.0), LONGEST_PAUSE);
    }

    #[test]
    fn retry_after_is_honoured_up_to_longest_pause() {
        let policy = RetryPolicy::default();
        let after = |seconds| refused(429, Some(Duration::from_secs(seconds)));
        assert_eq!(policy.pause_after(1, &after(3), 1.0), Some(Duration::from_secs(3)));
        assert_eq!(policy.pause_after(1, &after(86_400), 1.0), Some(LONGEST_PAUSE));
    }

    #[test]
    fn jitter_is_between_zero_and_one() {
        assert!((0..100).map(|_| jitter()).all(|x| (0.0..=1.0).contains(&x)));
    }
}
