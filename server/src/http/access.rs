//! Who may call an operation.

use std::time::Duration;

use super::scopes::Template;

/// Interval between access checks of a stream's caller.
pub const REAUTHORIZE_EVERY: Duration = Duration::from_secs(3);

/// Credentials that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone: the operation needs no authorization, or its handler authenticates. Needs no
    /// database.
    Open,
    /// These scopes. The caller is authenticated before the handler is called.
    Scopes(Template),
    /// A signed URL of the poll API.
    SignedUrl,
    /// A signed URL of an artifact's bytes.
    ArtifactUrl,
    /// As [`Access::ArtifactUrl`], or an unsigned URL of a public artifact.
    PlainArtifactUrl,
}
