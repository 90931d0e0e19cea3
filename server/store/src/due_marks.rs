//! Low-water marks of times: for each index of due rows, a time before which it has no row. Passes
//! start there, to skip dead entries that an old snapshot retains.
//!
//! A mark must never pass a row that exists or may still be committed. Existing rows are read. New
//! due times are never before the clock of their transaction, even if a caller gives a past date.
//! So once all transactions open at a time have ended, no earlier due time can be committed: that
//! time is *safe*.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use super::low_water_marks::Writer;

/// Before all stored times.
pub const START: DateTime<Utc> = DateTime::from_timestamp(-200_000_000_000, 0).expect("a date that chrono has");
/// Distance of marks from the safe time: the database clock may be set back this far unnoticed.
const SLACK: TimeDelta = TimeDelta::seconds(2);

/// Clock and sequence of dependency work at one moment.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Reached {
    pub now: DateTime<Utc>,
    /// Last value of `dependency_work.id`.
    pub work: i64,
}

/// Each mark is at or before the earliest time in its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueMarks {
    /// `claims.taken_until`.
    pub claims: DateTime<Utc>,
    /// `claims.complete_by`.
    pub slow: DateTime<Utc>,
    /// `due.deadline`.
    pub deadlines: DateTime<Utc>,
    /// `due.expires`.
    pub tasks: DateTime<Utc>,
    /// `task_groups.expires`.
    pub groups: DateTime<Utc>,
    /// `pending.hidden_until`.
    pub hidden: DateTime<Utc>,
    /// `pending.reserved_until`.
    pub reserved: DateTime<Utc>,
    /// `pending.held_until`.
    pub holds: DateTime<Utc>,
    /// `artifacts.removable`.
    pub artifacts: DateTime<Utc>,
    /// `objects.removable`.
    pub objects: DateTime<Utc>,
    /// `blobs.due`.
    pub blobs: DateTime<Utc>,
    /// `idempotency_keys.created`.
    pub idempotency_keys: DateTime<Utc>,
    /// `purge_requests.purge_before`.
    pub purge_requests: DateTime<Utc>,
    /// `workers.due`.
    pub workers: DateTime<Utc>,
    /// `registered_workers.due`.
    pub registered_workers: DateTime<Utc>,
    /// `live_logs.look_at`.
    pub live_logs: DateTime<Utc>,
    /// `task_commands.sent`.
    pub task_commands: DateTime<Utc>,
    /// `enqueued.try_at`.
    pub enqueued: DateTime<Utc>,
    /// `schedules.try_at`.
    pub schedules: DateTime<Utc>,
    /// `dependency_work.id`: no row is left up to this one.
    pub work: i64,
}

impl Default for DueMarks {
    fn default() -> Self {
        Self {
            claims: START,
            slow: START,
            deadlines: START,
            tasks: START,
            groups: START,
            hidden: START,
            reserved: START,
            holds: START,
            artifacts: START,
            objects: START,
            blobs: START,
            idempotency_keys: START,
            purge_requests: START,
            workers: START,
            registered_workers: START,
            live_logs: START,
            task_commands: START,
            enqueued: START,
            schedules: START,
            work: 0,
        }
    }
}

/// Reads clock and sequences. Transactions that begin afterwards store later values.
pub async fn get_reached(conn: &mut PgConnection) -> Result<Reached, sqlx::Error> {
    sqlx::query_as!(
        Reached,
        r#"-- get_reached
        SELECT (SELECT now FROM db_now) AS "now!",
               (SELECT CASE WHEN is_called THEN last_value ELSE 0 /* id */ END FROM dependency_work_id_seq) AS "work!""#
    )
    .fetch_one(conn)
    .await
}

/// Lists the open transactions of all servers. Those without writes may have read the clock.
pub async fn list_transactions(conn: &mut PgConnection) -> Result<Vec<Writer>, sqlx::Error> {
    sqlx::query_as!(
        Writer,
        r#"-- open_transactions
        SELECT pid AS "pid!", (extract(epoch FROM xact_start) * 1000000)::bigint AS "began!"
        FROM pg_stat_activity
        WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
          AND usename = current_user AND application_name LIKE 'tenure%'"#
    )
    .fetch_all(conn)
    .await
}

/// Advances the marks to the first remaining row, up to the safe time. Reads each index from its
/// mark. Needs a session that plans like the hot ones.
pub async fn advance(conn: &mut PgConnection, old: DueMarks, safe: Reached) -> Result<DueMarks, sqlx::Error> {
    sqlx::query_as!(
        DueMarks,
        r#"-- advance_due_marks
        SELECT COALESCE((SELECT taken_until FROM claims WHERE taken_until >= $3 /* claims */
                         AND taken_until < $1 /* safe time */ ORDER BY taken_until LIMIT 1), $1) AS "claims!",
               COALESCE((SELECT complete_by FROM claims WHERE complete_by >= $17 /* slow */
                         AND complete_by < $1 ORDER BY complete_by LIMIT 1), $1) AS "slow!",
               COALESCE((SELECT deadline FROM due WHERE deadline >= $4 /* deadlines */
                         AND deadline < $1 ORDER BY deadline LIMIT 1), $1) AS "deadlines!",
               COALESCE((SELECT expires FROM due WHERE expires >= $5 /* tasks */
                         AND expires < $1 ORDER BY expires LIMIT 1), $1) AS "tasks!",
               COALESCE((SELECT expires FROM task_groups WHERE expires >= $6 /* groups */
                         AND expires < $1 ORDER BY expires LIMIT 1), $1) AS "groups!",
               COALESCE((SELECT hidden_until FROM pending WHERE hidden_until >= $7 /* hidden */
                         AND hidden_until < $1 ORDER BY hidden_until LIMIT 1), $1) AS "hidden!",
               COALESCE((SELECT reserved_until FROM pending WHERE reserved_until >= $8 /* reserved */
                         AND reserved_until < $1 ORDER BY reserved_until LIMIT 1), $1) AS "reserved!",
               COALESCE((SELECT removable FROM artifacts WHERE removable >= $9 /* artifacts */
                         AND removable < $1 ORDER BY removable LIMIT 1), $1) AS "artifacts!",
               COALESCE((SELECT removable FROM objects WHERE removable >= $10 /* objects */
                         AND removable < $1 ORDER BY removable LIMIT 1), $1) AS "objects!",
               COALESCE((SELECT due FROM blobs WHERE due >= $11 /* blobs */
                         AND due < $1 ORDER BY due LIMIT 1), $1) AS "blobs!",
               COALESCE((SELECT created FROM idempotency_keys WHERE created >= $12 /* keys */
                         AND created < $1 ORDER BY created LIMIT 1), $1) AS "idempotency_keys!",
               COALESCE((SELECT purge_before FROM purge_requests WHERE purge_before >= $13 /* requests */
                         AND purge_before < $1 ORDER BY purge_before LIMIT 1), $1) AS "purge_requests!",
               COALESCE((SELECT due FROM workers WHERE due >= $14 /* workers */
                         AND due < $1 ORDER BY due LIMIT 1), $1) AS "workers!",
               COALESCE((SELECT due FROM registered_workers WHERE due >= $15 /* registered */
                         AND due < $1 ORDER BY due LIMIT 1), $1) AS "registered_workers!",
               COALESCE((SELECT held_until FROM pending WHERE held_until >= $18 /* holds */
                         AND held_until < $1 ORDER BY held_until LIMIT 1), $1) AS "holds!",
               COALESCE((SELECT look_at FROM live_logs WHERE look_at >= $19 /* live logs */
                         AND look_at < $1 ORDER BY look_at LIMIT 1), $1) AS "live_logs!",
               COALESCE((SELECT sent FROM task_commands WHERE sent >= $20 /* commands */
                         AND sent < $1 ORDER BY sent LIMIT 1), $1) AS "task_commands!",
               COALESCE((SELECT try_at FROM enqueued WHERE try_at >= $21 /* enqueued */
                         AND try_at < $1 AND error IS NULL ORDER BY try_at LIMIT 1), $1) AS "enqueued!",
               COALESCE((SELECT try_at FROM schedules WHERE NOT paused AND try_at >= $22 /* schedules */
                         AND try_at < $1 ORDER BY try_at LIMIT 1), $1) AS "schedules!",
               COALESCE((SELECT id - 1 /* id */ FROM dependency_work WHERE id > $16 /* work */
                         AND id <= $2 /* safe work */ ORDER BY id LIMIT 1), $2) AS "work!""#,
        safe.now - SLACK,
        safe.work,
        old.claims,
        old.deadlines,
        old.tasks,
        old.groups,
        old.hidden,
        old.reserved,
        old.artifacts,
        old.objects,
        old.blobs,
        old.idempotency_keys,
        old.purge_requests,
        old.workers,
        old.registered_workers,
        old.work,
        old.slow,
        old.holds,
        old.live_logs,
        old.task_commands,
        old.enqueued,
        old.schedules
    )
    .fetch_one(conn)
    .await
}
