//! URLs of stored bytes: unsigned ones for public content, and signed ones. A signed URL is a
//! capability to upload or download one name.
//!
//! The signature covers the access, the expiry, the name, and for uploads the content type. It
//! covers decoded values, because some HTTP clients rewrite URLs: a client may escape differently
//! and reorder the parameters.

use std::fmt::Write as _;

use hmac::Mac as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use subtle::ConstantTimeEq as _;

use crate::credentials::SigningKey;
use crate::query::Query;

/// Path of stored bytes below the root URL.
pub const PATH: &str = "/artifacts/";
/// Comes first and has this name, because workers cut URLs here before they write them into public
/// logs.
const CREDENTIAL: &str = "Credential";
const EXPIRES: &str = "expires";
const SIGNATURE: &str = "signature";
/// Characters that no URL library rewrites.
const SAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const CONTEXT: &str = "tenure-blob-url-1";

/// The access that a URL grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access<'a> {
    /// Upload of bytes with this content type.
    Put { content_type: &'a str },
    /// Download, or a request for its headers.
    Get,
}

impl Access<'_> {
    fn word(self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get => "get",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobUrlError {
    #[error("the URL is not signed by this server, or was changed, or is for another method or Content-Type")]
    Signature,
    #[error("the URL has expired")]
    Expired,
    #[error("the URL has the parameter {0:?}, which is not signed")]
    Parameter(String),
}

/// Returns the path and query of a signed URL. `expires_ms` is in milliseconds since 1970.
#[must_use]
pub fn sign(key: &SigningKey, access: Access<'_>, name: &str, expires_ms: i64) -> String {
    let expires = expires_ms.to_string();
    let mut signature = String::with_capacity(64);
    for byte in digest(key, access, name, &expires) {
        let _ = write!(signature, "{byte:02x}");
    }
    let path = escape(name);
    let word = access.word();
    format!("{PATH}{path}?{CREDENTIAL}={word}&{EXPIRES}={expires}&{SIGNATURE}={signature}")
}

/// Returns the path of public content.
#[must_use]
pub fn plain(name: &str) -> String {
    format!("{PATH}{}", escape(name))
}

/// Slashes stay, since no client changes them. A name with a segment that URL libraries resolve or
/// drop (`.`, `..`, empty) becomes one segment.
fn escape(name: &str) -> String {
    let odd = name.split('/').any(|segment| matches!(segment, "" | "." | ".."));
    let separator = if odd { "%2F" } else { "/" };
    let segments: Vec<String> = name.split('/').map(|segment| utf8_percent_encode(segment, SAFE).to_string()).collect();
    segments.join(separator)
}

/// Returns the name in a request's path; none if it is not below [`PATH`].
#[must_use]
pub fn name_of(path: &str) -> Option<String> {
    let name = path.strip_prefix(PATH)?;
    percent_decode_str(name).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// Checks a URL in constant time against all keys. `now_ms` is in milliseconds since 1970.
pub fn verify(
    keys: &[SigningKey],
    access: Access<'_>,
    name: &str,
    query: &str,
    now_ms: i64,
) -> Result<(), BlobUrlError> {
    let query = Query::parse(query).map_err(|_| BlobUrlError::Signature)?;
    if let Some(unknown) = query.names().find(|name| ![CREDENTIAL, EXPIRES, SIGNATURE].contains(name)) {
        return Err(BlobUrlError::Parameter(unknown.to_owned()));
    }
    let value = |name| query.get(name).ok_or(BlobUrlError::Signature);
    let (word, expires, given) = (value(CREDENTIAL)?, value(EXPIRES)?, value(SIGNATURE)?);
    if word != access.word() {
        return Err(BlobUrlError::Signature);
    }
    let given = from_hex(given).ok_or(BlobUrlError::Signature)?;
    let matching = keys
        .iter()
        .map(|key| digest(key, access, name, expires).ct_eq(&given))
        .fold(subtle::Choice::from(0), |any, one| any | one);
    if !bool::from(matching) {
        return Err(BlobUrlError::Signature);
    }
    // Always parses: `sign` wrote it.
    let expires_ms: i64 = expires.parse().map_err(|_| BlobUrlError::Signature)?;
    if now_ms >= expires_ms { Err(BlobUrlError::Expired) } else { Ok(()) }
}

/// The signed lines are unambiguous: only the last one may contain a line break.
fn digest(key: &SigningKey, access: Access<'_>, name: &str, expires: &str) -> [u8; 32] {
    let content_type = match access {
        Access::Put { content_type } => normal_content_type(content_type),
        Access::Get => String::new(),
    };
    let lines = [CONTEXT, access.word(), expires, &content_type.replace('\n', " "), name];
    key.start().chain_update(lines.join("\n")).finalize().into_bytes().into()
}

/// Normalizes case, and spaces around the parts.
fn normal_content_type(text: &str) -> String {
    text.split(';').map(|part| part.trim().to_ascii_lowercase()).collect::<Vec<_>>().join(";")
}

/// Accepts only the digits that [`sign`] writes.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
