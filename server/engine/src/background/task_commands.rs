//! Deletes task commands not carried out within a week, which are already ignored.

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_domain::checkpoint::COMMAND_KEPT;
use tenure_store::task_commands;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = task_commands::purge(&mut conn, engine.due_marks.get().task_commands, COMMAND_KEPT, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
