//! Path parameters, with one meaning per name.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::InputError;
use tenure_api::ids::{
    ArtifactName, JobId, ProvisionerId, QueueName, RunId, SessionId, TaskGroupId, TaskId, TaskQueueId, WorkerGroup,
    WorkerId, WorkerType,
};
use utoipa::PartialSchema;

use super::operation::Operation;
use super::sample::{JOB, QUEUE, SESSION, Sample};
use crate::http::api::pages::PAGE_MAX;
use crate::http::declaration::Declaration;
use crate::http::routes::Route;
use tenure_domain::policy::options::KEY_CHARS_MAX;
use tenure_domain::roles::ROLE_ID_MAX;
use tenure_store::clients::CLIENT_ID_MAX;

/// Artifact and object of the examples. Anonymous callers may not read it.
pub(in crate::http) const ARTIFACT: &str = "logs/build.log";
/// Printable ASCII that does not end in two stars.
const ROLE_ID: &str = r"^([\x20-\x7e]*[\x20-)+-\x7e])?\*?$";
const CLIENT_ID: &str = "^[A-Za-z0-9!@/:.+|_-]*$";

pub(in crate::http) fn client_prefix() -> Value {
    json!({"type": "string", "pattern": CLIENT_ID, "maxLength": CLIENT_ID_MAX})
}

/// For an operation without a query.
pub(in crate::http) const UNKNOWN_ARGUMENT: &str = "a query parameter was sent; this operation has none";

pub(in crate::http) fn page_of(field: &str, items: &Value) -> Value {
    let token = json!({"type": "string", "description": "Token of the next page; absent on the last page"});
    json!({
        "type": "object",
        "required": [field],
        "properties": {field: {"type": "array", "items": items}, "continuationToken": token},
    })
}

fn token() -> Value {
    json!({"type": "string", "minLength": 1})
}

pub(in crate::http) fn paged(operation: Operation) -> Operation {
    paged_from_anywhere(operation).refuses(InputError, "`continuationToken` is invalid")
}

/// As [`paged`], but an invalid token means the first page.
pub(in crate::http) fn paged_from_anywhere(operation: Operation) -> Operation {
    paged_up_to(operation, PAGE_MAX)
}

pub(in crate::http) fn paged_up_to(operation: Operation, most: usize) -> Operation {
    let limit = json!({"type": "integer", "minimum": 1, "default": most});
    let about = format!("Maximum entries per page; a larger value is reduced to {most}");
    operation.query("limit", &about, &limit, &Value::Null).query(
        "continuationToken",
        "Token from the previous page",
        &token(),
        &Value::Null,
    )
}

pub(in crate::http) fn names(path: &str) -> Vec<String> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name.to_owned()).collect()
}

pub(in crate::http) fn of_path(route: &Route, sample: &Sample) -> Vec<Value> {
    names(&route.path).iter().map(|name| one(&route.endpoint, name, sample)).collect()
}

fn one(endpoint: &Declaration, name: &str, sample: &Sample) -> Value {
    let text = json!({"type": "string"});
    let (about, schema, example) = match name {
        "taskId" => ("The task", of::<TaskId>(), json!(sample.task)),
        "taskGroupId" => {
            ("The group; by default its id is that of its first task", of::<TaskGroupId>(), json!(sample.task))
        }
        "sessionId" => ("The session, from startSession", of::<SessionId>(), json!(SESSION)),
        "jobId" => ("The job, from startJob", of::<JobId>(), json!(JOB)),
        "runId" => ("The number of the run, from 0", of::<RunId>(), json!(0)),
        "taskQueueId" if endpoint.accepts_short_queue_names() => (
            "The queue; its slash may be encoded as `%2F`, and `mail` means `default/mail`",
            of::<QueueName>(),
            json!(QUEUE),
        ),
        "taskQueueId" => ("The queue; its slash may be encoded as `%2F`", of::<TaskQueueId>(), json!(QUEUE)),
        "provisionerId" => ("The first half of the queue's id", of::<ProvisionerId>(), json!("acme")),
        "workerType" => ("The second half of the queue's id", of::<WorkerType>(), json!("linux")),
        "workerPoolId" => (
            "The worker pool, which is a task queue; its slash may be encoded as `%2F`",
            of::<TaskQueueId>(),
            json!(QUEUE),
        ),
        "workerGroup" => ("The worker's group", of::<WorkerGroup>(), json!("rack-1")),
        "workerId" => ("The worker within its group", of::<WorkerId>(), json!("worker-1")),
        "queue" => {
            let pattern = json!({"type": "string", "pattern": "^queue-[0-9]+-[1-7]$"});
            ("The queue of messages, from pollTaskUrls", pattern, json!("queue-1-4"))
        }
        "messageId" => {
            let uuid = json!({"type": "string", "format": "uuid"});
            ("The message's `MessageId`", uuid, json!("00000001-0000-4000-8000-000000000001"))
        }
        "clientId" => {
            let pattern = json!({"type": "string", "pattern": CLIENT_ID, "minLength": 1, "maxLength": CLIENT_ID_MAX});
            ("The client", pattern, json!("ci"))
        }
        "roleId" => {
            let pattern = json!({"type": "string", "pattern": ROLE_ID, "minLength": 1, "maxLength": ROLE_ID_MAX});
            ("The role", pattern, json!("submitter"))
        }
        "key" => {
            let key = json!({"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX});
            ("The key; encode a slash as `%2F`", key, json!("acme"))
        }
        "scheduleName" => ("The schedule", plain_name(), json!("nightly")),
        "subscriptionName" => ("The subscription", plain_name(), json!("billing")),
        "partitionName" => ("The partition group", plain_name(), json!("mail")),
        "memberId" => {
            let pattern = json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"});
            ("The member", pattern, json!("sender-1"))
        }
        "service" => ("The service", text, json!("queue")),
        "reference" => {
            let names = json!({"enum": ["api.json", "exchanges.json", "metrics.json"]});
            ("The kind of reference", names, json!("api.json"))
        }
        "schema" => ("The schema's file", text, json!("create-task-request.json")),
        "common" => ("The schema's file", text, json!("manifest-v3.json")),
        "name" => ("The name; its slashes may be encoded as `%2F`", of::<ArtifactName>(), json!(ARTIFACT)),
        "artifact" => {
            let whole = format!("artifact/{}/0/public/build.zip", sample.task);
            ("The path of the stored bytes, with its slashes", text, json!(whole))
        }
        "file" => ("The file's name", text, json!("index.html")),
        // A test refuses path parameters without a description.
        _ => ("", text, Value::Null),
    };
    json!({"in": "path", "name": name, "required": true, "description": about, "schema": schema, "example": example})
}

fn plain_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})
}

/// Omits the schema's description and examples, which would hide the parameter's.
fn of<T: PartialSchema>() -> Value {
    let mut schema = serde_json::to_value(T::schema()).expect("a schema is JSON");
    if let Value::Object(fields) = &mut schema {
        fields.remove("description");
        fields.remove("examples");
    }
    schema
}
