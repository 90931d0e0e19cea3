//! Output of the log of a run.

use std::io;

use tenure_api::live_log::{SERVER_MARK, WORKER_MARK};

use crate::cli::print::{print_bytes, print_bytes_aside};

pub(super) enum Sink {
    /// The whole log is the result.
    Whole,
    /// The log goes to standard error; the result is an answer of the server.
    Aside,
    /// Command output goes to standard output; lines of the worker and the server to standard
    /// error.
    Sorted(LineSorter),
}

impl Sink {
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Whole => print_bytes(bytes),
            Self::Aside => print_bytes_aside(bytes),
            Self::Sorted(sorter) => print_parts(&sorter.add(bytes)),
        }
    }

    /// Prints the held-back bytes. Call it at the end of a log.
    pub(super) fn end(&mut self) -> io::Result<()> {
        match self {
            Self::Whole | Self::Aside => Ok(()),
            Self::Sorted(sorter) => print_parts(&std::mem::take(sorter).end()),
        }
    }
}

fn print_parts(parts: &[Part]) -> io::Result<()> {
    parts
        .iter()
        .try_for_each(|part| if part.marked { print_bytes_aside(&part.bytes) } else { print_bytes(&part.bytes) })
}

/// Bytes of a log with the same destination.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// True for lines of the worker and the server.
    marked: bool,
    bytes: Vec<u8>,
}

/// Separates marked lines from the others. The start of a line is held back while it may be a mark.
#[derive(Default)]
pub(super) struct LineSorter {
    line: Line,
    held: Vec<u8>,
}

#[derive(Default, Clone, Copy)]
enum Line {
    #[default]
    Begins,
    GoesOn {
        marked: bool,
    },
}

impl LineSorter {
    fn add(&mut self, bytes: &[u8]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let mut rest = line;
            while let (Line::Begins, [first, behind @ ..]) = (self.line, rest) {
                self.held.push(*first);
                rest = behind;
                let marks = [WORKER_MARK.as_bytes(), SERVER_MARK.as_bytes()];
                if !marks.iter().any(|mark| mark.starts_with(&self.held) && *mark != self.held) {
                    let marked = marks.contains(&self.held.as_slice());
                    self.line = Line::GoesOn { marked };
                    add_to(&mut parts, marked, &std::mem::take(&mut self.held));
                }
            }
            if let Line::GoesOn { marked } = self.line {
                add_to(&mut parts, marked, rest);
            }
            if line.ends_with(b"\n") {
                self.line = Line::Begins;
            }
        }
        parts
    }

    /// Returns the held-back bytes. A marked line without a newline gets one, because other lines
    /// follow.
    fn end(self) -> Vec<Part> {
        match self.line {
            Line::Begins => vec![Part { marked: false, bytes: self.held }],
            Line::GoesOn { marked: true } => vec![Part { marked: true, bytes: b"\n".to_vec() }],
            Line::GoesOn { marked: false } => Vec::new(),
        }
    }
}

fn add_to(parts: &mut Vec<Part>, marked: bool, bytes: &[u8]) {
    match parts.last_mut() {
        Some(last) if last.marked == marked => last.bytes.extend_from_slice(bytes),
        _ => parts.push(Part { marked, bytes: bytes.to_vec() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a log, fed in pieces of this length, into standard output and standard error.
    fn sorted(log: &str, piece: usize) -> (String, String) {
        let (mut sorter, mut out, mut aside) = (LineSorter::default(), Vec::new(), Vec::new());
        let mut parts: Vec<Part> = log.as_bytes().chunks(piece).flat_map(|piece| sorter.add(piece)).collect();
        parts.extend(sorter.end());
        for Part { marked, bytes } in parts {
            if marked { &mut aside } else { &mut out }.extend(bytes);
        }
        (String::from_utf8(out).unwrap(), String::from_utf8(aside).unwrap())
    }

    #[test]
    fn marked_lines_go_to_standard_error() {
        for (log, out, aside) in [
            ("", "", ""),
            ("42\n", "42\n", ""),
            ("[tenure-worker] a\n42\n[tenure-worker] b\n", "42\n", "[tenure-worker] a\n[tenure-worker] b\n"),
            ("42\n\n[tenure] 5 bytes are missing\nx", "42\n\nx", "[tenure] 5 bytes are missing\n"),
            ("[tenure", "[tenure", ""),
            ("[tenure\n[tenure-worker\n", "[tenure\n[tenure-worker\n", ""),
            ("[tenure-worker]\n[tenure]x\n", "[tenure-worker]\n[tenure]x\n", ""),
            (" [tenure] x\n[tenurf] y\n\n", " [tenure] x\n[tenurf] y\n\n", ""),
            ("x\n[tenure-worker] not ended", "x\n", "[tenure-worker] not ended\n"),
            ("[tenure] x\ny", "y", "[tenure] x\n"),
        ] {
            for piece in [1, 2, 7, 1_000] {
                assert_eq!(sorted(log, piece), (out.to_owned(), aside.to_owned()), "{log:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn output_is_not_held_back() {
        let mut sorter = LineSorter::default();
        assert_eq!(sorter.add(b"Password: "), [Part { marked: false, bytes: b"Password: ".to_vec() }]);
        assert_eq!(sorter.add(b"\n[ten"), [Part { marked: false, bytes: b"\n".to_vec() }]);
    }
}
