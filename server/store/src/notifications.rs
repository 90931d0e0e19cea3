//! The channel on which servers wake each other.

use sqlx::PgPool;
use uuid::Uuid;

use super::worker_removals::Gone;

pub const CHANNEL: &str = "tenure_bell";
/// Role of listening sessions.
pub const LISTENER: &str = "listener";

/// First word of a payload about a stopping worker.
const LEAVING: &str = "leaving";
/// True if another server listens.
pub async fn other_listeners(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- other_listeners
        SELECT count(*) > 1 AS "others!" FROM pg_stat_activity
        -- Servers of other releases listen too.
        WHERE datname = current_database() AND application_name LIKE 'tenure/% ' || $1"#,
        LISTENER
    )
    .fetch_one(pool)
    .await
}

/// Wakes the other servers for these queues.
pub async fn notify(pool: &PgPool, from: Uuid, queues: &[i32]) -> Result<(), sqlx::Error> {
    let mut payload = from.to_string();
    for queue in queues {
        payload.push(',');
        payload.push_str(&queue.to_string());
    }
    sqlx::query!("-- notify\nSELECT pg_notify($1, $2)", CHANNEL, payload).execute(pool).await?;
    Ok(())
}

/// Tells all servers that a worker stops: requests that wait for work in its name must end.
pub async fn notify_leaving(pool: &PgPool, worker: &Gone) -> Result<(), sqlx::Error> {
    let Gone { queue, worker_group, worker_id } = worker;
    // The parts of a worker's name have no spaces.
    let payload = format!("{LEAVING} {queue} {worker_group} {worker_id}");
    sqlx::query!("-- notify_leaving\nSELECT pg_notify($1, $2)", CHANNEL, payload).execute(pool).await?;
    Ok(())
}

pub fn read_leaving(payload: &str) -> Option<Gone> {
    let mut words = payload.strip_prefix(LEAVING)?.strip_prefix(' ')?.split(' ');
    let (queue, worker_group, worker_id) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    Some(Gone { queue, worker_group: worker_group.to_owned(), worker_id: worker_id.to_owned() })
}

/// Returns the sender and the queues.
pub fn read(payload: &str) -> (Option<Uuid>, Vec<i32>) {
    let mut parts = payload.split(',');
    let from = parts.next().and_then(|text| text.parse().ok());
    (from, parts.filter_map(|text| text.parse().ok()).collect())
}
