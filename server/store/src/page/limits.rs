//! State of the limits of several queues.

use std::collections::HashMap;

use chrono::DateTime;
use sqlx::PgConnection;
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::held_by::LimitsNow;

use crate::admission::runnable::{self, Allowed};

/// Reads the limits of these queues. Queues without limits are omitted.
pub async fn list_limits(
    conn: &mut PgConnection,
    queues: &HashMap<i32, Counted>,
) -> Result<HashMap<i32, LimitsNow>, sqlx::Error> {
    let keys: Vec<i32> = queues.keys().copied().collect();
    let limits = runnable::list_limits(conn, &keys).await?;
    let now = limits.iter().filter_map(|(queue, limited)| {
        let counted = *queues.get(queue)?;
        let Allowed::UpTo(_, admission) = limited.allowed(counted) else { return None };
        let unclaimed = counted.pending - counted.waiting;
        let next_start = limited.next_start(admission, unclaimed);
        let now = LimitsNow {
            total: admission.total.map(|total| (total, unclaimed + counted.claimed)),
            next_start: next_start.and_then(|next| DateTime::from_timestamp_micros((next * 1e6) as i64)),
            has_key_limits: limited.has_key_limits(admission),
        };
        Some((*queue, now))
    });
    Ok(now.collect())
}
