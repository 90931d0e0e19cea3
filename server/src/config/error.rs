//! Why a setting cannot be used, as one line.

use std::fmt::Display;

/// A setting that cannot be used: its name, its value and what to do about it.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{setting} {value}: {fix}")]
pub struct SettingError {
    setting: String,
    value: String,
    fix: String,
}

impl SettingError {
    /// The process' exit code for a wrong setting.
    pub const EXIT_CODE: u8 = 2;

    /// A value that may be shown.
    #[must_use]
    pub fn new(setting: &str, value: impl Display, fix: impl Into<String>) -> Self {
        Self { setting: setting.to_owned(), value: format!("is '{value}'"), fix: fix.into() }
    }

    /// A value that may not be shown.
    pub(super) fn secret(setting: &str, fix: impl Into<String>) -> Self {
        Self {
            setting: setting.to_owned(),
            value: "cannot be used (not shown, because it is secret)".to_owned(),
            fix: fix.into(),
        }
    }

    /// An external database without a secret key: two servers would each make their own.
    pub fn missing_secret_key() -> Self {
        Self {
            setting: "--secret-key (TENURE_SECRET_KEY)".to_owned(),
            value: "is missing".to_owned(),
            fix: "with --database-url every server needs the same key; make one with: openssl rand -base64 32"
                .to_owned(),
        }
    }
}
