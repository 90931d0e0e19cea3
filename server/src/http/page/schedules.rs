//! Schedules that create tasks of a queue, on its page.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;

use super::layout::{self, section, table};
use super::text;
use super::visit::Visit;
use tenure_domain::schedule::definition::{Last, Schedule};
use tenure_store::page::{self, SCHEDULES_READ};

const SCHEDULES_MAX: usize = 10;
/// In bytes; the API has the rest.
const ERROR_SHOWN: usize = 200;

/// Reads the schedules of the queue, which are none for visitors who may not list them. None on
/// timeout.
pub(super) async fn read(
    visit: &Visit,
    conn: &mut PgConnection,
    queue: &TaskQueueId,
) -> Result<Option<Vec<Schedule>>, sqlx::Error> {
    if !visit.may("tenure:list-schedules") {
        return Ok(Some(Vec::new()));
    }
    let all = page::list_schedules(conn).await?;
    let is_of_queue = |schedule: &Schedule| schedule.definition.queue().as_ref() == Some(queue);
    Ok(all.map(|all| all.into_iter().filter(is_of_queue).collect()))
}

/// Empty without schedules.
pub(super) fn schedules_section(visit: &Visit, schedules: Option<&[Schedule]>, now: DateTime<Utc>) -> Markup {
    let title = "Schedules";
    let Some(schedules) = schedules else { return section(title, &html! {}, &layout::unread()) };
    if schedules.is_empty() {
        return html! {};
    }
    let cells = |schedule: &Schedule| {
        let Schedule { name, definition, next, last, error, .. } = schedule;
        let next = next.filter(|_| !definition.paused).map_or_else(layout::none, |next| layout::time(next, now));
        let error = error.as_ref().map_or_else(layout::none, |error| {
            let (shown, is_cut) = text::beginning(error, ERROR_SHOWN);
            html! { span.bad { (shown) @if is_cut { "…" } } }
        });
        vec![
            ("Schedule", html! { (name) @if definition.paused { " " (layout::state("paused")) } }),
            ("Pattern", html! { code { (definition.cron) } }),
            ("Time zone", html! { (definition.timezone) }),
            (">Next", next),
            ("Last", last.as_ref().map_or_else(layout::none, |last| shown_last(visit, last, now))),
            ("Error", error),
        ]
    };
    let rows: Vec<_> = schedules.iter().take(SCHEDULES_MAX).map(cells).collect();
    let note = html! {
        "by name, among the first " (layout::number(SCHEDULES_READ)) " schedules" @if schedules.len() > SCHEDULES_MAX { "; the first " (SCHEDULES_MAX) }
    };
    section(title, &note, &table(&rows))
}

fn shown_last(visit: &Visit, last: &Last, now: DateTime<Utc>) -> Markup {
    html! {
        (layout::time(last.at, now)) ", " (last.outcome)
        @if let Some(task) = last.task { " " (layout::task(visit, &task.to_string(), None)) }
    }
}
