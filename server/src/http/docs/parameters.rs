//! Parameters of paths: what each name means, wherever it stands.

use serde_json::{Value, json};
use tenure_api::ids::{ProvisionerId, RunId, TaskGroupId, TaskId, TaskQueueId, WorkerType};
use utoipa::PartialSchema;

use super::sample::{QUEUE, Sample};
use crate::domain::roles::ROLE_ID_MAX;
use crate::store::clients::CLIENT_ID_MAX;

/// The parameters that stand in a path.
pub(super) fn of_path(path: &str, sample: &Sample) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name);
    names.map(|name| one(name, sample)).collect()
}

fn one(name: &str, sample: &Sample) -> Value {
    let text = json!({"type": "string"});
    let (about, schema, example) = match name {
        "taskId" => ("The task", of::<TaskId>(), json!(sample.task)),
        "taskGroupId" => ("The group; by default that of its first task's id", of::<TaskGroupId>(), json!(sample.task)),
        "runId" => ("The number of the run, from 0", of::<RunId>(), json!(0)),
        "taskQueueId" => ("The queue; its slash may be written `%2F` or as it is", of::<TaskQueueId>(), json!(QUEUE)),
        "provisionerId" => ("The first half of the queue's id", of::<ProvisionerId>(), json!("acme")),
        "workerType" => ("The second half of the queue's id", of::<WorkerType>(), json!("linux")),
        "queue" => {
            let pattern = json!({"type": "string", "pattern": "^queue-[0-9]+-[1-7]$"});
            ("The queue of messages, from pollTaskUrls", pattern, json!("queue-1-4"))
        }
        "messageId" => {
            let uuid = json!({"type": "string", "format": "uuid"});
            ("The message's `MessageId`", uuid, json!("00000001-0000-4000-8000-000000000001"))
        }
        "clientId" => {
            let pattern = json!({"type": "string", "pattern": "^[A-Za-z0-9!@/:.+|_-]+$", "maxLength": CLIENT_ID_MAX});
            ("The client", pattern, json!("ci"))
        }
        "roleId" => {
            let pattern = json!({"type": "string", "pattern": "^[\\x20-\\x7e]+$", "maxLength": ROLE_ID_MAX});
            ("The role", pattern, json!("submitter"))
        }
        "file" => ("The file's name", text, json!("index.html")),
        // A test refuses a document with a parameter that nobody described.
        _ => ("", text, Value::Null),
    };
    json!({"in": "path", "name": name, "required": true, "description": about, "schema": schema, "example": example})
}

/// The schema without its own description and examples, which would be shown instead of the parameter's.
fn of<T: PartialSchema>() -> Value {
    let mut schema = serde_json::to_value(T::schema()).unwrap_or_default();
    if let Value::Object(fields) = &mut schema {
        fields.remove("description");
        fields.remove("examples");
    }
    schema
}
