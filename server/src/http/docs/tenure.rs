//! What Tenure has beyond the Queue API, described.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::{
    InputError, InputValidationError, InvalidRequestArguments, RequestConflict, ResourceExpired, ResourceNotFound,
};
use tenure_api::submit::{SubmitRequest, SubmittedTask};

use super::operation::{self, Operation};
use super::queue;
use super::sample::{QUEUE, Sample};
use crate::domain::event_filter::EXCHANGES;
use crate::domain::topic::PATTERN_CHARS_MAX;
use crate::http::api::clock::{Advance, Now};
use crate::http::api::{event_stream, events, submit, task_queues, wait};
use crate::ops::wait::{PATIENCE_DEFAULT, PATIENCE_MAX};

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [submitting(sample), log(sample), clock(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("tenure", name, summary)
}

fn submitting(sample: &Sample) -> Vec<Operation> {
    let build = json!({
        "name": "build",
        "taskQueueId": QUEUE,
        "priority": "medium",
        "payload": {"command": ["make"]},
    });
    let mut test = build.clone();
    test["name"] = "test".into();
    test["dependencies"] = json!(["build"]);
    let mut status = sample.status("pending");
    status["priority"] = "medium".into();
    let seconds = json!({
        "type": "integer",
        "minimum": 0,
        "maximum": PATIENCE_MAX.as_secs(),
        "default": PATIENCE_DEFAULT.as_secs(),
    });
    let key = json!({"type": "string", "pattern": "^[\\x20-\\x7e]+$", "maxLength": submit::KEY_CHARS_MAX});
    vec![
        operation("createTasks", "Create one or several tasks, all or none")
            .about(
                "Ids, dates, payload and metadata may be absent: the server makes them. `dependencies` may have the names of \
                 other tasks of the request, in any order, as long as none waits for itself. Every task needs the scopes of \
                 createTask; the fields in the scopes are those of each task.",
            )
            .header(
                submit::IDEMPOTENCY_KEY,
                "Makes it safe to send the request again: for a day, the same key with the same body is answered with the \
                 same tasks as they are then",
                &key,
            )
            .scopes(queue::creating())
            .takes_either::<SubmitRequest<'_>, SubmittedTask<'_>>(&json!({"tasks": [build, test]}))
            .names(&[("taskId", "$response.body#/tasks/0/taskId"), ("taskGroupId", "$response.body#/taskGroupId")])
            .answers::<submit::Body<'_>>(
                "The tasks as they are now, in the order of the request",
                &json!({
                    "taskGroupId": sample.task,
                    "tasks": [{"taskId": sample.task, "name": "build", "status": status}],
                }),
            )
            .refuses(InvalidRequestArguments, "the header `Idempotency-Key` is empty, too long, or not printable ASCII")
            .refuses(
                InputError,
                "as for createTask; or a dependency that is neither an id nor a name of the request, a circle, two tasks of \
                 one id or name, or two groups",
            )
            .refuses(
                RequestConflict,
                "as for createTask; or the `Idempotency-Key` was sent with another body within a day",
            ),
        operation("waitForTask", "Wait until a task is resolved")
            .about("It answers at once if the task is, and otherwise when it is resolved or the time is up.")
            .scopes("queue:status:<taskId>")
            .query("seconds", "How long to wait", &seconds, &json!(5))
            .answers::<wait::Body>(
                "The task, and whether it is resolved",
                &json!({"status": sample.status("completed"), "resolved": true}),
            )
            .refuses(ResourceNotFound, "the task does not exist"),
        operation("listQueues", "List all queues with their counts")
            .about("Every queue that ever had a task pending.")
            .scopes("queue:list-task-queues")
            .answers::<task_queues::Body>(
                "The queues, by name",
                &json!({"queues": [{"taskQueueId": QUEUE, "pendingTasks": 1, "claimedTasks": 0}]}),
            ),
    ]
}

/// A position in the log of events.
fn position() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": i64::MAX - 1})
}

/// The stream is a text; those who read it as events find an object each.
fn stream_schema() -> Value {
    let text = json!({"type": "string"});
    json!({"type": ["string", "object"], "properties": {"id": text, "event": text, "data": text}})
}

/// What the log and the stream of events have in common.
fn reading(operation: Operation, after: &str, example: &Value) -> Operation {
    let position = json!({"oneOf": [position(), {"const": "latest"}]});
    let one = format!("(exchange/taskcluster-queue/v1/)?({})", EXCHANGES.join("|"));
    let list = json!({"type": "string", "pattern": format!("^{one}(,{one})*$")});
    let words = json!({"type": "string", "pattern": r"^[^.]+(\.[^.]+)*$", "maxLength": PATTERN_CHARS_MAX});
    let exchanges = format!("Only events of these exchanges, with commas between them: {}", EXCHANGES.join(", "));
    let pattern = "words with dots between them; `*` stands for one word, `#` (in a URL `%23`) for any number";
    operation
        .scopes("tenure:list-events")
        .query("after", after, &position, example)
        .query("exchange", &exchanges, &list, &Value::Null)
        .query("routingKeyPattern", &format!("Only events whose routing key fits: {pattern}"), &words, &Value::Null)
        .query("route", &format!("Only events of tasks with a route that fits: {pattern}"), &words, &Value::Null)
        .refuses(
            ResourceExpired,
            "events right after this position are no longer kept; the message says where to go on",
        )
}

fn log(sample: &Sample) -> Vec<Operation> {
    let event = json!({
        "position": 2,
        "time": sample.after(0),
        "exchange": "exchange/taskcluster-queue/v1/task-pending",
        "routingKey": format!("primary.{0}.0._._.acme.linux.-.{0}._", sample.task),
        "cc": [],
        "payload": {
            "version": 1,
            "status": sample.status("pending"),
            "runId": 0,
            "task": {"tags": {"kind": "example"}},
        },
    });
    let limits =
        json!({"type": "integer", "minimum": 1, "maximum": events::LIMIT_MAX, "default": events::LIMIT_DEFAULT});
    let lines = format!("retry: 1000\nid: 1\n\nid: 2\nevent: task-pending\ndata: {event}\n\n");
    let after = "Only events after this position; `latest` stands for the newest one.";
    vec![
        reading(
            operation("listEvents", "Read the event log"),
            &format!("{after} Without it, from the beginning"),
            &json!(0),
        )
        .about(
            "Oldest first. The `after` of an answer is what to ask for next, also if there are no events in it: a filter may \
             have let none through. Events are kept for seven days.",
        )
        .query("limit", "How many events at most", &limits, &json!(10))
        .answers::<events::Body>("The events", &json!({"events": [event], "after": 2})),
        reading(
            operation("streamEvents", "Listen to events as they happen"),
            &format!("{after} Without it, new events only"),
            &Value::Null,
        )
        .about(
            "Server-Sent Events, as EventSource in a browser reads them: the event's position is its id, the exchange's short \
             name its type, and what listEvents shows of it its data. An event `gone` with `{\"after\": ...}` says that the \
             reader was too slow and where to go on. The stream ends when the server stops or the caller's right ends.",
        )
        .header(
            event_stream::LAST_EVENT_ID,
            "The last position that was seen, from a reader that comes back; it goes before `after`",
            &position(),
        )
        .answers_with(200, "The stream", "text/event-stream", &stream_schema(), &lines.into())
        .refuses(InputError, "there is no such position yet"),
    ]
}

fn clock(sample: &Sample) -> Vec<Operation> {
    vec![
        operation("getClock", "Read the server's clock")
            .scopes("tenure:clock")
            .answers::<Now>("The time by which everything is stored and compared", &json!({"now": sample.after(0)})),
        operation("advanceClock", "Move the manual clock forward")
            .about(
                "For tests, on a server with `--clock manual`. It answers when everything that fell due has been done.",
            )
            .scopes("tenure:clock")
            .takes::<Advance>(&json!({"seconds": 60}))
            .answers::<Now>("The time after it", &json!({"now": sample.after(1)}))
            .refuses(RequestConflict, "the server's clock is not manual, or would be past the year 9000")
            .refuses(InputValidationError, "`seconds` is negative or more than ten years"),
    ]
}
