//! Values of examples. A served document has current dates and a new task id, so its examples can
//! be sent unchanged.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub now: DateTime<Utc>,
    pub task: TaskId,
}

pub(in crate::http) const QUEUE: &str = "acme/linux";
pub(in crate::http) const JOB: &str = "Zk1n4cWbQ5aVxT0eJ2h8mA";
pub(in crate::http) const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";

impl Sample {
    /// For the document in the repository.
    #[must_use]
    pub fn fixed() -> Self {
        Self {
            now: DateTime::from_timestamp(1_793_448_000, 0).unwrap_or_default(),
            task: TaskId::from_random([0x42; 16]),
        }
    }

    /// Relative to the task's creation.
    pub(in crate::http) fn after(&self, minutes: i64) -> Value {
        Timestamp::new(self.now + TimeDelta::minutes(minutes)).to_string().into()
    }

    pub(in crate::http) fn new_task(&self) -> Value {
        json!({
            "taskQueueId": QUEUE,
            "priority": "medium",
            "created": self.after(0),
            "deadline": self.after(60),
            "payload": {"command": [["echo", "hello"]]},
            "metadata": {
                "name": "hello",
                "description": "Says hello.",
                "owner": "owner@example.com",
                "source": "https://example.com/hello",
            },
            "tags": {"kind": "example"},
        })
    }

    /// The task of [`Sample::new_task`] as stored.
    pub(in crate::http) fn definition(&self) -> Value {
        let mut task = self.new_task();
        let defaults = json!({
            "provisionerId": "acme",
            "workerType": "linux",
            "schedulerId": "-",
            "projectId": "none",
            "taskGroupId": self.task,
            "dependencies": [],
            "requires": "all-completed",
            "routes": [],
            "retries": 5,
            "expires": self.after(365 * 24 * 60 + 60),
            "scopes": [],
            "extra": {},
        });
        if let (Value::Object(task), Value::Object(defaults)) = (&mut task, defaults) {
            task.extend(defaults);
        }
        task
    }

    /// After its only run reached `state`: `pending`, `running` or a final state.
    pub(in crate::http) fn status(&self, state: &str) -> Value {
        let mut run = json!({"runId": 0, "state": state, "reasonCreated": "scheduled", "scheduled": self.after(0)});
        if state != "pending" {
            run["workerGroup"] = "rack-1".into();
            run["workerId"] = "worker-1".into();
            run["started"] = self.after(1);
            run["takenUntil"] = self.after(21);
        }
        if state != "pending" && state != "running" {
            run["resolved"] = self.after(5);
            run["reasonResolved"] = if state == "exception" { "malformed-payload" } else { state }.into();
        }
        json!({
            "taskId": self.task,
            "provisionerId": "acme",
            "workerType": "linux",
            "taskQueueId": QUEUE,
            "schedulerId": "-",
            "projectId": "none",
            "taskGroupId": self.task,
            "priority": "medium",
            "deadline": self.after(60),
            "expires": self.after(365 * 24 * 60 + 60),
            "retriesLeft": 5,
            "state": state,
            "runs": [run],
        })
    }

    /// As from claimWork or claimTask.
    pub(in crate::http) fn claim(&self) -> Value {
        let mut claim = self.renewed_claim();
        claim["task"] = self.definition();
        claim
    }

    /// As from reclaimTask.
    pub(in crate::http) fn renewed_claim(&self) -> Value {
        json!({
            "status": self.status("running"),
            "runId": 0,
            "workerGroup": "rack-1",
            "workerId": "worker-1",
            "takenUntil": self.after(21),
            "credentials": {
                "clientId": format!("task-client/{}/0/on/rack-1/worker-1/until/{}", self.task, 1_793_449_260),
                "accessToken": "three-dozen-characters-only-the-client-knows",
                "certificate": "{\"version\":1, \"scopes\":[\"queue:resolve-task:...\"], \"...\":\"...\"}",
            },
        })
    }
}
