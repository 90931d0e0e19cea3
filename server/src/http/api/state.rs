//! State of the API's handlers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::recorded::Metrics;
use crate::http::files::Files;
use crate::http::intake::Intake;
use crate::http::poll::urls::PollUrls;
use tenure_engine::authority::Authority;
use tenure_engine::background::registry::Passes;
use tenure_engine::engine::Engine;
use tenure_engine::events::deliveries::Deliveries;
use tenure_store::secrets::WorkerDigests;

pub type Api = Arc<ApiState>;

pub type Endpoint = crate::http::endpoint::Endpoint<ApiState>;

pub struct ApiState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub passes: Arc<Passes>,
    /// Rights of the owners of schedules.
    pub authority: Arc<dyn Authority>,
    pub deliveries: Deliveries,
    pub poll_urls: Arc<PollUrls>,
    /// The drain waits for these streams.
    pub tasks: TaskTracker,
    /// Caches the rendered metrics.
    pub files: Files,
    pub worker_digests: WorkerDigests,
    /// Without a trailing slash.
    pub root_url: String,
    /// Cancelled by the first request to stop, `--drain-delay` before the drain.
    pub stopping: CancellationToken,
    /// Cancelled on drain: waiting requests return empty, and streams end.
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
