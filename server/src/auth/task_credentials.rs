//! Credentials that a worker gets with a claim, or for one object, made and checked in memory.
//!
//! They are temporary credentials whose issuer is the server itself. Its key is derived from the secret key, and its
//! name is one that no client can have, so the database is never asked about them.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tenure_api::credentials::{
    AccessToken, Certificate, CertificateError, Credentials, Grant, SigningKey, issue, seed, task_client_id,
};
use tenure_api::ids::{RunId, TaskId, WorkerGroup, WorkerId};

use crate::secrets::{Purpose, SecretKeys, random};

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
pub struct TaskCredentials {
    /// The first one signs, all verify; never empty.
    keys: Arc<[SigningKey]>,
}

impl TaskCredentials {
    /// The issuer that these secret keys make.
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self { keys: keys.signing_keys(Purpose::TaskCredentials).into() }
    }

    /// Credentials that can renew, resolve and attach to this one run until the claim ends, and do what its task may.
    #[must_use]
    pub fn issue(&self, claim: &ClaimedRun<'_>) -> Credentials {
        let ClaimedRun { task_id, run_id, worker_group, worker_id, .. } = *claim;
        let until = claim.taken_until.timestamp();
        let of_this_run = ["queue:reclaim-task:", "queue:resolve-task:", "queue:create-artifact:"];
        let mut scopes = Vec::with_capacity(of_this_run.len() + claim.task_scopes.len());
        scopes.extend(of_this_run.iter().map(|scope| format!("{scope}{task_id}/{run_id}")));
        scopes.extend_from_slice(claim.task_scopes);
        let grant = Grant {
            name: Some(task_client_id(task_id, run_id, worker_group, worker_id, until)),
            scopes,
            start_ms: claim.start.timestamp_millis(),
            expiry_ms: claim.taken_until.timestamp_millis(),
            seed: seed(random()),
        };
        issue(ISSUER, &self.keys[0], grant)
    }

    /// Credentials of this name that can do this one thing until then.
    #[must_use]
    pub fn issue_one(&self, name: String, scope: String, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        let grant = Grant {
            name: Some(name),
            scopes: vec![scope],
            start_ms: start.timestamp_millis(),
            expiry_ms: end.timestamp_millis(),
            seed: seed(random()),
        };
        issue(ISSUER, &self.keys[0], grant)
    }

    /// Whether a certificate says that this server made it; [`verify`](Self::verify) tells whether that is true.
    pub(super) fn claims_to_have_issued(certificate: &Certificate, client_id: &str) -> bool {
        certificate.is_named() && certificate.issuer(client_id) == Ok(ISSUER)
    }

    pub(super) fn verify(&self, certificate: &Certificate, client_id: &str) -> Result<AccessToken, CertificateError> {
        let verified = self.keys.iter().find_map(|key| certificate.verify(client_id, key).ok());
        verified.ok_or(CertificateError::Signature)
    }
}
