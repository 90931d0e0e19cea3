//! The table `checkpoints`: progress of tasks, for people and for the next run.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::RunId;
use uuid::Uuid;

use crate::decode::Row;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub run: RunId,
    /// JSON text.
    pub checkpoint: String,
    pub updated: DateTime<Utc>,
}

/// Stores the checkpoint of a claimed run, and deletes the command executed before it. None if the
/// run is not claimed.
///
/// Locks the claim until the commit, against its end but not against renewals: so the run is not
/// over, and no later run has begun.
pub async fn put(
    conn: &mut PgConnection,
    task: Uuid,
    run: RunId,
    checkpoint: &str,
    command: Option<i64>,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- put_checkpoint
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        held AS MATERIALIZED (
            SELECT c.seq, c.run FROM tasks t JOIN claims c ON c.seq = t.seq WHERE t.id = $1 AND c.run = $2 FOR KEY SHARE OF c
        ),
        carried_out AS (DELETE FROM task_commands x USING held h WHERE x.seq = h.seq AND x.id = $4 /* command */),
        stored AS (
            INSERT INTO checkpoints (seq, run, checkpoint, updated) SELECT h.seq, h.run, $3 /* text */, db_now.now FROM held h, db_now
            ON CONFLICT (seq) DO UPDATE SET run = EXCLUDED.run, checkpoint = EXCLUDED.checkpoint, updated = EXCLUDED.updated
            RETURNING updated
        )
        SELECT updated AS "updated!" FROM stored"#,
        task,
        run.number().cast_signed(),
        checkpoint,
        command
    )
    .fetch_optional(conn)
    .await
}

pub async fn find(conn: &mut PgConnection, task: Uuid) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query!(
        "-- find_checkpoint
        SELECT k.run, k.checkpoint, k.updated FROM tasks t JOIN checkpoints k ON k.seq = t.seq WHERE t.id = $1",
        task
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let columns = Row { table: "checkpoints", task };
    Ok(Some(Stored { run: columns.run(row.run)?, checkpoint: row.checkpoint, updated: row.updated }))
}
