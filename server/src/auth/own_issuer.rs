//! Temporary credentials issued by the server itself, made and checked in memory with keys derived
//! from the secret key.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tenure_api::credentials::{
    AccessToken, Certificate, CertificateError, Credentials, Grant, SEED_BYTES, SigningKey, issue, seed,
};
use uuid::Uuid;

use tenure_store::secrets::{Purpose, SecretKeys};

/// Clones share the keys.
#[derive(Clone)]
pub(super) struct OwnIssuer {
    /// Contains `~`, which client ids cannot.
    name: &'static str,
    /// The first one signs, all verify; never empty.
    keys: Arc<[SigningKey]>,
}

impl OwnIssuer {
    pub(super) fn new(name: &'static str, keys: &SecretKeys, purpose: Purpose) -> Self {
        Self { name, keys: keys.signing_keys(purpose).into() }
    }

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

/// A seed is public and only has to differ each time. The generator of ids needs no system call per
/// claim.
fn unique() -> [u8; SEED_BYTES] {
    let mut bytes = [0; SEED_BYTES];
    for piece in bytes.chunks_mut(size_of::<Uuid>()) {
        piece.copy_from_slice(&Uuid::new_v4().as_bytes()[..piece.len()]);
    }
    bytes
}

/// True if a certificate names this issuer; [`OwnIssuer::verify`] checks the claim.
pub(super) fn is_named_as_issuer(name: &str, certificate: &Certificate, client_id: &str) -> bool {
    certificate.is_named() && certificate.issuer(client_id) == Ok(name)
}
