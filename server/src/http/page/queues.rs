//! `/queues`: queues with problems first, or all queues by name.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use maud::html;
use percent_encoding::{CONTROLS, utf8_percent_encode};
use tenure_api::ids::TaskQueueId;

use super::answer::{read_visit, refuse, see_other};
use super::error::PageError;
use super::layout::{Page, section, table};
use super::of_visitor;
use super::overview::{REFRESH, any_queue, listing_scope, no_queues};
use super::pause::queue_of;
use super::queue_rows::{self, Urgent};
use super::state::Site;
use super::text;
use super::visit::{SEGMENT, Visit};
use tenure_store::clock;
use tenure_store::page::{self, QUEUES_MAX, QueueRow};

const SHOWN: usize = 30;

/// `GET /queues`; `?order=name` lists all queues, `&after=` from a name on.
pub(super) async fn queues(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let by_name = visit.query("order") == Some("name");
    let urgent = Urgent::new(app.engine.problems.get().as_deref());
    let sequenced = app.engine.sequencer.reached();
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    // The database accepts no zero byte.
    let after = visit.query("after").filter(|after| !after.contains('\0')).unwrap_or_default();
    let mut queues = if by_name {
        page::list_queues_by_name(&mut conn, sequenced, after, limit() + 1).await?
    } else {
        page::list_queues(&mut conn, sequenced, None).await?
    };
    if !by_name {
        queue_rows::add_urgent(&mut conn, sequenced, &urgent, &mut queues).await?;
    }
    let next = if by_name { cut(&mut queues) } else { None };
    queues.retain(|queue| visit.may(listing_scope(&queue.name)));
    if visit.session.is_none() && queues.is_empty() && !visit.may(any_queue()) {
        return Err(PageError::Denied(any_queue()));
    }
    if !by_name {
        urgent.sort(&mut queues);
    }
    let found = queues.len();
    queues.truncate(SHOWN);
    let oldest = queue_rows::read_oldest(&app, &mut conn, &queues).await?;
    let details = queue_rows::read(&app, &visit, &mut conn, &queues, oldest.as_ref(), now).await?;
    conn.commit().await?;
    let rows: Vec<_> =
        queues.iter().map(|queue| queue_rows::cells(&visit, queue, &urgent, oldest.as_ref(), &details, now)).collect();
    let path = visit.link("/queues");
    let note = html! {
        @if by_name {
            a href=(path) { "problems first" } " · by name"
            @if !after.is_empty() { ", after " (after) }
        } @else {
            "problems first, then the fullest"
            @if found > SHOWN { "; " (SHOWN) " of the " (text::count(QUEUES_MAX)) " fullest and newest" }
            " · " a href={ (path) "?order=name" } { "by name" }
        }
    };
    let body = html! {
        h1 { "Queues" }
        @if rows.is_empty() && !by_name {
            (no_queues(&visit))
        } @else if rows.is_empty() {
            (section("Queues", &note, &html! { div.note { p { (nothing(next.is_some())) } } }))
        } @else {
            (section("Queues", &note, &table(&rows)))
        }
        @if let Some(next) = next {
            p { a href={ (path) "?order=name&after=" (utf8_percent_encode(&next, SEGMENT).to_string()) } { "Next queues" } }
        }
    };
    Ok(Page::new("Queues", Some(REFRESH), body))
}

/// `GET /queues/:provisionerId/:workerType`: leads to the page of the queue, which has the same
/// query.
pub(super) async fn moved(State(app): State<Site>, request: Request) -> Response {
    let visit = match read_visit(&app, request).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let response = match queue_of(&visit) {
        Ok(queue) => see_other(&place_of(&visit, &queue)),
        Err(error) => refuse(&visit, &error),
    };
    of_visitor(&visit, response)
}

fn place_of(visit: &Visit, queue: &TaskQueueId) -> String {
    let mut place = visit.link_to("queue", &[queue.provisioner_id(), queue.worker_type()]);
    if let Some((_, query)) = visit.place.split_once('?') {
        place.push('?');
        // Headers are ASCII; the query is escaped already.
        place.extend(utf8_percent_encode(query, CONTROLS));
    }
    place
}

/// In place of a page of queues by name. `has_more` is true if further queues were not read.
fn nothing(has_more: bool) -> &'static str {
    if has_more {
        "You may list none of the queues of this page."
    } else {
        "No queue that you may list has a later name."
    }
}

fn limit() -> i64 {
    i64::try_from(SHOWN).unwrap_or(i64::MAX)
}

/// Removes the queue that was read to see if there are more, and returns the last name before it.
fn cut(queues: &mut Vec<QueueRow>) -> Option<String> {
    if queues.len() <= SHOWN {
        return None;
    }
    queues.truncate(SHOWN);
    queues.last().map(|queue| queue.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_begins_after_last_name() {
        let queue = |n: usize| QueueRow {
            key: 1,
            name: format!("a/{n:03}"),
            pending: 0,
            claimed: 0,
            delayed: 0,
            waiting: 0,
            paused: None,
        };
        for (read, next) in [(0, None), (SHOWN, None), (SHOWN + 1, Some(format!("a/{:03}", SHOWN - 1)))] {
            let mut queues: Vec<QueueRow> = (0..read).map(queue).collect();
            assert_eq!(cut(&mut queues), next, "{read}");
            assert_eq!(queues.len(), read.min(SHOWN));
        }
    }
}
