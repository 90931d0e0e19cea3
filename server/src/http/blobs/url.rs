//! The two kinds of URLs of stored bytes.

use http::request::Parts;
use http::{HeaderValue, Method};
use serde_json::{Value, json};

use crate::http::budget::Share;
use crate::http::docs::operation::Operation;

/// By which kind of URL stored bytes are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One that is signed: for the client that it was issued to.
    Signed,
    /// One without a signature, the same for all callers.
    Plain,
}

impl Way {
    /// Whose part of the read slots a request uses. A signed URL was issued to a caller that may read the bytes.
    pub(super) fn share(self) -> Share {
        match self {
            Self::Signed => Share::Authenticated,
            Self::Plain => Share::Anonymous,
        }
    }

    /// For whom the answer is, and that a stored one is good only as long as its tag is: whether it may be read is
    /// checked with each request.
    pub(super) fn caching(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Signed => "private, no-cache",
            Self::Plain => "public, no-cache",
        })
    }
}

/// The parameters that were signed.
pub(super) fn signature(operation: Operation) -> Operation {
    let text = json!({"type": "string"});
    operation.query("Credential", "What the URL is for: `put` or `get`", &text, &Value::Null).query(
        "expires",
        "Until when it is good, in milliseconds since 1970",
        &text,
        &Value::Null,
    )
}

/// Only reads go without a signature.
pub(super) fn way(parts: &Parts) -> Way {
    let unsigned = parts.uri.query().is_none_or(str::is_empty);
    if unsigned && matches!(parts.method, Method::GET | Method::HEAD) { Way::Plain } else { Way::Signed }
}
