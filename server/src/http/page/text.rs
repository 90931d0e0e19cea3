//! Text and numbers formatted for people.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use tenure_api::bodies::Metadata;
use tenure_api::dates::Timestamp;
use tenure_domain::terminal::Terminal;
pub(super) use tenure_domain::verdict::span;

const ID_SHOWN: usize = 8;
const SIZE_UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
/// Length of a date of the API, and of the part before its T.
const DATE_LENGTH: usize = 24;
const DAY_LENGTH: usize = 10;
/// In levels. Without a limit, deep nesting would turn a small text into megabytes.
const INDENTED_MAX: usize = 16;
/// In bytes; the API has the rest.
pub(super) const DEFINITION_SHOWN: usize = 256 << 10;

/// For example `3 m ago`, `in 20 s` or `now`.
pub(super) fn relative(time: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let since = now - time;
    if since.num_seconds() == 0 {
        "now".to_owned()
    } else if since > TimeDelta::zero() {
        format!("{} ago", span(since))
    } else {
        format!("in {}", span(since))
    }
}

/// A part of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Words(&'a str),
    Time(DateTime<Utc>),
}

/// Splits a sentence at its dates, which are in the format of the API.
pub(super) fn parts(sentence: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest) = (Vec::new(), sentence);
    while let Some((at, time)) = find_time(rest) {
        parts.extend([Part::Words(&rest[..at]), Part::Time(time)]);
        rest = &rest[at + DATE_LENGTH..];
    }
    parts.push(Part::Words(rest));
    parts
}

fn find_time(text: &str) -> Option<(usize, DateTime<Utc>)> {
    text.match_indices('T').find_map(|(at, _)| {
        let begin = at.checked_sub(DAY_LENGTH)?;
        let date = text.get(begin..begin + DATE_LENGTH).filter(|date| date.ends_with('Z'))?;
        Some((begin, DateTime::parse_from_rfc3339(date).ok()?.to_utc()))
    })
}

/// May be far below a second.
pub(super) fn age(age: Duration) -> String {
    if age < Duration::from_secs(1) {
        return format!("{} ms", age.as_millis());
    }
    TimeDelta::from_std(age).map_or_else(|_| "ages".to_owned(), span)
}

/// With separated thousands.
pub(super) fn count(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "\u{2212}".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// In units of a thousand, such as `1.2 kB`.
pub(super) fn size(bytes: i64) -> String {
    if bytes < 1_000 {
        return format!("{bytes} B");
    }
    let (mut value, mut units) = (bytes as f64 / 1_000.0, SIZE_UNITS.iter());
    let mut unit = units.next();
    while value >= 999.5
        && let Some(larger) = units.next()
    {
        value /= 1_000.0;
        unit = Some(larger);
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {}", unit.unwrap_or(&"kB"))
}

pub(super) fn short(id: &str) -> &str {
    id.get(..ID_SHOWN).unwrap_or(id)
}

pub(super) fn metadata(definition: &str) -> Option<Metadata> {
    #[derive(Deserialize)]
    struct Definition {
        metadata: Metadata,
    }
    serde_json::from_str::<Definition>(definition).ok().map(|definition| definition.metadata)
}

pub(super) fn created(definition: &str) -> Option<DateTime<Utc>> {
    #[derive(Deserialize)]
    struct Definition {
        created: Timestamp,
    }
    serde_json::from_str::<Definition>(definition).ok().map(|definition| definition.created.time())
}

/// Returns the URL if a browser would not run it.
pub(super) fn web_url(url: &str) -> Option<&str> {
    let web = ["https://", "http://"].iter().any(|scheme| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)) && url.len() > scheme.len()
    });
    (web && !url.chars().any(|character| character.is_control() || character.is_whitespace())).then_some(url)
}

/// One member per line, indented up to [`INDENTED_MAX`]. Tokens stay unchanged: numbers keep their
/// digits, and keys their order.
pub(super) fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut tokens = json.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth.min(INDENTED_MAX)));
    };
    while let Some(token) = tokens.next() {
        match token {
            ' ' | '\n' | '\r' | '\t' => {}
            '"' => {
                out.push('"');
                while let Some(character) = tokens.next() {
                    out.push(character);
                    match character {
                        '\\' => out.extend(tokens.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                out.push(token);
                while tokens.next_if(char::is_ascii_whitespace).is_some() {}
                match tokens.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(token);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => out.push(token),
        }
    }
    out
}

/// Cuts between characters; true if text was cut.
pub(super) fn beginning(text: &str, bytes_max: usize) -> (&str, bool) {
    let end = text.floor_char_boundary(bytes_max);
    (&text[..end], end < text.len())
}

/// Cuts text that takes more bytes than this once a page has escaped it; true if text was cut.
pub(super) fn beginning_in_page(text: &str, bytes_max: usize) -> (&str, bool) {
    let mut bytes = 0;
    let end = text.char_indices().find_map(|(at, character)| {
        bytes += match character {
            '"' => "&quot;".len(),
            '&' => "&amp;".len(),
            '<' | '>' => "&lt;".len(),
            other => other.len_utf8(),
        };
        (bytes > bytes_max).then_some(at)
    });
    end.map_or((text, false), |end| (&text[..end], true))
}

/// Output of a command without escape sequences and control characters. Invalid bytes are marked.
pub(super) fn plain(terminal: &mut Terminal, bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|character| terminal.shows(*character)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_formatted_relative_to_now() {
        let now = DateTime::UNIX_EPOCH;
        assert_eq!(relative(now - TimeDelta::seconds(5), now), "5 s ago");
        assert_eq!(relative(now + TimeDelta::seconds(65), now), "in 1 m 5 s");
        assert_eq!(relative(now + TimeDelta::milliseconds(900), now), "now");
        assert_eq!(age(Duration::from_millis(12)), "12 ms");
        assert_eq!(age(Duration::from_secs(61)), "1 m 1 s");
    }

    #[test]
    fn sentence_is_split_at_its_dates() {
        let date = "2026-11-29T16:04:05.678Z";
        let time = DateTime::parse_from_rfc3339(date).unwrap().to_utc();
        let sentence = format!("Tests hold it since {date}; until {date}.");
        let expected = [
            Part::Words("Tests hold it since "),
            Part::Time(time),
            Part::Words("; until "),
            Part::Time(time),
            Part::Words("."),
        ];
        assert_eq!(parts(&sentence), expected);
        for plain in ["", "The T", "é-11-29T16:04:05.678Z", "2026-13-29T16:04:05.678Z", "2026-11-29T16:04"] {
            assert_eq!(parts(plain), [Part::Words(plain)]);
        }
    }

    #[test]
    fn large_numbers_have_thousands_separators() {
        let texts = [0, 7, 999, 1_000, 1_234_567, -1_000].map(count);
        assert_eq!(texts, ["0", "7", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567", "\u{2212}1\u{202f}000"]);
    }

    #[test]
    fn sizes_have_a_unit() {
        let sizes = [0, 999, 1_000, 1_234, 9_949, 9_951, 999_400, 999_500, 1 << 30, i64::MAX].map(size);
        let expected =
            ["0 B", "999 B", "1.0 kB", "1.2 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "1.1 GB", "9223372 TB"];
        assert_eq!(sizes, expected);
    }

    #[test]
    fn only_web_urls_become_links() {
        for url in ["https://example.com/x?y", "HTTP://x"] {
            assert_eq!(web_url(url), Some(url));
        }
        for url in [
            "javascript:alert(1)",
            " https://x",
            "https://",
            "data:text/html,x",
            "//x",
            "java\tscript:x",
            "é",
            "https://x y",
            "http://\u{1}",
        ] {
            assert_eq!(web_url(url), None, "{url}");
        }
    }

    #[test]
    fn pretty_json_keeps_its_tokens() {
        let json = r#"{"b":[1.50,-0,{}],"a":{"s":"x\"{,:\\"},"e":[ ],"n":null}"#;
        let expected = "{\n  \"b\": [\n    1.50,\n    -0,\n    {}\n  ],\n  \"a\": {\n    \"s\": \"x\\\"{,:\\\\\"\n  },\n  \"e\": [],\n  \"n\": null\n}";
        assert_eq!(pretty(json), expected);
        assert_eq!(pretty(&pretty(json)), expected);
    }

    #[test]
    fn indentation_of_nested_json_is_bounded() {
        let json = format!("{}{}1{}", "[".repeat(99), "1,".repeat(10_000), "]".repeat(99));
        let laid_out = pretty(&json);
        assert!(laid_out.len() < json.len() * (INDENTED_MAX + 3), "{} of {}", laid_out.len(), json.len());
        assert_eq!(laid_out.split_whitespace().collect::<String>(), json);
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(beginning("aé", 2), ("a", true));
        assert_eq!(beginning("aé", 3), ("aé", false));
    }

    #[test]
    fn cut_for_page_counts_escapes() {
        for text in ["\"&<>é'", "é\"é", "<<<", "&&", ""] {
            let escaped = |text: &str| maud::html! { (text) }.into_string().len();
            assert_eq!(beginning_in_page(text, escaped(text)), (text, false));
            for bytes_max in 0..escaped(text) {
                let (shown, is_cut) = beginning_in_page(text, bytes_max);
                assert!(is_cut && text.starts_with(shown) && escaped(shown) <= bytes_max, "{text} {bytes_max}");
            }
        }
    }
}
