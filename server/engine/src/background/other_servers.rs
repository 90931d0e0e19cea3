//! Exchanges notifications between servers. A lost notification is harmless: the wait list retries
//! and passes have a fallback interval.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::notifiers::Notifiers;
use tenure_store::connector::Connector;
use tenure_store::{facts, notifications, outage};

const NOTIFY_EVERY: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_secs(1);
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// A keepalive names no queues; this server's own listener receives it.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
/// A silent connection is presumed dead and replaced.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const NOTIFY_MAX: Duration = Duration::from_secs(5);
/// The payload is limited to 8,000 bytes.
const QUEUES_MAX: usize = 500;

/// Forwards notifications while other servers exist, and sends keepalives.
pub async fn notify(pool: PgPool, notifiers: Notifiers, me: Uuid, stop: CancellationToken) {
    let mut others = true;
    let (mut looked, mut sent) = (Instant::now() - LOOK_EVERY, Instant::now());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = notifiers.others() => {}
            () = tokio::time::sleep_until(sent + KEEPALIVE_EVERY) => {}
        }
        if sent.elapsed() >= KEEPALIVE_EVERY {
            send(&pool, me, &[]).await;
            sent = Instant::now();
        }
        let queues: Vec<i32> = notifiers.take_others().into_iter().collect();
        if looked.elapsed() >= LOOK_EVERY {
            let looking = tokio::time::timeout(NOTIFY_MAX, notifications::other_listeners(&pool)).await;
            others = !matches!(looking, Ok(Ok(false)));
            looked = Instant::now();
        }
        if others {
            for part in queues.chunks(QUEUES_MAX) {
                send(&pool, me, part).await;
            }
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

async fn send(pool: &PgPool, me: Uuid, queues: &[i32]) {
    let sent = tokio::time::timeout(NOTIFY_MAX, notifications::notify(pool, me, queues)).await;
    if let Err(error) = sent.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
        tracing::debug!(error = %error, "the other servers could not be notified");
    }
}

pub async fn listen(connector: Connector, notifiers: Notifiers, me: Uuid, stop: CancellationToken) {
    while !stop.is_cancelled() {
        // One pool per connection: a dead one keeps its slot until the network closes it.
        let pool = connector.small_pool(notifications::LISTENER);
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = receive(&pool, &notifiers, me, SILENCE_MAX) => ended,
        };
        if let Err(error) = ended.as_ref()
            && !outage::is_known(error)
        {
            tracing::warn!(error = %error, "lost the notifications of the other servers; reconnecting");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AFTER_FAILURE) => {}
        }
    }
}

async fn receive(pool: &PgPool, notifiers: &Notifiers, me: Uuid, silence: Duration) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    // A new pool is created instead: this one stays with its host.
    listener.eager_reconnect(false);
    let listening = tokio::time::timeout(silence, listener.listen_all([notifications::CHANNEL, facts::CHANNEL])).await;
    listening.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
    // Fallbacks make up for notifications sent before this.
    loop {
        let received = tokio::time::timeout(silence, listener.try_recv()).await;
        let received = received.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        let notification = received.ok_or(sqlx::Error::WorkerCrashed)?;
        if notification.channel() == facts::CHANNEL {
            notifiers.notify_facts();
            continue;
        }
        if let Some(worker) = notifications::read_leaving(notification.payload()) {
            // Nobody waits for the result: the sender has waited for its own wait list.
            drop(notifiers.send_away(worker));
            continue;
        }
        let (from, queues) = notifications::read(notification.payload());
        // Keepalives keep no pass active.
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
    async fn silent_listener_is_replaced_without_keepalives() {
        const SILENCE: Duration = Duration::from_millis(500);
        let database = TestDatabase::create().await;
        let pool = database.connector().small_pool(notifications::LISTENER);
        let (notified, me) = (Notifiers::default(), Uuid::new_v4());
        let silent = tokio::time::timeout(SILENCE * 10, receive(&pool, &notified, me, SILENCE)).await;
        assert!(matches!(silent, Ok(Err(sqlx::Error::PoolTimedOut))), "{silent:?}");

        let keepalives = async {
            loop {
                send(database.pool(), me, &[]).await;
                tokio::time::sleep(SILENCE / 10).await;
            }
        };
        tokio::select! {
            ended = receive(&pool, &notified, me, SILENCE) => panic!("{ended:?}"),
            () = keepalives => {}
            () = tokio::time::sleep(SILENCE * 4) => {}
        }
        assert_eq!(notified.notifications(), 0, "a keepalive is not a notification");
        assert!(KEEPALIVE_EVERY + NOTIFY_MAX < SILENCE_MAX);
        pool.close().await;
        database.finish().await;
    }

    #[tokio::test]
    async fn server_receives_notifications_of_another_server() {
        let database = TestDatabase::create().await;
        let (here, there, stop) = (Notifiers::default(), Notifiers::default(), CancellationToken::new());
        let (me, other) = (Uuid::new_v4(), Uuid::new_v4());
        let start_listener = |notifiers: &Notifiers, server| {
            tokio::spawn(listen(database.connector(), notifiers.clone(), server, stop.clone()))
        };
        // Servers notify only while they see other listeners.
        let (listening, own) = (start_listener(&here, me), start_listener(&there, other));
        let notifying = tokio::spawn(notify(database.pool().clone(), there.clone(), other, stop.clone()));
        here.wait_list(0).set_has_requests(true);
        eventually("a notification is received", async || {
            there.notify([7]);
            here.wait_list(0).take_claimable().contains(&7)
        })
        .await;
        stop.cancel();
        listening.await.unwrap();
        own.await.unwrap();
        notifying.await.unwrap();
        database.finish().await;
    }
}
