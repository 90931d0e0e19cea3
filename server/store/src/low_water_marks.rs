//! Low-water marks: by queue and priority, the `ord` up to which no pending run is left. Claims
//! start there, to skip dead rows that an old snapshot retains.
//!
//! A mark must never pass a row that exists or may still be committed. Existing rows are read. For
//! the others, a *safe position* is stored: a sequence value below which all transactions that took
//! one have ended.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};

use super::events::Sequenced;
use super::session_check::is_not_offered;
use super::transitions::claim::PRIORITIES;

/// A transaction that may have taken a position and not committed yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    pub pid: i32,
    /// Its start in microseconds, which with `pid` identifies it.
    pub began: i64,
}

/// Returns the last value of the sequence. A standby may not have it yet.
pub async fn get_position(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- last_position
        SELECT CASE WHEN is_called THEN last_value ELSE 0 /* ord */ END AS "last!" FROM pending_ord"#
    )
    .fetch_one(conn)
    .await
}

/// Makes positions read earlier in this session durable. A sequence is not transactional, so no
/// commit waits for it. This one does, for disk and synchronous standbys, so those positions are
/// never reused.
pub async fn keep_positions(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let kept = sqlx::query!("-- keep_positions\nSELECT pg_logical_emit_message(true, 'tenure', '')::text")
        .fetch_one(conn)
        .await;
    match kept {
        // Then only the other checks detect a lost position.
        Err(error) if !is_not_offered(&error) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Lists transactions that may have taken a position and are not committed. Later ones get
/// positions above [`get_position`] as read before. Transactions have an id before they take a
/// position: the column default ensures it, and direct callers have locked a row.
pub async fn list_writers(conn: &mut PgConnection) -> Result<Vec<Writer>, sqlx::Error> {
    sqlx::query_as!(
        Writer,
        r#"-- open_writers
        SELECT pid AS "pid!", (extract(epoch FROM xact_start) * 1000000)::bigint AS "began!"
        FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xid IS NOT NULL AND xact_start IS NOT NULL
          AND usename = current_user AND application_name LIKE 'tenure%'"#
    )
    .fetch_all(conn)
    .await
}

/// Valid in one cursor epoch.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    pub epoch: i64,
    pub marks: [i64; PRIORITIES],
}

#[derive(Default)]
pub(super) struct Columns {
    pub(super) queues: Vec<i32>,
    pub(super) priorities: Vec<i16>,
    pub(super) epochs: Vec<i64>,
    pub(super) marks: Vec<i64>,
}

impl Columns {
    pub(super) fn new(all: &HashMap<i32, Marks>) -> Self {
        let mut columns = Self::default();
        for (&queue, current) in all {
            for (priority, &mark) in (0_i16..).zip(&current.marks) {
                columns.queues.push(queue);
                columns.priorities.push(priority);
                columns.epochs.push(current.epoch);
                columns.marks.push(mark);
            }
        }
        columns
    }
}

/// Timeout for the search below the marks.
const STRANDED_TIMEOUT: &str = "2s";

/// Rows below marks, which prove the marks wrong.
#[derive(Debug, Default)]
pub struct Stranded {
    /// Queues with a claimable run at or below a mark.
    pub queues: Vec<i32>,
    /// True if unsequenced events lie below [`Sequenced`].
    pub events: bool,
}

/// Searches below the marks, by one index probe each. Behind an old snapshot it may time out.
pub async fn find_stranded(
    conn: &mut PgConnection,
    all: &HashMap<i32, Marks>,
    sequenced: Sequenced,
) -> Result<Stranded, sqlx::Error> {
    let Columns { queues, priorities, epochs, marks } = Columns::new(all);
    let mut transaction = conn.begin().await?;
    sqlx::query!("-- stranded_timeout\nSELECT set_config('statement_timeout', $1, true)", STRANDED_TIMEOUT)
        .fetch_one(&mut *transaction)
        .await?;
    let events = sqlx::query_scalar!(
        r#"-- stranded_events
        SELECT EXISTS (SELECT FROM outbox_new WHERE id <= $1) AS "left!""#,
        sequenced.0
    )
    .fetch_one(&mut *transaction)
    .await?;
    let queues = sqlx::query_scalar!(
        r#"-- stranded_queues
        SELECT DISTINCT i.queue AS "queue!"
        FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bigint[]) AS i(queue, priority, epoch, mark)
        JOIN task_queues q ON q.id = i.queue AND q.cursor_epoch = i.epoch
        CROSS JOIN (VALUES (true), (false)) AS h(hidden)
        WHERE EXISTS (
            SELECT FROM pending p
            WHERE p.queue = i.queue AND p.priority = i.priority AND p.reserved_until IS NULL
              AND (p.hidden_until IS NOT NULL) = h.hidden AND p.ord <= i.mark
        )"#,
        &queues,
        &priorities,
        &epochs,
        &marks
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Stranded { queues, events })
}

/// Makes all servers drop their low-water marks of these queues.
pub async fn raise_epochs(conn: &mut PgConnection, queues: &[i32]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- raise_epochs
        WITH locked AS MATERIALIZED (SELECT id FROM task_queues WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)
        UPDATE task_queues q SET cursor_epoch = q.cursor_epoch + 1 FROM locked WHERE q.id = locked.id",
        queues
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Advances low-water marks, up to the safe position. `old` marks of another cursor epoch count as
/// zero.
pub async fn advance_marks(
    conn: &mut PgConnection,
    old: &HashMap<i32, Marks>,
    safe_position: i64,
) -> Result<HashMap<i32, Marks>, sqlx::Error> {
    let Columns { queues, priorities, epochs, marks } = Columns::new(old);
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
