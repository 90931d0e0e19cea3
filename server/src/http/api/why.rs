//! whyTask: explains a task's current state.

use tenure_api::states::TaskState;
use tenure_api::why::WhyAnswer;

use tenure_domain::policy::why::{Names, why, with_failure};
use tenure_domain::scopes::ScopeSet;
use tenure_engine::ops::why as ops;

use super::task_result::failure_for_caller;
use crate::http::api::prelude::*;

/// `GET /api/tenure/v1/tasks/:taskId/why`
pub fn endpoint() -> Endpoint {
    Endpoint::get("whyTask", why_task).scopes(Scope("queue:status:<taskId>")).described(
        "tenure",
        "Ask why a task is not running, or how it ended",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "All reasons for the task's state, each with a `code`; the reason that must change first comes first. \
             They are read in one snapshot and change nothing. Runs that are claimed before it are counted up to \
             10,000. A worker that asks for work is known within ten seconds, or at once if this is the only server. \
             The names of other tasks and of workers, and who paused the queue and why, are included with the scope \
             `tenure:get-queue:<taskQueueId>`; why the last run failed, with `tenure:get-result:<taskQueueId>`.",
        )
        .answers::<WhyAnswer>(
            "Why",
            &json!({"taskId": sample.task, "state": "pending", "runId": 0, "ready": true, "position": 4, "reasons": [
                {"code": "paused", "by": "root", "since": sample.after(0), "reason": "the build disks are full",
                    "until": sample.after(60)},
                {"code": "behind", "runs": 3},
            ]}),
        )
        .refuses(ResourceNotFound, "the task does not exist")
}

async fn why_task(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let id = call.task_id()?;
    call.no_query()?;
    let known = ops::find(app.engine.why_parts(), id).await?;
    let answer = why(&known.facts, names_for(&call.principal()?.scopes, &known.queue));
    let failure = match answer.state {
        TaskState::Failed | TaskState::Exception => {
            failure_for_caller(&app, &call, id, answer.run_id, &known.queue).await?
        }
        TaskState::Unscheduled | TaskState::Pending | TaskState::Running | TaskState::Completed => None,
    };
    ok(&with_failure(answer, failure))
}

/// Access to names of other tasks and of workers, and to who paused the queue.
pub fn names_for(held: &ScopeSet, queue: &TaskQueueId) -> Names {
    if held.allows(&format!("tenure:get-queue:{queue}")) { Names::Shown } else { Names::Hidden }
}
