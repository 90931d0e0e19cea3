//! Login with a client's id and access token, checked as for HTTP Basic.
//!
//! An unknown client and a wrong token get the same response after the same delay, to hide which
//! clients exist.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::RequestExt;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{SET_COOKIE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::answer::{answer, refuse, see_other};
use super::cookies;
use super::error::PageError;
use super::layout::{self, Page};
use super::state::Site;
use super::visit::{self, Visit, find_visitor, is_from_us, safe_place};
use crate::auth::{AuthError, SESSION_LIFETIME};
use crate::http::body;
use crate::http::budget::Share;
use crate::http::connection::Connection;

/// In bytes.
pub(super) const FORM_MAX: usize = 16 << 10;
/// Minimum duration of a failed login.
const FAILURE_DELAY: Duration = Duration::from_millis(500);
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
const WRONG: &str = "There is no such client, or the access token is wrong.";
const TOO_MANY: &str = "There is no such client, or the access token is wrong. There were many failed logins within \
     a minute; the right access token still works.";

#[derive(Deserialize)]
struct LoginForm {
    client: String,
    token: String,
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct LogoutForm {
    token: String,
}

/// `GET /login`
pub(super) async fn form(_: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    Ok(page(&visit, visit.query("next").unwrap_or("/"), "", None))
}

/// `POST /login`
pub(super) async fn log_in(State(app): State<Site>, request: Request) -> Response {
    let unknown = Visit::unknown(&app);
    let refuse = |status, message: &str, next: &str, client: &str| {
        answer(status, &layout::frame(&unknown, &page(&unknown, next, client, Some(message))))
    };
    if !is_from_us(&app, request.headers()) {
        return refuse(StatusCode::FORBIDDEN, "The form was not sent from this page. Send it from here.", "/", "");
    }
    // Behind a proxy, the proxy's address.
    let peer = request
        .extensions()
        .get::<Connection>()
        .map_or(IpAddr::from([0, 0, 0, 0]), |connection| connection.peer().ip());
    let Some(form) = read_form::<LoginForm>(&app, request).await else {
        return refuse(StatusCode::BAD_REQUEST, "The form could not be read. Fill it in again.", "/", "");
    };
    let LoginForm { client, token, next } = form;
    let (client, token) = (client.trim(), token.trim());
    let unavailable =
        || refuse(StatusCode::SERVICE_UNAVAILABLE, "The database did not answer. Try again.", &next, client);
    let began = {
        // Released before the delay of a failed login, which must not delay others.
        let Some(_turn) = app.pages.logins.turn().await else { return unavailable() };
        let Ok(now) = app.intake.now().await else { return unavailable() };
        app.intake.authenticator.log_in(client, token, now).await
    };
    match began {
        Ok(session) => {
            let lifetime = SESSION_LIFETIME.as_secs();
            redirect(&app, safe_place(&next).unwrap_or("/"), &cookie(&app, &session.ticket, lifetime))
        }
        Err(AuthError::Failure(failure)) => {
            let too_many = app.pages.logins.count_wrong(peer, client);
            // Only a metric counts the rest: anyone can send them, and the log would grow.
            if !too_many {
                // The typed name may be a token in the wrong field.
                tracing::info!(failed = failure_word(&failure), "a login to the page was refused");
            }
            tokio::time::sleep(FAILURE_DELAY).await;
            if too_many {
                metrics::counter!("tenure_limits_reached_total", "limit" => "logins").increment(1);
                return refuse(StatusCode::TOO_MANY_REQUESTS, TOO_MANY, &next, client);
            }
            refuse(StatusCode::UNAUTHORIZED, WRONG, &next, client)
        }
        Err(AuthError::Lookup(error)) => {
            if !error.is_known_outage() {
                tracing::warn!(%error, "a client could not be read for a login");
            }
            unavailable()
        }
    }
}

/// Without the typed text.
fn failure_word(failure: &crate::auth::AuthFailure) -> &'static str {
    use crate::auth::AuthFailure;
    match failure {
        AuthFailure::BasicClient | AuthFailure::UnknownClient(_) => "unknown client",
        AuthFailure::Disabled(_) => "disabled client",
        AuthFailure::Expired(_) => "expired client",
        _ => "wrong token",
    }
}

/// `POST /logout`
pub(super) async fn log_out(State(app): State<Site>, request: Request) -> Response {
    let headers: HeaderMap = request.headers().clone();
    let session = match find_visitor(&app, &headers).await {
        Ok((session, _)) => session,
        Err(error) => return refuse(&Visit::unknown(&app), &error),
    };
    let gone = cookie(&app, "", 0);
    let Some(session) = session else { return redirect(&app, "/", &gone) };
    let form = read_form::<LogoutForm>(&app, request).await;
    if !is_from_us(&app, &headers) || !form.is_some_and(|form| session.form_token.matches(&form.token)) {
        let unknown = Visit::unknown(&app);
        let body = html! { section.panel { h1 { "Not logged out" } div.note { p { "The form was not sent from this page, or belongs to another session. "
        a href=(unknown.link("/")) { "Go back" } " and log out from there." } } } };
        let page = Page::new("Not logged out", None, body);
        return answer(StatusCode::FORBIDDEN, &layout::frame(&unknown, &page));
    }
    redirect(&app, "/", &gone)
}

/// None if invalid, too large or beyond the memory budget.
pub(super) async fn read_form<T: DeserializeOwned + 'static>(app: &Site, request: Request) -> Option<T> {
    let (mut parts, body) = request.into_parts();
    let reading = body::read(&app.intake.bodies, Share::Anonymous, FORM_MAX, &parts.headers, body);
    let form = tokio::time::timeout(FORM_TIMEOUT, reading).await.ok()?.ok()?;
    // The form is in memory, with a known length.
    parts.headers.remove(TRANSFER_ENCODING);
    let request = Request::from_parts(parts, Body::from(form.bytes.clone()));
    let Ok(Form(form)) = request.extract::<Form<T>, _>().await else { return None };
    Some(form)
}

fn cookie(app: &Site, ticket: &str, seconds: u64) -> String {
    cookies::setting(app, cookies::session_name(app), ticket, seconds)
}

fn redirect(app: &Site, place: &str, cookie: &str) -> Response {
    let mut response = see_other(&format!("{}{place}", app.pages.base));
    match HeaderValue::from_str(cookie) {
        Ok(cookie) => drop(response.headers_mut().insert(SET_COOKIE, cookie)),
        Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
    }
    response
}

fn page(visit: &Visit, next: &str, client: &str, wrong: Option<&str>) -> Page {
    Page::new("Log in", None, form_body(visit, visit::safe_place(next).unwrap_or("/"), client, wrong))
}

fn form_body(visit: &Visit, next: &str, client: &str, wrong: Option<&str>) -> Markup {
    html! { section.panel.form {
        h1 { "Log in" }
        @if let Some(wrong) = wrong { p.error role="alert" { (wrong) } }
        form method="post" action=(visit.link("/login")) {
            input type="hidden" name="next" value=(next);
            label for="client" { "Client id" }
            input #client name="client" value=(client) autocomplete="username" autocapitalize="none" spellcheck="false" required maxlength="255" autofocus[client.is_empty()];
            label for="token" { "Access token" }
            input #token name="token" type="password" autocomplete="current-password" required autofocus[!client.is_empty()];
            button type="submit" { "Log in" }
        }
        p.dim { "A client with its access token, as for the API. "
            code { "tenure client create ID --scope …" } " makes one; in embedded mode " code { "root-credentials.json" }
            " in the data directory has those of root." }
    } }
}
