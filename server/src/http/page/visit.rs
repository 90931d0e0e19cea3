//! A visitor's request for a page.

use axum::RequestExt;
use axum::extract::{RawPathParams, Request};
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::cookies;
use super::error::PageError;
use super::state::Site;
use crate::auth::{AuthError, Now, Principal, RequestParts, Session};
use crate::http::access::REAUTHORIZE_EVERY;
use crate::http::budget::Share;
use crate::http::connection::Connection;
use tenure_domain::scopes::Expression;
use tenure_engine::ops::actor::Actor;

pub(super) const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// In bytes.
const NEXT_MAX: usize = 512;

pub(super) struct Visit {
    /// None if not logged in.
    pub session: Option<Session>,
    principal: Principal,
    base: String,
    /// For commands in the page.
    pub root_url: String,
    /// Path and query, without the root URL's path.
    pub place: String,
    /// Line about the effect of the visitor's last form.
    pub done: Option<String>,
    /// True if the address can be loaded again.
    pub is_read: bool,
    params: Vec<(String, String)>,
    query: Vec<(String, String)>,
    trace_id: Option<String>,
}

pub(super) struct NoVisit {
    /// For the frame of the error page.
    pub visit: Visit,
    pub status: StatusCode,
    pub error: PageError,
}

impl Visit {
    pub(super) async fn read(app: &Site, mut request: Request) -> Result<Self, Box<NoVisit>> {
        let params = request
            .extract_parts::<RawPathParams>()
            .await
            .map(|params| params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>());
        let uri = request.uri();
        let place = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let query = read_query(uri.query().unwrap_or_default());
        let is_read = request.method() == Method::GET;
        let (session, principal) = match find_visitor(app, request.headers()).await {
            Ok(found) => found,
            Err(error) => {
                let visit = Self { place, is_read, query, ..Self::unknown(app) };
                return Err(Box::new(NoVisit { visit, status: error.status(), error }));
            }
        };
        let trace_id = request.extensions().get::<Connection>().and_then(Connection::trace_id);
        let done = session.as_ref().and_then(|_| cookies::done(request.headers(), cookies::done_name(app)));
        let visit = Self { session, principal, place, is_read, query, done, trace_id, ..Self::unknown(app) };
        match params {
            Ok(params) => Ok(Self { params, ..visit }),
            Err(_) => {
                let error = PageError::NotFound("The address cannot be read.".to_owned());
                Err(Box::new(NoVisit { visit, status: StatusCode::BAD_REQUEST, error }))
            }
        }
    }

    /// Waits until a long request's visitor loses the session, if any, or the scopes.
    pub(super) async fn access_ended(
        app: &Site,
        headers: &HeaderMap,
        logged_in: bool,
        required: impl Into<Expression>,
    ) {
        let required = required.into();
        loop {
            tokio::time::sleep(REAUTHORIZE_EVERY).await;
            match find_visitor(app, headers).await {
                Ok((session, principal)) => {
                    if session.is_some() != logged_in || principal.authorize(&required).is_err() {
                        return;
                    }
                }
                // An unavailable database ends no access.
                Err(error) if error.status().is_server_error() => {}
                Err(_) => return,
            }
        }
    }

    /// For an address that no route has. The visitor counts as logged out if the database is away.
    pub(super) async fn without_page(app: &Site, headers: &HeaderMap) -> Self {
        match find_visitor(app, headers).await {
            Ok((session, principal)) => Self { session, principal, ..Self::unknown(app) },
            Err(_) => Self::unknown(app),
        }
    }

    pub(super) fn unknown(app: &Site) -> Self {
        Self {
            session: None,
            principal: Principal {
                client_id: None,
                scopes: std::sync::Arc::default(),
                expires_ms: None,
                is_temporary: false,
                is_narrowed: false,
            },
            base: app.pages.base.clone(),
            root_url: app.pages.root_url.clone(),
            place: "/".to_owned(),
            done: None,
            is_read: false,
            params: Vec::new(),
            query: Vec::new(),
            trace_id: None,
        }
    }

    pub(super) fn may(&self, required: impl Into<Expression>) -> bool {
        self.principal.authorize(&required.into()).is_ok()
    }

    /// True if the visitor may do something to at least one object, given the scope up to its name.
    pub(super) fn may_some(&self, prefix: &str) -> bool {
        self.principal.scopes.allows_some(prefix)
    }

    /// Returns the part of the scopes that the visitor lacks.
    pub(super) fn missing(&self, required: impl Into<Expression>) -> Option<Expression> {
        self.principal.scopes.missing(&required.into())
    }

    pub(super) fn authorize(&self, required: impl Into<Expression>) -> Result<(), PageError> {
        let required = required.into();
        self.principal.authorize(&required).map_err(|_| PageError::Denied(required))
    }

    pub(super) fn share(&self) -> Share {
        if self.session.is_some() { Share::Authenticated } else { Share::Anonymous }
    }

    pub(super) fn client_id(&self) -> Option<&str> {
        self.session.as_ref().and_then(|session| session.principal.client_id.as_deref())
    }

    /// Returns the visitor, for the record of a change.
    pub(super) fn actor(&self) -> Actor {
        Actor::new(self.client_id().unwrap_or_default()).traced(self.trace_id.clone())
    }

    /// Decoded; empty if the route has no such parameter.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// As browsers see it.
    pub(super) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Escapes `parts`.
    pub(super) fn link_to(&self, kind: &str, parts: &[&str]) -> String {
        let mut path = format!("{}/{kind}", self.base);
        for part in parts {
            path.push('/');
            path.extend(utf8_percent_encode(part, SEGMENT));
        }
        path
    }

    /// Returns to this page after the login.
    pub(super) fn login(&self) -> String {
        let place = safe_place(&self.place).unwrap_or("/");
        format!("{}/login?next={}", self.base, utf8_percent_encode(place, SEGMENT))
    }
}

/// Accepts only pages: artifacts, for example, redirect to URLs of a task's choice.
pub(super) fn safe_place(place: &str) -> Option<&str> {
    let plain = place.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~%?=&".contains(&byte));
    let path = place.split('?').next().unwrap_or_default();
    (plain && place.len() <= NEXT_MAX && is_page(path)).then_some(place)
}

/// Names have only letters, digits and two marks, so no browser or proxy resolves them to another
/// path.
fn is_page(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["" | "tasks" | "jobs" | "workers" | "access" | "system" | "partitions"] => true,
        ["jobs" | "partition", name] => is_name(name),
        // The page of an object, or of an action on it.
        ["task" | "group" | "session" | "client" | "role", names @ ..] => {
            [1, 2].contains(&names.len()) && names.iter().all(|name| is_name(name))
        }
        ["access", name] => is_name(name),
        ["queue", names @ ..] => [2, 3].contains(&names.len()) && names.iter().all(|name| is_name(name)),
        ["worker", names @ ..] => [2, 5].contains(&names.len()) && names.iter().all(|name| is_name(name)),
        ["queues"] => true,
        _ => false,
    }
}

pub(super) fn read_query(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

pub(super) async fn find_visitor(app: &Site, headers: &HeaderMap) -> Result<(Option<Session>, Principal), PageError> {
    if let Some(ticket) = cookies::find(headers, cookies::session_name(app)) {
        let now = app.intake.now().await?;
        if let Some(session) =
            app.intake.authenticator.resume(ticket, now).await.map_err(|error| lookup_failed(&error))?
        {
            let principal = session.principal.clone();
            return Ok((Some(session), principal));
        }
    }
    let anonymous = RequestParts::default();
    let principal = app.intake.authenticator.authenticate(&anonymous, Now { real_ms: 0, server_ms: 0 }).await;
    Ok((None, principal.map_err(|error| lookup_failed(&error))?))
}

pub(super) fn lookup_failed(error: &AuthError) -> PageError {
    if !error.is_known_outage() {
        tracing::warn!(%error, "the client of a visitor could not be read");
    }
    PageError::Unavailable
}

/// Every current browser sends the origin of a form.
pub(super) fn is_from_us(app: &Site, headers: &HeaderMap) -> bool {
    let text =
        |value: Option<&http::HeaderValue>| value.map(|value| value.to_str().unwrap_or("?").to_ascii_lowercase());
    let site = text(headers.get("sec-fetch-site"));
    let origin = text(headers.get(ORIGIN));
    // Pages under other names of this server count, too. A page without TLS can be forged, so it
    // counts only if this server has no TLS.
    let schemes: &[&str] = if app.pages.secure() { &["https"] } else { &["http", "https"] };
    let host = text(headers.get(HOST));
    let by_host = |origin: &String| {
        host.as_ref().is_some_and(|host| schemes.iter().any(|scheme| *origin == format!("{scheme}://{host}")))
    };
    let ours = |origin: &String| *origin == app.pages.origin || by_host(origin);
    match (&site, &origin) {
        (None, None) => false,
        (site, origin) => site.as_ref().is_none_or(|site| site == "same-origin") && origin.as_ref().is_none_or(ours),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_returns_to_own_pages_only() {
        for ours in [
            "/",
            "/?refresh=off",
            "/task/abc",
            "/task/a-b_c/log?run=1",
            "/queue/a/b?refresh=off",
            "/queue/a/b/pause",
            "/queue/a/b/policy",
            "/queues?order=name&after=a%2Fb",
            "/task/a-b_c/cancel",
            "/session/x/end",
            "/worker/g/w/a/b/quarantine",
            "/group/x?after=a%2Fb&refresh=off",
            "/worker/g/w",
            "/tasks?queue=a%2Fb&after=c%2F7",
            "/workers?queue=a/b",
            "/access?scope=queue%3Aclaim-work%3Aa",
            "/access/create-client",
            "/client/ci/disable",
            "/role/submitter",
            "/system",
            "/jobs?before=7",
            "/jobs/a-b_c",
            "/partitions?after=mail",
            "/partition/mail",
        ] {
            assert_eq!(safe_place(ours), Some(ours));
        }
        let long = format!("/task/{}", "x".repeat(NEXT_MAX));
        for bad in
            ["", "task", "//evil", "/\\evil", "https://evil", "/a\r\nSet-Cookie: x", "/a\tb", "/a:b", "/é", &long]
        {
            assert_eq!(safe_place(bad), None, "{bad}");
        }
        let redirects = "/api/queue/v1/task/abc/artifacts/public%2Fx";
        for no_page in [
            redirects,
            "/login",
            "/logout",
            "/docs/",
            "/task/",
            "/task/abc/artifacts/x",
            "/task",
            "/tasks/x",
            "/search?q=x",
            "/queue/a",
            "/queue/a/b/c/d",
            "/queues/a",
            "/worker/g/w/a/quarantine",
            "/queue/a//",
            "/jobs/",
            "/jobs/a/stop",
            "/partition",
            "/task/..",
            "/task/../api/x",
            "/worker/../api",
            "/queue/%2e%2E/api",
            "/task/.%2e/log",
            "/queue/a/..%2fapi",
            "/task/abc%2F..",
            "//task/abc",
            "/system/x",
            "/client",
            "/client/a/b/c",
            "/access/a/b",
        ] {
            assert_eq!(safe_place(no_page), None, "{no_page}");
        }
    }

    #[test]
    fn query_is_decoded_once() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read_query("a=b+c&d=%2Fx%252F&&e"), [pair("a", "b c"), pair("d", "/x%2F"), pair("e", "")]);
    }
}
