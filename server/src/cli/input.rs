//! Files named by arguments.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::http::CommandError;

/// Reads JSON from a file; a dash is standard input.
pub(super) fn read_json(argument: &str, file: &Path) -> Result<Value, CommandError> {
    let (name, text) = if file.as_os_str() == "-" {
        let mut text = String::new();
        ("standard input".to_owned(), std::io::stdin().read_to_string(&mut text).map(|_| text))
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    let wrong = |problem: String| CommandError::Usage(format!("{argument}: {name} {problem}"));
    let text = text.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    serde_json::from_str(&text).map_err(|error| wrong(format!("is not JSON: {error}")))
}
