//! Low-water marks: for each queue and priority the `ord` up to which no pending run is left, so that a claim does not
//! walk over the dead rows of an old snapshot.
//!
//! A low-water mark must never pass a row that exists or may still be committed. The first is read; for the second a *safe
//! position* is stored: a value of the sequence below which every transaction that took one has ended.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};

use super::events::Sequenced;
use super::session_check::is_not_offered;
use super::transitions::claim::PRIORITIES;

/// A transaction that may have taken a place and not committed yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Writer {
    /// Process id of its backend.
    pub pid: i32,
    /// When it began, in microseconds: with the process id it names the transaction.
    pub began: i64,
}

/// Reads the last value taken from the sequence. A standby may not have it yet.
pub async fn get_position(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- last_position
        SELECT CASE WHEN is_called THEN last_value ELSE 0 /* ord */ END AS "last!" FROM pending_ord"#
    )
    .fetch_one(conn)
    .await
}

/// Makes sure that the positions that were read on this session before are never given out again: a sequence belongs to no
/// transaction, so that no commit waits for it. This one does, for the disk and for synchronous standbys.
pub async fn keep_positions(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let kept = sqlx::query!("-- keep_positions\nSELECT pg_logical_emit_message(true, 'tenure', '')::text")
        .fetch_one(conn)
        .await;
    match kept {
        // The other ways to notice that a position was taken back have to do.
        Err(error) if !is_not_offered(&error) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The transactions that may have taken a position and are not committed. A transaction that takes one afterwards gets a
/// higher one than [`get_position`] read before. A transaction has its number before it takes a position: the default of a
/// position sees to it, and who takes one by itself has locked a row before.
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

/// The low-water marks of a queue and the cursor epoch that they belong to.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    /// `task_queues.cursor_epoch`.
    pub epoch: i64,
    /// For each priority.
    pub marks: [i64; PRIORITIES],
}

/// Low-water marks as columns.
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

/// How long looking for runs below low-water marks may take.
const STRANDED_TIMEOUT: &str = "2s";

/// What lies below marks and must not: the marks are wrong.
#[derive(Debug, Default)]
pub struct Stranded {
    /// Queues with a claimable run at or below one of their low-water marks.
    pub queues: Vec<i32>,
    /// Whether there are events that are taken to be in the log and are not.
    pub events: bool,
}

/// Looks below the marks. One probe of an index for each of them; behind an old snapshot it may run into its timeout.
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

/// Makes every server drop its low-water marks of these queues.
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

/// Moves the low-water marks of queues forward, as far as the safe position allows. `old` marks of another cursor epoch
/// count as zero.
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
