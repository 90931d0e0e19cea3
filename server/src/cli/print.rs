//! Output of the commands. `println!` and its siblings panic when the reader of a pipe has gone
//! (`tenure client list | head -1`), so no other module prints.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// Prints a result. A closed pipe is no error, but other failures such as a full disk are.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match print_bytes(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints bytes on standard error.
pub(crate) fn print_bytes_aside(bytes: &[u8]) -> io::Result<()> {
    io::stderr().lock().write_all(bytes)
}

pub(super) fn finish(text: &str) -> ExitCode {
    match print(&format!("{}\n", text.trim_end())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("tenure: the result cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub(super) fn announce(line: &str) {
    drop(print(&format!("{line}\n")));
}

/// Prints an error on standard error.
pub(crate) fn complain(line: &str) {
    drop(writeln!(io::stderr(), "{line}"));
}

pub(super) fn pretty(value: &impl serde::Serialize) -> String {
    escaped(&serde_json::to_string_pretty(value).expect("what is printed is text, dates and lists"))
}

/// Escapes control characters in JSON, so that it cannot control a terminal.
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

/// Replaces control characters, so that text cannot control a terminal or add lines.
pub(super) fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Aligns all columns but the last one.
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
