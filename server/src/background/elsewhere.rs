//! Bells between servers: one notifier tells the others what was rung here, one listener hears what was rung there.
//!
//! Nothing relies on them: a bell that is lost is made up for by the line's own retries and the passes' fallback.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::{bells, session};
use crate::wakeup::Bells;

/// The least time between two notifications of one server.
const NOTIFY_EVERY: Duration = Duration::from_millis(5);
/// How often a server looks whether there are others to tell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a listener that lost its connection waits before it connects again.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// How often a server rings for nobody, so that its own listener hears something.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(10);
/// A listener that hears nothing for so long, not even its own server, listens on a connection that is dead without
/// knowing it, and connects again.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long telling the others may take.
const NOTIFY_MAX: Duration = Duration::from_secs(5);
/// Queues in one notification; its payload is limited to 8,000 bytes.
const QUEUES_MAX: usize = 500;

/// Tells the other servers, while there are any, and gives the own listener a sign of life.
pub async fn notify(pool: PgPool, bells: Bells, me: Uuid, stop: CancellationToken) {
    let mut others = true;
    let (mut looked, mut signed) = (Instant::now() - LOOK_EVERY, Instant::now());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = bells.others() => {}
            () = tokio::time::sleep_until(signed + SIGN_OF_LIFE_EVERY) => {}
        }
        if signed.elapsed() >= SIGN_OF_LIFE_EVERY {
            tell(&pool, me, &[]).await;
            signed = Instant::now();
        }
        let queues: Vec<i32> = bells.take_others().into_iter().collect();
        if looked.elapsed() >= LOOK_EVERY {
            let looking = tokio::time::timeout(NOTIFY_MAX, bells::other_listeners(&pool)).await;
            others = !matches!(looking, Ok(Ok(false)));
            looked = Instant::now();
        }
        if others {
            for part in queues.chunks(QUEUES_MAX) {
                tell(&pool, me, part).await;
            }
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

async fn tell(pool: &PgPool, me: Uuid, queues: &[i32]) {
    let told = tokio::time::timeout(NOTIFY_MAX, bells::notify(pool, me, queues)).await;
    if let Err(error) = told.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
        tracing::debug!(error = %error, "the other servers could not be told");
    }
}

/// Hears the other servers.
pub async fn listen(database: PgConnectOptions, bells: Bells, me: Uuid, stop: CancellationToken) {
    while !stop.is_cancelled() {
        // A pool for each connection: one that went silent keeps its place until the network gives it up.
        let pool = session::small_pool(&database, bells::LISTENER);
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = hear(&pool, &bells, me, SILENCE_MAX) => ended,
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

async fn hear(pool: &PgPool, bells: &Bells, me: Uuid, silence: Duration) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(bells::CHANNEL).await?;
    // What was rung while nobody listened is made up for by the fallbacks.
    loop {
        let heard = tokio::time::timeout(silence, listener.recv()).await;
        let notification = heard.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        let (from, queues) = bells::read(notification.payload());
        // A sign of life names no queues, and keeps nobody awake.
        if from != Some(me) && !queues.is_empty() {
            bells.ring_from_elsewhere(queues);
        }
    }
}
