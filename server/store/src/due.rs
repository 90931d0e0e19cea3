//! Rows of `due`, each with many tasks that wait for a date.
//!
//! A task is in one row. Until its deadline was handled, this is a row due at the first deadline of
//! its tasks; then, a row due when the first of them expires. A task that was run again, because
//! the clock was set back before the deadline that ended it, is in both.
//!
//! A row is locked before it is changed, so its `ctid` is stable until the transaction ends.

use sqlx::PgConnection;
use uuid::Uuid;

/// Maximum tasks per row. A row is read as a whole when one of its tasks is due.
pub(crate) const DUE_TASKS_MAX: i64 = 100;

/// `ctid` of a row locked by this transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ctid(pub(crate) String);

fn texts(places: &[Ctid]) -> Vec<&str> {
    places.iter().map(|place| place.0.as_str()).collect()
}

/// Refiles rows with overdue deadlines. Resolved tasks among `locked` move on to wait for their
/// expiry; the others keep their deadlines. Returns the number moved.
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
            SELECT x.ctid AS place, d.seq, d.deadline, d.expires, d.seq IN (SELECT seq FROM dealt_with) AS done
            FROM due x CROSS JOIN LATERAL unnest(x.seqs) AS s(seq) JOIN task_definitions d ON d.seq = s.seq
            WHERE x.ctid = ANY($1::text[]::tid[] /* places */)
        ),
        remaining AS MATERIALIZED (
            SELECT place, min(deadline) AS deadline, array_agg(seq) AS seqs FROM members WHERE NOT done GROUP BY place
        ),
        kept AS (
            UPDATE due x SET deadline = r.deadline, seqs = r.seqs FROM remaining r WHERE x.ctid = r.place
        ),
        deleted AS (
            DELETE FROM due x WHERE x.ctid = ANY($1::text[]::tid[]) AND x.ctid NOT IN (SELECT place FROM remaining)
        ),
        -- Not before the clock: the low-water mark of the expiries may be there already.
        filed AS (
            INSERT INTO due (expires, seqs)
            SELECT GREATEST(min(m.expires), min(db_now.now)), array_agg(m.seq)
            FROM (SELECT seq, expires, row_number() OVER (ORDER BY expires) AS n FROM members WHERE done) m, db_now
            GROUP BY (m.n - 1) / $3 /* DUE_TASKS_MAX */
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

/// Refiles those rows from which tasks were purged.
pub(crate) async fn refile_expiries(transaction: &mut PgConnection, places: &[Ctid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- refile_expiries
        WITH members AS MATERIALIZED (
            SELECT x.ctid AS place, x.expires AS filed, s.seq,
                   (SELECT d.expires FROM task_definitions d WHERE d.seq = s.seq) AS expires
            FROM due x CROSS JOIN LATERAL unnest(x.seqs) AS s(seq) WHERE x.ctid = ANY($1::text[]::tid[])
        ),
        -- Not before the date that the row has: it may be later than those of its tasks, and the low-water mark be there already.
        changed AS MATERIALIZED (
            SELECT place, GREATEST(filed, min(expires)) AS expires, array_agg(seq) FILTER (WHERE expires IS NOT NULL) AS seqs
            FROM members GROUP BY place, filed HAVING count(expires) < count(*)
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
