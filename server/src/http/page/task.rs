//! `/task/<taskId>`: a task with its runs, dependencies, artifacts and definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use serde_json::Value;
use tenure_api::bodies::{Metadata, Run, Status};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::policy::Failure;
use tenure_api::states::{EndedBy, ReasonCreated, TaskState};

use super::actions::{self, On, Subject};
use super::artifacts::{self, artifacts_section};
use super::audit;
use super::edges::{EDGES_MAX, edges};
use super::error::PageError;
use super::layout::{self, Cells, Page, section, table};
use super::overview::REFRESH;
use super::state::Site;
use super::visit::Visit;
use super::{log, text};
use tenure_domain::audit::Kind;
use tenure_domain::create::shown_definition;
use tenure_domain::policy::why::{Names, why, words};
use tenure_domain::scopes::Expression;
use tenure_domain::verdict::{Report, failure_line, verdict};
use tenure_engine::ops::create_artifact::RunRef;
use tenure_engine::ops::why as ops;
use tenure_store::checkpoints::{self, Stored};
use tenure_store::page;
use tenure_store::why::{self as why_store, Ends};
use tenure_store::{clock, tasks};

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
    let changes = audit::latest(&mut conn, &visit, Kind::Task, &[id.to_string()]).await?;
    conn.commit().await?;
    let listed = artifacts::find(&app, id).await?;
    let tail = match status.runs.last() {
        Some(run) => log::tail(&app, &visit, RunRef { task: id, run: run.run_id }).await?,
        None => None,
    };
    let returned = Returned::of(&visit, &status, &ends);
    let is_open = matches!(status.state, TaskState::Unscheduled | TaskState::Pending | TaskState::Running);
    let sentences = if is_open { sentences(&app, &visit, id).await? } else { Vec::new() };
    let metadata = definition.as_deref().and_then(text::metadata);
    let name = metadata.as_ref().map(|metadata| metadata.name.trim()).filter(|name| !name.is_empty());
    let subject = Subject::of_task(task, definition.as_deref());
    let body = html! {
        h1 { span.kind { "Task" } @match name { Some(name) => (name), None => { code { (id) } } } }
        @if visit.may(of_status.clone()) {
            p.verdict { (verdict(&status, &returned.report(), now)) }
            (audit::shown(&changes, now))
            (actions::bar(&visit, On::Task, &subject))
            (facts(&visit, &status, now))
            @if let Some(metadata) = &metadata { (about(metadata)) }
            @if is_open { (why_section(&sentences, now)) }
            @if let Some(tail) = &tail { (log::log_section(&visit, tail)) }
            (edges(&visit, id, &around))
            (runs(&visit, &status, &ends, &returned, now))
            @if let Some(listed) = &listed { (artifacts_section(&visit, listed, now)) }
            @if let Some(checkpoint) = &checkpoint { (checkpoint_section(&visit, &status, checkpoint, now)) }
            @if let Some(failure) = &returned.failure { (failure_section(failure)) }
            (result_section(&visit, &status, &ends))
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

async fn sentences(app: &Site, visit: &Visit, id: TaskId) -> Result<Vec<String>, PageError> {
    let known = ops::find(app.engine.why_parts(), id).await?;
    let names = if visit.may(format!("tenure:get-queue:{}", known.queue)) { Names::Shown } else { Names::Hidden };
    Ok(words(&why(&known.facts, names)))
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

fn runs(visit: &Visit, status: &Status, ends: &Ends, returned: &Returned, now: DateTime<Utc>) -> Markup {
    if status.runs.is_empty() {
        let note = html! { p { "The task has no run yet: it has not been scheduled." } };
        return section("Runs", &html! {}, &layout::empty(&note));
    }
    let ended_by = |run: &Run| ends.ended_by.iter().find(|(number, _)| *number == run.run_id.number().cast_signed());
    let cells = |run: &Run| {
        let ended_by = ended_by(run).map(|(_, by)| *by);
        run_cells(visit, run, ended_by, returned.failures.get(&run.run_id).map(String::as_str), now)
    };
    let rows: Vec<_> = status.runs.iter().rev().map(cells).collect();
    section("Runs", &html! { "newest first" }, &table(&rows))
}

/// What workers reported about the ends of runs. Empty if the visitor may not see results.
#[derive(Default)]
struct Returned {
    /// Of the last run.
    failure: Option<Failure>,
    /// Of the last run.
    result: Value,
    /// Beginnings of failures, by run.
    failures: BTreeMap<RunId, String>,
}

impl Returned {
    fn of(visit: &Visit, status: &Status, ends: &Ends) -> Self {
        let Some(last) = status.runs.last() else { return Self::default() };
        if !visit.may(format!("tenure:get-result:{}", status.task_queue_id)) {
            return Self::default();
        }
        let result = ends.result.as_ref().filter(|(run, _)| *run == last.run_id.number().cast_signed());
        let mut returned = Self {
            result: result.and_then(|(_, result)| serde_json::from_str(result).ok()).unwrap_or_default(),
            ..Self::default()
        };
        for run in &status.runs {
            let number = run.run_id.number().cast_signed();
            let text = ends.failures.iter().find(|(run, _)| *run == number).map(|(_, text)| text);
            let Some(failure) = text.and_then(|text| serde_json::from_str::<Failure>(text).ok()) else { continue };
            returned.failures.insert(run.run_id, failure_line(&failure));
            if run.run_id == last.run_id {
                returned.failure = Some(failure);
            }
        }
        returned
    }

    fn report(&self) -> Report {
        self.failure.as_ref().map_or_else(|| Report::of(&Value::Null, &self.result), Report::from)
    }
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
    section("Result", &note, &html! { pre.json tabindex="0" { (text::pretty(result)) } })
}

/// For visitors who may see results.
fn checkpoint_section(visit: &Visit, status: &Status, stored: &Stored, now: DateTime<Utc>) -> Markup {
    let required = Expression::from(format!("tenure:get-result:{}", status.task_queue_id));
    let note = html! { "of run " (stored.run) ", " (layout::time(stored.updated, now)) };
    if !visit.may(required.clone()) {
        return section("Checkpoint", &note, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    section("Checkpoint", &note, &html! { pre.json tabindex="0" { (text::pretty(&stored.checkpoint)) } })
}

fn run_cells(visit: &Visit, run: &Run, ended_by: Option<EndedBy>, failure: Option<&str>, now: DateTime<Utc>) -> Cells {
    let reason = html! {
        @if let Some(reason) = run.reason_resolved.filter(|reason| reason.as_str() != run.state.as_str()) { (reason) " " }
        @if let Some(by) = ended_by { span.dim { "ended by " (by) " " } }
        @if let Some(failure) = failure { (layout::said(&html! { (failure) })) " " }
        @if run.reason_created != ReasonCreated::Scheduled { span.dim { "made by " (run.reason_created) } }
    };
    let worker = run.worker_group.as_deref().zip(run.worker_id.as_deref());
    let time = |time: Option<Timestamp>| time.map_or_else(layout::none, |time| layout::time(time.time(), now));
    // An ended run has no lease.
    let taken_until = run.taken_until.filter(|_| run.resolved.is_none());
    vec![
        (">Run", html! { (run.run_id) }),
        ("State", layout::state(run.state.as_str())),
        ("Reason", reason),
        ("Worker", worker.map_or_else(layout::none, |(group, id)| layout::worker(visit, group, id))),
        (">Scheduled", time(Some(run.scheduled))),
        (">Started", time(run.started)),
        (">Ended", time(run.resolved)),
        (">Taken until", time(taken_until)),
    ]
}

fn definition_section(visit: &Visit, id: TaskId, definition: &str) -> Markup {
    let (shown, cut) = text::beginning(definition, text::DEFINITION_SHOWN);
    let whole = visit.link(&format!("/api/queue/v1/task/{id}"));
    let note = html! { a href=(whole) { "as JSON" } };
    section(
        "Definition",
        &note,
        &html! {
            @if cut { p.warning { "This is only its beginning: it is " (text::count(i64::try_from(definition.len()).unwrap_or(i64::MAX))) " bytes long." } }
            pre.json tabindex="0" { (text::pretty(shown)) }
        },
    )
}
