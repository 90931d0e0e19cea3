//! The table `log_readers`: cursors of readers of the event log.

use sqlx::PgConnection;

/// A number of `outbox_order` rows after a reader's cursor. Positions have no gaps, so all later
/// statements see the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Last position that was processed.
    pub after: i64,
    /// Number of rows; each has up to a batch of transitions.
    pub rows: i64,
    /// Position of the last event.
    pub through: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another transaction holds the cursor.
    Busy,
    /// Nothing follows the cursor.
    End,
    Part(Part),
}

/// Locks a reader's cursor until the transaction ends, and returns the next part.
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

/// Adds a reader whose row was deleted. It begins at the end of the log.
pub async fn add(conn: &mut PgConnection, reader: &str) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- add_log_reader
        INSERT INTO log_readers (name, position)
        SELECT $1, COALESCE((SELECT first + events - 1 FROM outbox_order ORDER BY first DESC LIMIT 1), 0)
        ON CONFLICT DO NOTHING",
        reader
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    pub reader: String,
    /// Events in the log after its cursor.
    pub events: i64,
}

pub async fn list_lags(conn: &mut PgConnection) -> Result<Vec<Lag>, sqlx::Error> {
    sqlx::query_as!(
        Lag,
        r#"-- list_log_reader_lags
        WITH last AS MATERIALIZED (
            SELECT first + events - 1 AS position FROM outbox_order ORDER BY first DESC LIMIT 1
        )
        SELECT r.name AS reader,
               GREATEST(COALESCE((SELECT position FROM last), 0 /* ord */) - r.position, 0 /* count */) AS "events!"
        FROM log_readers r ORDER BY r.name"#
    )
    .fetch_all(conn)
    .await
}

/// Moves the cursor, which this transaction has locked.
pub async fn advance(transaction: &mut PgConnection, reader: &str, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!("-- advance_log_reader\nUPDATE log_readers SET position = $2 WHERE name = $1", reader, position)
        .execute(transaction)
        .await?;
    Ok(())
}
