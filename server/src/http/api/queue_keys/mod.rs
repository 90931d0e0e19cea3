//! The keys of a queue: rules for one key instead of the policy, and the use of each key.

pub mod delete_queue_key;
pub mod get_queue_key;
pub mod list_queue_keys;
pub mod put_queue_key;

use tenure_domain::policy::keys::named;

use crate::http::api::prelude::*;

/// What changes a key takes.
const CHANGING: Template = Scope("tenure:manage-queue:<taskQueueId>");
/// What reading keys takes.
const READING: Template = Scope("tenure:get-queue:<taskQueueId>");
/// Why the key of a path is refused.
const BAD_KEY: &str = "`key` has more than 255 characters";

/// The key in the path, with all its slashes escaped.
fn key(call: &Call) -> Result<String, ApiError> {
    Ok(named(call.text_param("key"))?)
}

fn example_rules() -> Value {
    json!({"concurrency": 5, "weight": 2.0})
}

fn example_key() -> Value {
    json!({"key": "acme", "used": 3, "limit": 5, "waiting": 12, "concurrency": 5, "weight": 2.0})
}
