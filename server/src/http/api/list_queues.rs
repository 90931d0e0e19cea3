//! listQueues: all queues with their counts.

use std::collections::HashMap;

use tenure_domain::policy::counts::shown;
use tenure_engine::background::registry::Passes;
use tenure_store::queue_counts::{self, ListedQueue, Listing};

use crate::http::api::prelude::*;

/// All queues.
#[derive(Serialize, ToSchema)]
#[schema(as = Queues)]
struct Body {
    /// Ordered by name.
    queues: Vec<QueueBody>,
}

/// A queue with its counts.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Queue)]
struct QueueBody {
    /// Name of the queue.
    task_queue_id: String,
    /// Runs that wait for a worker.
    pending_tasks: i64,
    /// Runs that a worker holds.
    claimed_tasks: i64,
    /// Pending runs that no worker can claim before a set time; not part of `pendingTasks`.
    delayed_tasks: i64,
    /// Pending runs of a limited queue that are not assigned to a session.
    waiting_tasks: i64,
    /// Runs that would start now, given enough workers; 0 while the queue is paused.
    runnable_tasks: i64,
    /// Start of the pause; absent if the queue is not paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<Timestamp>,
    /// Only with `activity=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    activity: Option<ActivityBody>,
}

/// The oldest runs and the workers of a queue, some seconds ago.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueueActivity)]
struct ActivityBody {
    /// Age in seconds of the oldest run that limits allow to start; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_runnable: Option<i64>,
    /// Age in seconds of the oldest run that waits for a limit, or for its session to accept it;
    /// absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_held: Option<i64>,
    workers: WorkersBody,
}

/// Workers, each in one state.
#[derive(Serialize, ToSchema)]
#[schema(as = QueueWorkerCounts)]
struct WorkersBody {
    /// With a claim.
    working: i64,
    /// Without a claim; contacted a server within a minute.
    idle: i64,
    /// No contact for a minute.
    silent: i64,
    quarantined: i64,
    /// Their sessions take no more tasks.
    frozen: i64,
}

/// Values of the last passes, by queue.
struct Activity {
    oldest: HashMap<String, [f64; 2]>,
    workers: HashMap<String, [f64; 5]>,
}

impl Activity {
    fn new(passes: &Passes) -> Self {
        Self { oldest: passes.problems.oldest.gauges.values(), workers: passes.worker_counts.by_state.values() }
    }

    fn of(&self, queue: &str) -> ActivityBody {
        let [runnable, held] = self.oldest.get(queue).copied().unwrap_or_default();
        let age = |seconds: f64| (seconds > 0.0).then(|| seconds.round() as i64);
        let workers = self.workers.get(queue).copied().unwrap_or_default();
        let [working, idle, silent, quarantined, frozen] = workers.map(|number| number as i64);
        ActivityBody {
            oldest_runnable: age(runnable),
            oldest_held: age(held),
            workers: WorkersBody { working, idle, silent, quarantined, frozen },
        }
    }
}

/// Every queue that is paused or ever had a pending task, by name.
pub fn endpoint() -> Endpoint {
    Endpoint::get("listQueues", list_queues).scopes(Scope("queue:list-task-queues")).described(
        "tenure",
        "List all queues with their counts",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Every queue that has ever had a pending task, or is paused.")
        .query(
            "activity",
            "`true`: also the ages of the oldest runs, at most five seconds old, and the workers, at most half a \
             minute old",
            &json!({"type": "string", "enum": ["true", "false"]}),
            &Value::Null,
        )
        .answers::<Body>(
            "The queues, by name",
            &json!({"queues": [{
                "taskQueueId": QUEUE,
                "pendingTasks": 1,
                "claimedTasks": 0,
                "delayedTasks": 0,
                "waitingTasks": 0,
                "runnableTasks": 1,
            }]}),
        )
}

async fn list_queues(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let query = call.query(&["activity"])?;
    let activity = match query.first().map(|(_, value)| value.as_str()) {
        None | Some("false") => None,
        Some("true") => Some(Activity::new(&app.passes)),
        Some(_) => return Err(ApiError::arguments("the query parameter `activity` must be `true` or `false`")),
    };
    let sequenced = app.engine.sequencer.reached();
    let marks = app.engine.admission_marks.all();
    let mut conn = app.engine.pool.acquire().await?;
    let listed = queue_counts::list(&mut conn, sequenced, Listing::All, &marks).await?;
    drop(conn);
    let queue = |queue: ListedQueue| {
        let counts = shown(queue.counted, queue.assigned, queue.admissible, queue.paused.is_some());
        QueueBody {
            activity: activity.as_ref().map(|activity| activity.of(&queue.name)),
            task_queue_id: queue.name,
            pending_tasks: counts.pending,
            claimed_tasks: counts.claimed,
            delayed_tasks: counts.delayed,
            waiting_tasks: counts.waiting,
            runnable_tasks: counts.runnable,
            paused: queue.paused.map(Timestamp::new),
        }
    };
    ok(&Body { queues: listed.into_iter().map(queue).collect() })
}
