//! Credentials that a worker gets with a claim, or for one object, made and checked in memory.
//!
//! They are temporary credentials whose issuer is the server itself. Its key is derived from the secret key, and its
//! name is one that no client can have, so they are checked without the database.

use chrono::{DateTime, Utc};
use tenure_api::credentials::{Credentials, task_client_id};
use tenure_api::ids::{RunId, TaskId, WorkerGroup, WorkerId};

use super::own_issuer::OwnIssuer;
use tenure_store::secrets::{Purpose, SecretKeys};

/// The server's own issuer; `~` is not allowed in the id of a client.
pub(super) const ISSUER: &str = "tenure~task-credentials";

/// A claim for which credentials are to be made.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedRun<'a> {
    /// The claimed task.
    pub task_id: TaskId,
    /// Its run.
    pub run_id: RunId,
    /// The group of the worker that claimed it.
    pub worker_group: &'a WorkerGroup,
    /// The worker that claimed it.
    pub worker_id: &'a WorkerId,
    /// When the claim was made or renewed, by the server's clock.
    pub start: DateTime<Utc>,
    /// When the claim ends.
    pub taken_until: DateTime<Utc>,
    /// The task's own scopes.
    pub task_scopes: &'a [String],
}

/// Makes and checks the credentials of claims; clones share the keys.
#[derive(Clone)]
pub struct TaskCredentials(OwnIssuer);

impl TaskCredentials {
    /// The issuer that these secret keys make.
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self(OwnIssuer::new(ISSUER, keys, Purpose::TaskCredentials))
    }

    /// Credentials that can renew, resolve and attach to this one run until the claim ends, and do what its task may.
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

    /// Credentials of this name that can do this one thing until then.
    #[must_use]
    pub fn issue_one(&self, name: String, scope: String, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        self.0.issue(name, vec![scope], start, end)
    }

    pub(super) fn issuer(&self) -> &OwnIssuer {
        &self.0
    }
}
