//! Cookies of visitors.

use http::HeaderMap;
use http::header::COOKIE;
use percent_encoding::percent_decode_str;

use super::state::Site;

/// In characters: escaped, they fit into a cookie.
pub(super) const LINE_MAX: usize = 300;

pub(super) fn find<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Name of the session's cookie. Browsers accept a cookie with the prefix only from this host.
pub(super) fn session_name(app: &Site) -> &'static str {
    if app.pages.secure() { "__Host-tenure-session" } else { "tenure-session" }
}

/// Name of the cookie with the line about the visitor's last form.
pub(super) fn done_name(app: &Site) -> &'static str {
    if app.pages.secure() { "__Host-tenure-done" } else { "tenure-done" }
}

/// Sets a cookie for all pages of this host; with no seconds, deletes it.
pub(super) fn setting(app: &Site, name: &str, value: &str, seconds: u64) -> String {
    let secure = if app.pages.secure() { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Decodes the line in the cookie with this name.
pub(super) fn done(headers: &HeaderMap, name: &str) -> Option<String> {
    let line = percent_decode_str(find(headers, name)?).decode_utf8_lossy();
    Some(line.chars().filter(|character| !character.is_control()).take(LINE_MAX).collect())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn line_of_cookie_is_decoded_and_bounded() {
        let headers = |cookie: &str| HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(cookie).unwrap())]);
        let line = |cookie: &str| done(&headers(cookie), "done");
        assert_eq!(line("a=b; done=It%20is%0a%3Cdone%3E.").as_deref(), Some("It is<done>."));
        assert_eq!(line("a=b; undone=no"), None);
        let long = format!("done={}", "x".repeat(LINE_MAX + 1));
        assert_eq!(line(&long).map(|line| line.len()), Some(LINE_MAX));
    }
}
