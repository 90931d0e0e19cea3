//! The bodies about policies of queues: the policy itself, the options of a task, pause, release, results.
//!
//! Ranges are not checked here: a number that is out of its range is read, so that the rule that refuses it can name both.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use crate::states::{Delivery, Dispatch, KeyBy, OnSchedulerLoss, RunState};
use crate::structure::{present, present_object};

/// The policy of a queue. Each field may be absent. All times are whole seconds.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueuePolicy {
    /// What a lost or slow worker costs. Default `retries`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// How long a claim may last, however often it is renewed: then the run ends, and another one follows. 0: as long as it
    /// is renewed, which is the default. Without effect under `at-most-once`.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 432_000)]
    pub complete_time: Option<i64>,
    /// How long the first run of a task is pending before a worker can claim it. Default 0.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 432_000)]
    pub delay: Option<i64>,
    /// How long the next run waits after a failure that is tried again. Default: not at all.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<RetryDelay>,
    /// The lease of a claim. Default: that of the server.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 10, maximum = 86_400)]
    pub claim_timeout: Option<i64>,
    /// Who decides which worker has a run. Default `pull`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<Dispatch>,
    /// How long a worker may take to accept a run that is assigned to it; then another one gets it. 0: as long as its session
    /// goes on, which is the default. Only with `dispatch` `assign`.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 3_600)]
    pub accept_time: Option<i64>,
    /// What is not built yet is read, so that it is not refused as unknown.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub late_result: Option<Value>,
    /// What becomes of runs when the server that gave them out is replaced. Default `keep`. Only with `dispatch` `assign`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub on_scheduler_loss: Option<OnSchedulerLoss>,
    /// See `lateResult`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub on_duplicate: Option<Value>,
    /// See `lateResult`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub backlog: Option<Value>,
    /// What the key of a task is. Default `key`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub key_by: Option<KeyBy>,
    /// How many runs may be assigned or claimed at a time. Default: any number.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// How many runs may start in a time. Default: any number.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rates>,
    /// Whether keys take turns. Default: first come, first served.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub fair: Option<bool>,
    /// See `lateResult`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub partition: Option<Value>,
    /// See `lateResult`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub dead_letters: Option<Value>,
}

/// How many runs of a queue may be assigned or claimed at a time.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Concurrency {
    /// Of all keys together.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub total: Option<i64>,
    /// Of each key. Tasks without a key are not limited by it.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000)]
    pub per_key: Option<i64>,
}

/// How many runs of a queue may start in a time.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rates {
    /// Of all keys together.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub total: Option<Rate>,
    /// Of each key. Tasks without a key are not limited by it.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub per_key: Option<Rate>,
}

/// So many starts in so many seconds, evenly spread but for a burst.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// How many.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub count: i64,
    /// In how many seconds.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub seconds: i64,
    /// How many of them at once, up to `count`. Default 1.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub burst: Option<i64>,
}

/// How long the n-th retry of a task waits: `first` times `factor` to the power of n − 1, and at most `most`.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryDelay {
    /// Seconds before the first retry.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 0, maximum = 3_600)]
    pub first: i64,
    /// By how much each wait is longer than the one before; need not be whole. Default 1.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10)]
    pub factor: Option<f64>,
    /// The longest wait in seconds. Default 86400.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 86_400)]
    pub most: Option<i64>,
}

/// What the sender of a task decides about it: `extra.tenure` of a task, or `options` of a submitted one. What is absent is as
/// the queue's policy says.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskOptions {
    /// How many seconds the first run is pending before a worker can claim it.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub delay: Option<i64>,
    /// When a worker can claim the first run at the earliest; before the deadline. Not beside `delay`.
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
    /// What limits and turns of the queue go by, where its `keyBy` is `key`: 1 to 255 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub key: Option<String>,
    /// What is not built yet is read, so that it is not refused as unknown.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub unique: Option<Value>,
    /// See `unique`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub on_duplicate: Option<Value>,
    /// The worker that its runs wait for, each so long from when it is pending and its delay is over. Only where the queue assigns runs.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub worker: Option<PreferredWorker>,
}

/// The worker that a task is to have if it can.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PreferredWorker {
    /// Its group.
    pub worker_group: WorkerGroup,
    /// The worker within it.
    pub worker_id: WorkerId,
    /// How many seconds a run waits for it before any worker may have it.
    #[serde(deserialize_with = "seconds")]
    #[schema(minimum = 0, maximum = 3_600)]
    pub wait: i64,
}

/// What is known of the policy of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyOfQueue {
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Grows with each change.
    pub version: i64,
    /// The policy.
    pub policy: QueuePolicy,
    /// When it was changed last.
    pub updated: Timestamp,
    /// Who changed it.
    pub client_id: String,
    /// How many runs that exist may still be treated as before the change; 0 when all follow it.
    pub refiling: i64,
}

/// The body of a pause.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Why, for people: up to 255 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255)]
    pub reason: Option<String>,
    /// When the queue resumes by itself. Default: not.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The body of the release of a run.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    /// How many seconds the next run waits. Default: not at all, and in the place of the released one.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31_622_400)]
    pub delay: Option<i64>,
    /// Until when the next run waits. Not beside `delay`.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
}

/// What reportCompleted and reportFailed take. They had no body, so that anything else in one is ignored.
#[derive(Deserialize, Debug, Default, ToSchema)]
pub struct ReportedResult<'a> {
    /// Any JSON, up to 65,536 bytes without whitespace.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = Option<Value>)]
    pub result: Option<&'a RawValue>,
}

/// What a worker reported beside the end of a run.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskResult<'a> {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// How the run ended.
    pub state: RunState,
    /// What the worker reported: any JSON.
    #[schema(value_type = Value)]
    pub result: &'a RawValue,
}

/// A queue as it is now.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueNow {
    /// The queue.
    pub task_queue_id: TaskQueueId,
    /// Pending runs, without the delayed ones.
    pub pending: i64,
    /// Runs that workers hold.
    pub claimed: i64,
    /// Pending runs that no worker can claim before a certain time.
    pub delayed: i64,
    /// Pending runs of a queue with limits that are neither delayed nor assigned, whether or not the limits let them start now.
    pub waiting: i64,
    /// Pending runs that were given to sessions of workers, which have not accepted them yet.
    pub assigned: i64,
    /// Pending runs of a queue without limits that nothing holds back but a pause. 0 in a queue with limits, unless these were
    /// set just now.
    pub ready: i64,
    /// Runs that would start now if there were workers enough; 0 while the queue is paused.
    pub runnable: i64,
    /// Its pause; absent while it is not paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseOfQueue>,
    /// The version of its policy; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<i64>,
}

/// The pause of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
pub struct PauseOfQueue {
    /// Since when.
    pub since: Timestamp,
    /// Who paused it.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it resumes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The counts of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default, ToSchema)]
pub struct QueueCounts {
    /// Pending runs, without the delayed ones.
    pub pending: i64,
    /// Runs that workers hold.
    pub claimed: i64,
    /// Pending runs that no worker can claim before a certain time.
    pub delayed: i64,
    /// Pending runs of a queue with limits that are neither delayed nor assigned, whether or not the limits let them start now.
    pub waiting: i64,
    /// Pending runs that were given to sessions of workers, which have not accepted them yet.
    pub assigned: i64,
    /// Pending runs of a queue without limits that nothing holds back but a pause. 0 in a queue with limits, unless these were
    /// set just now.
    pub ready: i64,
    /// Runs that would start now if there were workers enough; 0 while the queue is paused.
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
        // A cast ends at the limits of the type, which no range includes.
        if number.fract() == 0.0 { Ok(number as i64) } else { Err(E::invalid_value(Unexpected::Float(number), &self)) }
    }
}

/// Reads a whole number, of any size: one that is too large for the type is out of every range anyway.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    // As for any number, because serde_json shows one of any kind as a map when it is to keep all digits.
    deserializer.deserialize_f64(Seconds)
}

/// Reads one that may be absent but not null.
pub(crate) fn present_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    seconds(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Result<QueuePolicy, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_goes_out_as_it_came_in_but_in_one_order_and_with_whole_numbers() {
        let text = r#"{"fair": false, "retryDelay": {"most": 60.0, "factor": 1.5, "first": 2e0}, "delay": 30.0,
            "delivery": "at-least-once", "dispatch": "pull"}"#;
        let policy = policy(text).unwrap();
        let expected = r#"{"delivery":"at-least-once","delay":30,"retryDelay":{"first":2,"factor":1.5,"most":60},"dispatch":"pull","fair":false}"#;
        assert_eq!(serde_json::to_string(&policy).unwrap(), expected);
        assert_eq!(serde_json::from_str::<QueuePolicy>(expected).unwrap(), policy);
        assert_eq!(serde_json::to_string(&QueuePolicy::default()).unwrap(), "{}");
    }

    #[test]
    fn numbers_of_any_size_are_read_if_they_are_whole() {
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
    fn a_report_has_a_result_if_it_says_so_also_if_that_is_null() {
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
    fn what_does_not_fit_its_type_is_refused() {
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
