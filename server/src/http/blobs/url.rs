//! The two kinds of URLs for stored bytes.

use http::request::Parts;
use http::{HeaderValue, Method};
use serde_json::{Value, json};

use crate::http::budget::Share;
use crate::http::docs::operation::Operation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// For the client that it was issued to.
    Signed,
    /// Unsigned, the same for all callers.
    Plain,
}

impl Way {
    /// A signed URL was issued to a caller with access.
    pub(super) fn share(self) -> Share {
        match self {
            Self::Signed => Share::Authenticated,
            Self::Plain => Share::Anonymous,
        }
    }

    /// Access is checked per request, so a cached copy must be revalidated by its tag.
    pub(super) fn caching(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Signed => "private, no-cache",
            Self::Plain => "public, no-cache",
        })
    }
}

pub(super) fn signature(operation: Operation) -> Operation {
    let text = json!({"type": "string"});
    operation.query("Credential", "What the URL is for: `put` or `get`", &text, &Value::Null).query(
        "expires",
        "Expiry, in milliseconds since 1970",
        &text,
        &Value::Null,
    )
}

/// Only reads work without a signature.
pub(super) fn way(parts: &Parts) -> Way {
    let unsigned = parts.uri.query().is_none_or(str::is_empty);
    if unsigned && matches!(parts.method, Method::GET | Method::HEAD) { Way::Plain } else { Way::Signed }
}
