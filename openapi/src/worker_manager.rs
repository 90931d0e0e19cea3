//! Bodies of the supported part of the Worker Manager API. Field names follow Taskcluster's
//! service.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::credentials::{Credentials, SEED_BYTES, seed};
use crate::dates::Timestamp;
use crate::ids::{TaskQueueId, WorkerGroup, WorkerId};
use crate::schema;
use crate::structure::{object, present, present_object};
use crate::whole::{one, whole};

/// The only provider: workers that are started elsewhere and created here by their provisioner.
pub const STATIC: &str = "static";
pub const CAPACITY_MAX: u16 = 10_000;

const SECRET_CHARS: usize = 44;
const SECRET_PATTERN: &str = "^[a-zA-Z0-9_-]{44}$";

/// A worker's secret; compared in constant time and never printed.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct WorkerSecret(String);

impl WorkerSecret {
    #[must_use]
    pub fn from_random(bytes: [u8; SEED_BYTES]) -> Self {
        Self(seed(bytes))
    }

    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl PartialEq for WorkerSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for WorkerSecret {}

impl fmt::Debug for WorkerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerSecret(secret)")
    }
}

impl<'de> Deserialize<'de> for WorkerSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if text.len() == SECRET_CHARS && text.bytes().all(fits) {
            return Ok(Self(text));
        }
        // The text is not repeated: it may be a mistyped secret.
        Err(serde::de::Error::custom(format_args!("must be {SECRET_CHARS} characters that match {SECRET_PATTERN}")))
    }
}

impl PartialSchema for WorkerSecret {
    fn schema() -> RefOr<Schema> {
        let example = "0".repeat(SECRET_CHARS);
        schema::text("Known to the worker only.", SECRET_PATTERN, &example)
    }
}

impl ToSchema for WorkerSecret {}

/// The body of createWorker.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewWorkerRequest {
    /// End of the worker's access.
    pub expires: Timestamp,
    /// Tasks that it runs at once; for people.
    #[serde(default = "one", deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub capacity: u16,
    #[serde(deserialize_with = "object")]
    pub provider_info: NewProviderInfo,
}

/// Data of a new worker for the static provider.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewProviderInfo {
    /// The worker registers with it.
    pub static_secret: WorkerSecret,
    /// The worker receives it when it registers; not for secrets.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    pub worker_config: Option<Map<String, Value>>,
}

/// The body of updateWorker.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerRequest {
    /// End of the worker's access.
    pub expires: Timestamp,
    /// Tasks that it runs at once; for people.
    #[serde(default = "one", deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub capacity: u16,
    #[serde(default, deserialize_with = "present_object")]
    pub provider_info: Option<ProviderInfo>,
}

/// Data for the static provider.
#[derive(Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderInfo {
    /// The worker registers with it; unchanged if absent.
    #[serde(default, deserialize_with = "present")]
    pub static_secret: Option<WorkerSecret>,
    /// The worker receives it when it registers; not for secrets.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    pub worker_config: Option<Map<String, Value>>,
}

#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// May register.
    Running,
    /// Removed.
    Stopped,
}

#[derive(Serialize, Debug, ToSchema)]
#[schema(as = RegisteredWorker)]
#[serde(rename_all = "camelCase")]
pub struct Worker<'a> {
    /// The worker pool, which is a task queue.
    pub worker_pool_id: &'a TaskQueueId,
    pub worker_group: &'a WorkerGroup,
    pub worker_id: &'a WorkerId,
    /// Always `static`.
    pub provider_id: &'static str,
    pub created: Timestamp,
    /// End of the worker's access.
    pub expires: Timestamp,
    pub last_modified: Timestamp,
    /// When it was created, as in Taskcluster: the static provider has nothing to check.
    pub last_checked: Timestamp,
    pub state: WorkerState,
    /// Tasks that it runs at once.
    pub capacity: u16,
}

#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegisterWorkerRequest {
    /// The worker pool, which is a task queue.
    pub worker_pool_id: TaskQueueId,
    /// Always `static`.
    pub provider_id: String,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    #[serde(deserialize_with = "object")]
    pub worker_identity_proof: StaticProof,
    /// Start time of the machine. Newer workers send it; the server ignores it.
    #[serde(default, deserialize_with = "present")]
    pub system_boot_time: Option<Timestamp>,
}

/// The proof of the static provider; there is no other.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StaticProof {
    /// The secret given to createWorker.
    pub static_secret: WorkerSecret,
}

#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegisterWorkerResponse<'a> {
    /// Expiry of the credentials; the worker must register again before.
    pub expires: Timestamp,
    /// Credentials for the worker's requests.
    pub credentials: Credentials,
    /// The configuration given to createWorker, or `{}`.
    #[schema(value_type = Object)]
    pub worker_config: &'a serde_json::value::RawValue,
    /// For reregisterWorker.
    pub secret: WorkerSecret,
}

#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReregisterWorkerRequest {
    /// The worker pool, which is a task queue.
    pub worker_pool_id: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// From the last answer.
    pub secret: WorkerSecret,
}

#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReregisterWorkerResponse {
    /// Expiry of the credentials; the worker must register again before.
    pub expires: Timestamp,
    /// Credentials for the worker's further requests.
    pub credentials: Credentials,
    /// For the next reregisterWorker.
    pub secret: WorkerSecret,
}

#[derive(Serialize, Debug, ToSchema)]
pub struct ShouldTerminate {
    /// True if the worker should stop.
    pub terminate: bool,
    /// Why, or why not.
    pub reason: &'static str,
}

/// The answer to workerRemoved.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    /// Number of the worker's claims that this request has ended.
    pub claims_ended: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(secret: &str) -> serde_json::Result<WorkerRequest> {
        let info = serde_json::json!({"staticSecret": secret});
        let body = serde_json::json!({"expires": "2030-01-01T00:00:00Z", "providerInfo": info});
        serde_json::from_value(body)
    }

    #[test]
    fn secret_has_44_characters_and_is_never_shown() {
        let secret = "hush-".repeat(9)[..44].to_owned();
        let read = request(&secret).unwrap();
        assert!(!format!("{read:?}").contains("hush"));
        for wrong in [&secret[1..], &format!("{secret}x"), &secret.replace('-', "/"), ""] {
            let error = request(wrong).unwrap_err().to_string();
            assert!(error.contains("44") && !error.contains("hush"), "{error}");
        }
        assert_eq!(WorkerSecret::from_random([7; SEED_BYTES]).expose().len(), SECRET_CHARS);
    }

    #[test]
    fn worker_request_defaults_to_capacity_one() {
        let read = |text: &str| serde_json::from_str::<WorkerRequest>(text);
        assert_eq!(read(r#"{"expires":"2030-01-01T00:00:00Z"}"#).unwrap().capacity, 1);
        for wrong in [
            r"{}",
            r#"{"expires":"2030-01-01T00:00:00Z","capacity":null}"#,
            r#"{"expires":"2030-01-01T00:00:00Z","capacity":-1}"#,
            r#"{"expires":"2030-01-01T00:00:00Z","providerInfo":null}"#,
            r#"{"expires":"2030-01-01T00:00:00Z","providerInfo":{"staticSecret":null}}"#,
            r#"{"expires":"2030-01-01T00:00:00Z","providerInfo":{"workerConfig":[]}}"#,
            r#"{"expires":"2030-01-01T00:00:00Z","providerInfo":{"other":1}}"#,
            r#"{"expires":"2030-01-01T00:00:00Z","state":"running"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
