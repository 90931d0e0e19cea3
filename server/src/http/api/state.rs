//! The state of the API's handlers.

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

/// Clones share the state.
pub type Api = Arc<ApiState>;

pub type Endpoint = crate::http::endpoint::Endpoint<ApiState>;

pub struct ApiState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    /// The engine's passes, with their gauges.
    pub passes: Arc<Passes>,
    pub poll_urls: Arc<PollUrls>,
    /// Runs streams; the drain waits for them.
    pub tasks: TaskTracker,
    /// Caches the rendered metrics.
    pub files: Files,
    pub worker_digests: WorkerDigests,
    /// Public base URL of the server, without a trailing slash.
    pub root_url: String,
    /// Cancelled when the server drains: waiting requests return empty, and streams end.
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
