//! Beats, and the elections that follow them. A beat is one row that is written; only if there are queues that assign their runs, more is
//! looked at, and once by a server of weight 0. They have a session of their own, so that nothing else that a server does can make it
//! look silent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::batch::Session;
use crate::engine::Engine;
use crate::schedulers::{BEAT, Look};
use tenure_store::connector::Connector;
use tenure_store::{outage, servers};

/// How long a beat may take, connecting included, before its session is given up: the network may have lost it. Less than the activation
/// time, so that the next one is written before this server is taken for lost.
const BEAT_MAX: Duration = Duration::from_secs(3);
/// How long handing over the queues may take when the server stops.
const LEAVE_MAX: Duration = Duration::from_millis(1_500);

/// Beats until the server stops, and hands over its queues then.
pub async fn run(engine: Arc<Engine>, connector: Connector, stop: CancellationToken) {
    let started = Instant::now();
    let mut session = Session::new(connector);
    let mut ticks = tokio::time::interval(BEAT);
    // Never less than a second apart: by its own beats a server judges the silence of others.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        let look = tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => Look::AfterBeat,
            () = engine.notifiers.schedulers() => Look::Early,
        };
        let beating = session.run(async |conn| match look {
            Look::AfterBeat => beat(&engine, conn, started.elapsed()).await,
            Look::Early => engine.schedulers.look(conn, &engine.notifiers, look).await,
        });
        let error = match tokio::time::timeout(BEAT_MAX, beating).await {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure.into_error()),
            Err(_) => Some(sqlx::Error::PoolTimedOut),
        };
        match &error {
            Some(error) if !failing && !outage::is_known(error) => {
                tracing::warn!(error = %error, "this server could not write its beat; it is tried again each second");
                failing = true;
            }
            None if failing => {
                tracing::info!("this server beats again");
                failing = false;
            }
            Some(_) | None => {}
        }
    }
    let leaving = session.run(async |conn| engine.schedulers.leave(conn, &engine.notifiers).await);
    if !matches!(tokio::time::timeout(LEAVE_MAX, leaving).await, Ok(Ok(()))) {
        tracing::warn!("the queues whose scheduler this server was could not be handed over");
    }
    session.close().await;
}

/// One beat, and what follows from it.
pub async fn beat(engine: &Engine, conn: &mut PgConnection, up: Duration) -> Result<(), sqlx::Error> {
    let member = engine.schedulers.member();
    let any = match servers::beat(conn, member.id).await? {
        Some(any) => any,
        // It was purged while this server was silent for long.
        None => {
            servers::insert(conn, member, up).await?;
            true
        }
    };
    if any || engine.schedulers.expects_any() {
        engine.schedulers.look(conn, &engine.notifiers, Look::AfterBeat).await?;
    }
    Ok(())
}
