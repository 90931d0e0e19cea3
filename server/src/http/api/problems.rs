//! What needs somebody.

use tenure_api::problems::{Problem, Problems};

use crate::http::api::prelude::*;
use tenure_domain::problems::reduce;

const OF_QUEUE: Template = AnyOf(&[Scope("queue:list-task-queues"), Scope("queue:list-worker-types:<provisionerId>")]);
/// Shows numbers and names.
const OF_QUEUE_IN_FULL: Template = Scope("tenure:get-queue:<taskQueueId>");
const OF_SERVERS: Template = Scope("tenure:list-servers");
const OF_SUBSCRIPTIONS: Template = Scope("tenure:list-subscriptions");

/// `GET /api/tenure/v1/problems`
pub fn list_problems() -> Endpoint {
    Endpoint::get("listProblems", handle_list_problems)
        .scopes(AnyOf(&[
            Scope("queue:list-task-queues"),
            Scope("queue:list-worker-types:*"),
            OF_SERVERS,
            OF_SUBSCRIPTIONS,
        ]))
        .no_pool()
        .described("tenure", "List what needs somebody", describe_list_problems)
}

fn describe_list_problems(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Problems of queues, servers, subscriptions and the database in words, read every five seconds; up to 100 of \
             a kind. A problem ends when its condition does. Problems of queues need a scope that lists the queue, \
             and `tenure:get-queue:<taskQueueId>` for numbers and names. Problems of subscriptions \
             need `tenure:list-subscriptions`, all others `tenure:list-servers`. The server answers 503 while it cannot \
             read the facts.",
        )
        .answers::<Problems>(
            "The problems, most urgent first",
            &json!({"problems": [{
                "kind": "no-worker",
                "severity": "now",
                "object": {"queue": QUEUE},
                "since": sample.after(0),
                "message": "acme/linux has had no worker for 34 m 10 s: 84 tasks can start; the last contact of one was 34 m 10 s ago.",
                "action": "Start a worker, for example: tenure-worker run --task-queue acme/linux --worker-group GROUP --worker-id ID",
            }]}),
        )
}

async fn handle_list_problems(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let found = app.engine.problems.get().ok_or_else(|| {
        ApiError::unavailable("the facts about queues and servers have not been read lately; send the request again")
    })?;
    let mut problems: Vec<Problem> = Vec::new();
    for problem in &found.problems {
        let Some(queue) = &problem.object.queue else {
            let needed = if problem.object.subscription.is_some() { OF_SUBSCRIPTIONS } else { OF_SERVERS };
            if call.is_allowed(&needed, &Values::of_path())? {
                problems.push(problem.clone());
            }
            continue;
        };
        let values =
            Values::of_path().text("provisionerId", queue.provisioner_id()).text("taskQueueId", queue.as_str());
        if call.is_allowed(&OF_QUEUE, &values)? {
            let in_full = call.is_allowed(&OF_QUEUE_IN_FULL, &values)?;
            problems.push(if in_full { problem.clone() } else { reduce(problem) });
        }
    }
    ok(&Problems { problems })
}
