//! Credentials for a claim or for one object. They are temporary credentials issued by the server
//! itself, so no check needs the database.

use chrono::{DateTime, Utc};
use tenure_api::credentials::{Credentials, task_client_id};
use tenure_api::ids::{RunId, TaskId, WorkerGroup, WorkerId};

use super::own_issuer::OwnIssuer;
use tenure_store::secrets::{Purpose, SecretKeys};

/// Contains `~`, which client ids cannot.
pub(super) const ISSUER: &str = "tenure~task-credentials";

#[derive(Clone, Copy, Debug)]
pub struct ClaimedRun<'a> {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub worker_group: &'a WorkerGroup,
    pub worker_id: &'a WorkerId,
    /// Claim or last renewal, by the server's clock.
    pub start: DateTime<Utc>,
    pub taken_until: DateTime<Utc>,
    pub task_scopes: &'a [String],
}

/// Clones share the keys.
#[derive(Clone)]
pub struct TaskCredentials(OwnIssuer);

impl TaskCredentials {
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self(OwnIssuer::new(ISSUER, keys, Purpose::TaskCredentials))
    }

    /// They can renew, resolve and attach artifacts to this run, and have the scopes of its task.
    #[must_use]
    pub fn issue(&self, claim: &ClaimedRun<'_>) -> Credentials {
        let ClaimedRun { task_id, run_id, worker_group, worker_id, start, taken_until, task_scopes } = *claim;
        let of_this_run = ["queue:reclaim-task:", "queue:resolve-task:", "queue:create-artifact:"];
        let mut scopes = Vec::with_capacity(of_this_run.len() + task_scopes.len());
        scopes.extend(of_this_run.iter().map(|scope| format!("{scope}{task_id}/{run_id}")));
        scopes.extend_from_slice(task_scopes);
        let name = task_client_id(task_id, run_id, worker_group, worker_id, taken_until.timestamp());
        self.0.issue(name, scopes, start, taken_until)
    }

    #[must_use]
    pub fn issue_one(&self, name: String, scope: String, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        self.0.issue(name, vec![scope], start, end)
    }

    pub(super) fn issuer(&self) -> &OwnIssuer {
        &self.0
    }
}
