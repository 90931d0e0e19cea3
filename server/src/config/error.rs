//! Errors of settings, one line each.

use std::fmt::Display;

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{setting} {value}: {fix}")]
pub struct SettingError {
    setting: String,
    value: String,
    fix: String,
}

impl SettingError {
    pub const EXIT_CODE: u8 = 2;

    #[must_use]
    pub fn new(setting: &str, value: impl Display, fix: impl Into<String>) -> Self {
        Self { setting: setting.to_owned(), value: format!("is '{value}'"), fix: fix.into() }
    }

    /// An error that hides the value.
    pub(super) fn secret(setting: &str, fix: impl Into<String>) -> Self {
        Self {
            setting: setting.to_owned(),
            value: "cannot be used (not shown, because it is secret)".to_owned(),
            fix: fix.into(),
        }
    }

    #[must_use]
    pub fn missing(setting: &str, fix: impl Into<String>) -> Self {
        Self { setting: setting.to_owned(), value: "is missing".to_owned(), fix: fix.into() }
    }

    /// An external database without a secret key: each server would create its own.
    pub fn missing_secret_key() -> Self {
        Self {
            setting: "--secret-key (TENURE_SECRET_KEY)".to_owned(),
            value: "is missing".to_owned(),
            fix: "with --database-url every server needs the same key; make one with: openssl rand -base64 32"
                .to_owned(),
        }
    }
}
