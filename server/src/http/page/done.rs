//! The line about the effect of a form. A short-lived cookie carries it to the page after the form,
//! which shows it and deletes the cookie.

use axum::response::Response;
use http::HeaderValue;
use http::header::SET_COOKIE;
use percent_encoding::utf8_percent_encode;

use super::answer;
use super::cookies::{self, LINE_MAX};
use super::state::Site;
use super::visit::SEGMENT;

/// In seconds; enough for the redirect.
const LIFETIME: u64 = 60;

/// Redirects to a page that shows the line.
pub(super) fn see_other(app: &Site, location: &str, line: &str) -> Response {
    let mut response = answer::see_other(location);
    let line: String = line.chars().take(LINE_MAX).collect();
    set(app, &mut response, &utf8_percent_encode(&line, SEGMENT).to_string(), LIFETIME);
    response
}

/// Deletes the cookie.
pub(super) fn clear(app: &Site, response: &mut Response) {
    set(app, response, "", 0);
}

fn set(app: &Site, response: &mut Response, value: &str, lifetime: u64) {
    let cookie = cookies::setting(app, cookies::done_name(app), value, lifetime);
    // Without the line, the action is done all the same.
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}
