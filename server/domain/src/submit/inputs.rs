//! Local names in payloads for `tenure-worker`: `inputs[].taskId` may be the name of another task
//! of the submission. All other text of a payload stays as it is, also if the payload has another
//! form.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use tenure_api::ids::TaskId;
use tenure_api::submit::SubmittedTask;
use uuid::Uuid;

use crate::json::{self, Unserializable};

/// Payloads without this text need no parsing.
const KEY: &str = "\"inputs\"";

#[derive(Deserialize)]
struct Definition<'a> {
    #[serde(borrow)]
    payload: Payload<'a>,
}

#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
}

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow, rename = "taskId")]
    task_id: &'a RawValue,
}

/// Returns the payloads that have local names, with ids in their places, by entry.
pub(super) fn payloads(
    tasks: &[SubmittedTask<'_>],
    ids: &[TaskId],
) -> Result<Vec<Option<Box<RawValue>>>, Unserializable> {
    let named = tasks.iter().zip(ids).filter_map(|(task, id)| Some((task.name.as_deref()?, *id)));
    let named: HashMap<&str, TaskId> = named.collect();
    let payload = |task: &SubmittedTask<'_>| {
        let text = task.payload.filter(|_| !named.is_empty())?.get();
        with_ids(text, |name| named.get(name).copied())
    };
    tasks.iter().map(|task| payload(task).map(json::raw).transpose()).collect()
}

fn with_ids(payload: &str, id_of: impl Fn(&str) -> Option<TaskId>) -> Option<String> {
    if !payload.contains(KEY) {
        return None;
    }
    let Payload { inputs } = serde_json::from_str(payload).ok()?;
    replace(payload, &inputs, id_of)
}

/// Returns the definition of a task with other tasks in the inputs of its payload, if it has one of
/// the replaced tasks there.
pub(super) fn replaced(definition: &str, replaced: &HashMap<Uuid, TaskId>) -> Option<String> {
    if !definition.contains(KEY) {
        return None;
    }
    let Definition { payload } = serde_json::from_str(definition).ok()?;
    replace(definition, &payload.inputs, |id| replaced.get(&id.parse::<TaskId>().ok()?.uuid()).copied())
}

/// The inputs borrow from the text.
fn replace(text: &str, inputs: &[Input<'_>], id_of: impl Fn(&str) -> Option<TaskId>) -> Option<String> {
    let (mut replaced, mut copied) = (String::new(), 0);
    for Input { task_id } in inputs {
        let raw = task_id.get();
        let Ok(name) = serde_json::from_str::<String>(raw) else { continue };
        let Some(id) = id_of(&name) else { continue };
        let start = raw.as_ptr().addr() - text.as_ptr().addr();
        replaced.push_str(&text[copied..start]);
        replaced.push_str(&format!("\"{id}\""));
        copied = start + raw.len();
    }
    if copied == 0 {
        return None;
    }
    replaced.push_str(&text[copied..]);
    Some(replaced)
}
