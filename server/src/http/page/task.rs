//! `/task/<taskId>`: what became of a task, with its log, result, artifacts, runs and definition.

mod compare;
mod life;
mod runs;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::bodies::{Metadata, Status};
use tenure_api::ids::TaskId;
use tenure_api::policy::Failure;
use tenure_api::states::{ReasonResolved, TaskState};

pub(super) use self::compare::compare;
use self::life::life;
use self::runs::{Returned, runs};
use super::actions::{self, On, Subject};
use super::artifacts::{self, artifacts_section};
use super::audit;
use super::edges::{EDGES_MAX, edges};
use super::error::PageError;
use super::layout::{self, Page, section};
use super::overview::REFRESH;
use super::state::Site;
use super::visit::Visit;
use super::{log, text};
use tenure_domain::audit::{Action, Kind};
use tenure_domain::create::shown_definition;
use tenure_domain::policy::why::{Held, Names, StateFacts, why, words};
use tenure_domain::scopes::Expression;
use tenure_domain::verdict::verdict;
use tenure_engine::ops::create_artifact::RunRef;
use tenure_engine::ops::why as ops;
use tenure_store::audit::Recorded;
use tenure_store::checkpoints::{self, Stored};
use tenure_store::page;
use tenure_store::why::{self as why_store, Ends};
use tenure_store::{clock, tasks};

/// Bytes of the page that the definition, the result and the checkpoint take each, indented and
/// escaped. The API has the rest.
const JSON_MAX: usize = 12_000;

/// `GET /task/:taskId`
pub(super) async fn task(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id: TaskId =
        visit.param("taskId").parse().map_err(|_| PageError::NotFound("This is not the id of a task.".to_owned()))?;
    let of_status = Expression::from(format!("queue:status:{id}"));
    let of_definition = Expression::from(format!("queue:get-task:{id}"));
    visit.authorize(Expression::any_of([of_status.clone(), of_definition.clone()]))?;
    let task = app.engine.status.submit(id).await?;
    let status = task.status();
    let mut conn = app.engine.pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let may_read = visit.may(of_definition.clone());
    let stored = if may_read { tasks::find_definition(&mut conn, id.uuid()).await? } else { None };
    let definition = stored.map(|stored| shown_definition(stored, task.priority));
    let ends = why_store::find_ends(&mut conn, id).await?;
    let checkpoint = checkpoints::find(&mut conn, id.uuid()).await?;
    drop(conn);
    let mut conn = page::begin(&app.engine.pool).await?;
    // One more than shown, to detect further tasks.
    let around = page::list_edges(&mut conn, id, EDGES_MAX as i64 + 1).await?;
    let changes = changes(&mut conn, &visit, &status).await?;
    conn.commit().await?;
    let listed = artifacts::find(&app, id).await?;
    let tail = match status.runs.last() {
        Some(run) => log::tail(&app, &visit, RunRef { task: id, run: run.run_id }).await?,
        None => None,
    };
    let returned = Returned::of(&visit, &status, &ends);
    let is_open = matches!(status.state, TaskState::Unscheduled | TaskState::Pending | TaskState::Running);
    let outlook = if is_open { Some(outlook(&app, &visit, id).await?) } else { None };
    let is_held = outlook.as_ref().is_some_and(|outlook| outlook.is_held);
    let created = definition.as_deref().and_then(text::created);
    let metadata = definition.as_deref().and_then(text::metadata);
    let name = metadata.as_ref().map(|metadata| metadata.name.trim()).filter(|name| !name.is_empty());
    let subject = Subject::of_task(task, definition.as_deref());
    let body = html! {
        h1 { span.kind { "Task" } @match name { Some(name) => (name), None => { code { (id) } } } }
        @if visit.may(of_status.clone()) {
            p.verdict { (verdict(&status, &returned.report(), now)) }
            (audit::shown(&changes, now))
            (actions::bar(&visit, On::Task, &subject))
            (life(&status, created, is_held, now))
            (facts(&visit, &status, now))
            @if let Some(metadata) = &metadata { (about(metadata)) }
            @if let Some(outlook) = &outlook { (why_section(&outlook.sentences, now)) }
            @if let Some(failure) = &returned.failure { (failure_section(failure)) }
            @if let Some(tail) = &tail { (log::log_section(&visit, tail)) }
            (result_section(&visit, &status, &ends))
            @if let Some(listed) = &listed { (artifacts_section(&visit, listed, now)) }
            @if let Some(checkpoint) = &checkpoint { (checkpoint_section(&visit, &status, checkpoint, now)) }
            (edges(&visit, id, &around))
            (runs(&visit, &status, &ends, &returned, now))
        } @else {
            (section("Status", &html! {}, &html! { div.note { (layout::denied(&visit, &of_status)) } }))
            @if let Some(metadata) = &metadata { (about(metadata)) }
        }
        @if let Some(definition) = &definition {
            (definition_section(&visit, id, definition))
        } @else {
            (section("Definition", &html! {}, &html! { div.note { (layout::denied(&visit, &of_definition)) } }))
        }
    };
    Ok(Page::new(format!("Task {}", name.unwrap_or(&id.to_string())), is_open.then_some(REFRESH), body))
}

/// The latest changes of the task. The cancel of its group is recorded for the group.
async fn changes(conn: &mut PgConnection, visit: &Visit, status: &Status) -> Result<Vec<Recorded>, sqlx::Error> {
    let mut changes = audit::latest(conn, visit, Kind::Task, &[status.task_id.to_string()]).await?;
    let is_cancelled = status.runs.last().is_some_and(|run| run.reason_resolved == Some(ReasonResolved::Canceled));
    if is_cancelled && !changes.iter().any(|change| change.action == Action::CancelTask.name()) {
        let of_group = audit::latest(conn, visit, Kind::TaskGroup, &[status.task_group_id.to_string()]).await?;
        changes.extend(of_group.into_iter().find(|change| change.action == Action::CancelTaskGroup.name()));
    }
    Ok(changes)
}

/// Why a task is in its state.
struct Outlook {
    sentences: Vec<String>,
    /// True if the run is pending and may not start.
    is_held: bool,
}

async fn outlook(app: &Site, visit: &Visit, id: TaskId) -> Result<Outlook, PageError> {
    let known = ops::find(app.engine.why_parts(), id).await?;
    let names = if visit.may(format!("tenure:get-queue:{}", known.queue)) { Names::Shown } else { Names::Hidden };
    let is_held = matches!(&known.facts.state, StateFacts::Pending { held, .. } if !matches!(held, Held::Ready));
    Ok(Outlook { sentences: words(&why(&known.facts, names)), is_held })
}

fn why_section(sentences: &[String], now: DateTime<Utc>) -> Markup {
    let body = html! { ul.why { @for sentence in sentences { li { (layout::sentence(sentence, now)) } } } };
    section("Why the task is in this state", &html! {}, &body)
}

fn facts(visit: &Visit, status: &Status, now: DateTime<Utc>) -> Markup {
    html! { dl.facts {
        div { dt { "State" } dd { (layout::state(status.state.as_str())) } }
        div { dt { "Task" } dd { code { (status.task_id) } } }
        div { dt { "Queue" } dd { (layout::queue(visit, status.task_queue_id.as_str())) } }
        div { dt { "Group" } dd { a href=(visit.link_to("group", &[&status.task_group_id.to_string()])) { code { (status.task_group_id) } } } }
        div { dt { "Priority" } dd { (status.priority) } }
        div { dt { "Retries left" } dd { (status.retries_left) } }
        div { dt { "Scheduler" } dd { (status.scheduler_id) } }
        div { dt { "Project" } dd { (status.project_id) } }
        div { dt { "Deadline" } dd { (layout::time(status.deadline.time(), now)) } }
        div { dt { "Expires" } dd { (layout::time(status.expires.time(), now)) } }
    } }
}

fn about(metadata: &Metadata) -> Markup {
    html! { section.panel {
        @if !metadata.description.trim().is_empty() { p.description tabindex="0" { (metadata.description) } }
        dl.facts {
            div { dt { "Owner" } dd { (metadata.owner) } }
            div { dt { "Source" } dd {
                @match text::web_url(&metadata.source) {
                    Some(url) => { a href=(url) rel="noreferrer noopener nofollow" { (url) } },
                    None => (metadata.source),
                }
            } }
        }
    } }
}

/// The whole message, which the line above the facts may cut.
fn failure_section(failure: &Failure) -> Markup {
    let Failure { message, kind, exit_code } = failure;
    let note = html! {
        @if let Some(kind) = kind { (kind) " " }
        @if let Some(code) = exit_code { "exit code " (code) }
    };
    section("Failure", &note, &html! { pre.json tabindex="0" { (message) } })
}

/// From the last run that has one.
fn result_section(visit: &Visit, status: &Status, ends: &Ends) -> Markup {
    let Some((run, result)) = &ends.result else { return Markup::default() };
    let required = Expression::from(format!("tenure:get-result:{}", status.task_queue_id));
    let note = html! { "of run " (run) };
    if !visit.may(required.clone()) {
        return section("Result", &note, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    section("Result", &note, &json(result))
}

/// For visitors who may see results.
fn checkpoint_section(visit: &Visit, status: &Status, stored: &Stored, now: DateTime<Utc>) -> Markup {
    let required = Expression::from(format!("tenure:get-result:{}", status.task_queue_id));
    let note = html! { "of run " (stored.run) ", " (layout::time(stored.updated, now)) };
    if !visit.may(required.clone()) {
        return section("Checkpoint", &note, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    section("Checkpoint", &note, &json(&stored.checkpoint))
}

fn json(whole: &str) -> Markup {
    let (beginning, is_long) = text::beginning(whole, JSON_MAX);
    let indented = text::pretty(beginning);
    let (shown, is_cut) = text::beginning_in_page(&indented, JSON_MAX);
    html! {
        @if is_long || is_cut {
            p.warning { "This is only its beginning: it is " (text::count(i64::try_from(whole.len()).unwrap_or(i64::MAX))) " bytes long." }
        }
        pre.json tabindex="0" { (shown) }
    }
}

/// Folded: it is long, and known to those who created the task.
fn definition_section(visit: &Visit, id: TaskId, definition: &str) -> Markup {
    let whole = visit.link(&format!("/api/queue/v1/task/{id}"));
    html! { section.panel {
        details {
            summary { h2 { "Definition" } }
            p.note { a href=(whole) { "As JSON" } }
            (json(definition))
        }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: &str = "This is only its beginning";
    /// In bytes: the elements around the text.
    const AROUND_MAX: usize = 200;

    #[test]
    fn long_json_takes_bounded_part_of_page() {
        let list = |item: &str| format!("[{}]", vec![item; (16 << 10) / (item.len() + 1)].join(","));
        let quotes = format!("\"{}\"", "\\\"<&>".repeat(3_000));
        let nested = format!("{}1{}", "[".repeat(8_000), "]".repeat(8_000));
        for long in [list("\"a\""), list("1"), list("\"<&>\""), list("\"\\\"\""), quotes, nested] {
            let page = json(&long).into_string();
            assert!(page.contains(CUT) && page.contains("pre"), "{long:.40}");
            assert!(page.len() <= JSON_MAX + AROUND_MAX, "{long:.40} takes {} bytes", page.len());
        }
    }

    #[test]
    fn short_json_is_whole() {
        let short = format!("{{\"n\":\"<{}>\"}}", "x".repeat(JSON_MAX - 100));
        let page = json(&short).into_string();
        assert!(page.contains("x&gt;&quot;\n}</pre>") && !page.contains(CUT), "{page}");
    }
}
