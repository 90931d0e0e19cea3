//! Request metrics, resolved once and not per request.

use std::time::Duration;

use http::StatusCode;
use metrics::{Counter, Histogram};

/// Values of the label `status`.
pub const STATUS_CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "other"];

pub struct RequestMetrics {
    seconds: Histogram,
    /// In the order of [`STATUS_CLASSES`].
    answered: [Counter; STATUS_CLASSES.len()],
}

impl RequestMetrics {
    /// Call after the recorder is installed: earlier metrics count nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            seconds: metrics::histogram!("http_request_duration_seconds"),
            answered: STATUS_CLASSES.map(|class| metrics::counter!("http_requests_total", "status" => class)),
        }
    }

    pub fn count(&self, status: StatusCode, took: Duration) {
        self.seconds.record(took);
        let class = usize::from(status.as_u16() / 100).checked_sub(2);
        let class = class.filter(|class| *class < STATUS_CLASSES.len()).unwrap_or(STATUS_CLASSES.len() - 1);
        self.answered[class].increment(1);
    }
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self::new()
    }
}
