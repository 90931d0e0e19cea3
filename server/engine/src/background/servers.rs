//! Rows of servers that no one has asked for their heartbeat for a day: most of them have ended.

use std::time::Duration;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::servers;

/// How long a server is retained after its last beat.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Purges a slice of them. One that runs still writes its row anew when it is asked.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let gone = servers::purge(&mut conn, KEPT, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
