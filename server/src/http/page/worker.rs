//! `/worker/<workerGroup>/<workerId>`: what a worker holds, and what it did lately.

use std::sync::Arc;

use maud::html;
use tenure_api::ids::{WorkerGroup, WorkerId};

use super::layout::{self, section};
use super::overview::REFRESH;
use super::rows::{self, About, ROWS_MAX};
use super::visit::Visit;
use super::{Page, PageError};
use crate::http::app::App;
use tenure_store::clock;
use tenure_store::page::{self, Ends, Filter};

const ABOUT: About = About { queue: false, worker: true };

/// `GET /worker/:workerGroup/:workerId`
pub(super) async fn worker(app: App, visit: Arc<Visit>) -> Result<Page, PageError> {
    let unknown = |_| PageError::NotFound("This is not the name of a worker.".to_owned());
    let group: WorkerGroup = visit.param("workerGroup").parse().map_err(unknown)?;
    let id: WorkerId = visit.param("workerId").parse().map_err(unknown)?;
    let filter = Filter { queues: None, worker: Some((group.as_str(), id.as_str())) };
    let sequenced = app.engine.sequencer.reached();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let mut claims = page::list_claims(&mut conn, filter, ROWS_MAX).await?;
    let mut ended = page::list_ended(&mut conn, sequenced, Ends::All, filter, ROWS_MAX).await?;
    conn.commit().await?;
    // A worker is listed by queue; each row needs the scope for its own.
    let may = |queue: &str| visit.may(format!("queue:get-worker:{queue}/{group}/{id}"));
    let found = claims.len() + ended.len();
    claims.retain(|row| may(&row.queue));
    ended.retain(|row| may(&row.queue));
    if claims.len() + ended.len() == 0 && found > 0 {
        return Err(PageError::Denied(format!("queue:get-worker:<queue>/{group}/{id}").into()));
    }
    let body = html! {
        h1 { span.kind { "Worker" } (group) "/" (id) }
        @if claims.is_empty() {
            (section("Holds", &html! {}, &layout::empty(&html! {
                p { "It holds no task now." }
                @if ended.is_empty() { p { "Nor has it ended one lately: it is unknown or idle." } }
            })))
        } @else {
            (section("Holds", &html! { "those that end first" }, &rows::claims(&visit, &claims, now, ABOUT)))
        }
        @if !ended.is_empty() {
            (section("Ended lately", &html! { "newest first" }, &rows::ended(&visit, &ended, now, ABOUT)))
        }
    };
    Ok(Page { title: format!("Worker {group}/{id}"), refresh: Some(REFRESH), body })
}
