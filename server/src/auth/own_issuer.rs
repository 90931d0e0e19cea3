//! Temporary credentials whose issuer is the server itself: made and checked in memory, with keys that are derived from
//! the secret key, under a name that no client can have.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tenure_api::credentials::{
    AccessToken, Certificate, CertificateError, Credentials, Grant, SigningKey, issue, seed,
};

use tenure_store::secrets::{Purpose, SecretKeys, random};

/// One of the server's issuers; clones share the keys.
#[derive(Clone)]
pub(super) struct OwnIssuer {
    /// `~` is not allowed in the id of a client.
    name: &'static str,
    /// The first one signs, all verify; never empty.
    keys: Arc<[SigningKey]>,
}

impl OwnIssuer {
    pub(super) fn new(name: &'static str, keys: &SecretKeys, purpose: Purpose) -> Self {
        Self { name, keys: keys.signing_keys(purpose).into() }
    }

    /// Credentials for a client of this name from one time to another.
    pub(super) fn issue(
        &self,
        client_id: String,
        scopes: Vec<String>,
        start: DateTime<Utc>,
        end: DateTime<Utc>,
    ) -> Credentials {
        let grant = Grant {
            name: Some(client_id),
            scopes,
            start_ms: start.timestamp_millis(),
            expiry_ms: end.timestamp_millis(),
            seed: seed(random()),
        };
        issue(self.name, &self.keys[0], grant)
    }

    pub(super) fn verify(&self, certificate: &Certificate, client_id: &str) -> Result<AccessToken, CertificateError> {
        let verified = self.keys.iter().find_map(|key| certificate.verify(client_id, key).ok());
        verified.ok_or(CertificateError::Signature)
    }
}

/// Whether a certificate claims to be made by the issuer of this name; [`OwnIssuer::verify`] checks whether that is true.
pub(super) fn is_named_as_issuer(name: &str, certificate: &Certificate, client_id: &str) -> bool {
    certificate.is_named() && certificate.issuer(client_id) == Ok(name)
}
