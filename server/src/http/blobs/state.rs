//! The state of stored bytes.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::downloads::Downloads;
use crate::http::intake::Intake;
use tenure_engine::engine::Engine;

/// Shared by uploads and downloads; a clone is one reference count.
pub type StoredBytes = Arc<BlobsState>;

/// What uploads and downloads work with.
pub struct BlobsState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub downloads: Downloads,
    /// Runs transfers; the drain waits for it.
    pub tasks: TaskTracker,
}
