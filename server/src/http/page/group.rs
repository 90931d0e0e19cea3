//! `/group/<taskGroupId>`: the tasks of a group.

use std::sync::Arc;

use maud::html;
use tenure_api::ids::{TaskGroupId, TaskId};
use uuid::Uuid;

use super::actions::{self, On, Subject};
use super::audit;
use super::error::PageError;
use super::layout::{self, Page, section, table};
use super::overview::REFRESH;
use super::problems;
use super::state::Site;
use super::visit::Visit;
use tenure_domain::audit::Kind;
use tenure_domain::task::Group;
use tenure_store::clock;
use tenure_store::page::{self, MemberRow, MemberState};

const TASKS_MAX: i64 = 200;

/// `GET /group/:taskGroupId`
pub(super) async fn group(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id: TaskGroupId = visit
        .param("taskGroupId")
        .parse()
        .map_err(|_| PageError::NotFound("This is not the id of a task group.".to_owned()))?;
    visit.authorize(format!("queue:list-task-group:{id}"))?;
    let after = visit.query("after").and_then(|after| after.parse().ok()).map_or(Uuid::nil(), TaskId::uuid);
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let found = page::find_group(&mut conn, id.uuid()).await?;
    let group = found.ok_or_else(|| PageError::NotFound(format!("There is no task group {id}.")))?;
    let members = page::list_members(&mut conn, id.uuid(), after, TASKS_MAX).await?;
    let changes = audit::latest(&mut conn, &visit, Kind::TaskGroup, &[id.to_string()]).await?;
    conn.commit().await?;
    let cells = |row: &MemberRow| {
        let state = match row.state {
            MemberState::Unscheduled => "unscheduled",
            MemberState::Run(state) => state.as_str(),
        };
        vec![
            ("Task", layout::task(&visit, &row.task.to_string(), row.definition.as_deref())),
            ("State", layout::state(state)),
            ("Queue", layout::queue(&visit, &row.queue)),
            ("Priority", html! { (row.priority) }),
            (">Runs", layout::number(row.run.map_or(0, |run| i64::from(run.number()) + 1))),
        ]
    };
    let rows: Vec<_> = members.iter().map(cells).collect();
    let last = members.last().filter(|_| i64::try_from(members.len()).is_ok_and(|count| count == TASKS_MAX));
    let note = html! {
        @if !after.is_nil() { a href=(visit.link_to("group", &[&id.to_string()])) { "from the beginning" } " · " }
        @if let Some(last) = last {
            "the first " (TASKS_MAX) " here · "
            a href={ (visit.link_to("group", &[&id.to_string()])) "?after=" (last.task) "&refresh=off" } { "the next" }
        } @else { (members.len()) }
    };
    let subject =
        Subject::Group(Group { id, scheduler: group.scheduler.clone(), expires: group.expires, sealed: group.sealed });
    let body = html! {
        h1 { span.kind { "Task group" } code { (id) } }
        (problems::about(&app, &visit, |object| object.group == Some(id)))
        (audit::shown(&changes, now))
        (actions::bar(&visit, On::Group, &subject))
        dl.facts {
            div { dt { "Scheduler" } dd { (group.scheduler) } }
            div { dt { "Sealed" } dd { @match group.sealed { Some(time) => (layout::time(time, now)), None => { "no, tasks may be added" } } } }
            div { dt { "Expires" } dd { (layout::time(group.expires, now)) } }
        }
        @if members.is_empty() {
            (section("Tasks", &note, &layout::empty(&html! { p { "No task here. Tasks join a group by naming it as taskGroupId when they are created." } })))
        } @else {
            (section("Tasks", &note, &table(&rows)))
        }
    };
    // Later pages are read undisturbed.
    Ok(Page::new(format!("Task group {id}"), after.is_nil().then_some(REFRESH), body))
}
