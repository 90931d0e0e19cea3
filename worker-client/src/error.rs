//! Why a call got no usable answer. What the server decided about a claim is not here: see [`crate::Lost`].

use std::io;
use std::time::Duration;

use tenure_api::errors::ErrorCode;

/// Why a call got no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer came: the connection failed or the time was up.
    #[error("no answer from the queue")]
    Network(#[source] reqwest::Error),
    /// The server refused; the fields are those of its error body.
    #[error("the queue answered {status} {code}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error code of the API, empty if the body had none.
        code: String,
        /// The first line of the server's explanation.
        message: String,
        /// How long the server asked to wait before the next try.
        retry_after: Option<Duration>,
    },
    /// The worker has a session already; the server says since when and until when.
    #[error("{0}")]
    SessionExists(String),
    /// The session has ended: what it held was given to others.
    #[error("{0}")]
    SessionEnded(String),
    /// The run of a job is lost, in these words: nothing more is sent for it.
    #[error("the run is lost: {0}")]
    RunLost(String),
    /// The answer was not what the API promises.
    #[error("the answer of the queue could not be read")]
    BadAnswer(#[source] serde_json::Error),
    /// What was to be stored cannot be written as JSON.
    #[error("a value cannot be written as JSON")]
    NotJson(#[source] serde_json::Error),
    /// The answer to a poll was not a list of messages.
    #[error("the answer of the queue is not a list of messages")]
    BadMessages(#[source] quick_xml::DeError),
    /// A signed URL of the server's cannot be used; the URL itself is a secret and not shown.
    #[error("a signed URL of the queue cannot be used: {0}")]
    SignedUrl(&'static str),
    /// The artifact store refused an upload or a download. Its URLs are secrets and not shown.
    #[error("the store of the artifact answered {status}")]
    Store {
        /// The HTTP status.
        status: u16,
    },
    /// The bytes of an artifact or of a stream stopped on their way.
    #[error("nothing was sent or received for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The bytes that came are not the artifact's.
    #[error("the artifact did not arrive whole: {0}")]
    Damaged(String),
    /// A file of ours could not be read or written.
    #[error("{what}")]
    File {
        /// Which, and what was tried.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The root URL is not one; the text has the reason.
    #[error("{0}")]
    RootUrl(String),
    /// A variable of the environment is missing.
    #[error("{0} is not set in the environment")]
    NotInEnvironment(&'static str),
}

impl Error {
    /// Whether the same call may succeed later: no answer, 408, 429 or 5xx. What keeps artifacts answers 403 to a URL
    /// that has ended and 400 to bytes that came too slowly; a new URL helps there.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Network(_) | Self::Stalled(_) | Self::Damaged(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..),
            Self::Store { status } => matches!(status, 400 | 403 | 408 | 429 | 500..),
            Self::SessionExists(_)
            | Self::SessionEnded(_)
            | Self::RunLost(_)
            | Self::BadAnswer(_)
            | Self::BadMessages(_)
            | Self::NotJson(_)
            | Self::SignedUrl(_)
            | Self::RootUrl(_)
            | Self::NotInEnvironment(_)
            | Self::File { .. } => false,
        }
    }

    /// Whether the answer may be that of something between us and the server, such as a proxy whose server is away: it has no error code,
    /// or is not what the API promises. The server may have done what it was asked, or may do it later.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::Refused { code, .. } => code.is_empty(),
            Self::BadAnswer(_) => true,
            _ => false,
        }
    }

    /// The HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } | Self::Store { status } => Some(*status),
            Self::SessionExists(_) => Some(ErrorCode::SessionExists.status()),
            Self::SessionEnded(_) => Some(ErrorCode::SessionEnded.status()),
            Self::Network(_)
            | Self::RunLost(_)
            | Self::BadAnswer(_)
            | Self::BadMessages(_)
            | Self::NotJson(_)
            | Self::SignedUrl(_)
            | Self::Stalled(_)
            | Self::Damaged(_)
            | Self::File { .. }
            | Self::RootUrl(_)
            | Self::NotInEnvironment(_) => None,
        }
    }

    /// How long the server asked to wait before the next try.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self { *retry_after } else { None }
    }

    /// True if these credentials are not good for the queue, or its server is not Tenure.
    pub(crate) fn refuses_worker(&self) -> bool {
        matches!(self.status(), Some(400 | 401 | 403 | 404 | 405))
    }

    /// Makes an error of the system's about a file of ours.
    pub fn of_file(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::File { what, source }
    }
}

/// The error and its causes in one line, for the log.
///
/// ```
/// # use tenure_client::Error;
/// let lost = Error::RunLost("cancelled".to_owned());
/// assert_eq!(tenure_client::error::chain(&lost), "the run is lost: cancelled");
/// ```
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
