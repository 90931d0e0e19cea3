//! Bodies about policies of queues: policy, task options, pause, release, results.
//!
//! Ranges are not checked here: an out-of-range number is parsed, so that the rule that refuses it
//! can name the number and the range.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOf, Object, Schema, Type};

use crate::dates::Timestamp;
use crate::ids::{RunId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use crate::states::{Delivery, Dispatch, KeyBy, LateResult, OnDuplicate, OnSchedulerLoss, RunState};
use crate::structure::{present, present_object};
use crate::whole::present_whole;

/// The policy of a queue. All fields are optional. All times are whole seconds.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePolicy {
    /// The cost of a lost or slow worker. Default `retries`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Maximum duration of a claim, including renewals: then the run ends, and another one follows.
    /// 0, the default: unlimited. No effect under `at-most-once`.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 432_000)]
    pub complete_time: Option<i64>,
    /// Time before a worker can claim the first run of a task. Default 0.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 432_000)]
    pub delay: Option<i64>,
    /// Delay of the next run after a retried failure. Default: none.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<RetryDelay>,
    /// The lease of a claim. Default: that of the server.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 10, maximum = 86_400)]
    pub claim_timeout: Option<i64>,
    /// Who decides which worker gets a run. Default `pull`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<Dispatch>,
    /// How long a worker may take to accept an assigned run; then another worker gets it. 0, the
    /// default: while its session lasts. Only with `dispatch` `assign`.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 3_600)]
    pub accept_time: Option<i64>,
    /// Treatment of a result that a worker reports after its run was taken away. Default `reject`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub late_result: Option<LateResult>,
    /// Treatment of runs when their scheduler is replaced. Default `keep`. Only with `dispatch`
    /// `assign`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub on_scheduler_loss: Option<OnSchedulerLoss>,
    /// Treatment of a new task while an unresolved task has its `unique` name. Default `reject`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub on_duplicate: Option<OnDuplicate>,
    /// Limits of pending tasks, beyond which new ones are refused. Default: unlimited.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub backlog: Option<Backlog>,
    /// The source of a task's key. Default `key`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub key_by: Option<KeyBy>,
    /// Limits of assigned and claimed runs. Default: unlimited.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// Limits of starts per time. Default: unlimited.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rates>,
    /// True for fair sharing between keys. Default: first come, first served.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub fair: Option<bool>,
    /// Name of a partition group: its members may claim tasks of their share only. Not with
    /// `concurrency`, `rate`, `fair` or `dispatch` `assign`. Default: none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub partition: Option<String>,
    /// True: tasks that end as failed or exception, but not cancelled ones, are listed until they
    /// are run again. Default false.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<bool>,
    /// True: a run reported as failed uses up a retry, and another run follows. Default false.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub retry_failed: Option<bool>,
    /// Deadline of a submitted task without `deadline`, in seconds after its creation. Default 366
    /// days.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub deadline_after: Option<i64>,
    /// How long resolved tasks are kept. Default: until `expires`; submitted tasks without
    /// `expires` 7 days if completed, else 30 days.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
}

/// Seconds after its resolution at which a task is purged, unless it expires earlier. Absent or
/// null: it is purged when it expires. `failed` is also for tasks resolved as exception.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retain {
    #[serde(default, deserialize_with = "seconds_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = seconds_or_null_schema)]
    pub completed: Option<i64>,
    #[serde(default, deserialize_with = "seconds_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = seconds_or_null_schema)]
    pub failed: Option<i64>,
}

/// Limits of pending tasks, delayed and waiting ones included: one or both. Claimed runs and
/// unscheduled tasks do not count.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backlog {
    /// Number of tasks.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    pub tasks: Option<i64>,
    /// Bytes of their definitions.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000_000_000_u64)]
    pub bytes: Option<i64>,
}

/// Limits of assigned and claimed runs of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Concurrency {
    /// Of all keys together.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub total: Option<i64>,
    /// Of each key. Tasks without a key are exempt.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000)]
    pub per_key: Option<i64>,
}

/// Limits of starts per time in a queue.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rates {
    /// Of all keys together.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub total: Option<Rate>,
    /// Of each key. Tasks without a key are exempt.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub per_key: Option<Rate>,
}

/// A number of starts per time, evenly spread apart from a burst.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// Number of starts.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub count: i64,
    /// Length of the time, in seconds.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub seconds: i64,
    /// Number of starts that may happen at once, up to `count`. Default 1.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub burst: Option<i64>,
}

/// Delay before the n-th retry of a task: `first` times `factor` to the power of n − 1, at most
/// `most`.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryDelay {
    /// Seconds before the first retry.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 0, maximum = 3_600)]
    pub first: i64,
    /// Ratio of consecutive delays; may be fractional. Default 1.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10)]
    pub factor: Option<f64>,
    /// Maximum delay in seconds. Default 86400.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 86_400)]
    pub most: Option<i64>,
}

/// Options of a task set by its submitter: `extra.tenure` of a task, or `options` of a submitted
/// one. Absent options follow the queue's policy.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskOptions {
    /// Seconds before a worker can claim the first run.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub delay: Option<i64>,
    /// Earliest time to claim the first run; before the deadline. Not together with `delay`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// As in the policy of a queue.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// As in the policy of a queue.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 432_000)]
    pub complete_time: Option<i64>,
    /// As in the policy of a queue.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<RetryDelay>,
    /// As in the policy of a queue.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub retry_failed: Option<bool>,
    /// Key for the queue's limits and fair sharing, if its `keyBy` is `key`: 1 to 255 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub key: Option<String>,
    /// Name that at most one unresolved task of the queue and schedulerId may have: 1 to 255
    /// characters. It is free once its task has ended.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub unique: Option<String>,
    /// As in the policy of a queue. Only with `unique`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub on_duplicate: Option<OnDuplicate>,
    /// The worker that each run waits for, once it is pending and its delay is over. Only where the
    /// queue assigns runs.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub worker: Option<PreferredWorker>,
}

/// The preferred worker of a task.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PreferredWorker {
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Seconds that a run waits for this worker before any worker may have it.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 0, maximum = 3_600)]
    pub wait: i64,
}

/// The policy of a queue and its state.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyOfQueue {
    pub task_queue_id: TaskQueueId,
    /// Grows with each change.
    pub version: i64,
    pub policy: QueuePolicy,
    /// Time of the last change.
    pub updated: Timestamp,
    /// The client that made it.
    pub client_id: String,
    /// Existing runs that may still follow an earlier policy; 0 once all follow this one.
    pub refiling: i64,
}

/// The body of a pause.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// For people: up to 255 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub reason: Option<String>,
    /// Time of automatic resumption. Default: never.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The body of the release of a run.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Delay of the next run in seconds. Default: none, at the position of the released run.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub delay: Option<i64>,
    /// Earliest start of the next run. Not together with `delay`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
}

/// Why a run failed, in its worker's words.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Failure {
    /// 1 to 4,096 bytes.
    #[schema(min_length = 1, max_length = 4_096)]
    pub message: String,
    /// Class of the failure, such as `ValueError`: 1 to 255 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub kind: Option<String>,
    /// Exit code of the command.
    #[serde(default, deserialize_with = "present_whole", skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// The body of reportCompleted and reportFailed. Unknown fields are ignored, because earlier
/// clients may send any body.
#[derive(Deserialize, Debug, Default, ToSchema)]
pub struct ReportedResult<'a> {
    /// Any JSON, up to 65,536 bytes without whitespace.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<Value>)]
    pub result: Option<&'a RawValue>,
    /// Why the run failed. Refused for a completed run.
    #[serde(default, deserialize_with = "present_object")]
    pub failure: Option<Failure>,
    /// False: no other run follows, even with `retryFailed`. Refused for a completed run.
    #[serde(default, deserialize_with = "present")]
    pub retry: Option<bool>,
}

/// Result or failure of a run, or both, as its worker reported them.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskResult<'a> {
    pub task_id: TaskId,
    pub run_id: RunId,
    /// How the run ended.
    pub state: RunState,
    /// Any JSON.
    #[schema(value_type = Option<Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'a RawValue>,
    #[schema(value_type = Option<Failure>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<&'a RawValue>,
}

/// The current state of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueNow {
    pub task_queue_id: TaskQueueId,
    /// Pending runs, without delayed ones.
    pub pending: i64,
    /// Claimed runs.
    pub claimed: i64,
    /// Pending runs that no worker can claim before a certain time.
    pub delayed: i64,
    /// Pending runs in a queue with limits, neither delayed nor assigned, whether or not the limits
    /// let them start.
    pub waiting: i64,
    /// Runs assigned to sessions that have not accepted them yet.
    pub assigned: i64,
    /// Pending runs in a queue without limits that only a pause holds back. 0 in a queue with
    /// limits, unless these were set just now.
    pub ready: i64,
    /// Runs that would start now with enough workers; 0 while the queue is paused.
    pub runnable: i64,
    /// Absent unless paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseOfQueue>,
    /// Absent without a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<i64>,
    /// Absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogOfQueue>,
    /// Failed tasks that wait to be run again, counted up to 10,000.
    pub dead_letters: i64,
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
pub struct BacklogOfQueue {
    /// Pending tasks, delayed and waiting ones included.
    pub tasks: i64,
    /// Bytes of their definitions. Absent without a limit of bytes. Too low while runs are refiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// As in the policy.
    pub limit: Backlog,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct PauseOfQueue {
    pub since: Timestamp,
    /// The client that paused it.
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of automatic resumption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default, ToSchema)]
pub struct QueueCounts {
    /// Pending runs, without delayed ones.
    pub pending: i64,
    /// Claimed runs.
    pub claimed: i64,
    /// Pending runs that no worker can claim before a certain time.
    pub delayed: i64,
    /// Pending runs in a queue with limits, neither delayed nor assigned, whether or not the limits
    /// let them start.
    pub waiting: i64,
    /// Runs assigned to sessions that have not accepted them yet.
    pub assigned: i64,
    /// Pending runs in a queue without limits that only a pause holds back. 0 in a queue with
    /// limits, unless these were set just now.
    pub ready: i64,
    /// Runs that would start now with enough workers; 0 while the queue is paused.
    pub runnable: i64,
}

struct Seconds;

impl Visitor<'_> for Seconds {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
        Ok(i64::try_from(number).unwrap_or(i64::MAX))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<i64, E> {
        // A cast saturates at the limits of the type, which are outside every range.
        if number.fract() == 0.0 { Ok(number as i64) } else { Err(E::invalid_value(Unexpected::Float(number), &self)) }
    }
}

/// Parses a whole number of any size: one too large for the type is outside every range.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    // `deserialize_f64` accepts any number. Otherwise serde_json passes numbers as maps, to
    // preserve all digits.
    deserializer.deserialize_f64(Seconds)
}

/// For optional fields: absent but not null.
pub(crate) fn present_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    seconds(deserializer).map(Some)
}

/// The only field that may be null: the others are absent.
fn seconds_or_null_schema() -> RefOr<Schema> {
    let seconds = Object::builder().schema_type(Type::Integer).minimum(Some(60)).maximum(Some(31_622_400));
    let null = Object::builder().schema_type(Type::Null);
    AnyOf::builder().item(seconds).item(null).into()
}

fn seconds_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    struct Whole(i64);
    impl<'de> Deserialize<'de> for Whole {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            seconds(deserializer).map(Self)
        }
    }
    Ok(Option::<Whole>::deserialize(deserializer)?.map(|whole| whole.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Result<QueuePolicy, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn policy_is_written_in_fixed_order_with_whole_numbers() {
        let text = r#"{"fair": false, "retryDelay": {"most": 60.0, "factor": 1.5, "first": 2e0}, "delay": 30.0,
            "delivery": "at-least-once", "dispatch": "pull"}"#;
        let policy = policy(text).unwrap();
        let expected = r#"{"delivery":"at-least-once","delay":30,"retryDelay":{"first":2,"factor":1.5,"most":60},"dispatch":"pull","fair":false}"#;
        assert_eq!(serde_json::to_string(&policy).unwrap(), expected);
        assert_eq!(serde_json::from_str::<QueuePolicy>(expected).unwrap(), policy);
        assert_eq!(serde_json::to_string(&QueuePolicy::default()).unwrap(), "{}");
    }

    #[test]
    fn whole_numbers_of_any_size_are_read() {
        for (text, read) in [
            ("-1", -1),
            ("432001", 432_001),
            ("1e300", i64::MAX),
            ("-1e300", i64::MIN),
            ("18446744073709551615", i64::MAX),
            ("99999999999999999999999", i64::MAX),
        ] {
            assert_eq!(policy(&format!(r#"{{"delay": {text}}}"#)).unwrap().delay, Some(read), "{text}");
        }
        for text in ["1.5", "\"5\"", "null", "true", "[1]", "{}"] {
            let refused = policy(&format!(r#"{{"delay": {text}}}"#)).unwrap_err();
            assert!(refused.contains("a whole number"), "{text}: {refused}");
        }
    }

    #[test]
    fn report_may_have_null_result() {
        for (text, result) in [
            ("{}", None),
            (r#"{"success": false, "more": [1]}"#, None),
            (r#"{"result": null}"#, Some("null")),
            (r#"{"success": true, "result": {"a": 1.50}}"#, Some(r#"{"a": 1.50}"#)),
        ] {
            let read: ReportedResult<'_> = serde_json::from_str(text).unwrap();
            assert_eq!(read.result.map(RawValue::get), result, "{text}");
        }
    }

    #[test]
    fn wrong_types_are_refused() {
        for text in [
            r#"{"delivery": "sometimes"}"#,
            r#"{"delivery": null}"#,
            r#"{"retryDelay": 5}"#,
            r#"{"retryDelay": null}"#,
            r#"{"retryDelay": [1, 2, 3]}"#,
            r#"{"retryDelay": {}}"#,
            r#"{"retryDelay": {"first": 1, "last": 2}}"#,
            r#"{"retryDelay": {"first": 1, "factor": "2"}}"#,
            r#"{"Delay": 1}"#,
            r#"{"claimtimeout": 20}"#,
            r#"{"dispatch": null}"#,
            r#"{"dispatch": "push"}"#,
            r#"{"keyBy": "project"}"#,
            r#"{"onSchedulerLoss": true}"#,
            r#"{"fair": "yes"}"#,
            r#"{"concurrency": [5]}"#,
            r#"{"concurrency": {"perkey": 5}}"#,
            r#"{"rate": {"total": {"count": 5}}}"#,
            r#"{"rate": {"total": [5, 1]}}"#,
            r#"{"rate": {"total": null}}"#,
        ] {
            assert!(policy(text).is_err(), "{text}");
        }
        for text in [
            r#"{"key": null}"#,
            r#"{"worker": {"workerGroup": "g", "workerId": "w"}}"#,
            r#"{"worker": {"workerGroup": "g g", "workerId": "w", "wait": 5}}"#,
            r#"{"notBefore": 5}"#,
            r#"{"notBefore": "soon"}"#,
            r#"{"copyOf": "x"}"#,
            r#"{"delay": null}"#,
        ] {
            assert!(serde_json::from_str::<TaskOptions>(text).is_err(), "{text}");
        }
    }
}
