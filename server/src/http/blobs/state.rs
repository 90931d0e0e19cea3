//! Shared state of uploads and downloads.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::downloads::Downloads;
use crate::http::intake::Intake;
use tenure_engine::engine::Engine;

pub type StoredBytes = Arc<BlobsState>;

pub struct BlobsState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub downloads: Downloads,
    /// Running transfers; a stopping server waits for them.
    pub tasks: TaskTracker,
}
