//! Notifiers between servers: one notifier tells the others what was notified here, one listener hears what was notified there.
//!
//! Nothing relies on them: a bell that is lost is made up for by the line's own retries and the passes' fallback.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::notifiers::Notifiers;
use tenure_store::{facts, notifications, session};

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
pub async fn notify(pool: PgPool, notifiers: Notifiers, me: Uuid, stop: CancellationToken) {
    let mut others = true;
    let (mut looked, mut signed) = (Instant::now() - LOOK_EVERY, Instant::now());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = notifiers.others() => {}
            () = tokio::time::sleep_until(signed + SIGN_OF_LIFE_EVERY) => {}
        }
        if signed.elapsed() >= SIGN_OF_LIFE_EVERY {
            tell(&pool, me, &[]).await;
            signed = Instant::now();
        }
        let queues: Vec<i32> = notifiers.take_others().into_iter().collect();
        if looked.elapsed() >= LOOK_EVERY {
            let looking = tokio::time::timeout(NOTIFY_MAX, notifications::other_listeners(&pool)).await;
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
    let told = tokio::time::timeout(NOTIFY_MAX, notifications::notify(pool, me, queues)).await;
    if let Err(error) = told.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
        tracing::debug!(error = %error, "the other servers could not be told");
    }
}

/// Hears the other servers.
pub async fn listen(database: PgConnectOptions, notifiers: Notifiers, me: Uuid, stop: CancellationToken) {
    while !stop.is_cancelled() {
        // A pool for each connection: one that went silent keeps its place until the network gives it up.
        let pool = session::small_pool(&database, notifications::LISTENER);
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = hear(&pool, &notifiers, me, SILENCE_MAX) => ended,
        };
        if let Err(error) = ended {
            tracing::warn!(error = %error, "lost the notifiers of the other servers, connecting again");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AFTER_FAILURE) => {}
        }
    }
}

async fn hear(pool: &PgPool, notifiers: &Notifiers, me: Uuid, silence: Duration) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen_all([notifications::CHANNEL, facts::CHANNEL]).await?;
    // What was notified while nobody listened is made up for by the fallbacks.
    loop {
        let heard = tokio::time::timeout(silence, listener.try_recv()).await;
        let Some(notification) = heard.unwrap_or(Err(sqlx::Error::PoolTimedOut))? else {
            tracing::warn!("lost the notifiers of the other servers, connected again");
            continue;
        };
        if notification.channel() == facts::CHANNEL {
            notifiers.notify_facts();
            continue;
        }
        if let Some(worker) = notifications::read_leaving(notification.payload()) {
            // Its own server has waited for the line already.
            drop(notifiers.send_away(worker));
            continue;
        }
        let (from, queues) = notifications::read(notification.payload());
        // A sign of life names no queues, and keeps nobody awake.
        if from != Some(me) && !queues.is_empty() {
            notifiers.notify_from_other_server(queues);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_store::testing::{TestDatabase, eventually};

    #[tokio::test]
    async fn a_listener_that_hears_nothing_for_too_long_is_given_up_and_signs_of_life_keep_it() {
        const SILENCE: Duration = Duration::from_millis(500);
        let database = TestDatabase::create().await;
        let pool = session::small_pool(database.options(), notifications::LISTENER);
        let (notified, me) = (Notifiers::default(), Uuid::new_v4());
        let silent = tokio::time::timeout(SILENCE * 10, hear(&pool, &notified, me, SILENCE)).await;
        assert!(matches!(silent, Ok(Err(sqlx::Error::PoolTimedOut))), "{silent:?}");

        let signing = async {
            loop {
                tell(database.pool(), me, &[]).await;
                tokio::time::sleep(SILENCE / 10).await;
            }
        };
        tokio::select! {
            ended = hear(&pool, &notified, me, SILENCE) => panic!("{ended:?}"),
            () = signing => {}
            () = tokio::time::sleep(SILENCE * 4) => {}
        }
        assert_eq!(notified.notifications(), 0, "a sign of life is not a bell");
        assert!(SIGN_OF_LIFE_EVERY + NOTIFY_MAX < SILENCE_MAX);
        pool.close().await;
        database.finish().await;
    }

    #[tokio::test]
    async fn one_server_hears_what_another_one_rings() {
        let database = TestDatabase::create().await;
        let (here, there, stop) = (Notifiers::default(), Notifiers::default(), CancellationToken::new());
        let (me, other) = (Uuid::new_v4(), Uuid::new_v4());
        let hearing = |notifiers: &Notifiers, who| {
            tokio::spawn(listen(database.options().clone(), notifiers.clone(), who, stop.clone()))
        };
        // A server tells the others only while there are any, which it knows by their listening.
        let (listening, own) = (hearing(&here, me), hearing(&there, other));
        let notifying = tokio::spawn(notify(database.pool().clone(), there.clone(), other, stop.clone()));
        eventually("a bell is heard", async || {
            there.notify([7]);
            here.take_claimable().contains(&7)
        })
        .await;
        stop.cancel();
        listening.await.unwrap();
        own.await.unwrap();
        notifying.await.unwrap();
        database.finish().await;
    }
}
