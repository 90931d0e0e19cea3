//! Makes the database a bad place: kills sessions of the servers, holds old snapshots open and locks rows; where it has a
//! standby, fails over to it, and has it lose the end of its log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::ground::Ground;
use super::record::Event;
use super::world::World;
use crate::random::Random;
use crate::replication::{APPLICATION, Replicated};

/// Longest pause between two deeds, and longest time that a transaction is held open, in milliseconds.
const PAUSE_MAX: u64 = 500;
const SNAPSHOT_MAX: u64 = 1_000;
const LOCK_MAX: u64 = 250;
/// Between two faults of the whole database, of which each takes some seconds.
const FAULT_EVERY: Duration = Duration::from_secs(8);
/// Longest time whose commits may be lost, in milliseconds.
const TAIL_MAX: u64 = 800;
/// How long the log is.
const WRITTEN: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";

/// Goes on until the storm is over.
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

/// One of the faults that leave the database running.
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

/// The primary is killed and its synchronous standby promoted: nothing that was acknowledged is lost.
async fn fail_over(world: &World, database: &mut Replicated) {
    database.flush().await;
    let start = world.stamp();
    database.primary.kill();
    drop(database.fail_over().await);
    world.write(start, Event::SessionsKilled);
    // Until it has a standby again, commits do not wait; nothing is killed meanwhile.
    database.add_standby().await;
    database.make_synchronous().await;
}

/// Commits are acknowledged before they are written for a time, and then all processes are killed: what was acknowledged in this
/// time may be lost.
async fn lose_tail(world: &World, database: &mut Replicated, tail: Duration) {
    // The clock of a real machine is not lost with the log.
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
    // What was created may be gone: submitters need not wait for it.
    world.backlog.store(0, Ordering::Relaxed);
    database.make_synchronous().await;
}

/// Ends up to this many sessions of the servers, any of them.
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

/// An old snapshot keeps dead rows alive for all transactions.
async fn hold_snapshot(session: &mut PgConnection, held: Duration) -> Result<(), sqlx::Error> {
    sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut *session).await?;
    sqlx::query("SELECT count(*) FROM tasks").execute(&mut *session).await?;
    tokio::time::sleep(held).await;
    sqlx::query("ROLLBACK").execute(session).await?;
    Ok(())
}

/// Locks a few rows that lie together somewhere in one of the tables that the servers lock rows of.
async fn hold_rows(session: &mut PgConnection, random: &mut Random, held: Duration) -> Result<(), sqlx::Error> {
    // Rows that a server has locked are skipped, so that the saboteur never waits and never is part of a deadlock.
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
