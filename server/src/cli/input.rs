//! Files named by arguments.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::http::CommandError;

/// Reads JSON from a file; a dash is standard input.
pub(super) fn read_json(argument: &str, file: &Path) -> Result<Value, CommandError> {
    let text = read_text(argument, file)?;
    let name = name_of(file);
    serde_json::from_str(&text).map_err(|error| CommandError::Usage(format!("{argument}: {name} is not JSON: {error}")))
}

/// Reads text from a file; a dash is standard input.
pub(super) fn read_text(argument: &str, file: &Path) -> Result<String, CommandError> {
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|error| CommandError::Usage(format!("{argument}: {} cannot be read: {error}", name_of(file))))
}

fn name_of(file: &Path) -> String {
    if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() }
}
