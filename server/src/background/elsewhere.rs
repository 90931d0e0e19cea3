//! Bells between servers: one notifier tells the others what was rung here, one listener hears what was rung there.
//!
//! Nothing relies on them: a bell that is lost is made up for by the line's own retries and the passes' fallback.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::bells;
use crate::wakeup::Bells;

/// The least time between two notifications of one server.
const NOTIFY_EVERY: Duration = Duration::from_millis(5);
/// How often a server looks whether there are others to tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a listener that lost its connection waits before it connects again.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Queues in one notification; its payload is limited to 8,000 bytes.
const QUEUES_MAX: usize = 500;

/// Tells the other servers, while there are any.
pub async fn notify(pool: PgPool, bells: Bells, me: Uuid, stop: CancellationToken) {
    let mut others = true;
    let mut looked = tokio::time::Instant::now() - LOOK_EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = bells.others() => {}
        }
        let queues: Vec<i32> = bells.take_others().into_iter().collect();
        if looked.elapsed() >= LOOK_EVERY {
            others = bells::other_listeners(&pool).await.unwrap_or(true);
            looked = tokio::time::Instant::now();
        }
        if others {
            for part in queues.chunks(QUEUES_MAX) {
                if let Err(error) = bells::notify(&pool, me, part).await {
                    tracing::debug!(error = %error, "the other servers could not be told");
                }
            }
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

/// Hears the other servers.
pub async fn listen(pool: PgPool, bells: Bells, me: Uuid, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = hear(&pool, &bells, me) => ended,
        };
        if let Err(error) = ended {
            tracing::warn!(error = %error, "lost the bells of the other servers, connecting again");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AFTER_FAILURE) => {}
        }
    }
}

async fn hear(pool: &PgPool, bells: &Bells, me: Uuid) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(bells::CHANNEL).await?;
    // What was rung while nobody listened is made up for by the fallbacks.
    loop {
        let notification = listener.recv().await?;
        let (from, queues) = bells::read(notification.payload());
        if from != Some(me) {
            bells.ring_from_elsewhere(queues);
        }
    }
}
