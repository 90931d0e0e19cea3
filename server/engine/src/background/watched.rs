//! Looks up, for all callers that wait at this server, which of their tasks are resolved by now. Most resolutions by this
//! server are notified at once; this finds those of other servers, and those that were notified too early or not at all.
//! Nothing is looked up while no caller waits.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::notifiers::{Notifiers, fallbacks_are_on};
use tenure_store::tasks;

/// The time between two lookups while a caller waits.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// The least time between two lookups, however often one is requested.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// Tasks of one statement.
const IDS_MAX: usize = 10_000;

/// Looks again and again, until it is stopped.
pub async fn look(pool: PgPool, notifiers: Notifiers, stop: CancellationToken) {
    let watched = notifiers.watched();
    let mut requested = true;
    loop {
        let ids = watched.ids();
        metrics::gauge!("tenure_waiting_for_tasks").set(watched.watchers() as f64);
        let due = requested || fallbacks_are_on();
        for part in ids.chunks(IDS_MAX).filter(|_| due) {
            match list_resolved(&pool, part).await {
                Ok(resolved) => watched.notify(resolved),
                Err(error) => tracing::debug!(error = %error, "tasks that are waited for could not be looked up"),
            }
        }
        let idle = ids.is_empty();
        let pause = async {
            tokio::time::sleep(LOOK_AT_MOST_EVERY).await;
            tokio::select! {
                () = watched.look() => true,
                () = tokio::time::sleep(LOOK_EVERY), if !idle => false,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            notified = pause => requested = notified,
        }
    }
}

async fn list_resolved(pool: &PgPool, ids: &[uuid::Uuid]) -> Result<Vec<uuid::Uuid>, sqlx::Error> {
    tasks::list_resolved(&mut *pool.acquire().await?, ids).await
}
