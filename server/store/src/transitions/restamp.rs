//! Traits of runs that exist, stamped anew because the policy of their queue was changed. The runs stay where they are.
//!
//! What the traits have to be is the SQL function `run_traits`; `engine/tests/it/refile.rs` compares it with
//! [`Terms`](tenure_domain::policy::terms::Terms).

use sqlx::PgConnection;

/// Stamps the traits on those of these runs that are pending or claimed in the queue and have other ones; why they are delayed
/// stays. What another transaction has locked is left out: [`list_differing`] finds it. Answers how many were stamped.
pub async fn restamp(transaction: &mut PgConnection, queue: i32, seqs: &[i64]) -> Result<usize, sqlx::Error> {
    let stamped = sqlx::query_scalar!(
        r#"-- restamp_runs
        WITH wanted AS MATERIALIZED (
            SELECT s.seq,
                   COALESCE(run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most), 0) AS traits
            FROM unnest($2::bigint[]) AS s(seq) CROSS JOIN task_queues q LEFT JOIN task_options o ON o.seq = s.seq
            WHERE q.id = $1
        ),
        pending_locked AS MATERIALIZED (
            SELECT p.seq, w.traits FROM wanted w JOIN pending p ON p.seq = w.seq
            WHERE p.queue = $1 AND COALESCE(p.traits, 0)
                  <> w.traits | COALESCE(p.traits & 224 /* Traits::DELAYED */, 0)
            FOR UPDATE OF p SKIP LOCKED
        ),
        claims_locked AS MATERIALIZED (
            SELECT c.seq, w.traits FROM wanted w JOIN claims c ON c.seq = w.seq
            WHERE c.queue = $1 AND COALESCE(c.traits, 0)
                  <> w.traits | COALESCE(c.traits & 224 /* Traits::DELAYED */, 0)
            FOR UPDATE OF c SKIP LOCKED
        ),
        pending_stamped AS (
            UPDATE pending p
            SET traits = NULLIF(l.traits | COALESCE(p.traits & 224 /* Traits::DELAYED */, 0), 0 /* count */)::smallint
            FROM pending_locked l WHERE p.seq = l.seq
            RETURNING p.seq
        ),
        claims_stamped AS (
            UPDATE claims c
            SET traits = NULLIF(l.traits | COALESCE(c.traits & 224 /* Traits::DELAYED */, 0), 0 /* count */)::smallint
            FROM claims_locked l WHERE c.seq = l.seq
            RETURNING c.seq
        )
        SELECT (SELECT count(*) FROM pending_stamped) + (SELECT count(*) FROM claims_stamped) AS "stamped!""#,
        queue,
        seqs
    )
    .fetch_one(transaction)
    .await?;
    Ok(usize::try_from(stamped).unwrap_or_default())
}

/// Runs of a queue whose traits are not what they have to be, up to `limit`. One statement, in whose snapshot each run is in one
/// place: none is missed because it moves.
pub async fn list_differing(transaction: &mut PgConnection, queue: i32, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- list_to_restamp
        SELECT r.seq AS "seq!"
        FROM (SELECT seq, COALESCE(traits, 0) AS traits FROM pending WHERE queue = $1 AND reserved_until IS NULL
              UNION ALL
              SELECT seq, COALESCE(traits, 0) FROM pending WHERE queue = $1 AND reserved_until < '2999-01-01'
              UNION ALL
              SELECT seq, COALESCE(traits, 0) FROM pending WHERE queue = $1 AND hold IS NOT NULL
              UNION ALL
              -- By an index, and so past the room that claims took which have ended since.
              SELECT seq, COALESCE(traits, 0) FROM claims WHERE taken_until > '-infinity' AND queue = $1) r
        CROSS JOIN task_queues q LEFT JOIN task_options o ON o.seq = r.seq
        WHERE q.id = $1
          AND r.traits <> (
              COALESCE(run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most), 0)
              | (r.traits & 224 /* Traits::DELAYED */)
          )
        LIMIT $2"#,
        queue,
        limit
    )
    .fetch_all(transaction)
    .await
}
