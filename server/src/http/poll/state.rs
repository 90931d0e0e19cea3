//! The state of the poll API.

use std::sync::Arc;

use super::urls::PollUrls;
use crate::http::intake::Intake;
use tenure_engine::engine::Engine;

/// Shared by the requests of the poll API; a clone is one reference count.
pub type Poll = Arc<PollState>;

/// What the handlers of the poll API work with.
pub struct PollState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub poll_urls: Arc<PollUrls>,
}
