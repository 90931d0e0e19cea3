//! Cookies of visitors.

use http::HeaderMap;
use http::header::COOKIE;
use percent_encoding::percent_decode_str;

/// Cookie with the line about the visitor's last form.
pub(super) const DONE: &str = "tenure-done";
/// In characters: escaped, they fit into a cookie.
pub(super) const LINE_MAX: usize = 300;

pub(super) fn find<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

pub(super) fn done(headers: &HeaderMap) -> Option<String> {
    let line = percent_decode_str(find(headers, DONE)?).decode_utf8_lossy();
    Some(line.chars().filter(|character| !character.is_control()).take(LINE_MAX).collect())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn line_of_cookie_is_decoded_and_bounded() {
        let headers = |cookie: &str| HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(cookie).unwrap())]);
        assert_eq!(done(&headers("a=b; tenure-done=It%20is%0a%3Cdone%3E.")).as_deref(), Some("It is<done>."));
        assert_eq!(done(&headers("a=b; xtenure-done=no")), None);
        let long = format!("tenure-done={}", "x".repeat(LINE_MAX + 1));
        assert_eq!(done(&headers(&long)).map(|line| line.len()), Some(LINE_MAX));
    }
}
