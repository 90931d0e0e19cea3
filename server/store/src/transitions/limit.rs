//! Time limits of claims. Touches `claims` only.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Sets time limits that renewals do not extend, and returns their number. Skips locked claims.
pub async fn set_complete_by(
    transaction: &mut PgConnection,
    claims: &[(i64, i16, DateTime<Utc>)],
) -> Result<usize, sqlx::Error> {
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for &(seq, run, until) in claims {
        columns.0.push(seq);
        columns.1.push(run);
        columns.2.push(until);
    }
    let (seqs, runs, untils) = columns;
    let set = sqlx::query!(
        "-- set_complete_by
        WITH locked AS MATERIALIZED (
            SELECT c.seq, i.until FROM unnest($1::bigint[], $2::smallint[], $3::timestamptz[]) AS i(seq, run, until)
            JOIN claims c ON c.seq = i.seq AND c.run = i.run
            ORDER BY c.seq FOR UPDATE OF c SKIP LOCKED
        )
        UPDATE claims c SET complete_by = l.until FROM locked l WHERE c.seq = l.seq",
        &seqs,
        &runs,
        &untils
    )
    .execute(transaction)
    .await?;
    Ok(usize::try_from(set.rows_affected()).unwrap_or(usize::MAX))
}
