//! Access requirements of operations.

use std::time::Duration;

use super::scopes::Template;

/// Interval between access checks of a stream's caller.
pub const REAUTHORIZE_EVERY: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No check here: the handler may authenticate. Needs no database.
    Open,
    /// Scopes, checked after authentication.
    Scopes(Template),
    SignedUrl,
    ArtifactUrl,
    /// As [`Access::ArtifactUrl`], or an unsigned URL of a public artifact.
    PlainArtifactUrl,
}
