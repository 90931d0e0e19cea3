//! Signatures of the poll API's URLs: Azure Storage's service SAS on one queue.
//!
//! A signed URL is a capability for one queue. The signature covers the permissions, the validity
//! period and the queue. It covers decoded values, so that clients may re-quote the URL and reorder
//! its parameters. Layout: "Create a service SAS" in the documentation of Azure Storage, version
//! 2015-04-05; later versions sign the same lines for a queue.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, NaiveDateTime, Utc};
use hmac::Mac as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use subtle::ConstantTimeEq as _;

use crate::credentials::SigningKey;
use crate::query::Query;

/// The issued version of the layout.
pub const VERSION: &str = "2015-04-05";
/// The parameters that belong to a signature.
pub const NAMES: [&str; 8] = ["sv", "st", "se", "sp", "si", "sip", "spr", "sig"];
/// In whole seconds.
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";
/// Characters that no URL library rewrites.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Peek at messages and read their number.
    Read,
    /// Put messages. The server never grants it: messages are created by createTask.
    Add,
    /// Change a message's visibility.
    Update,
    /// Get and delete messages.
    Process,
}

impl Permission {
    /// In the order that Azure requires.
    pub const ALL: [Self; 4] = [Self::Read, Self::Add, Self::Update, Self::Process];

    fn letter(self) -> char {
        match self {
            Self::Read => 'r',
            Self::Add => 'a',
            Self::Update => 'u',
            Self::Process => 'p',
        }
    }
}

/// The permissions of a URL and its validity period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    letters: String,
    start: Option<DateTime<Utc>>,
    expiry: DateTime<Utc>,
    https_only: bool,
}

impl Grant {
    /// Both times are cut to whole seconds.
    #[must_use]
    pub fn new(permissions: &[Permission], start: DateTime<Utc>, expiry: DateTime<Utc>) -> Self {
        let letters = Permission::ALL.iter().filter(|one| permissions.contains(one)).map(|one| one.letter()).collect();
        Self { letters, start: Some(start), expiry, https_only: false }
    }

    #[must_use]
    pub fn over_https_only(self) -> Self {
        Self { https_only: true, ..self }
    }

    #[must_use]
    pub fn allows(&self, permission: Permission) -> bool {
        self.letters.contains(permission.letter())
    }

    #[must_use]
    pub fn is_https_only(&self) -> bool {
        self.https_only
    }

    /// Returns the signed parameters, encoded, without a leading `?` or `&`.
    #[must_use]
    pub fn sign(&self, resource: &Resource<'_>, key: &SigningKey) -> String {
        let start = self.start.map(|time| time.format(TIME).to_string()).unwrap_or_default();
        let fields = Fields {
            sv: VERSION,
            st: &start,
            se: &self.expiry.format(TIME).to_string(),
            sp: &self.letters,
            spr: if self.https_only { "https" } else { "" },
            ..Fields::default()
        };
        let signature = fields.signature(resource, key);
        let pairs = [
            ("sv", fields.sv),
            ("st", fields.st),
            ("se", fields.se),
            ("sp", fields.sp),
            ("spr", fields.spr),
            ("sig", &signature),
        ];
        let encoded = |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, VALUE));
        pairs.iter().filter(|(_, value)| !value.is_empty()).map(encoded).collect::<Vec<_>>().join("&")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    /// The account, which is only in the signed text.
    pub account: &'a str,
    pub queue: &'a str,
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/queue/{}/{}", self.account.to_ascii_lowercase(), self.queue)
    }
}

/// The signed values, decoded. Absent values are empty.
#[derive(Clone, Copy, Default)]
struct Fields<'a> {
    sv: &'a str,
    st: &'a str,
    se: &'a str,
    sp: &'a str,
    si: &'a str,
    sip: &'a str,
    spr: &'a str,
}

impl Fields<'_> {
    /// Unambiguous: each field ends a line, and a line break in a value would add a line.
    fn signature(&self, resource: &Resource<'_>, key: &SigningKey) -> String {
        let lines = [self.sp, self.st, self.se, &resource.to_string(), self.si, self.sip, self.spr, self.sv];
        STANDARD.encode(key.start().chain_update(lines.join("\n")).finalize().into_bytes())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SasError {
    #[error("the parameter {0} is missing")]
    Missing(&'static str),
    #[error("the signature does not match")]
    Signature,
    /// Before `st`.
    #[error("the signature is not valid yet")]
    NotYet,
    /// From `se` on.
    #[error("the signature has expired")]
    Expired,
}

/// Checks a URL in constant time against all keys.
pub fn verify(
    resource: &Resource<'_>,
    query: &Query,
    keys: &[SigningKey],
    now: DateTime<Utc>,
) -> Result<Grant, SasError> {
    let required =
        |name: &'static str| query.get(name).filter(|value| !value.is_empty()).ok_or(SasError::Missing(name));
    let optional = |name: &str| query.get(name).unwrap_or_default();
    let fields = Fields {
        sv: required("sv")?,
        st: optional("st"),
        se: required("se")?,
        sp: required("sp")?,
        si: optional("si"),
        sip: optional("sip"),
        spr: optional("spr"),
    };
    let given = required("sig")?.as_bytes();
    let matching = keys
        .iter()
        .map(|key| fields.signature(resource, key).as_bytes().ct_eq(given))
        .fold(subtle::Choice::from(0), |any, one| any | one);
    if !bool::from(matching) {
        return Err(SasError::Signature);
    }
    // Always parses: `sign` wrote it.
    let time = |text: &str| {
        NaiveDateTime::parse_from_str(text, TIME).map(|time| time.and_utc()).map_err(|_| SasError::Signature)
    };
    let start = if fields.st.is_empty() { None } else { Some(time(fields.st)?) };
    let expiry = time(fields.se)?;
    if start.is_some_and(|start| now < start) {
        return Err(SasError::NotYet);
    }
    if now >= expiry {
        return Err(SasError::Expired);
    }
    Ok(Grant { letters: fields.sp.to_owned(), start, expiry, https_only: fields.spr == "https" })
}

#[cfg(test)]
mod tests;
