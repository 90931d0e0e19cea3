//! The operator's page: the state of the queues, for browsers. Rendered here, from one read of the database, without
//! scripts; it changes nothing but the visitor's own session, and the pause of a queue.
//!
//! Every text that is not ours goes through maud, which escapes it when the template is compiled. The content security
//! policy would not let a script run even if one slipped through.

mod artifacts;
mod edges;
mod group;
mod keys;
mod layout;
mod log;
mod login;
mod logins;
mod overview;
mod pause;
mod queue;
mod rows;
mod schedulers;
mod sessions;
mod task;
mod text;
mod visit;
mod worker;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER, X_FRAME_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use maud::{Markup, html};

use self::logins::Logins;
use self::visit::Visit;
use super::answers;
use super::app::App;
use super::budget::Share;
use super::read_slots::NoSlot;
use tenure_domain::scopes::Expression;
use tenure_engine::ops::OpError;
use tenure_store::failure::classify;
use tenure_store::outage;

/// The largest form, in bytes.
const FORM_MAX: usize = 16 << 10;
/// Nothing but our own style sheet and icon is loaded, forms go to us alone, and no site may frame the page.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// How long a browser caches the style sheet; its URL changes with its text.
const STYLE_CACHE: &str = "public, max-age=86400, immutable";
const STYLE: &str = include_str!("style.css");
const ICON: &str = include_str!("icon.svg");
/// The `Retry-After` of a 503.
const RETRY_SECONDS: &str = "1";

/// What the pages need of the server.
pub struct Pages {
    /// Scheme, host and port of the root URL, as a browser writes an origin.
    origin: String,
    /// The path of the root URL, in front of every link.
    base: String,
    /// The root URL, for the commands that empty sections show.
    root_url: String,
    logins: Logins,
}

impl Pages {
    /// Pages below this root URL.
    #[must_use]
    pub fn new(root_url: &str) -> Self {
        let scheme_end = root_url.find("://").map_or(0, |at| at + 3);
        let path = root_url[scheme_end..].find('/').map_or(root_url.len(), |at| scheme_end + at);
        Self {
            origin: root_url[..path].to_ascii_lowercase(),
            base: root_url[path..].trim_end_matches('/').to_owned(),
            root_url: root_url.to_owned(),
            logins: Logins::new(),
        }
    }

    /// Whether browsers reach us by TLS.
    fn secure(&self) -> bool {
        self.origin.starts_with("https://")
    }
}

/// The routes.
pub fn router() -> Router<App> {
    Router::new()
        .route("/", get(view(overview::overview)))
        .route("/task/{taskId}", get(view(task::task)))
        .route("/task/{taskId}/log", get(log::log))
        .route("/group/{taskGroupId}", get(view(group::group)))
        .route("/queue/{provisionerId}/{workerType}", get(view(queue::queue)))
        .route("/queue/{provisionerId}/{workerType}/pause", get(view(pause::form)).post(pause::pause))
        .route("/queue/{provisionerId}/{workerType}/resume", post(pause::resume))
        .route("/worker/{workerGroup}/{workerId}", get(view(worker::worker)))
        .route("/login", get(page(Reads::Nothing, login::form)).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/page/style.css", get(style))
        .route("/page/icon.svg", get(icon))
        .layer(DefaultBodyLimit::max(FORM_MAX))
}

async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8"), (CACHE_CONTROL, STYLE_CACHE)], STYLE).into_response()
}

async fn icon() -> Response {
    let headers = [
        (CONTENT_TYPE, "image/svg+xml"),
        (CACHE_CONTROL, STYLE_CACHE),
        (CONTENT_SECURITY_POLICY, "default-src 'none'"),
    ];
    (headers, ICON).into_response()
}

/// A page before its frame is put around it.
struct Page {
    title: String,
    /// How often the page loads itself again, unless the visitor has stopped it.
    refresh: Option<Duration>,
    body: Markup,
}

/// Why there is no page.
enum PageError {
    /// Nothing has this name.
    NotFound(String),
    /// The visitor may not see it.
    Denied(Expression),
    /// What a form says is not acceptable, or it is not a form of ours.
    Refused(StatusCode, String),
    /// The database did not answer.
    Unavailable,
    /// A fault of the server; the log has the rest.
    Internal,
}

impl From<sqlx::Error> for PageError {
    fn from(error: sqlx::Error) -> Self {
        if !classify(&error).is_worth_a_retry() {
            tracing::error!(%error, "a page could not be rendered");
            return Self::Internal;
        }
        outage::warn_unless_known(&error, "a page could not be read from the database");
        Self::Unavailable
    }
}

impl From<NoSlot> for PageError {
    fn from(_: NoSlot) -> Self {
        Self::Unavailable
    }
}

impl From<OpError> for PageError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::NotFound(message) => Self::NotFound(message),
            OpError::Input(message) => Self::Refused(StatusCode::BAD_REQUEST, message),
            OpError::Overloaded(_) | OpError::Unavailable | OpError::StaleQueue => Self::Unavailable,
            OpError::Expired(_)
            | OpError::Forbidden(_)
            | OpError::Conflict(_)
            | OpError::SessionExists(_)
            | OpError::PolicyMismatch(_)
            | OpError::SessionEnded(_)
            | OpError::Internal(_) => {
                tracing::error!(%error, "a page could not be rendered");
                Self::Internal
            }
        }
    }
}

impl PageError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Refused(status, _) => *status,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn page(&self, visit: &Visit) -> Page {
        let (title, body) = match self {
            Self::NotFound(message) => {
                ("Not found", html! { p { (message) } p { a href=(visit.link("/")) { "Back to the overview" } } })
            }
            Self::Denied(required) => ("Not allowed", layout::denied(visit, required)),
            Self::Refused(_, message) => (
                "Nothing was changed",
                html! { p { (message) } p { a href=(visit.link("/")) { "Back to the overview" } } },
            ),
            Self::Unavailable => (
                "The database did not answer",
                html! { p { "Load the page again in a few seconds. Everything that was acknowledged is stored." } },
            ),
            Self::Internal => ("Something is wrong with Tenure", html! { p { "The server's log has the cause." } }),
        };
        Page {
            title: title.to_owned(),
            refresh: None,
            body: html! { section.panel { h2 { (title) } div.note { (body) } } },
        }
    }
}

/// What a page reads, which decides if it takes a read slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Database,
    Nothing,
}

/// Turns the handler of a page that reads the database into a method of a route.
fn view<H, F>(
    handler: H,
) -> impl Fn(State<App>, Request) -> Pin<Box<dyn Future<Output = Response> + Send>> + Clone + Send + Sync + 'static
where
    H: Fn(App, Arc<Visit>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Page, PageError>> + Send + 'static,
{
    page(Reads::Database, handler)
}

fn page<H, F>(
    reads: Reads,
    handler: H,
) -> impl Fn(State<App>, Request) -> Pin<Box<dyn Future<Output = Response> + Send>> + Clone + Send + Sync + 'static
where
    H: Fn(App, Arc<Visit>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Page, PageError>> + Send + 'static,
{
    move |State(app), request| {
        let handler = handler.clone();
        Box::pin(async move {
            // A signed URL of the poll API whose path was cut off by a mistake leads here.
            if let Some(refused) = super::poll::refuse_unknown_path(request.uri(), request.headers()) {
                return refused;
            }
            let visit = match Visit::read(&app, request).await {
                Ok(visit) => Arc::new(visit),
                Err(response) => return response,
            };
            let logged_in = visit.session.is_some();
            let made = async {
                let _slot = match reads {
                    Reads::Database => Some(app.read_slots.take(visit.share()).await?),
                    Reads::Nothing => None,
                };
                handler(Arc::clone(&app), Arc::clone(&visit)).await
            };
            let made = made.await;
            let page = match made {
                Ok(page) => answer(StatusCode::OK, &layout::frame(&visit, &page)),
                Err(error) => answer(error.status(), &layout::frame(&visit, &error.page(&visit))),
            };
            counted(page, logged_in)
        })
    }
}

/// A page whose bytes count for callers with credentials, if the visitor is logged in: strangers who do not read what they are sent
/// must not take the room for it.
fn counted(mut page: Response, logged_in: bool) -> Response {
    answers::note_share(&mut page, if logged_in { Share::Authenticated } else { Share::Anonymous });
    page
}

/// A page as an answer, with the headers that all pages have.
fn answer(status: StatusCode, page: &Markup) -> Response {
    let mut response = (status, page.0.clone()).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
    }
    secured(response)
}

/// Keeps a page to this site. The referrer stays within it as well, or browsers would not say where a form came from.
fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::budget::Budget;

    #[test]
    fn a_root_url_gives_the_origin_and_the_path_before_links() {
        for (url, origin, base, secure) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "", false),
            ("https://Tenure.example.com", "https://tenure.example.com", "", true),
            ("https://example.com/ci/tenure", "https://example.com", "/ci/tenure", true),
        ] {
            let pages = Pages::new(url);
            assert_eq!((pages.origin.as_str(), pages.base.as_str(), pages.secure()), (origin, base, secure));
        }
    }

    #[test]
    fn a_large_page_for_who_is_logged_in_does_not_take_the_room_of_strangers() {
        let room = Budget::new("answers", 200 << 10);
        // More than strangers may have together.
        let text = "x".repeat(100 << 10);
        let sent = |logged_in| answers::hold(&room, counted(answer(StatusCode::OK, &html! { (text) }), logged_in));
        assert_eq!([false, true].map(|logged_in| sent(logged_in).status().as_u16()), [503, 200]);
    }
}
