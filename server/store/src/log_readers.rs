//! The table `log_readers`: the cursor of each reader of the event log.

use sqlx::PgConnection;

/// A part of the log that a reader is to act on: so many rows of `outbox_order` after its cursor. Positions have no gaps,
/// so that this names the same rows in every later statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Everything up to this position has been acted on.
    pub after: i64,
    /// The rows; each has up to a batch of transitions.
    pub rows: i64,
    /// The position of the last event.
    pub through: i64,
}

/// What a reader that asks for the next part gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another transaction has the cursor.
    Busy,
    /// Nothing comes after the cursor.
    End,
    Part(Part),
}

/// Locks a reader's cursor until the transaction ends, and finds what comes after it.
pub async fn lock_next(transaction: &mut PgConnection, reader: &str, rows_max: i64) -> Result<Next, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- lock_log_reader
        WITH reader AS MATERIALIZED (
            SELECT position FROM log_readers WHERE name = $1 FOR UPDATE SKIP LOCKED
        ),
        part AS MATERIALIZED (
            SELECT first, events FROM outbox_order WHERE first > (SELECT position FROM reader) ORDER BY first LIMIT $2
        )
        SELECT (SELECT position FROM reader) AS after, (SELECT count(*) FROM part) AS "rows!",
               (SELECT max(first + events - 1) FROM part) AS through"#,
        reader,
        rows_max
    )
    .fetch_one(transaction)
    .await?;
    let Some(after) = row.after else { return Ok(Next::Busy) };
    Ok(row.through.map_or(Next::End, |through| Next::Part(Part { after, rows: row.rows, through })))
}

/// Moves a reader's cursor, which this transaction has locked.
pub async fn advance(transaction: &mut PgConnection, reader: &str, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!("-- advance_log_reader\nUPDATE log_readers SET position = $2 WHERE name = $1", reader, position)
        .execute(transaction)
        .await?;
    Ok(())
}
