//! Errors of calls without a usable answer. The loss of a claim is not an error: see
//! [`crate::Lost`].

use std::io;
use std::time::Duration;

use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskId;

/// A call without a usable answer.
///
/// ```no_run
/// use tenure_client::Error;
///
/// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// match client.status("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await {
///     Ok(status) => println!("{}", status.state),
///     Err(Error::Refused { status: 404, .. }) => println!("the task does not exist"),
///     Err(other) => return Err(other.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed or the timeout passed.
    #[error("no answer from the queue")]
    Network(#[source] reqwest::Error),
    /// The server refused; the fields are from its error body.
    #[error("the queue answered {status} {code}: {message}")]
    Refused {
        status: u16,
        /// Empty if the body had none.
        code: String,
        /// First line of the explanation.
        message: String,
        /// Requested pause before a retry.
        retry_after: Option<Duration>,
    },
    /// An unresolved task has the unique name of a new one, and the new one is not stored.
    #[error("{message}")]
    DuplicateTask {
        /// The unresolved task.
        holder: TaskId,
        /// Name of the refused task in its request, or its index from 0. Absent if the request was
        /// for one task.
        entry: Option<String>,
        /// First line of the explanation.
        message: String,
    },
    /// The worker already has a session. The text contains its start and expiry.
    #[error("{0}")]
    SessionExists(String),
    /// The session has ended; its runs went to other workers.
    #[error("{0}")]
    SessionEnded(String),
    /// The job's run is lost, with the reason. Its requests are no longer sent.
    #[error("the run is lost: {0}")]
    RunLost(String),
    /// The answer does not match the API.
    #[error("the answer of the queue could not be read")]
    BadAnswer(#[source] serde_json::Error),
    #[error("a value cannot be written as JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the answer of the queue is not a list of messages")]
    BadMessages(#[source] quick_xml::DeError),
    /// A signed URL cannot be used. It is a secret and not shown.
    #[error("a signed URL of the queue cannot be used: {0}")]
    SignedUrl(&'static str),
    /// The artifact store refused a transfer. Its URLs are secrets and not shown.
    #[error("the store of the artifact answered {status}")]
    Store { status: u16 },
    /// A transfer made no progress for this long.
    #[error("nothing was sent or received for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The received bytes are not the artifact's.
    #[error("the artifact is incomplete or damaged: {0}")]
    Damaged(String),
    /// A local file cannot be read or written.
    #[error("{what}")]
    File {
        /// File and attempted operation.
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    RootUrl(String),
    #[error("{0} is not set in the environment")]
    NotInEnvironment(&'static str),
}

impl Error {
    /// True if the same call may succeed later: no answer, 408, 429 or 5xx. Stores answer 403 for
    /// an expired URL and 400 for slow uploads; a new URL helps.
    ///
    /// ```
    /// # use tenure_client::Error;
    /// let (code, message) = (String::new(), String::new());
    /// let refused = Error::Refused { status: 503, code, message, retry_after: None };
    /// assert!(refused.is_transient());
    /// assert!(!Error::RunLost("cancelled".to_owned()).is_transient());
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Network(_) | Self::Stalled(_) | Self::Damaged(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..),
            Self::Store { status } => matches!(status, 400 | 403 | 408 | 429 | 500..),
            Self::DuplicateTask { .. }
            | Self::SessionExists(_)
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

    /// Returns why the certificate of the server is not trusted, if that is the error.
    ///
    /// ```
    /// # fn example(error: &tenure_client::Error) {
    /// if let Some(problem) = error.certificate_problem() {
    ///     println!("{problem}: trust the authority of the server with `ClientBuilder::ca_file`");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn certificate_problem(&self) -> Option<String> {
        let Self::Network(error) = self else { return None };
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(problem @ rustls::Error::InvalidCertificate(_)) = error.downcast_ref::<rustls::Error>() {
                return Some(problem.to_string());
            }
            // The source of an I/O error skips its inner error.
            cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
                None => error.source(),
            };
        }
        None
    }

    /// True if a proxy may have answered: the error code is missing, or the answer does not match
    /// the API. The server may still process the request.
    ///
    /// ```
    /// # use tenure_client::Error;
    /// let (code, message) = (String::new(), String::new());
    /// let refused = Error::Refused { status: 404, code, message, retry_after: None };
    /// assert!(refused.is_unclear());
    /// ```
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::Refused { code, .. } => code.is_empty(),
            Self::BadAnswer(_) => true,
            _ => false,
        }
    }

    /// Returns the HTTP status of a refusal.
    ///
    /// ```
    /// # use tenure_client::Error;
    /// let (code, message) = (String::new(), String::new());
    /// let refused = Error::Refused { status: 409, code, message, retry_after: None };
    /// assert_eq!(refused.status(), Some(409));
    /// ```
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } | Self::Store { status } => Some(*status),
            Self::DuplicateTask { .. } => Some(ErrorCode::DuplicateTask.status()),
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

    /// Returns the pause that the server requested.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::Error;
    /// let pause = Some(Duration::from_secs(5));
    /// let (code, message) = (String::new(), String::new());
    /// let refused = Error::Refused { status: 429, code, message, retry_after: pause };
    /// assert_eq!(refused.retry_after(), pause);
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self { *retry_after } else { None }
    }

    /// True if the queue refuses these credentials, or is not Tenure.
    pub(crate) fn refuses_worker(&self) -> bool {
        matches!(self.status(), Some(400 | 401 | 403 | 404 | 405))
    }

    /// Wraps an I/O error about a local file.
    ///
    /// ```
    /// # use tenure_client::Error;
    /// let read = std::fs::read("does-not-exist").map_err(Error::of_file("the list cannot be read"));
    /// assert_eq!(read.unwrap_err().to_string(), "the list cannot be read");
    /// ```
    pub fn of_file(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::File { what, source }
    }
}

/// Joins the error and its causes into one line.
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
