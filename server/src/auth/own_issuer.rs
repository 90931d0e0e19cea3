//! Temporary credentials whose issuer is the server itself: made and checked in memory, with keys that are derived from
//! the secret key, under a name that no client can have.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tenure_api::credentials::{
    AccessToken, Certificate, CertificateError, Credentials, Grant, SEED_BYTES, SigningKey, issue, seed,
};
use uuid::Uuid;

use tenure_store::secrets::{Purpose, SecretKeys};

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
            seed: seed(unique()),
        };
        issue(self.name, &self.keys[0], grant)
    }

    pub(super) fn verify(&self, certificate: &Certificate, client_id: &str) -> Result<AccessToken, CertificateError> {
        let verified = self.keys.iter().find_map(|key| certificate.verify(client_id, key).ok());
        verified.ok_or(CertificateError::Signature)
    }
}

/// Bytes for a seed. It is in the certificate for all to see, and only has to be another one each time: the generator of ids is good
/// enough for that, and needs no system call for each claim.
fn unique() -> [u8; SEED_BYTES] {
    let mut bytes = [0; SEED_BYTES];
    for piece in bytes.chunks_mut(size_of::<Uuid>()) {
        piece.copy_from_slice(&Uuid::new_v4().as_bytes()[..piece.len()]);
    }
    bytes
}

/// Whether a certificate claims to be made by the issuer of this name; [`OwnIssuer::verify`] checks whether that is true.
pub(super) fn is_named_as_issuer(name: &str, certificate: &Certificate, client_id: &str) -> bool {
    certificate.is_named() && certificate.issuer(client_id) == Ok(name)
}
