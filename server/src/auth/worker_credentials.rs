//! Credentials that a worker gets when it registers.
//!
//! They are temporary credentials whose issuer is the server itself, as those of claims are, but they hold for days.
//! So each use asks how the worker stands, from memory that is at most a second old: whoever removes a worker takes its
//! credentials away too.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tenure_api::credentials::{
    AccessToken, Certificate, CertificateError, Credentials, Grant, SigningKey, issue, seed,
};

use crate::domain::registration::{Standing, WorkerName};
use crate::secrets::{Purpose, SecretKeys, random};
use crate::store::worker_manager::FoundAccount;

/// The server's own issuer; `~` is not allowed in the id of a client.
pub(super) const ISSUER: &str = "tenure~worker-credentials";

/// A worker that was made known, as authentication needs it.
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
pub struct WorkerCredentials {
    /// The first one signs, all verify; never empty.
    keys: Arc<[SigningKey]>,
}

impl WorkerCredentials {
    /// The issuer that these secret keys make.
    #[must_use]
    pub fn new(keys: &SecretKeys) -> Self {
        Self { keys: keys.signing_keys(Purpose::WorkerCredentials).into() }
    }

    /// Credentials of a worker from one moment to another.
    #[must_use]
    pub fn issue(&self, worker: &WorkerName, start: DateTime<Utc>, end: DateTime<Utc>) -> Credentials {
        let grant = Grant {
            name: Some(worker.client_id()),
            scopes: worker.scopes(),
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
