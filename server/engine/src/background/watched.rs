//! Looks up, for all callers that wait at this server, which of their tasks are resolved by now. Most resolutions by this
//! server are notified at once; this finds those of other servers, and those that were notified too early or not at all.
//! Nothing is looked up while no caller waits.

use std::time::Duration;

use sqlx::PgPool;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::notifiers::{Notifiers, fallbacks_are_on};
use tenure_store::tasks;

/// The time between two lookups while a caller waits.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// The least time between two lookups, however often one is requested.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// Tasks of one statement.
const IDS_MAX: usize = 10_000;
/// How long that statement may take: the database may have gone silent.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Looks again and again, until it is stopped.
pub async fn look(pool: PgPool, notifiers: Notifiers, stop: CancellationToken) {
    look_with(pool, notifiers, stop, LOOK_MAX).await;
}

/// The same with another limit of a statement.
async fn look_with(pool: PgPool, notifiers: Notifiers, stop: CancellationToken, look_max: Duration) {
    let watched = notifiers.watched();
    let mut requested = true;
    loop {
        let ids = watched.ids();
        metrics::gauge!("tenure_waiting_for_tasks").set(watched.watchers() as f64);
        let due = requested || fallbacks_are_on();
        for part in ids.chunks(IDS_MAX).filter(|_| due) {
            let listed = timeout(look_max, list_resolved(&pool, part)).await;
            match listed.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use sqlx::Connection as _;
    use tenure_domain::lifecycle::Report;
    use tenure_store::connector::Connector;
    use tenure_store::testing::{Proxy, TestDatabase, until_a_session_waits};

    use super::*;
    use crate::rooms::Caller;
    use crate::testing::{QUEUE, Queue};

    /// Long enough to connect and to look.
    const SHORT: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_lookup_whose_connection_falls_silent_is_given_up_and_the_next_one_finds_what_was_resolved() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        let task = queue.create_one(QUEUE).await;
        let run = queue.claim_one(QUEUE).await.run;
        queue.report(task, run, Report::Completed).await.unwrap();
        // Those of another server, which are notified of nothing.
        let notifiers = Notifiers::default();
        let watcher = notifiers.watched().watch(task.uuid(), Caller::Authenticated).unwrap();
        let mut notified = pin!(watcher.notified());
        notified.as_mut().enable();
        let mut holder = database.connect().await;
        let mut lock = holder.begin().await.unwrap();
        sqlx::query("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        let proxy = Proxy::start(database.options()).await;
        let connector = Connector::new(proxy.options().clone());
        let stop = CancellationToken::new();
        let looking = tokio::spawn(look_with(connector.pool(), notifiers.clone(), stop.clone(), SHORT));
        until_a_session_waits(database.pool()).await;
        proxy.fall_silent();
        lock.rollback().await.unwrap();
        timeout(SHORT * 10, notified).await.expect("it is looked up again");
        stop.cancel();
        looking.await.unwrap();
        drop(holder);
        queue.stop().await;
        database.finish().await;
    }
}
