//! Bodies of Tenure's own call for workers: report results and claim tasks in one request.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{QueueName, RunId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId, queue_name};
use crate::partitions::PartitionClaim;
use crate::policy::{Failure, present_seconds};
use crate::states::ExceptionReason;
use crate::structure::{objects, present, present_object};
use crate::text;
use crate::whole::whole;

/// Per request.
pub const RESULTS_MAX: usize = 100;
/// Per request.
pub const CLAIM_MAX: u16 = 100;
/// In seconds.
pub const WAIT_MAX: u16 = 20;

/// Results of a worker, and a request for more tasks.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkRequest {
    /// The queue of the reported and of the claimed runs.
    #[serde(deserialize_with = "queue_name")]
    #[schema(value_type = QueueName)]
    pub task_queue_id: TaskQueueId,
    /// The worker that holds the reported runs and claims further ones.
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// The runs that have ended, each once. Default: none.
    #[serde(default, deserialize_with = "objects")]
    #[schema(max_items = 100)]
    pub results: Vec<RunResult>,
    /// Maximum number of tasks to claim. Default 0, which claims nothing and does not wait.
    #[serde(default, deserialize_with = "whole")]
    #[schema(maximum = 100, default = 0)]
    pub claim: u16,
    /// Longest wait for the first task, in seconds; a server may wait for less.
    #[serde(default = "wait_default", deserialize_with = "whole")]
    #[schema(maximum = 20, default = 20)]
    pub wait: u16,
    /// The worker's session, if any: the claims end with it at the latest.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Only tasks of this share of a partition group. Default: tasks of all shares.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionClaim>,
}

fn wait_default() -> u16 {
    WAIT_MAX
}

/// The end of a run.
#[derive(Serialize, Deserialize, Debug, Clone, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunResult {
    pub task_id: TaskId,
    #[serde(deserialize_with = "run_id")]
    pub run_id: RunId,
    pub outcome: RunOutcome,
    /// Required with the outcome `exception`, and only allowed there.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub reason: Option<ExceptionReason>,
    /// Any JSON, up to 65,536 bytes without whitespace. Only with `completed` and `failed`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// Why the run failed. Only with `failed` and `exception`.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// False: no other run follows, even with `retryFailed`. Only with `failed`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// Delay of the next run in seconds; only with `intermittent-task`.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 86_400)]
    pub retry_after: Option<i64>,
    /// Delay of the next run in seconds; only with `released`.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub delay: Option<i64>,
    /// Earliest start of the next run; only with `released`, and not together with `delay`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
}

impl RunResult {
    #[must_use]
    pub fn new(task_id: TaskId, run_id: RunId, outcome: RunOutcome) -> Self {
        Self {
            task_id,
            run_id,
            outcome,
            reason: None,
            result: None,
            failure: None,
            retry: None,
            retry_after: None,
            delay: None,
            not_before: None,
        }
    }
}

/// The outcome of a run, as its worker reports it.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    /// Success: reportCompleted.
    Completed,
    /// The task itself failed: reportFailed.
    Failed,
    /// It failed for a reason outside the task: reportException.
    Exception,
    /// The worker releases the run, which has not failed: releaseTask.
    Released,
}

impl<'de> Deserialize<'de> for RunOutcome {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::word(deserializer, &["completed", "failed", "exception", "released"], |found| match found {
            "completed" => Some(Self::Completed),
            "failed" => Some(Self::Failed),
            "exception" => Some(Self::Exception),
            "released" => Some(Self::Released),
            _ => None,
        })
    }
}

fn run_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RunId, D::Error> {
    let too_high = || serde::de::Error::custom(format!("the number of a run is from 0 to {}", RunId::MAX));
    RunId::new(whole(deserializer)?).ok_or_else(too_high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = r#""taskQueueId": "acme/linux", "workerGroup": "g", "workerId": "w""#;

    fn read(fields: &str) -> Result<WorkRequest, String> {
        serde_json::from_str(&format!("{{{WORKER}{fields}}}")).map_err(|error| error.to_string())
    }

    fn with_result(fields: &str) -> Result<WorkRequest, String> {
        read(&format!(r#", "results": [{{"taskId": "fN1SbArXTPSVFNUvaOlinQ", {fields}}}]"#))
    }

    #[test]
    fn only_queue_and_worker_are_required() {
        let request = read("").unwrap();
        assert_eq!((request.results.len(), request.claim, request.wait), (0, 0, WAIT_MAX));
        let request = read(r#", "claim": 3.0, "wait": 0"#).unwrap();
        assert_eq!((request.claim, request.wait), (3, 0));
    }

    #[test]
    fn queue_name_may_be_short() {
        let read = |queue: &str| {
            let body = WORKER.replace("acme/linux", queue);
            serde_json::from_str::<WorkRequest>(&format!("{{{body}}}")).map(|request| request.task_queue_id.to_string())
        };
        assert_eq!(read("mail").unwrap(), "default/mail");
        assert!(read("send_mail").unwrap_err().to_string().contains("Try \"send-mail\""));
    }

    #[test]
    fn result_has_run_outcome_and_optional_reason() {
        let request = with_result(r#""runId": 2, "outcome": "exception", "reason": "internal-error""#).unwrap();
        let result = &request.results[0];
        assert_eq!(result.run_id.number(), 2);
        assert_eq!((result.outcome, result.reason), (RunOutcome::Exception, Some(ExceptionReason::InternalError)));
        assert_eq!(with_result(r#""runId": 1000.0, "outcome": "failed""#).unwrap().results[0].reason, None);
    }

    #[test]
    fn result_may_be_null() {
        for (fields, result) in [
            (r#""runId": 0, "outcome": "completed""#, None),
            (r#""runId": 0, "outcome": "completed", "result": null"#, Some("null")),
            (r#""runId": 0, "outcome": "completed", "result": {"a": 1.50}"#, Some(r#"{"a": 1.50}"#)),
        ] {
            let request = with_result(fields).unwrap();
            assert_eq!(request.results[0].result.as_deref().map(RawValue::get), result, "{fields}");
        }
        let request = with_result(r#""runId": 0, "outcome": "released", "delay": 60"#).unwrap();
        assert_eq!((request.results[0].outcome, request.results[0].delay), (RunOutcome::Released, Some(60)));
    }

    #[test]
    fn unknown_null_or_wrong_fields_are_refused() {
        for (fields, message) in [
            (r#""runId": 1001, "outcome": "failed""#, "from 0 to 1000"),
            (r#""runId": "0", "outcome": "failed""#, "a whole number"),
            (r#""runId": 0, "outcome": "done""#, "unknown variant `done`"),
            (r#""runId": 0, "outcome": "exception", "reason": "claim-expired""#, "unknown variant `claim-expired`"),
            (r#""runId": 0, "outcome": {"failed": null}"#, "expected a string"),
            (r#""runId": 0, "outcome": "failed", "reason": null"#, "expected a string"),
            (r#""runId": 0, "outcome": "failed", "results": {}"#, "unknown field `results`"),
            (r#""runId": 0, "outcome": "released", "delay": null"#, "a whole number"),
            (r#""runId": 0"#, "missing field `outcome`"),
        ] {
            let refused = with_result(fields).unwrap_err();
            assert!(refused.contains(message), "{fields}: {refused}");
        }
        for fields in [r#", "claim": null"#, r#", "wait": -1"#, r#", "results": [[]]"#, r#", "sessionId": "s""#] {
            assert!(read(fields).is_err(), "{fields}");
        }
    }
}
