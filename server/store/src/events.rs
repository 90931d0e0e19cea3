//! The event log: assigns positions to the outbox, and reads events.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::decode::Row;
use super::{advisory, tasks};
use tenure_domain::events::{self, Event, Kind, Subject, Transition, note};
use tenure_domain::task::Group;

/// An `outbox_new.id` up to which all rows were moved into the log, and none can appear. Reads from
/// here skip dead rows that an old snapshot retains. Read it before the snapshot that uses it: rows
/// moved in between are at their old position there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Sequenced(pub i64);

/// Moves new rows into the log, assigns positions and updates the counts. Waits for a server that
/// is doing so. Afterwards, everything committed before the call has a position.
pub async fn sequence(conn: &mut PgConnection, sequenced: Sequenced) -> Result<u64, sqlx::Error> {
    // The second statement must see the commit of the previous lock holder.
    let mut transaction = conn.begin().await?;
    sqlx::query!(
        r#"-- sequencer_turn
        SELECT pg_advisory_xact_lock($1)::text AS "locked?", set_config('enable_seqscan', 'off', true) AS "set?""#,
        advisory::SEQUENCER
    )
    .fetch_one(&mut *transaction)
    .await?;
    let moved = sqlx::query!(
        "-- sequence_events
        WITH moved AS (DELETE FROM outbox_new WHERE id > $1 RETURNING *),
        numbered AS MATERIALIZED (
            SELECT nextval('outbox_id_seq') AS outbox_id, m.* FROM (SELECT * FROM moved ORDER BY id) m
        ),
        kept AS (
            INSERT INTO outbox (id, at, taken_until, kinds, seqs, runs, retries_left, priorities, details) OVERRIDING SYSTEM VALUE
            SELECT outbox_id, at, taken_until, kinds, seqs, runs, retries_left, priorities, details FROM numbered
            WHERE events > 0 /* count */
        ),
        changed AS (
            SELECT d.queue, sum(d.pending) AS pending, sum(d.claimed) AS claimed, COALESCE(sum(d.delayed), 0) AS delayed,
                   COALESCE(sum(d.waiting), 0) AS waiting, COALESCE(sum(d.bytes), 0) AS bytes
            FROM moved m, unnest(m.queues, m.pending, m.claimed, m.delayed, m.waiting, m.bytes)
                AS d(queue, pending, claimed, delayed, waiting, bytes)
            GROUP BY d.queue
            -- A queue that had a task is listed from then on, also if the task came and went between two turns.
            HAVING sum(d.pending) <> 0 /* count */ OR sum(d.claimed) <> 0 /* count */ OR sum(d.delayed) <> 0 /* count */
                OR sum(d.waiting) <> 0 /* count */ OR sum(d.bytes) <> 0 /* count */
                OR NOT EXISTS (SELECT FROM counters c WHERE c.queue = d.queue)
            ORDER BY d.queue
        ),
        counted AS (
            INSERT INTO counters AS c (queue, pending, claimed, delayed, waiting, bytes)
            SELECT queue, pending, claimed, delayed, waiting, bytes FROM changed
            ON CONFLICT (queue) DO UPDATE
                SET pending = c.pending + EXCLUDED.pending, claimed = c.claimed + EXCLUDED.claimed,
                    delayed = c.delayed + EXCLUDED.delayed, waiting = c.waiting + EXCLUDED.waiting, bytes = c.bytes + EXCLUDED.bytes
        ),
        next AS MATERIALIZED (
            SELECT COALESCE((SELECT first + events FROM outbox_order ORDER BY first DESC LIMIT 1), 1) AS position
        )
        INSERT INTO outbox_order (first, events, outbox_id)
        SELECT next.position + sum(events) OVER (ORDER BY outbox_id) - events, events, outbox_id FROM numbered, next
        -- Changes of counts may come without an event.
        WHERE events > 0 /* count */",
        sequenced.0
    )
    .execute(&mut *transaction)
    .await?
    .rows_affected();
    transaction.commit().await?;
    Ok(moved)
}

#[derive(Debug)]
pub enum Page {
    /// The events, and the last position read. Omits events of purged tasks.
    Events(Vec<Event>, i64),
    /// The cursor points to purged events; reading may start after this position.
    Gone(i64),
}

struct OutboxRow {
    first: i64,
    events: i32,
    at: DateTime<Utc>,
    taken_until: Option<DateTime<Utc>>,
    kinds: Vec<i16>,
    seqs: Vec<i64>,
    runs: Vec<i16>,
    retries_left: Vec<i16>,
    priorities: Option<Vec<i16>>,
    details: Option<Vec<String>>,
}

pub async fn read(conn: &mut PgConnection, after: i64, limit: usize) -> Result<Page, sqlx::Error> {
    let rows = sqlx::query_as!(
        OutboxRow,
        r#"-- read_events
        SELECT o.first, o.events, x.at, x.taken_until, x.kinds, x.seqs, x.runs, x.retries_left, x.priorities, x.details
        FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
        WHERE o.first >= COALESCE((SELECT max(first) FROM outbox_order WHERE first <= $1), 0)
        ORDER BY o.first LIMIT $2"#,
        after + 1,
        i64::try_from(limit).unwrap_or(i64::MAX)
    )
    .fetch_all(&mut *conn)
    .await?;
    // The log has no gaps: without the next event, it begins later.
    if let Some(oldest) = rows.first().map(|row| row.first)
        && after < oldest - 1
    {
        return Ok(Page::Gone(oldest - 1));
    }
    let wanted = cut(rows, after, limit)?;
    let end = wanted.last().map_or(after, |(position, found)| {
        let last = position + found.events() - 1;
        last.min(after.saturating_add(i64::try_from(limit).unwrap_or(i64::MAX)))
    });
    let seqs: Vec<i64> = wanted.iter().filter_map(|(_, found)| found.seq()).collect();
    let subjects = load_subjects(conn, &seqs).await?;
    let events = wanted
        .into_iter()
        // Events of expired tasks are omitted.
        .flat_map(|(position, found)| match found {
            OutboxEntry::Transition(seq, transition) => events::render(&transition, subjects.get(&seq), position),
            OutboxEntry::Note(at, details) => note::render(at, &details, position).into_iter().collect(),
            OutboxEntry::Unknown(_) => Vec::new(),
        })
        .filter(|event| event.position > after)
        .take(limit)
        .collect();
    Ok(Page::Events(events, end))
}

enum OutboxEntry {
    /// A transition of the task with this `seq`.
    Transition(i64, Transition),
    /// Time and details.
    Note(DateTime<Utc>, String),
    /// Entries of a later release with this many events, which readers skip.
    Unknown(i64),
}

impl OutboxEntry {
    fn events(&self) -> i64 {
        match self {
            Self::Transition(_, transition) => i64::try_from(transition.kind.exchanges().len()).unwrap_or_default(),
            Self::Note(..) => 1,
            Self::Unknown(events) => *events,
        }
    }

    fn seq(&self) -> Option<i64> {
        match self {
            Self::Transition(seq, _) => Some(*seq),
            Self::Note(..) | Self::Unknown(_) => None,
        }
    }
}

/// Returns the entries of a page, each with its first position.
fn cut(rows: Vec<OutboxRow>, after: i64, limit: usize) -> Result<Vec<(i64, OutboxEntry)>, sqlx::Error> {
    let columns = Row { table: "outbox", task: Uuid::nil() };
    let mut wanted = Vec::new();
    let end = after.saturating_add(i64::try_from(limit).unwrap_or(i64::MAX));
    for row in rows {
        let mut next = row.first;
        let widths = events::widths(&row.kinds, i64::from(row.events));
        let transitions = row.kinds.iter().zip(&row.seqs).zip(&row.runs).zip(&row.retries_left).zip(widths);
        for (place, ((((&code, &seq), &run), &retries_left), width)) in transitions.enumerate() {
            let position = next;
            next += width;
            if next <= after + 1 || position > end {
                continue;
            }
            let details = row.details.as_ref().and_then(|details| details.get(place)).cloned();
            let found = if code == note::KIND {
                OutboxEntry::Note(row.at, details.unwrap_or_default())
            } else if let Some(kind) = Kind::from_code(code) {
                let run = columns.run(run)?;
                let retries_left = columns.retries(retries_left)?;
                let (at, taken_until) = (row.at, row.taken_until);
                let priority = row.priorities.as_ref().and_then(|priorities| priorities.get(place));
                let priority = priority.map(|&code| columns.priority(code)).transpose()?;
                #[cfg(feature = "test-util")]
                let priority = priority.filter(|_| !crate::breakage::is_on(crate::breakage::Breakage::EventDrift));
                OutboxEntry::Transition(seq, Transition { kind, run, retries_left, priority, at, taken_until, details })
            } else {
                OutboxEntry::Unknown(width)
            };
            wanted.push((position, found));
        }
    }
    Ok(wanted)
}

async fn load_subjects(conn: &mut PgConnection, seqs: &[i64]) -> Result<HashMap<i64, Subject>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- load_subjects
        SELECT d.seq, d.id, d.routes, d.tags, d.task_group AS group_id, COALESCE(g.scheduler, d.scheduler) AS "scheduler!",
               -- The group of a lone task has no row.
               COALESCE(g.expires, group_expires(d.expires)) AS "expires!", g.sealed AS "sealed?",
               (SELECT o.unique_name FROM task_options o WHERE o.seq = d.seq) AS "unique_name?"
        FROM task_definitions d LEFT JOIN task_groups g ON g.id = d.task_group WHERE d.seq = ANY($1)"#,
        seqs
    )
    .fetch_all(&mut *conn)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let mut loaded = tasks::load(conn, &ids).await?;
    rows.into_iter()
        .filter_map(|row| loaded.remove(&row.id).map(|loaded| (row, loaded.task)))
        .map(|(row, task)| {
            let id = Row { table: "task_groups", task: row.id }.slug("id", row.group_id)?;
            let group = Group { id, scheduler: row.scheduler, expires: row.expires, sealed: row.sealed };
            let routes = serde_json::from_str(&row.routes).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
            let tags = events::raw_tags(&row.tags);
            Ok((row.seq, Subject { task, group, routes, tags, unique: row.unique_name }))
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// A reader may start after this position or a later one.
    pub oldest: i64,
    /// Position of the newest event, or 0.
    pub newest: i64,
    /// True if some events have no position yet.
    pub unsequenced: bool,
}

/// Returns the range of the log in one read, because waiting readers poll it. The log has no row
/// before `begins`.
pub async fn get_ends(conn: &mut PgConnection, sequenced: Sequenced, begins: i64) -> Result<Ends, sqlx::Error> {
    sqlx::query_as!(
        Ends,
        r#"-- event_ends
        SELECT COALESCE((SELECT first FROM outbox_order WHERE first >= $2 ORDER BY first LIMIT 1), 1) - 1 AS "oldest!",
               COALESCE((SELECT first + events FROM outbox_order ORDER BY first DESC LIMIT 1), 1) - 1 AS "newest!",
               EXISTS (SELECT FROM unsequenced($1)) AS "unsequenced!""#,
        sequenced.0,
        begins
    )
    .fetch_one(conn)
    .await
}

/// Returns the position of the newest event, or 0.
pub async fn get_newest(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let newest = sqlx::query_scalar!(
        r#"-- newest_event
        SELECT first + events - 1 AS "newest!" FROM outbox_order ORDER BY first DESC LIMIT 1"#
    )
    .fetch_optional(conn)
    .await?;
    Ok(newest.unwrap_or_default())
}

#[derive(Debug)]
pub enum Stretch {
    /// The events, and the last position read, which may be later: events of expired tasks are
    /// omitted.
    Events(Vec<Event>, i64),
    /// The cursor points to purged events; reading may start after this position.
    Gone(i64),
    /// The cursor is past the newest position, which is given here. It is from another log, or the
    /// log has lost its end.
    Ahead(i64),
}

/// Reads up to `limit` events after a position, in one snapshot: events purged meanwhile are all
/// returned, or all reported as gone.
pub async fn read_on(conn: &mut PgConnection, after: i64, limit: usize) -> Result<Stretch, sqlx::Error> {
    let mut snapshot = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let newest = get_newest(&mut snapshot).await?;
    let page = read(&mut snapshot, after, limit).await?;
    snapshot.commit().await?;
    if after > newest {
        return Ok(Stretch::Ahead(newest));
    }
    Ok(match page {
        Page::Gone(oldest) => Stretch::Gone(oldest),
        Page::Events(events, _) => {
            let looked_at = after.saturating_add(i64::try_from(limit).unwrap_or(i64::MAX)).min(newest).max(after);
            let through = events.last().map_or(looked_at, |event| event.position.max(looked_at));
            Stretch::Events(events, through)
        }
    })
}

/// Returns the age in seconds of the oldest event in the log, 0 if there is none. Reads from
/// `begins`, like [`purge`].
pub async fn get_oldest_age(conn: &mut PgConnection, begins: i64) -> Result<f64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- get_oldest_event
        SELECT COALESCE(extract(epoch FROM (SELECT now FROM db_now) - (
            SELECT (SELECT x.at FROM outbox x WHERE x.id = o.outbox_id) FROM outbox_order o
            WHERE o.first >= $1 ORDER BY o.first LIMIT 1
        )), 0)::float8 AS "seconds!""#,
        begins
    )
    .fetch_one(conn)
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    pub rows: u64,
    /// A position before which the log has no row.
    pub begins: i64,
}

/// Purges events older than `retention`, except the newest, whose position the next event
/// continues, and undelivered events of active subscriptions.
///
/// Reads from `begins` to the first retained row, since the log has no gaps, so the cost does not
/// depend on its length. Without `begins`, it would scan dead rows that are not vacuumed yet or
/// retained by an old snapshot.
pub async fn purge(
    conn: &mut PgConnection,
    begins: i64,
    retention: std::time::Duration,
    limit: i64,
) -> Result<Purged, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- purge_events
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        delivered AS MATERIALIZED (SELECT min(position) AS position FROM subscriptions WHERE suspended IS NULL),
        -- By position alone: with a condition on the age here, the whole log would be tested when nothing is old.
        oldest AS MATERIALIZED (
            SELECT o.first, o.outbox_id FROM outbox_order o
            WHERE o.first >= $3 AND o.first < (SELECT max(first) FROM outbox_order)
              -- What a pass has not processed yet is retained.
              AND o.first <= LEAST((SELECT min(position) FROM log_readers), (SELECT position FROM delivered))
              -- The end of a row may not be delivered yet.
              AND o.first + o.events - 1 <= COALESCE((SELECT position FROM delivered), o.first + o.events)
            ORDER BY o.first LIMIT $2
        ),
        tested AS MATERIALIZED (
            -- A subquery for each row, and arrays of keys below, so that the planner never reads a whole table.
            SELECT o.first, o.outbox_id, bool_and(
                (SELECT x.at FROM outbox x WHERE x.id = o.outbox_id)
                < (SELECT now FROM db_now) - make_interval(secs => $1)
            ) OVER (ORDER BY o.first) AS old
            FROM oldest o
        ),
        places AS (DELETE FROM outbox_order WHERE first = ANY(ARRAY(SELECT first FROM tested WHERE old))),
        rows AS (DELETE FROM outbox WHERE id = ANY(ARRAY(SELECT outbox_id FROM tested WHERE old)))
        SELECT count(*) FILTER (WHERE old) AS "n!", max(first) FILTER (WHERE old) AS "last?", min(first) AS "first?"
        FROM tested"#,
        retention.as_secs_f64(),
        limit,
        begins
    )
    .fetch_one(conn)
    .await?;
    let begins = row.last.map(|last| last + 1).or(row.first).unwrap_or(begins);
    Ok(Purged { rows: row.n.cast_unsigned(), begins })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_keep_later_positions() {
        const CREATED: i16 = 1;
        const CLAIMED: i16 = 2;
        const LATER: i16 = 1_000;
        let row = |first: i64, kinds: &[i16], events: i32| OutboxRow {
            first,
            events,
            at: DateTime::UNIX_EPOCH,
            taken_until: None,
            kinds: kinds.to_vec(),
            seqs: vec![7; kinds.len()],
            runs: vec![0; kinds.len()],
            retries_left: vec![5; kinds.len()],
            priorities: None,
            details: None,
        };
        let found = |after: i64, limit: usize| -> Vec<(i64, i64, bool)> {
            let rows = vec![row(10, &[CREATED, LATER, CLAIMED, note::KIND], 6), row(16, &[LATER], 3)];
            let all = cut(rows, after, limit).unwrap();
            all.iter().map(|(position, found)| (*position, found.events(), found.seq().is_some())).collect()
        };
        let (created, later, claimed) = ((10, 2, true), (12, 2, false), (14, 1, true));
        let (noted, last) = ((15, 1, false), (16, 3, false));
        assert_eq!(found(9, 100), [created, later, claimed, noted, last]);
        assert_eq!(found(12, 100), [later, claimed, noted, last]);
        assert_eq!(found(13, 1), [claimed]);
        // A reader that finds only unknown entries continues after them.
        assert_eq!(found(15, 100), [last]);
    }
}
