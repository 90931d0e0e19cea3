//! Who may call an operation.

use std::time::Duration;

use super::scopes::Template;

/// How often the access of a stream's caller is checked again.
pub const REAUTHORIZE_EVERY: Duration = Duration::from_secs(3);

/// Who may call an operation, and how that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every caller: there is nothing to be authorized, or the handler authenticates by itself. Needs no database.
    Open,
    /// Callers with these scopes. They are authenticated before the handler is called.
    Scopes(Template),
    /// Callers with a signed URL of the poll API.
    SignedUrl,
    /// Callers with a signed URL of an artifact's bytes.
    ArtifactUrl,
    /// The same, or a plain URL of what every caller may read.
    PlainArtifactUrl,
}
