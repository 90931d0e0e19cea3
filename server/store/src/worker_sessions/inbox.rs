//! The table `session_inbox`.
//!
//! A worker acknowledges all items up to an id, but transactions commit out of order. So items are
//! inserted without an id, and the first reader assigns one above all earlier ids. An advisory lock
//! serializes this per session, and the assigning statements begin after the lock: all lower ids
//! are committed.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;
use tenure_api::sessions::{InboxEvent, InboxItem};
use tenure_api::states::WorkerCommand;
use tenure_domain::policy::late;
use tenure_domain::session::{COMMANDS_MAX, INBOX_SHOWN_MAX};
use uuid::Uuid;

use crate::advisory;
use crate::codes::Item;
use crate::decode::{Row, Undecodable};
use crate::task_commands::read_command;

/// Maximum number of ids skipped per read, because a client may send any acknowledged id.
const IDS_PASSED_MAX: i64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Stored under this id.
    Item(i64),
    /// The session has ended or does not exist.
    Ended,
    /// [`COMMANDS_MAX`] commands are unacknowledged.
    TooMany,
}

pub async fn command(
    transaction: &mut PgConnection,
    epoch: i64,
    command: WorkerCommand,
    task: Option<TaskId>,
) -> Result<Sent, sqlx::Error> {
    let live = sqlx::query!(
        "-- lock_commanded\nSELECT FROM worker_sessions WHERE epoch = $1 AND ended IS NULL FOR KEY SHARE",
        epoch
    )
    .fetch_optional(&mut *transaction)
    .await?;
    if live.is_none() {
        return Ok(Sent::Ended);
    }
    lock_ids(transaction, &[epoch]).await?;
    let id = sqlx::query_scalar!(
        r#"-- send_command
        INSERT INTO session_inbox (epoch, id, kind, at, command, task)
        SELECT $1, nextval('session_inbox_id'), 2 /* Item::Command */, db_now.now, $2 /* command */, $3 /* task */ FROM db_now
        WHERE (SELECT count(*) FROM session_inbox WHERE epoch = $1 AND command IS NOT NULL) < $4 /* COMMANDS_MAX */
        RETURNING id AS "id!""#,
        epoch,
        command.code(),
        task.map(TaskId::uuid),
        COMMANDS_MAX
    )
    .fetch_optional(transaction)
    .await?;
    Ok(id.map_or(Sent::TooMany, Sent::Item))
}

struct ItemRow {
    epoch: i64,
    id: Option<i64>,
    kind: i16,
    run: Option<i16>,
    command: Option<i16>,
    task: Option<Uuid>,
    state: Option<i16>,
    reason: Option<i16>,
    ended_by: Option<i16>,
    priority: Option<i16>,
    accept_by: Option<DateTime<Utc>>,
    task_command_id: Option<i64>,
    task_command: Option<i16>,
    wanted_until: Option<DateTime<Utc>>,
}

impl ItemRow {
    /// Returns none for an item about a purged run.
    fn read(self) -> Result<Option<(i64, InboxItem)>, Undecodable> {
        let columns = Row { table: "session_inbox", task: self.task.unwrap_or_default() };
        let kind = Item::from_code(self.kind).ok_or_else(|| columns.invalid("kind", self.kind))?;
        let what = match kind {
            Item::RunEnded => {
                let (Some(id), Some(run), Some(state), Some(reason)) = (self.task, self.run, self.state, self.reason)
                else {
                    return Ok(None);
                };
                InboxEvent::RunEnded {
                    task_id: columns.slug("seq", id)?,
                    run_id: columns.run(run)?,
                    state: columns.state(state)?,
                    reason_resolved: columns.reason_resolved(reason)?,
                    ended_by: columns.ended_by(self.ended_by)?,
                    result_counts: false,
                }
            }
            Item::Assigned => {
                let (Some(id), Some(run), Some(priority)) = (self.task, self.run, self.priority) else {
                    return Ok(None);
                };
                InboxEvent::Assigned {
                    task_id: columns.slug("seq", id)?,
                    run_id: columns.run(run)?,
                    priority: columns.priority(priority)?,
                    accept_by: self.accept_by.map(Timestamp::new),
                }
            }
            Item::TaskCommand => {
                let (Some(id), Some(run), Some(command_id), Some(code)) =
                    (self.task, self.run, self.task_command_id, self.task_command)
                else {
                    return Ok(None);
                };
                InboxEvent::TaskCommand {
                    task_id: columns.slug("seq", id)?,
                    run_id: columns.run(run)?,
                    command_id,
                    command: read_command(id, code)?,
                    until: self.wanted_until.map(Timestamp::new),
                }
            }
            Item::Command => {
                let code = self.command.unwrap_or_default();
                InboxEvent::Command {
                    command: WorkerCommand::from_code(code).ok_or_else(|| columns.invalid("command", code))?,
                    task_id: self.task.map(|id| columns.slug("task", id)).transpose()?,
                }
            }
        };
        Ok(self.id.map(|id| (self.epoch, InboxItem { id, what })))
    }
}

/// Returns the items of inboxes after these ids, oldest first, up to [`INBOX_SHOWN_MAX`] per
/// session. Call this outside a transaction: new ids must be committed before they are returned.
pub async fn read_inboxes(
    conn: &mut PgConnection,
    readers: &[(i64, i64)],
) -> Result<Vec<(i64, InboxItem)>, sqlx::Error> {
    let acknowledged = readers.iter().map(|(_, after)| *after).max().unwrap_or_default();
    let passed = if acknowledged > 0 { pass_ids(conn, acknowledged).await? } else { None };
    // These readers have acknowledged higher ids. Their items get ids at a later read, which has
    // skipped more.
    let is_ahead = |after: i64| passed.is_some_and(|passed| after > passed);
    let ahead: HashSet<i64> = readers.iter().filter(|(_, after)| is_ahead(*after)).map(|(epoch, _)| *epoch).collect();
    let mut rows = read(conn, readers).await?;
    let unread = rows.iter().filter(|row| row.id.is_none() && !ahead.contains(&row.epoch));
    let mut unread: Vec<i64> = unread.map(|row| row.epoch).collect();
    unread.dedup();
    if !unread.is_empty() {
        give_ids(conn, &unread).await?;
        rows = read(conn, readers).await?;
    }
    let items = rows.into_iter().map(ItemRow::read).filter_map(Result::transpose);
    let mut items: Vec<(i64, InboxItem)> = items.collect::<Result<_, _>>()?;
    mark_late_results(conn, &mut items).await?;
    Ok(items)
}

/// Marks ended runs whose results may still count. Without such runs it reads no policy. Runs have
/// the queue of their session.
async fn mark_late_results(conn: &mut PgConnection, items: &mut [(i64, InboxItem)]) -> Result<(), sqlx::Error> {
    let mut ended: Vec<(i64, &mut bool)> = Vec::new();
    for (epoch, item) in items {
        if let InboxEvent::RunEnded { ended_by: Some(by), result_counts, .. } = &mut item.what
            && late::may_count(*by)
        {
            ended.push((*epoch, result_counts));
        }
    }
    if ended.is_empty() {
        return Ok(());
    }
    let epochs: Vec<i64> = ended.iter().map(|(epoch, _)| *epoch).collect();
    let first_wins = sqlx::query_scalar!(
        "-- list_first_wins
        SELECT s.epoch FROM worker_sessions s JOIN task_queues q ON q.id = s.queue
        WHERE s.epoch = ANY($1) AND q.late_results",
        &epochs
    )
    .fetch_all(conn)
    .await?;
    for (epoch, result_counts) in ended {
        *result_counts = first_wins.contains(&epoch);
    }
    Ok(())
}

async fn read(conn: &mut PgConnection, readers: &[(i64, i64)]) -> Result<Vec<ItemRow>, sqlx::Error> {
    let (epochs, afters): (Vec<i64>, Vec<i64>) = readers.iter().copied().unzip();
    sqlx::query_as!(
        ItemRow,
        r#"-- read_inboxes
        SELECT r.epoch AS "epoch!", i.id AS "id?", i.kind AS "kind!", i.run AS "run?", i.command AS "command?",
               COALESCE(i.task, d.id) AS task, i.state AS "state?", i.reason_resolved AS "reason?", i.ended_by AS "ended_by?",
               i.priority AS "priority?", i.accept_by AS "accept_by?",
               i.task_command_id AS "task_command_id?", i.task_command AS "task_command?", i.wanted_until AS "wanted_until?"
        FROM unnest($1::bigint[] /* epochs */, $2::bigint[] /* after */) AS r(epoch, after)
        CROSS JOIN LATERAL (
            SELECT i.id, i.kind, i.seq, i.run, i.command, i.task, p.priority, p.held_until AS accept_by,
                   k.id AS task_command_id, k.command AS task_command, k.wanted_until, x.state, x.reason_resolved, x.ended_by
            FROM session_inbox i
            LEFT JOIN LATERAL (
                SELECT p.seq, p.priority, p.held_until FROM pending p
                WHERE i.kind = 4 /* Item::Assigned */ AND p.seq = i.seq AND p.run = i.run AND p.session = i.epoch
                  AND p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ LIMIT 1
            ) p ON true
            LEFT JOIN LATERAL (
                SELECT k.id, k.command, k.wanted_until FROM task_commands k
                WHERE i.kind = 5 /* Item::TaskCommand */ AND k.seq = i.seq LIMIT 1
            ) k ON true
            LEFT JOIN LATERAL (
                SELECT x.state, x.reason_resolved, x.ended_by FROM runs x
                WHERE i.kind = 1 /* Item::RunEnded */ AND x.seq = i.seq AND x.run = i.run LIMIT 1
            ) x ON true
            WHERE i.epoch = r.epoch AND (i.id > r.after OR i.id IS NULL)
              -- A run that was purged, one that was accepted or taken back, and a command that was carried out or is too old, is no item
              -- any more. Left out here, so that many of them hide no other.
              AND (i.kind <> 1 /* Item::RunEnded */ OR x.state IS NOT NULL)
              AND (i.kind <> 4 /* Item::Assigned */ OR p.seq IS NOT NULL)
              AND (i.kind <> 5 /* Item::TaskCommand */ OR k.id IS NOT NULL)
            ORDER BY i.id LIMIT $3 /* INBOX_SHOWN_MAX */
        ) i
        LEFT JOIN LATERAL (SELECT d.id FROM task_definitions d WHERE d.seq = i.seq LIMIT 1) d ON true
        ORDER BY r.epoch, i.id"#,
        &epochs,
        &afters,
        INBOX_SHOWN_MAX
    )
    .fetch_all(conn)
    .await
}

/// Skips ids up to `acknowledged`. A failover may lose ids that workers have acknowledged, with
/// their items. A new item with such an id would be deleted unseen. Returns the last skipped id,
/// which may be lower; none if nothing was skipped.
async fn pass_ids(conn: &mut PgConnection, acknowledged: i64) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- pass_ids
        SELECT max(nextval('session_inbox_id')) AS "last?" FROM session_inbox_id s
        CROSS JOIN LATERAL generate_series(s.last_value + 1, LEAST($1::bigint, s.last_value + $2::bigint /* IDS_PASSED_MAX */)) n"#,
        acknowledged,
        IDS_PASSED_MAX
    )
    .fetch_one(conn)
    .await
}

async fn give_ids(conn: &mut PgConnection, epochs: &[i64]) -> Result<(), sqlx::Error> {
    let mut transaction = conn.begin().await?;
    lock_ids(&mut transaction, epochs).await?;
    sqlx::query!(
        "-- number_items
        UPDATE session_inbox i SET id = n.id
        FROM (SELECT u.epoch, u.entry, nextval('session_inbox_id') AS id
              FROM (SELECT epoch, entry FROM session_inbox WHERE epoch = ANY($1) AND id IS NULL ORDER BY entry) u) n
        WHERE i.epoch = n.epoch AND i.entry = n.entry",
        epochs
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await
}

/// Locks the assignment of ids for these sessions until the end of the transaction.
pub(crate) async fn lock_ids(transaction: &mut PgConnection, epochs: &[i64]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"-- lock_inboxes
        SELECT pg_advisory_xact_lock($2, e.hash) AS "locked: ()"
        FROM (SELECT hashint8(epoch) AS hash FROM unnest($1::bigint[]) AS i(epoch) ORDER BY hash) e"#,
        epochs,
        advisory::INBOXES
    )
    .fetch_all(transaction)
    .await?;
    Ok(())
}
