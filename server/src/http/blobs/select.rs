//! Content negotiation and ranges of stored bytes, RFC 9110.

use std::ops::Range;

use http::header::{ACCEPT_ENCODING, HeaderName, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, Method};

use tenure_engine::blobs::StoredBlob;
use tenure_engine::ops::objects::hex;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    /// Also for range forms that may be ignored.
    All,
    /// Not empty.
    Part(Range<u64>),
    Beyond,
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// False without the header.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let (mut gzip, mut any) = (None, None);
    for value in headers.get_all(ACCEPT_ENCODING) {
        for one in value.to_str().unwrap_or_default().split(',') {
            let (coding, weight) = one.split_once(';').unwrap_or((one, ""));
            let weight = weight.trim().to_ascii_lowercase();
            let accepted = weight.strip_prefix("q=").is_none_or(|q| q.trim().parse::<f32>().is_ok_and(|q| q > 0.0));
            match coding.trim().to_ascii_lowercase().as_str() {
                "gzip" | "x-gzip" => gzip = Some(accepted),
                "*" => any = Some(accepted),
                _ => {}
            }
        }
    }
    gzip.or(any).unwrap_or(false)
}

pub(super) fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let mut lists = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    lists.any(|list| list.split(',').map(str::trim).any(|one| one == "*" || one.trim_start_matches("W/") == tag))
}

/// The digest, plus the encoding if set: the same bytes then mean something else, and caches must
/// distinguish them.
pub(super) fn tag_of(blob: &StoredBlob) -> String {
    let mut tag = hex(&blob.sha256);
    if let Some(encoding) = &blob.content_encoding {
        tag.push('-');
        tag.extend(
            encoding.chars().map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '.' }),
        );
    }
    tag
}

/// Everything is sent for multiple ranges, and for an `If-Range` date: bytes replaced within a
/// second share it.
pub(super) fn select_range(method: &Method, headers: &HeaderMap, size: u64, tag: &str) -> Selected {
    let range = text(headers, RANGE).filter(|_| method == Method::GET);
    let unchanged = text(headers, IF_RANGE).is_none_or(|validator| validator == tag);
    let Some(ranges) = range.filter(|_| unchanged).and_then(|range| range.strip_prefix("bytes=")) else {
        return Selected::All;
    };
    let Some((first, last)) = ranges.trim().split_once('-') else { return Selected::All };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let (start, end) = match (first, number(first), last, number(last)) {
        ("", _, _, Some(count)) => (size - count.min(size), size),
        (_, Some(start), "", _) => (start, size),
        (_, Some(start), _, Some(last)) if start <= last => (start, last.saturating_add(1).min(size)),
        _ => return Selected::All,
    };
    if start >= end { Selected::Beyond } else { Selected::Part(start..end) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn range(text: &str, size: u64) -> Selected {
        select_range(&Method::GET, &headers(&[(RANGE, text)]), size, "\"t\"")
    }

    #[test]
    fn one_range_selects_a_part() {
        assert_eq!(range("bytes=0-0", 10), Selected::Part(0..1));
        assert_eq!(range("bytes=2-5", 10), Selected::Part(2..6));
        assert_eq!(range("bytes=2-", 10), Selected::Part(2..10));
        assert_eq!(range("bytes=-3", 10), Selected::Part(7..10));
        assert_eq!(range("bytes=-30", 10), Selected::Part(0..10));
        assert_eq!(range("bytes=5-99999999999999999999999", 10), Selected::Part(5..10));
        assert_eq!(range("bytes=9-18446744073709551615", 10), Selected::Part(9..10));
    }

    #[test]
    fn range_beyond_the_end_is_refused() {
        for text in ["bytes=10-", "bytes=10-10", "bytes=99999999999999999999-", "bytes=-0"] {
            assert_eq!(range(text, 10), Selected::Beyond, "{text}");
        }
        assert_eq!(range("bytes=0-0", 0), Selected::Beyond);
        assert_eq!(range("bytes=-1", 0), Selected::Beyond);
    }

    #[test]
    fn other_range_forms_are_ignored() {
        for text in
            ["", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-2", "bytes=0-1,3-4", "items=0-1", "bytes=+1-2"]
        {
            assert_eq!(range(text, 10), Selected::All, "{text}");
        }
        let head = select_range(&Method::HEAD, &headers(&[(RANGE, "bytes=0-0")]), 10, "\"t\"");
        assert_eq!(head, Selected::All);
    }

    #[test]
    fn range_of_replaced_bytes_is_not_served() {
        for (validator, part) in [("\"t\"", true), ("\"u\"", false), ("W/\"t\"", false), ("a date", false)] {
            let request = headers(&[(RANGE, "bytes=0-0"), (IF_RANGE, validator)]);
            let selected = select_range(&Method::GET, &request, 10, "\"t\"");
            assert_eq!(selected == Selected::Part(0..1), part, "{validator}");
        }
    }

    #[test]
    fn accept_encoding_decides_about_gzip() {
        for (text, gzip) in [
            ("gzip", true),
            ("GZip, deflate", true),
            ("deflate, gzip;q=0.5", true),
            ("*", true),
            ("x-gzip", true),
            ("identity", false),
            ("", false),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("*;q=0", false),
            ("*, gzip;q=0", false),
            ("br", false),
        ] {
            assert_eq!(accepts_gzip(&headers(&[(ACCEPT_ENCODING, text)])), gzip, "{text}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn matching_tag_is_recognized() {
        for (text, has) in
            [("\"t\"", true), ("W/\"t\"", true), ("\"a\", \"t\"", true), ("*", true), ("\"a\"", false), ("t", false)]
        {
            assert_eq!(has_tag(&headers(&[(IF_NONE_MATCH, text)]), "\"t\""), has, "{text}");
        }
    }

    #[test]
    fn tags_differ_by_bytes_and_encoding() {
        let tag = |byte: u8, encoding: Option<&str>| {
            let content_encoding = encoding.map(str::to_owned);
            tag_of(&StoredBlob { size: 1, sha256: [byte; 32], content_type: String::new(), content_encoding })
        };
        assert_eq!(tag(1, None), "01".repeat(32));
        let all = [tag(1, None), tag(2, None), tag(1, Some("gzip")), tag(1, Some("br")), tag(1, Some("gzip, \"br\""))];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "{one}");
            assert!(one.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.')), "{one}");
        }
    }
}
