//! Disturbs the database: kills sessions of the servers, holds old snapshots open and locks rows.
//! With a standby, it fails over and makes the database lose the end of its log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::ground::Ground;
use super::record::Event;
use super::world::World;
use crate::random::Random;
use crate::replication::{APPLICATION, Replicated};

/// Longest pause between two actions, and longest transactions, in milliseconds.
const PAUSE_MAX: u64 = 500;
const SNAPSHOT_MAX: u64 = 1_000;
const LOCK_MAX: u64 = 250;
/// Time between two faults of the whole database, which last some seconds each.
const FAULT_EVERY: Duration = Duration::from_secs(8);
/// Longest period whose commits may be lost, in milliseconds.
const TAIL_MAX: u64 = 800;
const WRITTEN: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";

pub(super) async fn sabotage(world: Arc<World>, mut ground: Ground, number: u64) -> Ground {
    let mut random = Random::fork(world.seed, number);
    let mut session = ground.connect().await;
    let (mut last_fault, mut faults) = (Instant::now(), 0_u64);
    while !world.is_over() {
        tokio::time::sleep(Duration::from_millis(random.below(PAUSE_MAX))).await;
        if let Some(database) = ground.replicated()
            && last_fault.elapsed() > FAULT_EVERY
        {
            if faults.is_multiple_of(2) {
                fail_over(&world, database).await;
            } else {
                lose_tail(&world, database, Duration::from_millis(random.below(TAIL_MAX))).await;
            }
            faults += 1;
            last_fault = Instant::now();
            session = ground.connect().await;
        }
        annoy(&world, &mut session, &mut random).await;
    }
    if ground.replicated().is_some() {
        println!("history: {faults} failovers and restarts without the end of the log");
    }
    ground
}

async fn annoy(world: &World, session: &mut PgConnection, random: &mut Random) {
    let start = world.stamp();
    match random.below(10) {
        0..5 => {
            kill_sessions(session, random.below(4)).await.expect("an administrator may end sessions");
            world.write(start, Event::SessionsKilled);
        }
        5..8 => {
            let held = Duration::from_millis(random.below(SNAPSHOT_MAX));
            hold_snapshot(session, held).await.expect("a transaction can be held open");
        }
        _ => {
            let held = Duration::from_millis(random.below(LOCK_MAX));
            hold_rows(session, random, held).await.expect("rows can be locked");
            world.write(start, Event::RowsLocked);
        }
    }
}

/// Kills the primary and promotes its synchronous standby: no acknowledged commit is lost.
async fn fail_over(world: &World, database: &mut Replicated) {
    database.flush().await;
    let start = world.stamp();
    database.primary.kill();
    drop(database.fail_over().await);
    world.write(start, Event::SessionsKilled);
    // Without a standby commits do not wait, so nothing is killed meanwhile.
    database.add_standby().await;
    database.make_synchronous().await;
}

/// Makes commits asynchronous for a while and then kills all processes: commits acknowledged in
/// this period may be lost.
async fn lose_tail(world: &World, database: &mut Replicated, tail: Duration) {
    // The clock is stored in the database, but must not go back: a real clock does not.
    let _still = world.clock.lock().await;
    database.flush().await;
    let start = world.stamp();
    database.primary.set("synchronous_commit", "off").await;
    tokio::time::sleep(tail).await;
    let before: i64 = database.primary.ask(WRITTEN).await;
    database.primary.kill();
    database.primary.start().await;
    let lost = before - database.primary.ask::<i64>(WRITTEN).await;
    println!("history: {lost} bytes of the log were lost");
    database.primary.set("synchronous_commit", "on").await;
    world.write(start, Event::TailLost);
    // The created tasks may be lost: submitters need not wait for them.
    world.backlog.store(0, Ordering::Relaxed);
    database.make_synchronous().await;
}

async fn kill_sessions(session: &mut PgConnection, most: u64) -> Result<(), sqlx::Error> {
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity \
         WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> $1 \
         ORDER BY random() LIMIT $2) victims",
    )
    .bind(APPLICATION)
    .bind(most.cast_signed())
    .execute(session)
    .await?;
    Ok(())
}

/// Holds an old snapshot, which keeps dead rows alive for all transactions.
async fn hold_snapshot(session: &mut PgConnection, held: Duration) -> Result<(), sqlx::Error> {
    sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut *session).await?;
    sqlx::query("SELECT count(*) FROM tasks").execute(&mut *session).await?;
    tokio::time::sleep(held).await;
    sqlx::query("ROLLBACK").execute(session).await?;
    Ok(())
}

/// Locks a few adjacent rows in one of the tables whose rows the servers lock.
async fn hold_rows(session: &mut PgConnection, random: &mut Random, held: Duration) -> Result<(), sqlx::Error> {
    // Skips rows locked by a server, so that the saboteur never waits or deadlocks.
    let statement = random.pick(&[
        "SELECT 1 FROM tasks WHERE ctid = ANY (ARRAY(SELECT ctid FROM tasks \
         OFFSET $1 % greatest((SELECT count(*) FROM tasks), 1) LIMIT 5)) FOR UPDATE SKIP LOCKED",
        "SELECT 1 FROM pending WHERE ctid = ANY (ARRAY(SELECT ctid FROM pending \
         OFFSET $1 % greatest((SELECT count(*) FROM pending), 1) LIMIT 5)) FOR UPDATE SKIP LOCKED",
    ]);
    let Some(statement) = statement.copied() else { return Ok(()) };
    let somewhere = (random.draw() >> 1).cast_signed();
    sqlx::query("BEGIN").execute(&mut *session).await?;
    sqlx::query(statement).bind(somewhere).execute(&mut *session).await?;
    tokio::time::sleep(held).await;
    sqlx::query("ROLLBACK").execute(session).await?;
    Ok(())
}
