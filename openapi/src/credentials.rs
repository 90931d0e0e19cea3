//! Credentials and temporary credentials: the contents and signature of a certificate, and the
//! token that belongs to it.
//!
//! A client with an access token (the issuer) can sign a certificate that lends some of its scopes
//! for some time, without a request to the server. To check it, the server needs only the issuer's
//! token. The caller supplies times and random bytes, and decides whether the issuer may lend these
//! scopes.

use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::ids::{RunId, TaskId, WorkerGroup, WorkerId};
use crate::schema::of_type;

/// In milliseconds.
pub const CERTIFICATE_LIFE_MAX_MS: i64 = 31 * 24 * 3600 * 1000;
/// Allowed clock difference between issuer and server, in milliseconds.
pub const CERTIFICATE_SKEW_MS: i64 = 5 * 60 * 1000;
pub const SEED_BYTES: usize = 33;
/// In characters.
const SEED_LEN: usize = 44;
const VERSION: i64 = 1;
/// Capacity for a certificate as JSON without its scopes, in bytes, and for the separators of each
/// scope.
const CERTIFICATE_ROOM: usize = 320;
const AROUND_SCOPE: usize = 3;

/// The secret half of credentials; compared in constant time and never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccessToken(String);

impl AccessToken {
    #[must_use]
    pub fn new(token: String) -> Self {
        Self(token)
    }

    /// Encodes 32 random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(bytes))
    }

    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn key(&self) -> SigningKey {
        SigningKey::new(self.0.as_bytes())
    }
}

impl PartialSchema for AccessToken {
    fn schema() -> RefOr<Schema> {
        let example = "three-dozen-characters-only-the-client-knows";
        of_type(Type::String, "The secret that proves who a client is.", example.into()).into()
    }
}

impl ToSchema for AccessToken {}

impl PartialEq for AccessToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for AccessToken {}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(secret)")
    }
}

/// Credentials of a client, in the form that clients use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    pub client_id: String,
    pub access_token: AccessToken,
    /// The certificate of temporary credentials, as JSON text; absent for permanent credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// A prepared HMAC-SHA256 key: the key schedule is computed once, not for each request.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC takes a key of any length"))
    }

    #[must_use]
    pub fn sign(&self, message: &str) -> Tag {
        Tag::new(self.start().chain_update(message).finalize().into_bytes())
    }

    /// Starts an HMAC to be fed piece by piece.
    pub(crate) fn start(&self) -> Hmac<Sha256> {
        self.0.clone()
    }

    fn derive_token(&self, seed: &str) -> AccessToken {
        let bytes = self.start().chain_update(seed).finalize().into_bytes();
        AccessToken::from_random(bytes.into())
    }
}

/// A hash or signature of 32 bytes in its wire format, standard base64.
#[derive(Clone, Copy)]
pub struct Tag([u8; 44]);

impl Tag {
    pub(crate) fn new(bytes: impl Into<[u8; 32]>) -> Self {
        let mut text = [0; 44];
        STANDARD.encode_slice(bytes.into(), &mut text).expect("32 bytes are 44 characters of base64");
        Self(text)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base64 is ASCII")
    }

    /// Compares in constant time.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.ct_eq(text.as_bytes()).into()
    }
}

/// True for printable ASCII with at most one star at the end.
#[must_use]
pub fn valid_scope(scope: &str) -> bool {
    scope.bytes().all(|byte| matches!(byte, b' '..=b'~')) && !scope.ends_with("**")
}

#[must_use]
pub fn seed(random: [u8; SEED_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(random)
}

/// Returns the client id of the credentials for a claim.
#[must_use]
pub fn task_client_id(
    task_id: TaskId,
    run_id: RunId,
    worker_group: &WorkerGroup,
    worker_id: &WorkerId,
    until_epoch_seconds: i64,
) -> String {
    let (group, worker) = (worker_group.as_str(), worker_id.as_str());
    format!("task-client/{task_id}/{run_id}/on/{group}/{worker}/until/{until_epoch_seconds}")
}

/// The messages may be sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The text is not JSON, or a field is missing or has the wrong type.
    #[error("ext.certificate is not an object with version, seed, start, expiry, scopes and signature")]
    Malformed,
    #[error("ext.certificate.version must be 1")]
    Version,
    #[error("ext.certificate.seed must be {SEED_LEN} characters")]
    Seed,
    #[error("ext.certificate.scopes must be valid scopes")]
    Scopes,
    /// The issuer names itself, or the certificate names a client without an issuer.
    #[error("ext.certificate.issuer must be another client than the id, and be there when clientId is")]
    Issuer,
    #[error("ext.certificate must not live longer than 31 days")]
    Life,
    #[error("ext.certificate.start is in the future")]
    NotYet,
    #[error("ext.certificate.expiry is in the past: the temporary credentials have expired")]
    Expired,
    #[error("ext.certificate.signature is not valid")]
    Signature,
}

/// Signed scopes, valid from start to expiry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Certificate {
    version: i64,
    scopes: Vec<String>,
    start: i64,
    expiry: i64,
    seed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// Not part of the format; a certificate with it but without an issuer was made for another
    /// purpose.
    #[serde(default, rename = "clientId", skip_serializing)]
    client_id: Option<serde::de::IgnoredAny>,
    signature: String,
}

impl Certificate {
    /// Parses a certificate. Neither clock nor key is checked.
    pub fn parse(json: &str) -> Result<Self, CertificateError> {
        let certificate: Self = serde_json::from_str(json).map_err(|_| CertificateError::Malformed)?;
        if certificate.version != VERSION {
            return Err(CertificateError::Version);
        }
        if certificate.seed.len() != SEED_LEN {
            return Err(CertificateError::Seed);
        }
        if !certificate.scopes.iter().all(|scope| valid_scope(scope)) {
            return Err(CertificateError::Scopes);
        }
        if certificate.expiry.saturating_sub(certificate.start) > CERTIFICATE_LIFE_MAX_MS {
            return Err(CertificateError::Life);
        }
        Ok(certificate)
    }

    /// Returns the named issuer, or else the client itself.
    pub fn issuer<'a>(&'a self, client_id: &'a str) -> Result<&'a str, CertificateError> {
        match &self.issuer {
            Some(issuer) if issuer == client_id => Err(CertificateError::Issuer),
            Some(issuer) => Ok(issuer),
            None if self.client_id.is_some() => Err(CertificateError::Issuer),
            None => Ok(client_id),
        }
    }

    /// True if the credentials have an id of their own, which requires a scope of the issuer.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.issuer.is_some()
    }

    /// Checks start and expiry within the skew. `now_ms` is in milliseconds since 1970.
    pub fn check_time(&self, now_ms: i64) -> Result<(), CertificateError> {
        if self.start > now_ms.saturating_add(CERTIFICATE_SKEW_MS) {
            return Err(CertificateError::NotYet);
        }
        self.check_end(now_ms)
    }

    /// Checks the expiry within the skew. `now_ms` is in milliseconds since 1970. The certificate's
    /// own issuer needs no more: it had begun when it was issued, and an earlier time means that
    /// the clock was set back.
    pub fn check_end(&self, now_ms: i64) -> Result<(), CertificateError> {
        if self.expiry < now_ms.saturating_sub(CERTIFICATE_SKEW_MS) {
            return Err(CertificateError::Expired);
        }
        Ok(())
    }

    /// Returns the access token of the temporary credentials.
    pub fn verify(&self, client_id: &str, issuer_key: &SigningKey) -> Result<AccessToken, CertificateError> {
        if !self.sign(client_id, issuer_key).matches(&self.signature) {
            return Err(CertificateError::Signature);
        }
        Ok(issuer_key.derive_token(&self.seed))
    }

    #[must_use]
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    #[must_use]
    pub fn into_scopes(self) -> Vec<String> {
        self.scopes
    }

    /// In milliseconds since 1970.
    #[must_use]
    pub fn start_ms(&self) -> i64 {
        self.start
    }

    /// In milliseconds since 1970.
    #[must_use]
    pub fn expiry_ms(&self) -> i64 {
        self.expiry
    }

    fn sign(&self, client_id: &str, key: &SigningKey) -> Tag {
        let mut text = String::with_capacity(200 + self.scopes.iter().map(|scope| scope.len() + 1).sum::<usize>());
        text.push_str("version:1\n");
        if let Some(issuer) = &self.issuer {
            for part in ["clientId:", client_id, "\nissuer:", issuer, "\n"] {
                text.push_str(part);
            }
        }
        write!(text, "seed:{}\nstart:{}\nexpiry:{}\nscopes:", self.seed, self.start, self.expiry)
            .expect("writing to a String cannot fail");
        for scope in &self.scopes {
            text.push('\n');
            text.push_str(scope);
        }
        Tag::new(key.start().chain_update(&text).finalize().into_bytes())
    }
}

/// The contents of temporary credentials.
#[derive(Clone, Debug)]
pub struct Grant {
    /// A client id of their own; none: the issuer's id.
    pub name: Option<String>,
    pub scopes: Vec<String>,
    /// In milliseconds since 1970.
    pub start_ms: i64,
    /// In milliseconds since 1970; at most 31 days after the start.
    pub expiry_ms: i64,
    /// 44 random characters from [`seed`].
    pub seed: String,
}

/// Issues temporary credentials for an issuer with a permanent token.
#[must_use]
pub fn issue(issuer_id: &str, issuer_key: &SigningKey, grant: Grant) -> Credentials {
    let access_token = issuer_key.derive_token(&grant.seed);
    let issuer = grant.name.is_some().then(|| issuer_id.to_owned());
    let client_id = grant.name.unwrap_or_else(|| issuer_id.to_owned());
    let mut certificate = Certificate {
        version: VERSION,
        scopes: grant.scopes,
        start: grant.start_ms,
        expiry: grant.expiry_ms,
        seed: grant.seed,
        issuer,
        client_id: None,
        signature: String::new(),
    };
    certificate.signature = certificate.sign(&client_id, issuer_key).as_str().to_owned();
    // Allocated once, because each claim has a certificate.
    let scopes: usize = certificate.scopes.iter().map(|scope| scope.len() + AROUND_SCOPE).sum();
    let mut json = Vec::with_capacity(CERTIFICATE_ROOM + scopes);
    serde_json::to_writer(&mut json, &certificate).expect("a certificate is text and numbers");
    let json = String::from_utf8(json).expect("JSON is UTF-8");
    Credentials { client_id, access_token, certificate: Some(json) }
}

#[cfg(test)]
mod tests;
