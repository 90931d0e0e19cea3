//! How commands print what they found: for people, or as JSON. `println!` and its siblings panic when the reader of a
//! pipe has gone (`tenure client list | head -1`), so nothing else here prints.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// Prints a result. A reader who has closed the pipe has all that it needs; anything else that stops the output, such
/// as a full disk, is an error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match print_bytes(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints a part of a result that may be anything.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints on standard error what is not the result but may be anything.
pub(crate) fn print_bytes_aside(bytes: &[u8]) -> io::Result<()> {
    io::stderr().lock().write_all(bytes)
}

/// Prints a result as lines, and gives the command's exit code.
pub(super) fn finish(text: &str) -> ExitCode {
    match print(&format!("{}\n", text.trim_end())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("tenure: the result cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line that nothing depends on, on standard output.
pub(super) fn announce(line: &str) {
    // Without a reader the line is not needed.
    drop(print(&format!("{line}\n")));
}

/// Prints on standard error why something was not done.
pub(crate) fn complain(line: &str) {
    // There is no other place to report this failure.
    drop(writeln!(io::stderr(), "{line}"));
}

/// JSON over several lines, as [`escaped`] has it.
pub(super) fn pretty(value: &impl serde::Serialize) -> String {
    escaped(&serde_json::to_string_pretty(value).expect("what is printed is text, dates and lists"))
}

/// JSON that changes nothing on a terminal: control characters are escaped. They are in strings only, but for the ends of lines.
pub(super) fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_control() && character != '\n' {
            escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// What others wrote, so that it changes nothing on a terminal and makes no line of its own.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Columns as wide as what is in them; the last one as it is.
pub(super) fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..N - 1).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(column, cell)| match widths.get(column) {
            Some(&width) => format!("{cell:width$}  "),
            None => cell.clone(),
        });
        cells.collect::<String>() + "\n"
    };
    rows.iter().map(line).collect()
}
