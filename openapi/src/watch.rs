//! The bodies of the call by which a worker without a session learns that runs of its own have ended.
//!
//! Ranges are not checked here: a number that is out of its range is read, so that the rule that refuses it can name both.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{RunId, TaskId};
use crate::policy::seconds;
use crate::states::{EndedBy, ReasonResolved, RunState};
use crate::structure::objects;
use crate::work::run_id;

/// How many runs one request may watch.
pub const WATCHED_MAX: usize = 1_000;
/// How many seconds one request may wait for the first that ends.
pub const WATCH_WAIT_MAX: i64 = 30;

/// The runs that a worker holds.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchClaimsRequest {
    /// The runs.
    #[serde(deserialize_with = "objects")]
    #[schema(min_items = 1, max_items = 1_000)]
    pub runs: Vec<WatchedRun>,
    /// How many seconds to wait for the first that ends.
    #[serde(default = "wait_default", deserialize_with = "seconds")]
    #[schema(minimum = 0, maximum = 30, default = 30)]
    pub wait: i64,
}

fn wait_default() -> i64 {
    WATCH_WAIT_MAX
}

/// A run that is watched.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchedRun {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    #[serde(deserialize_with = "run_id")]
    pub run_id: RunId,
}

/// Those of the runs that no worker holds.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchedClaims {
    /// Each once; none if the wait was over first.
    pub ended: Vec<EndedClaim>,
    /// The server's time.
    pub server_time: Timestamp,
}

/// A run that no worker holds.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndedClaim {
    /// The task.
    pub task_id: TaskId,
    /// The run.
    pub run_id: RunId,
    /// How the run ended; `pending` if it waits for a worker. Absent if there is no such run, or no such task any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// Why it ended; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_resolved: Option<ReasonResolved>,
    /// What ended it, where `reasonResolved` does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"taskId": "fN1SbArXTPSVFNUvaOlinQ", "runId": 0}"#;

    fn read(body: &str) -> Result<WatchClaimsRequest, String> {
        serde_json::from_str(body).map_err(|error| error.to_string())
    }

    #[test]
    fn a_wait_may_be_absent() {
        let request = read(&format!(r#"{{"runs": [{RUN}]}}"#)).unwrap();
        assert_eq!((request.runs.len(), request.wait), (1, WATCH_WAIT_MAX));
        for (wait, read_as) in [("2.0", 2), ("-1", -1), ("70000", 70_000)] {
            assert_eq!(read(&format!(r#"{{"runs": [{RUN}], "wait": {wait}}}"#)).unwrap().wait, read_as);
        }
    }

    #[test]
    fn what_is_unknown_null_or_of_another_type_is_refused() {
        for (body, message) in [
            ("{}".to_owned(), "missing field `runs`"),
            (r#"{"runs": null}"#.to_owned(), "invalid type: null"),
            (r#"{"runs": [["fN1SbArXTPSVFNUvaOlinQ", 0]]}"#.to_owned(), "expected an object"),
            (r#"{"runs": [{"taskId": "fN1SbArXTPSVFNUvaOlinQ"}]}"#.to_owned(), "missing field `runId`"),
            (RUN.replace('}', r#", "x": 1}"#).replace('{', r#"{"runs": [{"#) + "]}", "unknown field `x`"),
            (format!(r#"{{"runs": [{}]}}"#, RUN.replace('0', "1001")), "from 0 to 1000"),
            (format!(r#"{{"runs": [{RUN}], "wait": null}}"#), "a whole number"),
            (format!(r#"{{"runs": [{RUN}], "wait": 0.5}}"#), "a whole number"),
            (format!(r#"{{"runs": [{RUN}], "since": 1}}"#), "unknown field `since`"),
        ] {
            let refused = read(&body).unwrap_err();
            assert!(refused.contains(message), "{body}: {refused}");
        }
    }
}
