//! Heartbeats of this server, and the elections after them. Elections run only if assign queues
//! exist; a server of weight 0 checks once without them. Both have their own database session, so
//! that other work cannot make the server look silent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::batch::Session;
use crate::engine::Engine;
use crate::schedulers::{BEAT, ElectionTrigger};
use tenure_store::connector::Connector;
use tenure_store::{outage, servers};

/// Includes connecting. Then the session is dropped, because the network may have lost it. Less
/// than the activation time, so that the next heartbeat precedes an election.
const BEAT_MAX: Duration = Duration::from_secs(3);
const LEAVE_MAX: Duration = Duration::from_millis(1_500);

pub async fn run(engine: Arc<Engine>, connector: Connector, stop: CancellationToken) {
    let started = Instant::now();
    let mut session = Session::new(connector);
    let mut ticks = tokio::time::interval(BEAT);
    // A server judges the silence of others by its own heartbeats, so these are at least a second
    // apart.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        let trigger = tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => ElectionTrigger::AfterBeat,
            () = engine.notifiers.schedulers() => ElectionTrigger::Early,
        };
        let beating = session.run(async |conn| match trigger {
            ElectionTrigger::AfterBeat => beat(&engine, conn, started.elapsed()).await,
            ElectionTrigger::Early => engine.schedulers.elect(conn, &engine.notifiers, trigger).await,
        });
        let error = match tokio::time::timeout(BEAT_MAX, beating).await {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure.into_error()),
            Err(_) => Some(sqlx::Error::PoolTimedOut),
        };
        match &error {
            Some(error) if !failing && !outage::is_known(error) => {
                tracing::warn!(error = %error, "this server could not write its heartbeat; retrying every second");
                failing = true;
            }
            None if failing => {
                tracing::info!("this server writes its heartbeat again");
                failing = false;
            }
            Some(_) | None => {}
        }
    }
    let leaving = session.run(async |conn| engine.schedulers.leave(conn, &engine.notifiers).await);
    if !matches!(tokio::time::timeout(LEAVE_MAX, leaving).await, Ok(Ok(()))) {
        tracing::warn!(
            "this server could not hand over the queues that it schedules; other servers take them over \
             when its heartbeat is overdue"
        );
    }
    session.close().await;
}

pub async fn beat(engine: &Engine, conn: &mut PgConnection, up: Duration) -> Result<(), sqlx::Error> {
    let member = engine.schedulers.member();
    let any = match servers::beat(conn, member.id).await? {
        Some(any) => any,
        // The row was purged during a long silence of this server.
        None => {
            servers::insert(conn, member, up).await?;
            true
        }
    };
    if any || engine.schedulers.expects_any() {
        engine.schedulers.elect(conn, &engine.notifiers, ElectionTrigger::AfterBeat).await?;
    }
    Ok(())
}
