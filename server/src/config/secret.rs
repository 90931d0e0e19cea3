//! Secrets: given as a value, in a file, or as a credential of the service manager.

use std::path::{Path, PathBuf};

use super::SettingError;

/// Names of one secret in its sources, in order of precedence.
pub(super) struct SecretSetting {
    /// Flag and variable of the value.
    pub(super) value: &'static str,
    /// Flag and variable of the file.
    pub(super) file: &'static str,
    /// File in the credentials directory.
    pub(super) credential: &'static str,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The flag, or the environment.
    Value,
    File(PathBuf),
    Credential(PathBuf),
}

#[derive(Clone)]
pub struct Secret {
    pub text: String,
    pub origin: Origin,
    /// For errors.
    pub source_name: String,
}

/// The directory that systemd makes for `LoadCredential=`.
pub(super) fn credentials_directory() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl SecretSetting {
    /// Returns the secret of the first source that has one. An empty value counts as absent, since
    /// templates leave variables empty. An empty file is an error.
    pub(super) fn find(
        &self,
        value: Option<&str>,
        file: Option<&Path>,
        credentials: Option<&Path>,
    ) -> Result<Option<Secret>, SettingError> {
        if let Some(text) = value.filter(|text| !text.is_empty()) {
            return Ok(Some(Secret {
                text: text.to_owned(),
                origin: Origin::Value,
                source_name: self.value.to_owned(),
            }));
        }
        if let Some(path) = file {
            return Ok(Some(Secret {
                text: read(self.file, path)?,
                origin: Origin::File(path.to_owned()),
                source_name: format!("the file {} of {}", path.display(), self.file),
            }));
        }
        let Some(path) = credentials.map(|folder| folder.join(self.credential)) else { return Ok(None) };
        // An unreadable directory may contain the file.
        if matches!(path.try_exists(), Ok(false)) {
            return Ok(None);
        }
        Ok(Some(Secret {
            text: read(&format!("the credential {}", self.credential), &path)?,
            source_name: format!("the credential {}", path.display()),
            origin: Origin::Credential(path),
        }))
    }
}

/// Reads a file without its final line feeds.
fn read(setting: &str, path: &Path) -> Result<String, SettingError> {
    let refused = |fix: String| SettingError::new(setting, path.display(), fix);
    let bytes = std::fs::read(path).map_err(|error| refused(format!("the file cannot be read ({error})")))?;
    let text = String::from_utf8(bytes).map_err(|_| refused("the file is not UTF-8 text".to_owned()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(refused("the file is empty; write the secret into it".to_owned()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: SecretSetting =
        SecretSetting { value: "--thing (THING)", file: "--thing-file (THING_FILE)", credential: "thing" };

    #[test]
    fn first_source_with_secret_wins() {
        let folder = tempfile::tempdir().unwrap();
        let (file, credential) = (folder.path().join("file"), folder.path().join("thing"));
        std::fs::write(&file, "in the file\n").unwrap();
        std::fs::write(&credential, "in the credential\r\n").unwrap();
        let credentials = Some(folder.path());
        let find = |value, file, credentials| SETTING.find(value, file, credentials).unwrap().unwrap();

        let secret = find(Some("given"), Some(file.as_path()), credentials);
        assert_eq!((secret.text.as_str(), secret.origin), ("given", Origin::Value));
        assert_eq!(secret.source_name, "--thing (THING)");
        for value in [None, Some("")] {
            let secret = find(value, Some(file.as_path()), credentials);
            assert_eq!((secret.text.as_str(), secret.origin), ("in the file", Origin::File(file.clone())));
            assert_eq!(secret.source_name, format!("the file {} of --thing-file (THING_FILE)", file.display()));
        }
        let secret = find(None, None, credentials);
        assert_eq!(
            (secret.text.as_str(), secret.origin),
            ("in the credential", Origin::Credential(credential.clone()))
        );
        assert_eq!(secret.source_name, format!("the credential {}", credential.display()));

        std::fs::remove_file(credential).unwrap();
        assert!(SETTING.find(None, None, credentials).unwrap().is_none());
        assert!(SETTING.find(None, None, None).unwrap().is_none());
    }

    #[test]
    fn only_final_line_feeds_are_stripped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (written, expected) in [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a"), (" a \n", " a ")] {
            std::fs::write(file.path(), written).unwrap();
            assert_eq!(read("--thing-file", file.path()).unwrap(), expected, "{written:?}");
        }
    }

    #[test]
    fn unusable_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        for (path, reason) in [
            (folder.path().join("missing"), "the file cannot be read (No such file or directory"),
            (folder.path().to_owned(), "the file cannot be read (Is a directory"),
            (write("empty", b""), "the file is empty"),
            (write("line", b"\n"), "the file is empty"),
            (write("binary", b"\xff\xfe"), "the file is not UTF-8 text"),
        ] {
            let line = SETTING.find(None, Some(&path), None).map(drop).unwrap_err().to_string();
            let start = format!("--thing-file (THING_FILE) is '{}': {reason}", path.display());
            assert!(line.starts_with(&start) && !line.contains('\n'), "{line}");
        }
        let credential = write("thing", b"\n");
        let line = SETTING.find(None, None, Some(folder.path())).map(drop).unwrap_err().to_string();
        assert!(line.starts_with(&format!("the credential thing is '{}'", credential.display())), "{line}");
    }
}
