//! Credentials that a worker gets when it registers.
//!
//! They are temporary credentials whose issuer is the server itself, as those of claims are, but they are valid for days.
//! So each use checks the state of the worker, from memory that is at most a second old: removing a worker revokes its
//! credentials too.

use chrono::{DateTime, Utc};
use tenure_api::credentials::{Certificate, Credentials};

use super::own_issuer::OwnIssuer;
use tenure_domain::registration::{Standing, WorkerName};
use tenure_store::secrets::{Purpose, SecretKeys};
use tenure_store::worker_manager::FoundAccount;

/// The server's own issuer; `~` is not allowed in the id of a client.
pub(super) const ISSUER: &str = "tenure~worker-credentials";

/// A worker of the worker manager, as authentication needs it.
pub(super) struct WorkerAccount {
    pub(super) name: WorkerName,
    pub(super) found: FoundAccount,
}

impl WorkerAccount {
    /// Whether the certificate is this worker's, and not that of one which had the name before.
    pub(super) fn has_got(&self, certificate: &Certificate) -> bool {
        certificate.start_ms() >= self.found.created.timestamp_millis()
    }

    /// What is left of the scopes that the worker has got.
    pub(super) fn scopes(&self, got: Vec<String>) -> Vec<String> {
        match self.found.standing {
            Standing::Running => got,
            Standing::Removed | Standing::Expired => vec![self.name.asking_scope()],
        }
    }
}

/// Makes and checks the credentials of workers; clones share the keys.
#[derive(Clone)]
pub struct WorkerCredentials(OwnIssuer);

impl WorkerCredentials {
    /// The issuer that these secret keys make.
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self(OwnIssuer::new(ISSUER, keys, Purpose::WorkerCredentials))
    }

    /// Credentials of a worker from one time to another.
    #[must_use]
    pub fn issue(&self, worker: &WorkerName, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        self.0.issue(worker.client_id(), worker.scopes(), start, end)
    }

    pub(super) fn issuer(&self) -> &OwnIssuer {
        &self.0
    }
}
