//! Keys of a queue by their waiting runs.

use sqlx::PgConnection;

use super::{begin_part, end_part};

/// First waiting runs of a queue whose keys are compared.
pub const WAITING_READ: i64 = 2_000;

/// Lists the keys with the most runs among the first [`WAITING_READ`] waiting ones. None on timeout.
pub async fn list_waiting_keys(
    conn: &mut PgConnection,
    queue: i32,
    limit: i64,
) -> Result<Option<Vec<String>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let keys = sqlx::query_scalar!(
        r#"-- page_waiting_keys
        WITH first AS MATERIALIZED (
            SELECT p.key_id FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[]) AS m(priority)
            CROSS JOIN LATERAL (
                SELECT p.key_id FROM pending p
                WHERE p.queue = $1 AND p.priority = m.priority AND p.hold = 2 /* Hold::Waiting */ ORDER BY p.ord LIMIT $2
            ) p
            LIMIT $2 /* WAITING_READ */
        ),
        grouped AS MATERIALIZED (SELECT f.key_id, count(*) AS runs FROM first f GROUP BY f.key_id)
        SELECT k.key AS "key!" FROM grouped g JOIN admission_keys k ON k.id = g.key_id
        ORDER BY g.runs DESC, k.key LIMIT $3"#,
        queue,
        WAITING_READ,
        limit
    )
    .fetch_all(&mut *part)
    .await;
    end_part(part, keys).await
}
