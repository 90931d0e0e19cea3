//! Purges rows of killed servers: no heartbeat for a day, or a last one in the future, after the
//! database's clock was set back.

use std::time::Duration;

use super::{PassReport, SLICE};
use crate::engine::Engine;
use tenure_domain::election::ACTIVATION;
use tenure_store::servers;

const KEPT: Duration = Duration::from_secs(24 * 3600);

/// A server that was only suspended inserts its row again.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = servers::purge(&mut conn, KEPT, ACTIVATION, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
