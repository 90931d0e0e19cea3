//! One request for a page: who it is from, and what its URL names.

use axum::RequestExt;
use axum::extract::{RawPathParams, Request};
use http::header::{COOKIE, HOST, ORIGIN};
use http::{HeaderMap, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::error::PageError;
use super::state::Site;
use crate::auth::{AuthError, Now, Principal, RequestParts, Session};
use crate::http::access::REAUTHORIZE_EVERY;
use crate::http::budget::Share;
use tenure_domain::scopes::Expression;

/// What is escaped in a segment of a path.
pub(super) const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The longest path that a login leads back to, in bytes.
const NEXT_MAX: usize = 512;

/// A visitor and where they are.
pub(super) struct Visit {
    /// The visitor's session; none for a visitor who is not logged in.
    pub session: Option<Session>,
    principal: Principal,
    base: String,
    /// The root URL, for commands that are shown.
    pub root_url: String,
    /// Path and query, without the path of the root URL.
    pub place: String,
    params: Vec<(String, String)>,
    query: Vec<(String, String)>,
}

/// Why a request is no visit.
pub(super) struct NoVisit {
    /// What is known of the visitor, for the frame of the answer.
    pub visit: Visit,
    pub status: StatusCode,
    pub error: PageError,
}

impl Visit {
    /// Reads and authenticates a request.
    pub(super) async fn read(app: &Site, mut request: Request) -> Result<Self, Box<NoVisit>> {
        let params = request
            .extract_parts::<RawPathParams>()
            .await
            .map(|params| params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>());
        let uri = request.uri();
        let place = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let query = read_query(uri.query().unwrap_or_default());
        let (session, principal) = match find_visitor(app, request.headers()).await {
            Ok(found) => found,
            Err(error) => {
                return Err(Box::new(NoVisit { visit: Self::unknown(app), status: error.status(), error }));
            }
        };
        let visit = Self { session, principal, place, query, ..Self::unknown(app) };
        match params {
            Ok(params) => Ok(Self { params, ..visit }),
            Err(_) => {
                let error = PageError::NotFound("The address cannot be read.".to_owned());
                Err(Box::new(NoVisit { visit, status: StatusCode::BAD_REQUEST, error }))
            }
        }
    }

    /// Waits until the visitor of a request that goes on has no session any more, if there was one, or may not do what requires these
    /// scopes.
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
                // The database may be away: that ends no access.
                Err(error) if error.status().is_server_error() => {}
                Err(_) => return,
            }
        }
    }

    /// A visitor without a session or any scope.
    pub(super) fn unknown(app: &Site) -> Self {
        Self {
            session: None,
            principal: Principal { client_id: None, scopes: std::sync::Arc::default(), expires_ms: None },
            base: app.pages.base.clone(),
            root_url: app.pages.root_url.clone(),
            place: "/".to_owned(),
            params: Vec::new(),
            query: Vec::new(),
        }
    }

    /// Whether the visitor may do what requires these scopes.
    pub(super) fn may(&self, required: impl Into<Expression>) -> bool {
        self.principal.authorize(&required.into()).is_ok()
    }

    /// Checks that the visitor has these scopes.
    pub(super) fn authorize(&self, required: impl Into<Expression>) -> Result<(), PageError> {
        let required = required.into();
        self.principal.authorize(&required).map_err(|_| PageError::Denied(required))
    }

    /// Whose work it is to make the page.
    pub(super) fn share(&self) -> Share {
        if self.session.is_some() { Share::Authenticated } else { Share::Anonymous }
    }

    /// The visitor's client id.
    pub(super) fn client_id(&self) -> Option<&str> {
        self.session.as_ref().and_then(|session| session.principal.client_id.as_deref())
    }

    /// A parameter of the path, decoded; empty if the route has none of that name.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// A parameter of the query string.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The path of a page, as browsers see it.
    pub(super) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The path of a page whose name has these parts.
    pub(super) fn link_to(&self, kind: &str, parts: &[&str]) -> String {
        let mut path = format!("{}/{kind}", self.base);
        for part in parts {
            path.push('/');
            path.extend(utf8_percent_encode(part, SEGMENT));
        }
        path
    }

    /// The login, which leads back here.
    pub(super) fn login(&self) -> String {
        let place = safe_place(&self.place).unwrap_or("/");
        format!("{}/login?next={}", self.base, utf8_percent_encode(place, SEGMENT))
    }
}

/// A page of ours that a login may lead to. Any other path is none, of this server too: artifacts are redirects to wherever a task
/// says.
pub(super) fn safe_place(place: &str) -> Option<&str> {
    let plain = place.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.~%?=&".contains(&byte));
    let path = place.split('?').next().unwrap_or_default();
    (plain && place.len() <= NEXT_MAX && is_page(path)).then_some(place)
}

/// Whether a path is that of a page, whose names have letters, digits and two marks only: nothing that a browser or a proxy resolves to
/// another path, such as dots, escaped or not.
fn is_page(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match path.split('/').collect::<Vec<_>>().as_slice() {
        [""] => true,
        ["task" | "group", name] | ["task", name, "log"] => is_name(name),
        ["queue" | "worker", first, second] | ["queue", first, second, "pause"] => is_name(first) && is_name(second),
        _ => false,
    }
}

fn read_query(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

/// What the cookie is called. A browser takes the prefix as a promise that only this host can set it.
pub(super) fn cookie_name(app: &Site) -> &'static str {
    if app.pages.secure() { "__Host-tenure-session" } else { "tenure-session" }
}

/// The session of a request, and what its sender may do.
pub(super) async fn find_visitor(app: &Site, headers: &HeaderMap) -> Result<(Option<Session>, Principal), PageError> {
    let name = cookie_name(app);
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    if let Some((_, ticket)) = pairs.find(|(key, _)| *key == name) {
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
        tracing::warn!(%error, "a visitor of the page could not be looked up");
    }
    PageError::Unavailable
}

/// Whether a form was sent from a page of ours: every current browser sends the origin of a form.
pub(super) fn is_from_us(app: &Site, headers: &HeaderMap) -> bool {
    let text =
        |value: Option<&http::HeaderValue>| value.map(|value| value.to_str().unwrap_or("?").to_ascii_lowercase());
    let site = text(headers.get("sec-fetch-site"));
    let origin = text(headers.get(ORIGIN));
    // A form of a page under another name of this server is ours as well. A page without TLS can be made up by a man in the
    // middle, so it counts only where there is no TLS at all.
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
    fn a_login_leads_back_to_our_own_pages_only() {
        for ours in [
            "/",
            "/?refresh=off",
            "/task/abc",
            "/task/a-b_c/log?run=1",
            "/queue/a/b?refresh=off",
            "/queue/a/b/pause",
            "/group/x?after=a%2Fb&refresh=off",
            "/worker/g/w",
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
            "/queue/a/b/resume",
            "/queue/a//",
            "/task/..",
            "/task/../api/x",
            "/worker/../api",
            "/queue/%2e%2E/api",
            "/task/.%2e/log",
            "/queue/a/..%2fapi",
            "/task/abc%2F..",
            "//task/abc",
        ] {
            assert_eq!(safe_place(no_page), None, "{no_page}");
        }
    }

    #[test]
    fn a_query_is_decoded_once() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read_query("a=b+c&d=%2Fx%252F&&e"), [pair("a", "b c"), pair("d", "/x%2F"), pair("e", "")]);
    }
}
