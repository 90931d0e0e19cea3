//! What clients of other HTTP servers share.

use std::error::Error as _;

/// Of an error, for people.
pub(crate) const ERROR_CHARS_MAX: usize = 500;

/// TLS clients have no cryptography of its own. An earlier choice is no error.
pub(crate) fn provide_cryptography() {
    let _already = rustls::crypto::ring::default_provider().install_default();
}

/// Returns the error with its causes, without the URL.
pub(crate) fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.chars().filter(|char| *char != '\0').take(ERROR_CHARS_MAX).collect()
}
