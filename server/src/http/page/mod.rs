//! The operator's pages, each rendered from one read of the database, without scripts. They change
//! only the visitor's session and the pause of a queue.
//!
//! maud escapes all external text at compile time. The content security policy would block a script
//! that slipped through.

mod answer;
mod artifacts;
mod edges;
mod error;
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
pub mod state;
mod task;
mod text;
mod visit;
mod worker;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};

use self::answer::{answer, read_visit, refuse};
use self::error::PageError;
use self::layout::{ICON, Page, STYLE};
use self::login::FORM_MAX;
use self::state::Site;
use self::visit::Visit;
use super::answers;
use super::budget::Share;
use super::poll::common::refuse_unknown_path;

/// The URL changes with the text.
const STYLE_CACHE: &str = "public, max-age=86400, immutable";

pub fn router(site: Site) -> Router {
    Router::new()
        .route("/", get(page(Reads::Database, overview::overview)))
        .route("/task/{taskId}", get(page(Reads::Database, task::task)))
        .route("/task/{taskId}/log", get(log::log))
        .route("/group/{taskGroupId}", get(page(Reads::Database, group::group)))
        .route("/queue/{provisionerId}/{workerType}", get(page(Reads::Database, queue::queue)))
        .route("/queue/{provisionerId}/{workerType}/pause", get(page(Reads::Database, pause::form)).post(pause::pause))
        .route("/queue/{provisionerId}/{workerType}/resume", post(pause::resume))
        .route("/worker/{workerGroup}/{workerId}", get(page(Reads::Database, worker::worker)))
        .route("/login", get(page(Reads::Nothing, login::form)).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/page/style.css", get(style))
        .route("/page/icon.svg", get(icon))
        .layer(DefaultBodyLimit::max(FORM_MAX))
        .with_state(site)
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
            let logged_in = visit.session.is_some();
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
            counted(page, logged_in)
        })
    }
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
    fn page_budget_depends_on_login() {
        let room = Budget::new("answers", 200 << 10);
        // More than the anonymous share.
        let text = "x".repeat(100 << 10);
        let sent = |logged_in| answers::hold(&room, counted(answer(StatusCode::OK, &html! { (text) }), logged_in));
        assert_eq!([false, true].map(|logged_in| sent(logged_in).status().as_u16()), [503, 200]);
    }
}
