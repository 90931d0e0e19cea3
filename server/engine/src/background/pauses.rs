//! Resumes queues whose pause has reached its end date.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::queue_policy;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let done = queue_policy::resume_over(engine.queue_parts(), SLICE).await?;
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
