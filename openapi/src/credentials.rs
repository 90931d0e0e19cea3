//! Credentials and temporary credentials: what a certificate contains, how it is signed, and the token that goes with it.
//!
//! A client with an access token (the issuer) can sign a certificate that lends some of its scopes for some time,
//! without asking the server. The server needs only the issuer's token to check it. The caller brings the times and
//! the random bytes, and decides whether the issuer may lend these scopes.

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

/// The longest life of a certificate, in milliseconds.
pub const CERTIFICATE_LIFE_MAX_MS: i64 = 31 * 24 * 3600 * 1000;
/// How far the clocks of an issuer and the server may differ, in milliseconds.
pub const CERTIFICATE_SKEW_MS: i64 = 5 * 60 * 1000;
/// How many random bytes [`seed`] takes.
pub const SEED_BYTES: usize = 33;
/// The length of a seed, in characters.
const SEED_LEN: usize = 44;
const VERSION: i64 = 1;
/// Room for a certificate as JSON apart from its scopes, in bytes, and for what stands around each of them.
const CERTIFICATE_ROOM: usize = 320;
const AROUND_SCOPE: usize = 3;

/// The secret half of credentials; it is compared in constant time and never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccessToken(String);

impl AccessToken {
    /// The token that the caller has as text.
    #[must_use]
    pub fn new(token: String) -> Self {
        Self(token)
    }

    /// A token made of 32 random bytes that the caller drew.
    #[must_use]
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The token as text, to be sent or stored.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The token made ready for signing.
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

/// What a client signs its requests with, in the form in which clients carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// The client's name as it was sent.
    pub client_id: String,
    /// The secret that proves it.
    pub access_token: AccessToken,
    /// The certificate of temporary credentials, as JSON text; permanent credentials have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// A secret made ready for HMAC-SHA256, so that the key schedule is worked out once and not for each request.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// The key that these bytes are.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(Hmac::new_from_slice(secret).expect("HMAC takes a key of any length"))
    }

    /// The signature of a message.
    #[must_use]
    pub fn sign(&self, message: &str) -> Tag {
        Tag::new(self.start().chain_update(message).finalize().into_bytes())
    }

    /// The HMAC state to which a message is given piece by piece.
    pub(crate) fn start(&self) -> Hmac<Sha256> {
        self.0.clone()
    }

    fn derive_token(&self, seed: &str) -> AccessToken {
        let bytes = self.start().chain_update(seed).finalize().into_bytes();
        AccessToken::from_random(bytes.into())
    }
}

/// 32 bytes of a hash or a signature as they are on the wire, in standard base64.
#[derive(Clone, Copy)]
pub struct Tag([u8; 44]);

impl Tag {
    pub(crate) fn new(bytes: impl Into<[u8; 32]>) -> Self {
        let mut text = [0; 44];
        STANDARD.encode_slice(bytes.into(), &mut text).expect("32 bytes are 44 characters of base64");
        Self(text)
    }

    /// The wire form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base64 is ASCII")
    }

    /// Whether the text is this tag; takes equally long wherever they differ.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.ct_eq(text.as_bytes()).into()
    }
}

/// Whether a text can be a scope: printable ASCII, and at most one star at the end.
#[must_use]
pub fn valid_scope(scope: &str) -> bool {
    scope.bytes().all(|byte| matches!(byte, b' '..=b'~')) && !scope.ends_with("**")
}

/// A seed made of random bytes that the caller drew.
#[must_use]
pub fn seed(random: [u8; SEED_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(random)
}

/// The client id of the credentials that a worker gets with a claim.
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

/// Why a certificate is refused. The message is fit for an API answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The text is not JSON, lacks a field, or a field has the wrong type.
    #[error("ext.certificate is not an object with version, seed, start, expiry, scopes and signature")]
    Malformed,
    /// Another version than the one that exists.
    #[error("ext.certificate.version must be 1")]
    Version,
    /// The seed has the wrong length.
    #[error("ext.certificate.seed must be {SEED_LEN} characters")]
    Seed,
    /// A scope is not printable ASCII or ends in two stars.
    #[error("ext.certificate.scopes must be valid scopes")]
    Scopes,
    /// The issuer names itself, or the certificate names a client without an issuer.
    #[error("ext.certificate.issuer must be another client than the id, and be there when clientId is")]
    Issuer,
    /// The certificate lives longer than certificates may.
    #[error("ext.certificate must not live longer than 31 days")]
    Life,
    /// The certificate starts later than now.
    #[error("ext.certificate.start is in the future")]
    NotYet,
    /// The certificate ended before now.
    #[error("ext.certificate.expiry is in the past: the temporary credentials have expired")]
    Expired,
    /// The issuer did not sign this.
    #[error("ext.certificate.signature is not valid")]
    Signature,
}

/// What an issuer signed: these scopes, from start to expiry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Certificate {
    version: i64,
    scopes: Vec<String>,
    start: i64,
    expiry: i64,
    seed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// Not part of the format; a certificate that has it without an issuer was made for something else.
    #[serde(default, rename = "clientId", skip_serializing)]
    client_id: Option<serde::de::IgnoredAny>,
    signature: String,
}

impl Certificate {
    /// Reads a certificate and checks all that can be checked without a clock and without a key.
    ///
    /// # Errors
    /// The first rule of the format that the text breaks.
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
        // Milliseconds of any year fit many times over, but the fields are the client's and may be anything.
        if certificate.expiry.saturating_sub(certificate.start) > CERTIFICATE_LIFE_MAX_MS {
            return Err(CertificateError::Life);
        }
        Ok(certificate)
    }

    /// Whose token signed this: the issuer that it names, or else the client itself.
    ///
    /// # Errors
    /// If the client names itself as issuer.
    pub fn issuer<'a>(&'a self, client_id: &'a str) -> Result<&'a str, CertificateError> {
        match &self.issuer {
            Some(issuer) if issuer == client_id => Err(CertificateError::Issuer),
            Some(issuer) => Ok(issuer),
            None if self.client_id.is_some() => Err(CertificateError::Issuer),
            None => Ok(client_id),
        }
    }

    /// Whether the credentials have a name of their own, which their issuer needs a scope to give.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.issuer.is_some()
    }

    /// Checks that the certificate is in force at a time in milliseconds since 1970, give or take the skew.
    ///
    /// # Errors
    /// If it has not begun or is over.
    pub fn check_time(&self, now_ms: i64) -> Result<(), CertificateError> {
        if self.start > now_ms.saturating_add(CERTIFICATE_SKEW_MS) {
            return Err(CertificateError::NotYet);
        }
        self.check_end(now_ms)
    }

    /// Checks that the certificate is not over at a time in milliseconds since 1970, give or take the skew. That is
    /// enough for its issuer: it began then, and a clock that shows an earlier time now was set back.
    ///
    /// # Errors
    /// If it is over.
    pub fn check_end(&self, now_ms: i64) -> Result<(), CertificateError> {
        if self.expiry < now_ms.saturating_sub(CERTIFICATE_SKEW_MS) {
            return Err(CertificateError::Expired);
        }
        Ok(())
    }

    /// Checks the signature and gives the access token of the temporary credentials.
    ///
    /// # Errors
    /// If the holder of the key did not sign this certificate for this client.
    pub fn verify(&self, client_id: &str, issuer_key: &SigningKey) -> Result<AccessToken, CertificateError> {
        if !self.sign(client_id, issuer_key).matches(&self.signature) {
            return Err(CertificateError::Signature);
        }
        Ok(issuer_key.derive_token(&self.seed))
    }

    /// The scopes that the certificate lends.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// The scopes that the certificate lends, without the rest of it.
    #[must_use]
    pub fn into_scopes(self) -> Vec<String> {
        self.scopes
    }

    /// When it begins, in milliseconds since 1970.
    #[must_use]
    pub fn start_ms(&self) -> i64 {
        self.start
    }

    /// When it ends, in milliseconds since 1970.
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
    /// A client id of their own, or none: they carry the issuer's id.
    pub name: Option<String>,
    /// What they may do.
    pub scopes: Vec<String>,
    /// From when, in milliseconds since 1970.
    pub start_ms: i64,
    /// Until when, in milliseconds since 1970; at most 31 days after the start.
    pub expiry_ms: i64,
    /// 44 random characters, as [`seed`] makes them.
    pub seed: String,
}

/// Makes temporary credentials in the name of an issuer that has a permanent token.
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
    // A text that grows is copied again and again, and each claim has a certificate.
    let scopes: usize = certificate.scopes.iter().map(|scope| scope.len() + AROUND_SCOPE).sum();
    let mut json = Vec::with_capacity(CERTIFICATE_ROOM + scopes);
    serde_json::to_writer(&mut json, &certificate).expect("a certificate is text and numbers");
    let json = String::from_utf8(json).expect("JSON is UTF-8");
    Credentials { client_id, access_token, certificate: Some(json) }
}

#[cfg(test)]
mod tests;
