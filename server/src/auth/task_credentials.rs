//! Credentials that a worker gets with a claim, or for one object, made and checked in memory.
//!
//! They are temporary credentials whose issuer is the server itself. The issuer's key is derived
//! from the secret key, and no client can have its name, so no check needs the database.

use chrono::{DateTime, Utc};
use tenure_api::credentials::{Credentials, task_client_id};
use tenure_api::ids::{RunId, TaskId, WorkerGroup, WorkerId};

use super::own_issuer::OwnIssuer;
use tenure_store::secrets::{Purpose, SecretKeys};

/// Contains `~`, which client ids cannot.
pub(super) const ISSUER: &str = "tenure~task-credentials";

/// A claim that needs credentials.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedRun<'a> {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub worker_group: &'a WorkerGroup,
    pub worker_id: &'a WorkerId,
    /// Time of the claim or of its last renewal, by the server's clock.
    pub start: DateTime<Utc>,
    pub taken_until: DateTime<Utc>,
    pub task_scopes: &'a [String],
}

/// Makes and checks the credentials of claims; clones share the keys.
#[derive(Clone)]
pub struct TaskCredentials(OwnIssuer);

impl TaskCredentials {
    /// Derives the issuer from the secret keys.
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self(OwnIssuer::new(ISSUER, keys, Purpose::TaskCredentials))
    }

    /// Issues credentials that can renew, resolve and attach artifacts to this run until the claim
    /// ends, with the scopes of its task.
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

    /// Issues credentials with this name and this single scope, valid from `start` to `end`.
    #[must_use]
    pub fn issue_one(&self, name: String, scope: String, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        self.0.issue(name, vec![scope], start, end)
    }

    pub(super) fn issuer(&self) -> &OwnIssuer {
        &self.0
    }
}
