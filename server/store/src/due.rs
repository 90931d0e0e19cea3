//! Rows of `due`, each with many tasks that wait for a date.
//!
//! - A task begins in a row due at the first deadline of its tasks. An unresolved task is in such a
//!   row, and in no second one.
//! - Handling the deadline moves it to a row due when the first of its tasks may be purged.
//! - A task that may be purged before its deadline gets a row of the second kind when the groups
//!   pass reads its end. So it is in two rows, and after a rerun in more.
//!
//! A live task never leaves its last row. Its purge removes it from the row that was due, and from
//! the row of its deadline if that is the first deadline there. In other rows its `seq` stays until
//! they are due, which ignore it. Of the rows of one deadline, [`SAME_DEADLINE_MAX`] are searched.
//!
//! A row is locked before it is changed, so its `ctid` is stable until the transaction ends.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

/// Maximum tasks per row. A row is read as a whole when one of its tasks is due.
pub(crate) const DUE_TASKS_MAX: i64 = 100;
/// Rows per deadline that are searched for purged tasks.
const SAME_DEADLINE_MAX: i64 = 20;

/// `ctid` of a row locked by this transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ctid(pub(crate) String);

fn texts(places: &[Ctid]) -> Vec<&str> {
    places.iter().map(|place| place.0.as_str()).collect()
}

/// Refiles rows with deadlines. Resolved tasks among `locked` move on to wait for their purge; the
/// others keep their deadlines. Purged tasks are dropped. Returns the number moved.
pub(crate) async fn refile_deadlines(
    transaction: &mut PgConnection,
    places: &[Ctid],
    locked: &[Uuid],
) -> Result<usize, sqlx::Error> {
    let dealt_with = sqlx::query_scalar!(
        r#"-- refile_deadlines
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- A run that was claimed while this transaction waited for its row is still unresolved.
        dealt_with AS MATERIALIZED (
            SELECT seq FROM tasks WHERE id = ANY($2 /* locked */) AND state > 1 /* State: resolved */
        ),
        members AS MATERIALIZED (
            SELECT x.ctid AS place, d.seq, d.id, d.deadline, d.expires, d.seq IN (SELECT seq FROM dealt_with) AS done
            FROM due x CROSS JOIN LATERAL unnest(x.seqs) AS s(seq) JOIN task_definitions d ON d.seq = s.seq
            WHERE x.ctid = ANY($1::text[]::tid[] /* places */)
        ),
        remaining AS MATERIALIZED (
            SELECT place, min(deadline) AS deadline, array_agg(seq) AS seqs FROM members WHERE NOT done GROUP BY place
        ),
        updated AS (
            UPDATE due x SET deadline = r.deadline, seqs = r.seqs FROM remaining r WHERE x.ctid = r.place
        ),
        deleted AS (
            DELETE FROM due x WHERE x.ctid = ANY($1::text[]::tid[]) AND x.ctid NOT IN (SELECT place FROM remaining)
        ),
        kept AS MATERIALIZED (
            -- A subquery for each row, so that the planner never reads all tasks.
            SELECT m.seq, (
                SELECT kept_until(t.state, (SELECT r.resolved FROM runs r WHERE r.seq = t.seq AND r.run = t.run), m.expires,
                                  q.retain_completed, q.retain_failed)
                FROM tasks t JOIN task_queues q ON q.id = t.queue WHERE t.id = m.id) AS until
            FROM members m WHERE m.done
        ),
        -- Not before the clock: the low-water mark of the expiries may be there already.
        filed AS (
            INSERT INTO due (expires, seqs)
            SELECT GREATEST(min(k.until), min(db_now.now)), array_agg(k.seq)
            FROM (SELECT seq, until, row_number() OVER (ORDER BY until) AS n FROM kept) k, db_now
            GROUP BY (k.n - 1) / $3 /* DUE_TASKS_MAX */
        )
        SELECT count(*) AS "n!" FROM members WHERE done"#,
        &texts(places) as &[&str],
        locked,
        DUE_TASKS_MAX
    )
    .fetch_one(transaction)
    .await?;
    Ok(usize::try_from(dealt_with).unwrap_or(usize::MAX))
}

/// Drops purged tasks from rows whose deadline is one of `deadlines`. Skips locked rows.
pub(crate) async fn drop_purged(
    transaction: &mut PgConnection,
    deadlines: &[DateTime<Utc>],
) -> Result<(), sqlx::Error> {
    if deadlines.is_empty() {
        return Ok(());
    }
    let places = sqlx::query_scalar!(
        r#"-- lock_deadlines_of_purged
        SELECT x.place::text AS "place!" FROM unnest($1::timestamptz[]) AS i(deadline)
        CROSS JOIN LATERAL (
            SELECT x.ctid AS place, x.seqs FROM due x WHERE x.deadline = i.deadline LIMIT $2 FOR UPDATE SKIP LOCKED
        ) x
        WHERE EXISTS (
            SELECT FROM unnest(x.seqs) AS s(seq)
            WHERE (SELECT d.seq FROM task_definitions d WHERE d.seq = s.seq) IS NULL)"#,
        deadlines,
        SAME_DEADLINE_MAX
    )
    .fetch_all(&mut *transaction)
    .await?;
    if !places.is_empty() {
        let places: Vec<Ctid> = places.into_iter().map(Ctid).collect();
        refile_deadlines(transaction, &places, &[]).await?;
    }
    Ok(())
}

/// Refiles rows from which tasks were purged, and rows whose first purge date is later by now.
pub(crate) async fn refile_expiries(transaction: &mut PgConnection, places: &[Ctid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- refile_expiries
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        members AS MATERIALIZED (
            SELECT x.ctid AS place, x.expires AS filed, s.seq,
                   -- Most were purged just now, and a call is expensive.
                   (SELECT purge_date(d.seq, (SELECT now FROM db_now)) FROM task_definitions d WHERE d.seq = s.seq) AS date
            FROM due x CROSS JOIN LATERAL unnest(x.seqs) AS s(seq) WHERE x.ctid = ANY($1::text[]::tid[])
        ),
        -- Not before the date that the row has: it may be later than those of its tasks, and the low-water mark be there already.
        changed AS MATERIALIZED (
            SELECT place, GREATEST(filed, min(date)) AS expires, array_agg(seq) FILTER (WHERE date IS NOT NULL) AS seqs
            FROM members GROUP BY place, filed
            HAVING count(date) < count(*) OR min(date) > (SELECT now FROM db_now)
        ),
        -- Not updated: the index would keep the place of the old version of a row, and the expiry pass goes by the places there.
        kept AS (INSERT INTO due (expires, seqs) SELECT expires, seqs FROM changed WHERE seqs IS NOT NULL)
        DELETE FROM due x WHERE x.ctid = ANY(ARRAY(SELECT place FROM changed))",
        &texts(places) as &[&str]
    )
    .execute(transaction)
    .await?;
    Ok(())
}
