//! Low-water marks: for each queue and priority the `ord` up to which no pending run is left, so that a claim does not
//! walk over the dead rows of an old snapshot.
//!
//! A low-water mark must never pass a row that exists or may still be committed. The first is read; for the second a *safe
//! position* is stored: a value of the sequence below which every transaction that took one has ended.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::transitions::claim::PRIORITIES;

/// A transaction that may have taken a place and not committed yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    /// Process id of its backend.
    pub pid: i32,
    /// When it began, in microseconds: with the process id it names the transaction.
    pub began: i64,
}

/// The last value taken from the sequence, and the transactions that may have taken one and are not committed.
pub async fn get_writers(conn: &mut PgConnection) -> Result<(i64, Vec<Writer>), sqlx::Error> {
    // The sequence first: a transaction that takes a place afterwards gets a higher one. A transaction has its number before it
    // takes a place, because each statement writes to another table first.
    let last = sqlx::query_scalar!(
        r#"-- last_place
        SELECT CASE WHEN is_called THEN last_value ELSE 0 /* ord */ END AS "last!" FROM pending_ord"#
    )
    .fetch_one(&mut *conn)
    .await?;
    let writers = sqlx::query!(
        r#"-- open_writers
        SELECT pid AS "pid!", (extract(epoch FROM xact_start) * 1000000)::bigint AS "began!"
        FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xid IS NOT NULL AND xact_start IS NOT NULL
          AND usename = current_user AND application_name LIKE 'tenure%'"#
    )
    .fetch_all(conn)
    .await?;
    Ok((last, writers.into_iter().map(|row| Writer { pid: row.pid, began: row.began }).collect()))
}

/// The low-water marks of a queue and the cursor epoch that they belong to.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    /// `task_queues.cursor_epoch`.
    pub epoch: i64,
    /// For each priority.
    pub marks: [i64; PRIORITIES],
}

/// Moves the low-water marks of queues forward, as far as the safe position allows. `old` marks of another cursor epoch
/// count as zero.
pub async fn advance_marks(
    conn: &mut PgConnection,
    old: &HashMap<i32, Marks>,
    safe_position: i64,
) -> Result<HashMap<i32, Marks>, sqlx::Error> {
    let mut queues = Vec::new();
    let mut priorities = Vec::new();
    let mut epochs = Vec::new();
    let mut marks = Vec::new();
    for (&queue, current) in old {
        for (priority, &mark) in (0_i16..).zip(&current.marks) {
            queues.push(queue);
            priorities.push(priority);
            epochs.push(current.epoch);
            marks.push(mark);
        }
    }
    let rows = sqlx::query!(
        r#"-- advance_marks
        SELECT i.queue AS "queue!", i.priority AS "priority!", q.cursor_epoch,
               (SELECT min(f.ord) FROM (VALUES (true), (false)) AS h(hidden) CROSS JOIN LATERAL (
                    SELECT p.ord FROM pending p
                    WHERE p.queue = i.queue AND p.priority = i.priority AND p.reserved_until IS NULL
                      AND (p.hidden_until IS NOT NULL) = h.hidden
                      AND p.ord > CASE WHEN q.cursor_epoch = i.epoch THEN i.mark ELSE 0 /* ord */ END
                    ORDER BY p.ord LIMIT 1
                ) f) AS first,
               CASE WHEN q.cursor_epoch = i.epoch THEN i.mark ELSE 0 /* ord */ END AS "mark!"
        FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bigint[]) AS i(queue, priority, epoch, mark)
        JOIN task_queues q ON q.id = i.queue"#,
        &queues,
        &priorities,
        &epochs,
        &marks
    )
    .fetch_all(conn)
    .await?;
    let mut new: HashMap<i32, Marks> = HashMap::new();
    for row in rows {
        let reached = row.first.map_or(safe_position, |first| (first - 1).min(safe_position)).max(row.mark);
        let entry = new.entry(row.queue).or_insert(Marks { epoch: row.cursor_epoch, marks: [0; PRIORITIES] });
        if let Some(place) = usize::try_from(row.priority).ok().and_then(|priority| entry.marks.get_mut(priority)) {
            *place = reached;
        }
    }
    Ok(new)
}
