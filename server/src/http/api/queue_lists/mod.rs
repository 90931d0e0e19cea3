//! A queue's tasks: listPendingTasks, listClaimedTasks.

pub mod list_claimed_tasks;
pub mod list_pending_tasks;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::to_json;
use crate::http::api::prelude::*;

const A_PAGE: &str = "A page; with a token if there are more";

/// A run of the examples, as both lists show it.
fn a_run(sample: &Sample) -> Value {
    json!({"taskId": sample.task, "runId": 0, "task": sample.definition()})
}

fn stored(definition: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(definition).map_err(|_| ApiError::internal("a stored definition is not JSON"))
}

pub(super) fn to_token(place: &impl Serialize) -> Result<String, ApiError> {
    Ok(URL_SAFE_NO_PAD.encode(to_json(place)?))
}

/// Where the page begins. A token that is none of this list's begins at the start, as it does in Taskcluster's.
pub(super) fn place<T: DeserializeOwned>(token: Option<String>) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token?).ok()?).ok()
}
