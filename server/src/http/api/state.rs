//! The state of the API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::recorded::Metrics;
use crate::http::files::Files;
use crate::http::intake::Intake;
use crate::http::poll::urls::PollUrls;
use tenure_engine::background::registry::Passes;
use tenure_engine::engine::Engine;
use tenure_store::secrets::WorkerDigests;

/// Shared by the requests of the API; a clone is one reference count.
pub type Api = Arc<ApiState>;

/// An operation of the API.
pub type Endpoint = crate::http::endpoint::Endpoint<ApiState>;

/// What the handlers of the API work with.
pub struct ApiState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    /// The passes of the engine, with their gauges.
    pub passes: Arc<Passes>,
    pub poll_urls: Arc<PollUrls>,
    /// Runs streams; the drain waits for it.
    pub tasks: TaskTracker,
    /// Has the metrics as they were rendered last.
    pub files: Files,
    pub worker_digests: WorkerDigests,
    /// Where clients find the server, without a slash at its end.
    pub root_url: String,
    /// Cancelled when the server drains: requests that wait are answered empty, streams end.
    pub drain: CancellationToken,
    pub claim_work_wait: Duration,
    pub started: Instant,
    pub metrics: Metrics,
}

impl AsRef<Intake> for ApiState {
    fn as_ref(&self) -> &Intake {
        &self.intake
    }
}
