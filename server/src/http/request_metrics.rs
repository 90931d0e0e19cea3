//! Request metrics by operation, resolved once and not per request.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use http::StatusCode;
use metrics::{Counter, Histogram};

use super::stream::Served;

/// Values of the label `status`.
const STATUS_CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "other"];
/// Classes that are shown from the start, so that the first response is visible as an increment.
const USUAL: [usize; 3] = [0, 2, 3];
/// Requests without a route, and those for the methods of a path.
pub(super) const OTHER: &str = "other";
/// The operator's pages.
pub(super) const PAGE: &str = "page";

pub struct RequestMetrics {
    operations: HashMap<&'static str, OperationMetrics>,
    other: OperationMetrics,
}

struct OperationMetrics {
    name: &'static str,
    /// Registered by the first request: most servers use few operations.
    seconds: OnceLock<Histogram>,
    /// In the order of [`STATUS_CLASSES`].
    answered: [OnceLock<Counter>; STATUS_CLASSES.len()],
}

impl OperationMetrics {
    fn new(name: &'static str) -> Self {
        let new = Self { name, seconds: OnceLock::new(), answered: Default::default() };
        for class in USUAL {
            new.answered(class).absolute(0);
        }
        new
    }

    fn answered(&self, class: usize) -> &Counter {
        self.answered[class].get_or_init(|| {
            let status = STATUS_CLASSES[class];
            metrics::counter!("tenure_http_requests_total", "operation" => self.name, "status" => status)
        })
    }

    fn seconds(&self) -> &Histogram {
        self.seconds.get_or_init(|| metrics::histogram!("tenure_http_request_seconds", "operation" => self.name))
    }
}

impl RequestMetrics {
    /// Call after the recorder is installed: earlier metrics count nothing.
    #[must_use]
    pub fn new(operations: impl IntoIterator<Item = &'static str>) -> Self {
        let operations = operations.into_iter().chain([PAGE]);
        Self {
            operations: operations.map(|name| (name, OperationMetrics::new(name))).collect(),
            other: OperationMetrics::new(OTHER),
        }
    }

    pub(super) fn count(&self, served: &Served, status: StatusCode, took: Duration) {
        let operation = served.operation.and_then(|name| self.operations.get(name)).unwrap_or(&self.other);
        operation.seconds().record(took.saturating_sub(served.waited));
        let class = usize::from(status.as_u16() / 100).checked_sub(2);
        let class = class.filter(|class| *class < STATUS_CLASSES.len()).unwrap_or(STATUS_CLASSES.len() - 1);
        operation.answered(class).increment(1);
    }
}
