//! The table `task_commands`: the last command for each task, until its worker executes it.
//!
//! A command arrives in one of three ways. Each side checks for the other after its own commit, so
//! none is missed. A session that holds the task gets an item ([`deliver`]). The next worker reads
//! the command after its claim ([`find`]). A delayed, released run becomes claimable
//! ([`super::transitions::end_hold::end_commanded_delay`]).

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::TaskCommand;
use uuid::Uuid;

use crate::decode::{Row, Undecodable};
use crate::worker_sessions::lock_ids;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub id: i64,
    pub command: TaskCommand,
    /// End of the requested sleep.
    pub until: Option<DateTime<Utc>>,
    pub sent: DateTime<Utc>,
}

pub(crate) fn read_command(task: Uuid, code: i16) -> Result<TaskCommand, Undecodable> {
    TaskCommand::from_code(code).ok_or_else(|| Row { table: "task_commands", task }.invalid("command", code))
}

/// Stores a command, replacing an earlier one. None if the task is resolved or missing. The caller
/// has locked the task.
pub async fn put(
    transaction: &mut PgConnection,
    task: Uuid,
    command: TaskCommand,
    until: Option<DateTime<Utc>>,
    client_id: &str,
) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query!(
        "-- put_task_command
        INSERT INTO task_commands (seq, id, command, wanted_until, sent, client_id)
        SELECT t.seq, nextval('task_command_id'), $2 /* command */, $3 /* until */, db_now.now, $4 /* client */
        FROM tasks t, db_now WHERE t.id = $1 AND t.state < 2 /* State: open */
        ON CONFLICT (seq) DO UPDATE SET id = EXCLUDED.id, command = EXCLUDED.command, wanted_until = EXCLUDED.wanted_until,
            sent = EXCLUDED.sent, client_id = EXCLUDED.client_id
        RETURNING id, sent",
        task,
        command.code(),
        until,
        client_id
    )
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(|row| Stored { id: row.id, command, until, sent: row.sent }))
}

/// Returns the command of a task, if it is not older than `kept`.
pub async fn find(conn: &mut PgConnection, task: Uuid, kept: Duration) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query!(
        "-- find_task_command
        SELECT x.id, x.command, x.wanted_until, x.sent FROM tasks t JOIN task_commands x ON x.seq = t.seq
        WHERE t.id = $1 AND x.sent > (SELECT now FROM db_now) - make_interval(secs => $2 /* kept */)",
        task,
        kept.as_secs_f64()
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let command = read_command(task, row.command)?;
    Ok(Some(Stored { id: row.id, command, until: row.wanted_until, sent: row.sent }))
}

/// Puts an item for the task's command into the inbox of the live session that holds the task,
/// replacing an earlier item. Returns the session, if any.
pub async fn deliver(transaction: &mut PgConnection, task: Uuid) -> Result<Option<i64>, sqlx::Error> {
    let held = sqlx::query!(
        r#"-- lock_commanded_session
        SELECT s.epoch, c.seq, c.run FROM tasks t JOIN claims c ON c.seq = t.seq JOIN worker_sessions s ON s.epoch = c.session
        WHERE t.id = $1 AND s.ended IS NULL FOR KEY SHARE OF s"#,
        task
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(held) = held else { return Ok(None) };
    #[cfg(feature = "test-util")]
    if crate::breakage::is_on(crate::breakage::Breakage::LoseTaskCommand) {
        return Ok(None);
    }
    lock_ids(transaction, &[held.epoch]).await?;
    sqlx::query!(
        "-- replace_task_command
        DELETE FROM session_inbox WHERE epoch = $1 AND seq = $2 AND kind = 5 /* Item::TaskCommand */",
        held.epoch,
        held.seq
    )
    .execute(&mut *transaction)
    .await?;
    // Readers take the content from the command itself, so the last command wins.
    sqlx::query!(
        "-- deliver_task_command
        INSERT INTO session_inbox (epoch, id, kind, at, seq, run)
        SELECT $1, nextval('session_inbox_id'), 5 /* Item::TaskCommand */, db_now.now, $2 /* seq */, $3 /* run */ FROM db_now",
        held.epoch,
        held.seq,
        held.run
    )
    .execute(transaction)
    .await?;
    Ok(Some(held.epoch))
}

/// Purges up to `limit` commands older than `kept`; none is left before `from`.
pub async fn purge(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    kept: Duration,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_task_commands
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        old AS MATERIALIZED (
            SELECT x.seq, x.id FROM task_commands x
            WHERE x.sent >= $3 AND x.sent <= (SELECT now FROM db_now) - make_interval(secs => $1)
            ORDER BY x.sent LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM task_commands x USING old WHERE x.seq = old.seq AND x.id = old.id",
        kept.as_secs_f64(),
        limit,
        from
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
