//! `/tasks`: a list of tasks, with its conditions in the URL and buttons that start jobs.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::states::Priority;

use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::overview::{may_see_claimed, may_see_pending};
use super::state::Site;
use super::visit::{SEGMENT, Visit};
use crate::config::parse_duration;
use crate::http::api::jobs::START;
use tenure_domain::task_filter::{ListState, TaskFilter};
use tenure_engine::ops::OpError;
use tenure_engine::ops::task_list::{self, ListedTask, TaskPage};
use tenure_store::clock;
use tenure_store::page::{self, QueueRow};

/// A row has up to 1 kB.
const ROWS_MAX: usize = 50;
/// Shown characters of a name.
const NAME_CHARS: usize = 60;
/// Scopes of the statuses of tasks begin with it.
pub(super) const OF_STATUSES: &str = "queue:status:";
const AFTER: &str = "after";
/// The field of an id's first characters.
pub(super) const SHORT: &str = "short";

/// Fields of the form, with their labels, and examples of their values.
static FIELDS: [(&str, &str, &str); 10] = [
    ("queue", "Queue", "acme/linux"),
    ("name", "Name", "part of the name"),
    ("reason", "Reason", "claim-expired"),
    ("worker", "Worker", "group/id"),
    ("tag", "Tag", "key=value"),
    ("owner", "Owner", "ann@example.com"),
    ("project", "Project", "none"),
    ("group", "Task group", "id"),
    ("since", "Since", "2h"),
    ("until", "Until", "2027-01-31T12:00:00Z"),
];
/// Fields that are always shown.
const SHOWN: usize = 2;

/// `GET /tasks`
pub(super) async fn tasks(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    if !visit.may_some(OF_STATUSES) {
        visit.authorize(format!("{OF_STATUSES}*"))?;
    }
    let now = clock::get_now(&mut *app.engine.pool.acquire().await?).await?;
    let read = read_filter(|name| given(&visit, name), now);
    let (filter, wrong) = match read {
        Ok(filter) => (filter, None),
        Err(wrong) => (TaskFilter::default(), Some(wrong)),
    };
    // The conditions on definitions need the scope to read them.
    let is_visible = |task: TaskId| {
        visit.may(format!("{OF_STATUSES}{task}")) && (!filter.reads_definitions() || may_read(&visit, task))
    };
    let found = match (&wrong, given(&visit, SHORT)) {
        (Some(_), _) => Ok(TaskPage::default()),
        (None, Some(short)) => task_list::find_short(&app.engine.pool, short).await.map(|mut tasks| {
            tasks.retain(|task| is_visible(task.task_id));
            TaskPage { tasks, ..TaskPage::default() }
        }),
        (None, None) => {
            task_list::list_visible(app.engine.task_list_parts(), &filter, given(&visit, AFTER), ROWS_MAX, &is_visible)
                .await
        }
    };
    let (page, wrong) = match found {
        Ok(page) => (page, wrong),
        Err(OpError::Input(wrong)) => (TaskPage::default(), Some(wrong)),
        Err(error) => return Err(error.into()),
    };
    let counts = match &filter.task_queue_id {
        Some(queue) => find_counts(&app, queue).await?,
        None => None,
    };
    let body = html! {
        h1 { "Tasks" }
        (filter_form(&visit, &filter, wrong.as_deref()))
        @if let Some(row) = &counts { (counts_line(&visit, row)) }
        (list(&visit, &filter, &page, now))
    };
    // Not loaded again: rows are selected in it.
    Ok(Page::new("Tasks", None, body))
}

/// The field of the query; none if empty.
fn given<'a>(visit: &'a Visit, name: &str) -> Option<&'a str> {
    visit.query(name).map(str::trim).filter(|value| !value.is_empty())
}

fn may_read(visit: &Visit, task: TaskId) -> bool {
    visit.may(format!("queue:get-task:{task}"))
}

/// Reads a filter from fields with the names of the page's query.
pub(super) fn read_filter<'a>(
    field: impl Fn(&str) -> Option<&'a str>,
    now: DateTime<Utc>,
) -> Result<TaskFilter, String> {
    let text = |name: &str| field(name).map(str::to_owned);
    let time = |name: &str| field(name).map(|value| read_time(name, value, now)).transpose();
    let state = field("state").map(|word| {
        let known = ListState::ALL.into_iter().find(|state| state.as_str() == word);
        known.ok_or_else(|| format!("`state` must be one of {}", ListState::ALL.map(ListState::as_str).join(", ")))
    });
    let filter = TaskFilter {
        task_queue_id: text("queue"),
        task_group_id: text("group"),
        state: state.transpose()?,
        reason: text("reason"),
        worker: text("worker"),
        name: text("name"),
        tag: text("tag"),
        owner: text("owner"),
        project_id: text("project"),
        since: time("since")?,
        until: time("until")?,
    };
    filter.validate()?;
    Ok(filter)
}

/// A date, or a duration before now.
fn read_time(name: &str, value: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = serde_json::from_value::<Timestamp>(value.into()) {
        return Ok(time.time());
    }
    let before = parse_duration(value).ok().and_then(|duration| TimeDelta::from_std(duration).ok());
    before
        .and_then(|before| now.checked_sub_signed(before))
        .ok_or_else(|| format!("`{name}` must be a time such as 2027-01-31T12:00:00Z, or a duration such as 2h"))
}

/// The filter as fields of the page's query, with absolute times.
fn pairs(filter: &TaskFilter) -> Vec<(&'static str, String)> {
    let time = |time: Option<DateTime<Utc>>| time.map(|time| Timestamp::new(time).to_string());
    let all = [
        ("queue", filter.task_queue_id.clone()),
        ("group", filter.task_group_id.clone()),
        ("state", filter.state.map(|state| state.to_string())),
        ("reason", filter.reason.clone()),
        ("worker", filter.worker.clone()),
        ("name", filter.name.clone()),
        ("tag", filter.tag.clone()),
        ("owner", filter.owner.clone()),
        ("project", filter.project_id.clone()),
        ("since", time(filter.since)),
        ("until", time(filter.until)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The address of a list.
pub(super) fn link(visit: &Visit, filter: &TaskFilter, after: Option<&str>) -> String {
    let after = after.map(|after| (AFTER, after.to_owned()));
    let pair = |(name, value): (&str, String)| format!("{name}={}", utf8_percent_encode(&value, SEGMENT));
    let query: Vec<String> = pairs(filter).into_iter().chain(after).map(pair).collect();
    visit.link(&if query.is_empty() { "/tasks".to_owned() } else { format!("/tasks?{}", query.join("&")) })
}

async fn find_counts(app: &Site, queue: &str) -> Result<Option<QueueRow>, PageError> {
    let Ok(name) = queue.parse::<TaskQueueId>() else { return Ok(None) };
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &name).await? else { return Ok(None) };
    let mut conn = page::begin(&app.engine.pool).await?;
    let mut rows = page::list_queues(&mut conn, app.engine.sequencer.reached(), Some(key)).await?;
    conn.commit().await?;
    Ok(rows.pop())
}

fn filter_form(visit: &Visit, filter: &TaskFilter, wrong: Option<&str>) -> Markup {
    let field = |(name, label, example): (&str, &str, &str)| {
        let value = given(visit, name).unwrap_or_default();
        html! { label { span { (label) } input name=(name) value=(value) placeholder=(example); } }
    };
    let (shown, others) = FIELDS.split_at(SHOWN);
    let has_others = others.iter().any(|(name, ..)| given(visit, name).is_some());
    html! {
        form.filter method="get" action=(visit.link("/tasks")) {
            @if let Some(wrong) = wrong { p.error role="alert" { (wrong) } }
            div.fields {
                label { span { "State" } select name="state" {
                    option value="" { "any" }
                    @for state in ListState::ALL {
                        option value=(state) selected[filter.state == Some(state)] { (state) }
                    }
                } }
                @for shown in shown { (field(*shown)) }
                button type="submit" { "Show" }
                @if *filter != TaskFilter::default() || wrong.is_some() { a href=(visit.link("/tasks")) { "all tasks" } }
            }
            details open[has_others] {
                summary { "More conditions" }
                div.fields { @for other in others { (field(*other)) } }
            }
        }
    }
}

/// Counts of a queue that lead to the lists.
fn counts_line(visit: &Visit, row: &QueueRow) -> Markup {
    let count = |words: &str, number: i64, state: ListState| {
        let filter = TaskFilter { task_queue_id: Some(row.name.clone()), state: Some(state), ..TaskFilter::default() };
        html! { a href=(link(visit, &filter, None)) { (layout::number(number)) " " (words) } }
    };
    html! {
        p.counts {
            "In " (layout::queue(visit, &row.name)) ": "
            @if may_see_pending(visit, &row.name) {
                (count("pending", row.pending, ListState::Pending)) ", "
                (layout::number(row.delayed)) " delayed"
            }
            @if may_see_claimed(visit, &row.name) { ", " (count("running", row.claimed, ListState::Running)) }
        }
    }
}

fn list(visit: &Visit, filter: &TaskFilter, page: &TaskPage, now: DateTime<Utc>) -> Markup {
    let note = html! {
        @if given(visit, AFTER).is_some() { a href=(link(visit, filter, None)) { "from the beginning" } " · " }
        (page.tasks.len())
        @if page.next.is_some() {
            @if let Some(since) = page.looked_since { " of the tasks since " (layout::time(since, now)) }
            " · " a href=(link(visit, filter, page.next.as_deref())) { "go on" }
        }
    };
    if page.tasks.is_empty() {
        let words = if page.next.is_some() { "No task matches so far." } else { "No task matches." };
        return section("Tasks", &note, &layout::empty(&html! { p { (words) } }));
    }
    let rows: Vec<_> = page.tasks.iter().map(|task| cells(visit, filter, task, now)).collect();
    let Some(session) = &visit.session else { return section("Tasks", &note, &table(&rows)) };
    if !visit.may(START) {
        let body = html! {
            (table(&rows))
            div.actions role="group" aria-label="Selected tasks" {
                span.lacking { button type="button" disabled { "Change tasks" } " needs " code { (START) } }
            }
        };
        return section("Tasks", &note, &body);
    }
    let token = session.form_token.as_str();
    let body = html! {
        form method="post" action=(visit.link("/jobs")) {
            input type="hidden" name="token" value=(token);
            (table(&rows))
            div.actions role="group" aria-label="Selected tasks" { span.dim { "Selected:" } (buttons()) }
        }
        // A job needs a condition.
        @if *filter != TaskFilter::default() && given(visit, SHORT).is_none() {
            form method="post" action=(visit.link("/jobs")) {
                input type="hidden" name="token" value=(token);
                @for (name, value) in pairs(filter) { input type="hidden" name=(name) value=(value); }
                div.actions role="group" aria-label="All tasks that match" {
                    span.dim { "All that match:" } (buttons())
                }
            }
        }
    };
    section("Tasks", &note, &body)
}

/// Each leads to a page that shows how many tasks it would change.
fn buttons() -> Markup {
    html! {
        button type="submit" name="action" value="cancel" { "Cancel" }
        button type="submit" name="action" value="rerun" { "Rerun" }
        select name="priority" aria-label="New priority" {
            @for priority in Priority::ALL { option value=(priority) { (priority) } }
        }
        button type="submit" name="action" value="priority" { "Change priority" }
    }
}

fn cells(visit: &Visit, filter: &TaskFilter, task: &ListedTask, now: DateTime<Utc>) -> layout::Cells {
    let id = task.task_id.to_string();
    let name = task.name.as_deref().filter(|_| may_read(visit, task.task_id));
    let name = name.map(|name| name.chars().take(NAME_CHARS).collect::<String>());
    let reason = task.reason.filter(|reason| reason.as_str() != task.state.as_str());
    let selects = visit.session.is_some() && visit.may(START);
    let mut cells = vec![
        (
            "Task",
            html! {
                @if selects { input type="checkbox" name="task_id" value=(id) aria-label={ "Select " (super::text::short(&id)) }; " " }
                (layout::named_task(visit, &id, name.as_deref()))
            },
        ),
        (
            "State",
            html! {
                (layout::state(task.state.as_str()))
                @if let Some(reason) = reason { " " (reason) }
                @if let Some(by) = task.ended_by { " " span.dim { "ended by " (by) } }
            },
        ),
    ];
    if filter.task_queue_id.is_none() {
        cells.push(("Queue", layout::queue(visit, task.task_queue_id.as_str())));
    }
    let worker = task.worker.as_ref().map(|(group, id)| layout::worker(visit, group, id));
    cells.push(("Worker", worker.unwrap_or_else(layout::none)));
    // Of its last change, renewals excepted.
    let since = task.resolved.or(task.started).or(task.scheduled).or(task.created);
    cells.push((">Since", since.map_or_else(layout::none, |since| layout::time(since, now))));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(fields: &[(&str, &'static str)]) -> Result<TaskFilter, String> {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        read_filter(|name| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| *value), now)
    }

    #[test]
    fn fields_of_the_query_make_a_filter_and_back() {
        let fields = [
            ("queue", "acme/linux"),
            ("state", "failed"),
            ("name", "a&b"),
            ("since", "2h"),
            ("until", "2027-01-31T12:00:00.000Z"),
        ];
        let read = filter(&fields).unwrap();
        assert_eq!(read.state, Some(ListState::Failed));
        let again = pairs(&read);
        let names: Vec<&str> = again.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["queue", "state", "name", "since", "until"]);
        assert_eq!(again[3].1, "2027-01-15T06:00:00.000Z", "two hours before now");
        assert_eq!(again[4].1, fields[4].1);
        for wrong in [("state", "done"), ("since", "soon"), ("tag", "x"), ("queue", "a b"), ("state", "held")] {
            assert!(filter(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
