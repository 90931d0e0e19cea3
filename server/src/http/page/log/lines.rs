//! A log as numbered lines of HTML, piece by piece: each line has an anchor such as `#L120`.
//!
//! The memory does not depend on the length of lines. Lines that contain [`ERROR`] end with an
//! empty element, from which the style marks the line: its beginning is sent before its end is
//! known.

use std::ops::RangeInclusive;

use maud::Render as _;
use tenure_api::live_log::SERVER_MARK;
use tenure_domain::terminal::Terminal;

use crate::http::page::text::plain;

/// Each line has about 60 bytes of HTML, so a small log of empty lines would make a huge page.
const LINES_MAX: u64 = 200_000;
/// In UTF-8.
const CHARACTER_BYTES_MAX: usize = 4;
/// In any case. It has no second `e`: after a mismatch, at most its first character has matched.
const ERROR: [char; 5] = ['e', 'r', 'r', 'o', 'r'];

/// Keeps an incomplete character and escape sequence between pieces.
#[derive(Default)]
pub(super) struct Text {
    rest: Vec<u8>,
    terminal: Terminal,
}

impl Text {
    /// Marks invalid bytes; drops escape sequences and control characters.
    pub(super) fn take(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let end = whole_characters(&self.rest);
        let rest = self.rest.split_off(end);
        plain(&mut self.terminal, &std::mem::replace(&mut self.rest, rest))
    }
}

/// Length without an incomplete last character.
fn whole_characters(bytes: &[u8]) -> usize {
    for (back, byte) in (1..).zip(bytes.iter().rev().take(CHARACTER_BYTES_MAX)) {
        let length = match byte {
            0x80..0xc0 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0..0xf8 => 4,
            _ => 1,
        };
        return if length > back { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

/// Finds [`ERROR`] in a line that arrives in parts.
#[derive(Debug, Clone, Copy, Default)]
struct ErrorFinder {
    /// Characters found of the word.
    matched: usize,
}

impl ErrorFinder {
    fn take(&mut self, part: &str) {
        for character in part.chars() {
            if self.is_found() {
                return;
            }
            let character = character.to_ascii_lowercase();
            self.matched =
                if character == ERROR[self.matched] { self.matched + 1 } else { usize::from(character == ERROR[0]) };
        }
    }

    fn is_found(self) -> bool {
        self.matched == ERROR.len()
    }
}

#[derive(Default)]
pub(super) struct Lines {
    text: Text,
    /// Of the last line that has begun, from 1.
    number: u64,
    is_open: bool,
    errors: ErrorFinder,
    marked: Option<RangeInclusive<u64>>,
}

impl Lines {
    /// `marked` lines are highlighted.
    pub(super) fn new(marked: Option<RangeInclusive<u64>>) -> Self {
        Self { marked, ..Self::default() }
    }

    /// True if the log has more lines than the page; the last line says so.
    pub(super) fn is_full(&self) -> bool {
        self.number > LINES_MAX
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> String {
        let text = self.text.take(bytes);
        let mut html = String::with_capacity(text.len() * 2);
        for part in text.split_inclusive('\n') {
            if self.is_full() {
                break;
            }
            if !self.is_open {
                self.open(&mut html);
            }
            if self.is_full() {
                format!("{SERVER_MARK}the page ends here: download the log for the rest").render_to(&mut html);
                self.close(&mut html);
                break;
            }
            let line = part.strip_suffix('\n');
            line.unwrap_or(part).render_to(&mut html);
            self.errors.take(line.unwrap_or(part));
            if line.is_some() {
                self.close(&mut html);
            }
        }
        html
    }

    /// Returns the end of an unfinished line.
    pub(super) fn end(&mut self) -> String {
        let mut html = String::new();
        if self.is_open {
            self.close(&mut html);
        }
        html
    }

    fn open(&mut self, html: &mut String) {
        self.number += 1;
        (self.is_open, self.errors) = (true, ErrorFinder::default());
        let number = self.number;
        let is_marked = self.marked.as_ref().is_some_and(|marked| marked.contains(&number));
        let class = if is_marked { " class=\"marked\"" } else { "" };
        html.push_str(&format!("<span id=\"L{number}\"{class}><a href=\"#L{number}\">{number}</a>"));
    }

    fn close(&mut self, html: &mut String) {
        self.is_open = false;
        html.push_str(if self.errors.is_found() { "<i></i>\n</span>" } else { "\n</span>" });
    }
}

/// Parses `120` or `120-140`.
pub(super) fn range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first > 0).then(|| first.min(last).max(1)..=first.max(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_depend_on_log_pieces() {
        let log = "a\u{1b}[1mé€𝄞\r\nz\0\tß".as_bytes();
        for piece in 1..=log.len() {
            let mut text = Text::default();
            let shown: String = log.chunks(piece).map(|bytes| text.take(bytes)).collect();
            assert_eq!(shown, "aé€𝄞\nz\tß", "in pieces of {piece}");
        }
        // Invalid bytes do not delay later ones.
        let mut text = Text::default();
        assert_eq!(text.take(b"a\xffb\xe2\x82"), "a\u{fffd}b");
        assert_eq!(text.take(b"\xac."), "€.");
    }

    fn shown(log: &[u8], piece: usize, marked: Option<RangeInclusive<u64>>) -> String {
        let mut lines = Lines::new(marked);
        let mut html: String = log.chunks(piece).map(|bytes| lines.take(bytes)).collect();
        html.push_str(&lines.end());
        html
    }

    #[test]
    fn lines_are_numbered_in_any_pieces() {
        let log = b"one\n\n<b> an eRror\nlast";
        let expected = "<span id=\"L1\"><a href=\"#L1\">1</a>one\n</span>\
                        <span id=\"L2\" class=\"marked\"><a href=\"#L2\">2</a>\n</span>\
                        <span id=\"L3\" class=\"marked\"><a href=\"#L3\">3</a>&lt;b&gt; an eRror<i></i>\n</span>\
                        <span id=\"L4\"><a href=\"#L4\">4</a>last\n</span>";
        for piece in 1..=log.len() {
            assert_eq!(shown(log, piece, Some(2..=3)), expected, "in pieces of {piece}");
        }
        assert_eq!(shown(b"", 1, None), "");
    }

    #[test]
    fn page_ends_after_its_last_line() {
        let most = usize::try_from(LINES_MAX).unwrap();
        let mut lines = Lines::new(None);
        let whole = lines.take("\n".repeat(most).as_bytes());
        assert!(!lines.is_full() && whole.ends_with(">200000</a>\n</span>"), "{}", whole.len());
        let rest = lines.take(b"one more\nand another\n") + &lines.take(b"later\n") + &lines.end();
        assert!(lines.is_full());
        let end = "[tenure] the page ends here: download the log for the rest";
        assert_eq!(rest, format!("<span id=\"L200001\"><a href=\"#L200001\">200001</a>{end}\n</span>"));
    }

    #[test]
    fn errors_are_found_in_lines() {
        for (line, is_found) in [
            ("error", true),
            ("TypeError: x", true),
            ("eerror", true),
            ("ererror", true),
            ("errerror", true),
            ("erro r", false),
            ("terror", true),
            ("err or", false),
            ("", false),
        ] {
            let mut finder = ErrorFinder::default();
            finder.take(line);
            assert_eq!(finder.is_found(), is_found, "{line}");
        }
    }

    #[test]
    fn ranges_of_lines_are_parsed() {
        assert_eq!(range("120"), Some(120..=120));
        assert_eq!(range("120-140"), Some(120..=140));
        assert_eq!(range("140 - 120"), Some(120..=140));
        for bad in ["", "0", "x", "1-", "-1", "1-2-3", "<script>", "99999999999999999999"] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}
