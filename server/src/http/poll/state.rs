//! State of the poll API's handlers.

use std::sync::Arc;

use super::urls::PollUrls;
use crate::http::intake::Intake;
use tenure_engine::engine::Engine;

pub type Poll = Arc<PollState>;

pub struct PollState {
    pub intake: Arc<Intake>,
    pub engine: Arc<Engine>,
    pub poll_urls: Arc<PollUrls>,
}
