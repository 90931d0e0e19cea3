//! claimWork: resolves the queue's key and waits for claims.

use std::time::{Duration, Instant};

use sqlx::PgPool;

use super::OpError;
use crate::batch::wait_list::{Answer, ClaimWork, Share, WaitList};
use tenure_api::ids::TaskQueueId;
use tenure_domain::worker::WorkerKey;
use tenure_store::queues::Queues;

/// Tries per request. Each goes to the other wait list if the queue became limited or unlimited.
const LOOKUPS_MAX: u32 = 10;

/// A claimWork request by queue name.
#[derive(Debug, Clone)]
pub struct Request {
    pub queue: TaskQueueId,
    pub group: String,
    pub id: String,
    /// Epoch of the session that the claims belong to.
    pub session: Option<i64>,
    /// Maximum number of runs.
    pub tasks: u16,
    /// Only runs of this share.
    pub share: Option<Share>,
    /// Maximum wait for the first run.
    pub wait_timeout: Duration,
}

/// Goes on waiting under the queue's new key if the database is replaced meanwhile.
pub async fn claim_work(
    wait_list: &WaitList,
    queues: &Queues,
    pool: &PgPool,
    request: &Request,
) -> Result<Answer, OpError> {
    let until = Instant::now() + request.wait_timeout;
    for _ in 0..LOOKUPS_MAX {
        let queue = queues.get_or_create_key(pool, &request.queue).await?;
        let worker = WorkerKey { queue, group: request.group.clone(), id: request.id.clone() };
        let wait_timeout = until.saturating_duration_since(Instant::now());
        let Request { session, tasks, .. } = *request;
        let share = request.share.clone();
        let claim = ClaimWork { worker, queue: request.queue.clone(), session, tasks, share, wait_timeout };
        match wait_list.claim(claim).await {
            Err(OpError::StaleQueue) => {}
            answer => return answer,
        }
    }
    Err(OpError::Unavailable)
}
