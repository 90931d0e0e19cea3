//! Responses with pages.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, RETRY_AFTER, X_FRAME_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use maud::{Markup, html};

use super::error::PageError;
use super::layout::{self, Page};
use super::overview::REFRESH;
use super::state::Site;
use super::visit::{NoVisit, Visit};

/// Only own scripts, styles, icons, requests and form targets; no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const RETRY_SECONDS: &str = "1";

/// The error is the response.
pub(super) async fn read_visit(app: &Site, request: Request) -> Result<Visit, Response> {
    Visit::read(app, request).await.map_err(|none| {
        let NoVisit { visit, status, error } = *none;
        answer(status, &layout::frame(&visit, &error_page(&visit, &error)))
    })
}

pub(super) fn refuse(visit: &Visit, error: &PageError) -> Response {
    answer(error.status(), &layout::frame(visit, &error_page(visit, error)))
}

fn error_page(visit: &Visit, error: &PageError) -> Page {
    let (title, body) = match error {
        PageError::NotFound(message) => {
            ("Not found", html! { p { (message) } p { a href=(visit.link("/")) { "Back to the overview" } } })
        }
        PageError::Denied(required) => ("Not allowed", layout::denied(visit, required)),
        PageError::Refused(_, message) => {
            ("Nothing was changed", html! { p { (message) } p { a href=(visit.link("/")) { "Back to the overview" } } })
        }
        PageError::Unavailable => (
            "The database did not answer",
            html! { p { "Everything that was acknowledged is stored. Try again in a few seconds." } },
        ),
        PageError::Internal => ("Internal error", html! { p { "The cause is in the server's log." } }),
    };
    let passes = matches!(error.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
    Page {
        is_error: true,
        ..Page::new(title, passes.then_some(REFRESH), html! { section.panel { h1 { (title) } div.note { (body) } } })
    }
}

pub(super) fn answer(status: StatusCode, page: &Markup) -> Response {
    let mut response = (status, page.0.clone()).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
    }
    secured(response)
}

/// Confines a page to this site. Forms need the referrer policy: browsers would otherwise omit the
/// origin.
pub(super) fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

pub(super) fn see_other(location: &str) -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    match HeaderValue::from_str(location) {
        Ok(location) => drop(response.headers_mut().insert(LOCATION, location)),
        Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
    }
    secured(response)
}
