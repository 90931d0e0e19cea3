//! The channel by which servers wake each other.

use sqlx::PgPool;
use uuid::Uuid;

/// The channel's name.
pub const CHANNEL: &str = "tenure_bell";
/// What a session that listens is called in `pg_stat_activity`.
pub const LISTENER: &str = "tenure-listener";

/// Whether a server besides this one listens.
pub async fn other_listeners(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- other_listeners
        SELECT count(*) > 1 AS "others!" FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1"#,
        LISTENER
    )
    .fetch_one(pool)
    .await
}

/// Rings for these queues.
pub async fn notify(pool: &PgPool, from: Uuid, queues: &[i32]) -> Result<(), sqlx::Error> {
    let mut payload = from.to_string();
    for queue in queues {
        payload.push(',');
        payload.push_str(&queue.to_string());
    }
    sqlx::query!("-- notify\nSELECT pg_notify($1, $2)", CHANNEL, payload).execute(pool).await?;
    Ok(())
}

/// Who rang, and for which queues.
#[must_use]
pub fn read(payload: &str) -> (Option<Uuid>, Vec<i32>) {
    let mut parts = payload.split(',');
    let from = parts.next().and_then(|text| text.parse().ok());
    (from, parts.filter_map(|text| text.parse().ok()).collect())
}
