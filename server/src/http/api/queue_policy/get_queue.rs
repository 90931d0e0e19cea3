//! getQueue: its counts, its pause, and which policy it has.

use tenure_api::policy::{PauseOfQueue, QueueCounts, QueueNow};

use super::READING;
use crate::http::api::prelude::*;
use tenure_domain::policy::counts::{Counted, shown};
use tenure_domain::policy::pause::Paused;
use tenure_store::queue_counts;

/// `GET /queues/:taskQueueId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getQueue", get_queue).scopes(READING).described(
        "tenure",
        "Count a queue's runs by what holds them, and read its pause",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "A run counts as one of `pending`, `delayed`, `claimed`. `runnable` is what an autoscaler starts machines for: runs \
             that would start now, none while the queue is paused. A queue that does not exist yet has zeros. One whose worker \
             type is `policy`, `keys`, `pause`, `resume` or `workers` is named in one segment here.",
        )
        .answers::<QueueNow>(
            "The queue",
            &json!({"taskQueueId": QUEUE, "pending": 3, "claimed": 1, "delayed": 2, "waiting": 0, "assigned": 0, "ready": 3, "runnable": 0,
                "policyVersion": 1, "pause": {"since": sample.after(0), "by": "root", "reason": "the build disks are full",
                    "until": sample.after(60)}}),
        )
}

async fn get_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let sequenced = app.engine.sequencer.reached();
    let found = queue_counts::find(&mut *app.engine.pool.acquire().await?, sequenced, &queue).await?;
    let counted = found.as_ref().map_or(Counted::default(), |found| found.counted);
    let assigned = found.as_ref().map_or(0, |found| found.assigned);
    let admissible = found.as_ref().map_or(0, |found| found.admissible);
    let policy_version = found.as_ref().and_then(|found| found.policy_version);
    let pause = found.and_then(|found| found.paused);
    let QueueCounts { pending, claimed, delayed, waiting, assigned, ready, runnable } =
        shown(counted, assigned, admissible, pause.is_some());
    ok(&QueueNow {
        task_queue_id: queue,
        pending,
        claimed,
        delayed,
        waiting,
        assigned,
        ready,
        runnable,
        pause: pause.map(|Paused { since, by, reason, until }| PauseOfQueue {
            since: since.into(),
            by,
            reason,
            until: until.map(Timestamp::new),
        }),
        policy_version,
    })
}
