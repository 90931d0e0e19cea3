//! Bewits: signatures in URLs. Any holder of the URL can read its content until it expires.
//!
//! A bewit signs the URL without itself, for GET only. Like a header, it carries the client id and
//! `ext`.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{EXT_STANDARD, EXT_URL_SAFE, Kind, Signed, Target, ext_of, parse_seconds};
use crate::credentials::{Credentials, SigningKey};

/// The signed method of every bewit; HEAD is equivalent.
const METHOD: &str = "GET";
const PARAMETER: &str = "bewit=";
const SEPARATOR: char = '\\';

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the query parameter bewit must be base64 of clientId, expiry in seconds, mac and ext with backslashes between"
)]
pub struct BewitError;

/// A URL's path and query, split into signed part and signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedUrl<'a> {
    /// Path and query without the bewit, exactly as sent.
    pub resource: Cow<'a, str>,
    pub bewit: &'a str,
}

/// Finds the bewit in path and query: the last one of several, as in every implementation.
#[must_use]
pub fn split_url(target: &str) -> Option<SignedUrl<'_>> {
    let (path, query) = target.split_once('?')?;
    let start = match query.rfind("&bewit=") {
        Some(separator) => separator + 1,
        None if query.starts_with(PARAMETER) => 0,
        None => return None,
    };
    let before = query[..start].trim_end_matches('&');
    let value = &query[start + PARAMETER.len()..];
    let (bewit, after) = value.split_once('&').unwrap_or((value, ""));
    let resource = match (before.is_empty(), after.is_empty()) {
        (true, true) => Cow::Borrowed(path),
        (true, false) => Cow::Owned(format!("{path}?{after}")),
        (false, true) => Cow::Borrowed(&target[..path.len() + 1 + before.len()]),
        (false, false) => Cow::Owned(format!("{path}?{before}&{after}")),
    };
    Some(SignedUrl { resource, bewit })
}

/// A bewit as sent; untrusted until [`Bewit::signed_by`] succeeds.
#[derive(Clone, Debug)]
pub struct Bewit {
    pub id: String,
    /// Expiry in seconds since 1970.
    pub expires: i64,
    /// Certificate and narrowed scopes, see [`Ext::decode`](super::Ext::decode).
    pub ext: Option<String>,
    exp: String,
    mac: String,
}

impl Bewit {
    /// Accepts both alphabets of base64, with or without padding.
    pub fn parse(text: &str) -> Result<Self, BewitError> {
        let standard = text.bytes().any(|byte| matches!(byte, b'+' | b'/'));
        let engine = if standard { &EXT_STANDARD } else { &EXT_URL_SAFE };
        let bytes = engine.decode(text).map_err(|_| BewitError)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| BewitError)?;
        let parts: Vec<&str> = text.split(SEPARATOR).collect();
        let &[id, exp, mac, ext] = parts.as_slice() else { return Err(BewitError) };
        let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if !printable || id.is_empty() || mac.is_empty() {
            return Err(BewitError);
        }
        Ok(Self {
            id: id.to_owned(),
            expires: parse_seconds(exp).ok_or(BewitError)?,
            ext: (!ext.is_empty()).then(|| ext.to_owned()),
            exp: exp.to_owned(),
            // Some libraries also write the inner signature in URL-safe base64.
            mac: mac.replace('-', "+").replace('_', "/"),
        })
    }

    /// `resource` is the path and query without the bewit.
    #[must_use]
    pub fn signed_by(&self, key: &SigningKey, resource: &str, host: &str, port: u16) -> bool {
        let target = Target { method: METHOD, resource, host, port };
        signed(&target, &self.exp, self.ext.as_deref()).mac(key).matches(&self.mac)
    }

    /// `now_ms` is in milliseconds since 1970.
    #[must_use]
    pub fn is_over(&self, now_ms: i64) -> bool {
        self.expires.saturating_mul(1000) <= now_ms
    }
}

fn signed<'a>(target: &'a Target<'a>, exp: &'a str, ext: Option<&'a str>) -> Signed<'a> {
    Signed { kind: Kind::Bewit, target, ts: exp, nonce: "", hash: None, ext, app: None, dlg: None }
}

#[derive(Clone, Copy, Debug)]
pub struct SignUrl<'a> {
    /// Path and query exactly as they will be sent.
    pub resource: &'a str,
    /// Without the port.
    pub host: &'a str,
    pub port: u16,
    /// Expiry in seconds since 1970.
    pub expires: i64,
}

/// Returns the value of the parameter, which goes at the end of the query.
#[must_use]
pub fn bewit(credentials: &Credentials, url: &SignUrl<'_>) -> String {
    let SignUrl { resource, host, port, expires } = *url;
    let target = Target { method: METHOD, resource, host, port };
    let (exp, ext) = (expires.to_string(), ext_of(credentials));
    let mac = signed(&target, &exp, ext.as_deref()).mac(&credentials.access_token.key());
    let parts = [credentials.client_id.as_str(), &exp, mac.as_str(), ext.as_deref().unwrap_or_default()];
    URL_SAFE_NO_PAD.encode(parts.join("\\"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::credentials::AccessToken;

    fn credentials() -> Credentials {
        let access_token = AccessToken::new("no-secret".to_owned());
        Credentials { client_id: "tester".to_owned(), access_token, certificate: None }
    }

    fn url(resource: &str) -> SignUrl<'_> {
        SignUrl { resource, host: "queue.example", port: 8080, expires: 1_769_860_800 }
    }

    #[test]
    fn bewit_is_found_at_any_position_and_removed() {
        for (target, resource, bewit) in [
            ("/a?bewit=x", "/a", "x"),
            ("/a?b=1&bewit=x", "/a?b=1", "x"),
            ("/a?bewit=x&b=1", "/a?b=1", "x"),
            ("/a?b=1&bewit=x&c=2&d", "/a?b=1&c=2&d", "x"),
            ("/a?bewit=x&bewit=y", "/a?bewit=x", "y"),
            ("/a?b=1&bewit=", "/a?b=1", ""),
        ] {
            let found = split_url(target).unwrap();
            assert_eq!((found.resource.as_ref(), found.bewit), (resource, bewit), "{target}");
        }
        for without in ["/a", "/a?b=bewit=x", "/a&bewit=x", "/a?xbewit=1", "/bewit=x?a"] {
            assert_eq!(split_url(without), None, "{without}");
        }
    }

    /// Made by `buildSignedUrl` of the Python client `taskcluster` for tester/no-secret, with its
    /// clock stopped.
    const PYTHON: &str = concat!(
        "/api/auth/v1/clients/?limit=5&bewit=",
        "dGVzdGVyXDE3Njk4NjA4MDBcRGZUVFpNVmR4VHV6THgxZ1phcHBOZW9BeG1DaVRSUENRWFU3blB4OFJCRT1cZXlKaGRYUm9iM0pwZW1Wa1UyTnZj",
        "R1Z6SWpwYkluUmxjM1E2WVhWMGFHVnVkR2xqWVhSbExXZGxkQ0pkZlE9PQ",
    );

    #[test]
    fn bewit_of_python_client_verifies() {
        let SignedUrl { resource, bewit } = split_url(PYTHON).unwrap();
        let bewit = Bewit::parse(bewit).unwrap();
        assert_eq!((bewit.id.as_str(), bewit.expires), ("tester", 1_769_860_800));
        let ext = crate::hawk::Ext::decode(bewit.ext.as_deref().unwrap()).unwrap();
        assert_eq!(ext.authorized_scopes.unwrap(), ["test:authenticate-get"]);
        assert!(bewit.signed_by(&credentials().access_token.key(), &resource, "queue.example", 8080));
    }

    #[test]
    fn bewit_is_valid_for_one_url_until_expiry() {
        let key = credentials().access_token.key();
        let bewit = Bewit::parse(&bewit(&credentials(), &url("/a?b=1"))).unwrap();
        assert!(bewit.signed_by(&key, "/a?b=1", "Queue.example", 8080));
        for (resource, host, port) in
            [("/a", "queue.example", 8080), ("/a?b=1", "other", 8080), ("/a?b=1", "queue.example", 80)]
        {
            assert!(!bewit.signed_by(&key, resource, host, port), "{resource} {host} {port}");
        }
        assert!(!bewit.signed_by(&SigningKey::new(b"other"), "/a?b=1", "queue.example", 8080));
        let later = Bewit { expires: bewit.expires + 1, exp: "1769860801".to_owned(), ..bewit.clone() };
        assert!(!later.signed_by(&key, "/a?b=1", "queue.example", 8080));
        assert!(!bewit.is_over(1_769_860_799_999) && bewit.is_over(1_769_860_800_000));
    }

    #[test]
    fn malformed_bewit_is_refused() {
        let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let bad = [
            encoded("a\\1\\m"),
            encoded("a\\1\\m\\\\"),
            encoded("\\1\\m\\"),
            encoded("a\\x\\m\\"),
            encoded("a\\1\\\\"),
            encoded("a\\1\\m\\\n"),
            "?".to_owned(),
            String::new(),
        ];
        for text in bad {
            assert_eq!(Bewit::parse(&text).unwrap_err(), BewitError, "{text}");
        }
        assert!(Bewit::parse(&encoded("a\\1\\m\\")).is_ok());
    }

    proptest! {
        #[test]
        fn signed_url_verifies(path in "/[a-z%/]{0,20}", query in proptest::option::of("[a-z]=[a-z]{0,5}")) {
            let resource = query.map_or(path.clone(), |query| format!("{path}?{query}"));
            let value = bewit(&credentials(), &url(&resource));
            let separator = if resource.contains('?') { '&' } else { '?' };
            let whole = format!("{resource}{separator}bewit={value}");
            let found = split_url(&whole).unwrap();
            prop_assert_eq!(found.resource.as_ref(), &resource);
            let bewit = Bewit::parse(found.bewit).unwrap();
            prop_assert!(bewit.signed_by(&credentials().access_token.key(), &resource, "queue.example", 8080));
        }

        #[test]
        fn reading_never_panics(text in "[ -~]{0,60}") {
            let _ = Bewit::parse(&text);
            let _ = split_url(&text);
        }
    }
}
