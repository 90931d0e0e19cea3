//! Hawk: a request is signed with the client's access token in its `Authorization` header, without
//! sending the token. The module has both sides: [`authorization_header`] for clients, [`Header`]
//! for the server, and signed URLs in [`bewit`].
//!
//! Only SHA-256, as in every Taskcluster client. The server decides whether a header is recent and
//! which key must have signed it.

pub mod bewit;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};
use hmac::Mac as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::credentials::{Credentials, SigningKey, Tag};

const SCHEME: &str = "hawk";
/// Padding is optional, and the unused bits of the last character are ignored.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const EXT_STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const EXT_URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// The part of a request that its signature covers.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub method: &'a str,
    /// Path and query exactly as sent, neither decoded nor normalized.
    pub resource: &'a str,
    /// Without the port.
    pub host: &'a str,
    /// The port that the client connected to.
    pub port: u16,
}

/// The messages may be sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the Authorization header is not of the scheme Hawk")]
    Scheme,
    #[error("the Hawk header must be a list of key=\"value\" with commas between")]
    Syntax,
    #[error("the Hawk header has an attribute other than id, ts, nonce, hash, ext, mac, app and dlg")]
    UnknownAttribute,
    #[error("the Hawk header has the attribute {0} more than once")]
    Repeated(&'static str),
    #[error("the Hawk header has a bad value for the attribute {0}")]
    Value(&'static str),
    #[error("the Hawk header lacks the attribute {0}")]
    Missing(&'static str),
}

/// A Hawk header as sent; untrusted until [`Header::signed_by`] succeeds.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    pub id: &'a str,
    /// When the client signed, in seconds since 1970.
    pub timestamp: i64,
    /// The hash of the body, if the signature covers it.
    pub hash: Option<&'a str>,
    /// Certificate and narrowed scopes, see [`Ext::decode`].
    pub ext: Option<&'a str>,
    ts: &'a str,
    nonce: &'a str,
    mac: &'a str,
    app: Option<&'a str>,
    dlg: Option<&'a str>,
}

impl<'a> Header<'a> {
    pub fn parse(value: &'a str) -> Result<Self, HeaderError> {
        let (scheme, attributes) = value.trim().split_once(' ').ok_or(HeaderError::Scheme)?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(HeaderError::Scheme);
        }
        let attributes = Attributes::parse(attributes)?;
        let required = |name| attributes.get(name).ok_or(HeaderError::Missing(name));
        let ts = required("ts")?;
        Ok(Self {
            id: required("id")?,
            timestamp: parse_seconds(ts).ok_or(HeaderError::Value("ts"))?,
            hash: attributes.get("hash"),
            ext: attributes.get("ext"),
            ts,
            nonce: required("nonce")?,
            mac: required("mac")?,
            app: attributes.get("app"),
            dlg: attributes.get("dlg"),
        })
    }

    /// Returns the attribute `hash` of a header that [`Header::parse`] has accepted. Its values
    /// contain no quotes, so names and values alternate between quotes.
    #[must_use]
    pub fn find_hash(accepted: &str) -> Option<&str> {
        let mut parts = accepted.split('"');
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            if name.strip_suffix("hash=").is_some_and(|before| before.ends_with([' ', '\t', ','])) {
                return Some(value);
            }
        }
        None
    }

    /// True if the holder of this key signed the header for this request.
    #[must_use]
    pub fn signed_by(&self, key: &SigningKey, target: &Target<'_>) -> bool {
        self.expected(target).mac(key).matches(self.mac)
    }

    fn expected<'b>(&'b self, target: &'b Target<'b>) -> Signed<'b> {
        let Self { ts, nonce, hash, ext, app, dlg, .. } = *self;
        Signed { kind: Kind::Header, target, ts, nonce, hash, ext, app, dlg }
    }
}

/// Refuses `+5` and ` 5`, which the standard library accepts and no client writes.
fn parse_seconds(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

const NAMES: [&str; 8] = ["id", "ts", "nonce", "hash", "ext", "mac", "app", "dlg"];

#[derive(Default)]
struct Attributes<'a>([Option<&'a str>; NAMES.len()]);

impl<'a> Attributes<'a> {
    fn parse(text: &'a str) -> Result<Self, HeaderError> {
        let mut found = Self::default();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (name, after) = rest.split_once("=\"").ok_or(HeaderError::Syntax)?;
            let (value, after) = after.split_once('"').ok_or(HeaderError::Syntax)?;
            let index = NAMES.iter().position(|known| *known == name).ok_or(HeaderError::UnknownAttribute)?;
            // Backslashes are refused too, so the rest never needs unescaping.
            if value.is_empty() || !value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\') {
                return Err(HeaderError::Value(NAMES[index]));
            }
            if found.0[index].replace(value).is_some() {
                return Err(HeaderError::Repeated(NAMES[index]));
            }
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if rest.is_empty() => {}
                None => return Err(HeaderError::Syntax),
            }
        }
        Ok(found)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        NAMES.iter().position(|known| *known == name).and_then(|index| self.0[index])
    }
}

/// The carrier of a signature, which is part of the signed text.
#[derive(Clone, Copy)]
enum Kind {
    Header,
    Bewit,
}

impl Kind {
    fn first_line(self) -> &'static [u8] {
        match self {
            Self::Header => b"hawk.1.header\n",
            Self::Bewit => b"hawk.1.bewit\n",
        }
    }
}

struct Signed<'a> {
    kind: Kind,
    target: &'a Target<'a>,
    ts: &'a str,
    nonce: &'a str,
    hash: Option<&'a str>,
    ext: Option<&'a str>,
    app: Option<&'a str>,
    dlg: Option<&'a str>,
}

impl Signed<'_> {
    /// Feeds the signed text line by line, to avoid an allocation per request.
    fn mac(&self, key: &SigningKey) -> Tag {
        let mut mac = key.start();
        mac.update(self.kind.first_line());
        for line in [self.ts, self.nonce] {
            mac.update(line.as_bytes());
            mac.update(b"\n");
        }
        update_in_case(&mut mac, self.target.method, u8::to_ascii_uppercase);
        mac.update(b"\n");
        mac.update(self.target.resource.as_bytes());
        mac.update(b"\n");
        update_in_case(&mut mac, self.target.host, u8::to_ascii_lowercase);
        mac.update(b"\n");
        update_number(&mut mac, self.target.port);
        mac.update(b"\n");
        // The format escapes backslashes and newlines in ext; `Attributes::parse` has refused both.
        for line in [self.hash, self.ext] {
            mac.update(line.unwrap_or_default().as_bytes());
            mac.update(b"\n");
        }
        if let Some(app) = self.app {
            for line in [app, self.dlg.unwrap_or_default()] {
                mac.update(line.as_bytes());
                mac.update(b"\n");
            }
        }
        Tag::new(mac.finalize().into_bytes())
    }
}

fn update_in_case(mac: &mut hmac::Hmac<Sha256>, text: &str, case: fn(&u8) -> u8) {
    if text.bytes().all(|byte| case(&byte) == byte) {
        return mac.update(text.as_bytes());
    }
    for byte in text.bytes() {
        mac.update(&[case(&byte)]);
    }
}

fn update_number(mac: &mut hmac::Hmac<Sha256>, number: u16) {
    use std::io::Write as _;
    let mut digits = [0_u8; 5];
    let mut free = &mut digits[..];
    write!(free, "{number}").expect("a port has at most 5 digits");
    let used = 5 - free.len();
    mac.update(&digits[..used]);
}

fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// `content_type` is empty if none was sent.
#[must_use]
pub fn payload_hash(content_type: &str, body: &[u8]) -> Tag {
    let mut hash = Sha256::new_with_prefix(b"hawk.1.payload\n");
    let media_type = media_type(content_type);
    if media_type.bytes().any(|byte| byte.is_ascii_uppercase()) {
        hash.update(media_type.to_ascii_lowercase());
    } else {
        hash.update(media_type);
    }
    hash.update(b"\n");
    hash.update(body);
    hash.update(b"\n");
    Tag::new(hash.finalize())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ext must be base64 of a JSON object with certificate (an object) and authorizedScopes (an array of scopes)")]
pub struct ExtError;

/// Additions to a signature: the certificate of temporary credentials, and narrowed scopes.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ext {
    certificate: Option<Box<RawValue>>,
    /// The only scopes of this request.
    pub authorized_scopes: Option<Vec<String>>,
}

impl Ext {
    /// Accepts both alphabets of base64, with or without padding.
    pub fn decode(text: &str) -> Result<Self, ExtError> {
        let url_safe = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
        let engine = if url_safe { &EXT_URL_SAFE } else { &EXT_STANDARD };
        let json = engine.decode(text).map_err(|_| ExtError)?;
        serde_json::from_slice(&json).map_err(|_| ExtError)
    }

    /// JSON text for [`Certificate::parse`](crate::credentials::Certificate::parse).
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref().map(RawValue::get)
    }
}

fn ext_of(credentials: &Credentials) -> Option<String> {
    // Some clients carry permanent credentials with an empty certificate.
    let certificate = credentials.certificate.as_deref().filter(|text| !text.is_empty());
    certificate.map(|text| STANDARD.encode(format!("{{\"certificate\":{text}}}")))
}

#[derive(Clone, Copy, Debug)]
pub struct SignRequest<'a> {
    pub method: &'a str,
    /// Path and query exactly as they will be sent.
    pub resource: &'a str,
    /// Without the port.
    pub host: &'a str,
    pub port: u16,
    /// Seconds since 1970.
    pub timestamp: i64,
    /// Unique within a second; letters, digits, `-` and `_`.
    pub nonce: &'a str,
    /// Content type and body, if the signature covers them.
    pub payload: Option<(&'a str, &'a [u8])>,
}

#[must_use]
pub fn authorization_header(credentials: &Credentials, request: &SignRequest<'_>) -> String {
    let SignRequest { method, resource, host, port, timestamp, nonce, payload } = *request;
    let target = Target { method, resource, host, port };
    let ts = timestamp.to_string();
    let hash = payload.map(|(content_type, body)| payload_hash(content_type, body));
    let ext = ext_of(credentials);
    let (hash, ext) = (hash.as_ref().map(Tag::as_str), ext.as_deref());
    let signed = Signed { kind: Kind::Header, target: &target, ts: &ts, nonce, hash, ext, app: None, dlg: None };
    let mac = signed.mac(&credentials.access_token.key());

    let mut header = String::with_capacity(256 + ext.map_or(0, str::len));
    header.push_str("Hawk");
    let attributes = [
        ("id", Some(credentials.client_id.as_str())),
        ("ts", Some(ts.as_str())),
        ("nonce", Some(nonce)),
        ("hash", hash),
        ("ext", ext),
        ("mac", Some(mac.as_str())),
    ];
    let mut separator = " ";
    for (name, value) in attributes.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        for part in [separator, name, "=\"", value, "\""] {
            header.push_str(part);
        }
        separator = ", ";
    }
    header
}

#[cfg(test)]
mod tests;
