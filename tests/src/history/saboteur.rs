//! Makes the database a bad place: kills sessions of the servers, holds old snapshots open and locks rows.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;

use super::record::Event;
use super::world::World;
use crate::db::TestDatabase;
use crate::random::Random;

/// By this name the saboteur's own sessions are distinguished from the servers'.
const APPLICATION: &str = "saboteur";
/// Longest pause between two deeds, and longest time that a transaction is held open, in milliseconds.
const PAUSE_MAX: u64 = 500;
const SNAPSHOT_MAX: u64 = 1_000;
const LOCK_MAX: u64 = 250;

/// Goes on until the storm is over.
pub(super) async fn sabotage(world: Arc<World>, database: Arc<TestDatabase>, number: u64) {
    let mut random = Random::fork(world.seed, number);
    let mut session = database.connect(APPLICATION).await;
    while !world.is_over() {
        tokio::time::sleep(Duration::from_millis(random.below(PAUSE_MAX))).await;
        let start = world.stamp();
        match random.below(10) {
            0..5 => {
                kill_sessions(&mut session, random.below(4)).await.expect("an administrator may end sessions");
                world.write(start, Event::SessionsKilled);
            }
            5..8 => {
                let held = Duration::from_millis(random.below(SNAPSHOT_MAX));
                hold_snapshot(&mut session, held).await.expect("a transaction can be held open");
            }
            _ => {
                let held = Duration::from_millis(random.below(LOCK_MAX));
                hold_rows(&mut session, &mut random, held).await.expect("rows can be locked");
                world.write(start, Event::RowsLocked);
            }
        }
    }
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
