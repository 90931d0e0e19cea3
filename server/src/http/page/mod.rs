//! The operator's pages, each rendered from one read of the database. Forms call the operations of
//! the API. Pages are whole without a script: the only one loads a page again without losing the
//! place.
//!
//! maud escapes all external text at compile time. The content security policy would block a script
//! in the text that slipped through.

mod access;
mod actions;
mod answer;
mod artifacts;
mod audit;
mod bar;
mod charts;
mod cookies;
mod dead_letters;
mod done;
mod edges;
mod error;
mod failed;
mod group;
mod jobs;
mod keys;
mod layout;
mod log;
mod login;
mod logins;
pub(in crate::http) mod menu;
mod overview;
mod partition;
mod partitions;
mod pause;
mod problems;
mod queue;
mod queue_rows;
mod queues;
mod rows;
mod schedulers;
mod schedules;
mod search;
mod session;
mod sessions;
pub mod state;
mod subscriptions;
mod system;
mod task;
mod tasks;
mod text;
mod trends;
mod visit;
mod worker;
mod workers;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use self::answer::{answer, read_visit, refuse};
use self::error::PageError;
use self::layout::{ICON, Page, SCRIPT, STYLE};
use self::login::FORM_MAX;
use self::state::Site;
use self::visit::Visit;
use super::access_log;
use super::answers;
use super::budget::Share;
use super::poll::common::refuse_unknown_path;
use super::request_metrics::PAGE;
use super::routes::note_operation;

/// The URL changes with the text.
const STYLE_CACHE: &str = "public, max-age=86400, immutable";

pub fn router(site: Site) -> Router {
    let router = Router::new()
        .route("/", get(page(Reads::Database, overview::overview)))
        .route("/tasks", get(page(Reads::Database, tasks::tasks)))
        .route("/search", get(search::search))
        .route("/task/{taskId}", get(page(Reads::Database, task::task)))
        .route("/task/{taskId}/compare", get(page(Reads::Database, task::compare)))
        .route("/task/{taskId}/log", get(log::log))
        .route("/group/{taskGroupId}", get(page(Reads::Database, group::group)))
        .route("/queues", get(page(Reads::Database, queues::queues)))
        .route("/queues/{provisionerId}/{workerType}", get(queues::moved))
        .route("/queue/{provisionerId}/{workerType}", get(page(Reads::Database, queue::queue)))
        .route("/queue/{provisionerId}/{workerType}/pause", get(page(Reads::Database, pause::form)).post(pause::pause))
        .route("/queue/{provisionerId}/{workerType}/resume", post(pause::resume))
        .route("/jobs", get(page(Reads::Database, jobs::jobs)).post(actions::order_job))
        .route("/jobs/{jobId}", get(page(Reads::Database, jobs::job)))
        .route("/jobs/{jobId}/stop", post(jobs::stop))
        .route("/partitions", get(page(Reads::Database, partitions::partitions)))
        .route("/partition/{partitionName}", get(page(Reads::Database, partition::partition)))
        .route("/subscription/{subscriptionName}/resume", post(subscriptions::resume))
        .route("/worker/{workerGroup}/{workerId}", get(page(Reads::Database, worker::worker)))
        .route("/workers", get(page(Reads::Database, workers::workers)))
        .route("/access", get(page(Reads::Database, access::access)))
        .route("/client/{clientId}", get(page(Reads::Database, access::client::client)))
        .route("/role/{roleId}", get(page(Reads::Database, access::role::role)))
        .route("/system", get(page(Reads::Database, system::system)))
        .route("/session/{sessionId}", get(page(Reads::Database, session::session)))
        .route("/login", get(page(Reads::Nothing, login::form)).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/page/style.css", get(style))
        .route("/page/refresh.js", get(script))
        .route("/page/icon.svg", get(icon));
    let router = actions::all().fold(router, |router, (on, action)| {
        let asking = page(Reads::Database, move |app, visit| actions::show(app, visit, on, action));
        let acting = move |State(app): State<Site>, request: Request| actions::act(app, request, on, action);
        router.route(&action.path(on), get(asking).post(acting))
    });
    router.layer(DefaultBodyLimit::max(FORM_MAX)).layer(map_request(name_operation)).with_state(site)
}

async fn name_operation(request: Request) -> Request {
    note_operation(&request, PAGE);
    request
}

async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8"), (CACHE_CONTROL, STYLE_CACHE)], STYLE).into_response()
}

async fn script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8"), (CACHE_CONTROL, STYLE_CACHE)], SCRIPT).into_response()
}

async fn icon() -> Response {
    let headers = [
        (CONTENT_TYPE, "image/svg+xml"),
        (CACHE_CONTROL, STYLE_CACHE),
        (CONTENT_SECURITY_POLICY, "default-src 'none'"),
    ];
    (headers, ICON).into_response()
}

/// The answer to a browser for a path without a page.
pub async fn no_such_page(site: &Site, headers: &HeaderMap) -> Response {
    let visit = Visit::without_page(site, headers).await;
    refuse(&visit, &PageError::NotFound("There is no page at this address.".to_owned()))
}

/// Reads of the database take a read slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Database,
    Nothing,
}

fn page<H, F>(
    reads: Reads,
    handler: H,
) -> impl Fn(State<Site>, Request) -> Pin<Box<dyn Future<Output = Response> + Send>> + Clone + Send + Sync + 'static
where
    H: Fn(Site, Arc<Visit>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Page, PageError>> + Send + 'static,
{
    move |State(app), request| {
        let handler = handler.clone();
        Box::pin(async move {
            // A signed URL of the poll API with a truncated path leads here.
            if let Some(refused) = refuse_unknown_path(request.uri(), request.headers()) {
                return refused;
            }
            let visit = match read_visit(&app, request).await {
                Ok(visit) => Arc::new(visit),
                Err(response) => return response,
            };
            let made = async {
                let _slot = match reads {
                    Reads::Database => Some(app.intake.read_slots.take(visit.share()).await?),
                    Reads::Nothing => None,
                };
                handler(Arc::clone(&app), Arc::clone(&visit)).await
            };
            let made = made.await;
            let page = match made {
                Ok(page) => answer(StatusCode::OK, &layout::frame(&visit, &page)),
                Err(error) => refuse(&visit, &error),
            };
            let mut page = of_visitor(&visit, page);
            if visit.done.is_some() {
                done::clear(&app, &mut page);
            }
            page
        })
    }
}

/// Notes the visitor for the budget of answers and the access log.
fn of_visitor(visit: &Visit, page: Response) -> Response {
    let mut page = counted(page, visit.session.is_some());
    if access_log::is_on() {
        access_log::note(&mut page, PAGE, visit.client_id());
    }
    page
}

/// Charges the page to the visitor's share, so that stalled anonymous readers do not use up the
/// budget.
fn counted(mut page: Response, logged_in: bool) -> Response {
    answers::note_share(&mut page, if logged_in { Share::Authenticated } else { Share::Anonymous });
    page
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;
    use crate::http::budget::Budget;

    #[test]
    fn script_stays_small() {
        assert!(SCRIPT.len() <= 3_000, "{} bytes", SCRIPT.len());
    }

    #[test]
    fn page_budget_depends_on_login() {
        let room = Budget::new("answers", 200 << 10);
        // More than the anonymous share.
        let text = "x".repeat(100 << 10);
        let sent = |logged_in| answers::hold(&room, counted(answer(StatusCode::OK, &html! { (text) }), logged_in));
        assert_eq!([false, true].map(|logged_in| sent(logged_in).status().as_u16()), [503, 200]);
    }
}
