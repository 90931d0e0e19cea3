//! Rows of servers that have not beaten for a day, or that beat last before the database's clock was set back: they were killed, and
//! none of them had the time to delete its own.

use std::time::Duration;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_domain::election::ACTIVATION;
use tenure_store::servers;

/// How long a server is retained after its last beat.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Purges a slice of them. One that was only stopped writes its row anew.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = servers::purge(&mut conn, KEPT, ACTIVATION, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
