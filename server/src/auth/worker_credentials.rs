//! Credentials of registered workers. They are temporary credentials issued by the server itself,
//! valid for days. So each use checks the state of the worker, cached for at most a second:
//! removing a worker revokes its credentials.

use chrono::{DateTime, Utc};
use tenure_api::credentials::{Certificate, Credentials};

use super::own_issuer::OwnIssuer;
use tenure_domain::registration::{Standing, WorkerName};
use tenure_store::secrets::{Purpose, SecretKeys};
use tenure_store::worker_manager::FoundAccount;

/// Contains `~`, which client ids cannot.
pub(super) const ISSUER: &str = "tenure~worker-credentials";

pub(super) struct WorkerAccount {
    pub(super) name: WorkerName,
    pub(super) found: FoundAccount,
}

impl WorkerAccount {
    /// False for the certificate of an earlier worker with the same name.
    pub(super) fn has_got(&self, certificate: &Certificate) -> bool {
        certificate.start_ms() >= self.found.created.timestamp_millis()
    }

    /// Returns the remaining scopes.
    pub(super) fn scopes(&self, got: Vec<String>) -> Vec<String> {
        match self.found.standing {
            Standing::Running => got,
            Standing::Removed | Standing::Expired => vec![self.name.asking_scope()],
        }
    }
}

/// Clones share the keys.
#[derive(Clone)]
pub struct WorkerCredentials(OwnIssuer);

impl WorkerCredentials {
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self(OwnIssuer::new(ISSUER, keys, Purpose::WorkerCredentials))
    }

    #[must_use]
    pub fn issue(&self, worker: &WorkerName, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        self.0.issue(worker.client_id(), worker.scopes(), start, end)
    }

    pub(super) fn issuer(&self) -> &OwnIssuer {
        &self.0
    }
}
