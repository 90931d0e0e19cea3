//! `/jobs`: jobs, which change many tasks. `/jobs/<jobId>`: the progress of one, and how to stop it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use chrono::{DateTime, Utc};
use http::HeaderMap;
use maud::{Markup, html};
use serde::Deserialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::JobId;
use tenure_api::jobs::RefusedTask;
use tenure_api::states::{JobAction, JobState};
use tenure_api::tasks::TaskFilter;

use super::answer::{read_visit, refuse};
use super::audit;
use super::done;
use super::error::PageError;
use super::layout::{self, Cells, Page};
use super::login::read_form;
use super::of_visitor;
use super::overview::REFRESH;
use super::pause::foreign_form;
use super::state::Site;
use super::text;
use super::visit::{Visit, is_from_us};
use crate::http::api::jobs::{LIST, READING, STOPPING, values};
use crate::http::scopes::{Template, Values};
use tenure_domain::audit::Kind;
use tenure_domain::bulk_job::{Job, Order, Which};
use tenure_domain::scopes::Expression;
use tenure_engine::ops::bulk_jobs as ops;
use tenure_store::clock;

const JOBS_MAX: usize = 50;
/// Shown characters of the conditions of a job in the list.
const CONDITIONS_CHARS: usize = 200;
/// Instead of an action or of conditions of another release.
const UNREADABLE: &str = "unreadable";

#[derive(Deserialize)]
struct StopForm {
    token: String,
}

/// Shows the conditions of a filter.
pub(super) fn conditions(filter: &TaskFilter) -> Markup {
    html! { dl.facts {
        @for (name, value) in listed(filter) { div { dt { (name) } dd { (value) } } }
    } }
}

/// Conditions of a filter, with the names that they have in forms, in the query of `/tasks` and on
/// the command line.
pub(super) fn listed(filter: &TaskFilter) -> Vec<(&'static str, String)> {
    let date = |time: Option<DateTime<Utc>>| time.map(|time| Timestamp::new(time).to_string());
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
        ("since", date(filter.since)),
        ("until", date(filter.until)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn tasks_in_words(which: Option<&Which>) -> String {
    match which {
        Some(Which::Filter(filter)) => {
            let conditions = listed(filter).into_iter().map(|(name, value)| format!("{name} {value}"));
            let words = conditions.collect::<Vec<_>>().join(", ");
            let cut = words.char_indices().nth(CONDITIONS_CHARS);
            match cut {
                Some((end, _)) => format!("{}…", &words[..end]),
                None => words,
            }
        }
        Some(Which::Tasks(ids)) => format!("{} selected", ids.len()),
        None => UNREADABLE.to_owned(),
    }
}

fn action(order: Option<Order>) -> Markup {
    let Some(order) = order else { return html! { (UNREADABLE) } };
    html! { (order.action()) @if let Some(priority) = order.priority() { " " (priority) } }
}

fn state(job: &Job) -> Markup {
    let state = job.state();
    let class = match state {
        JobState::Running => "running",
        JobState::Completed => "completed",
        JobState::Stopped => "pending",
        JobState::Failed => "exception",
    };
    html! { span class={ "state " (class) } { (state) } }
}

/// `GET /jobs`
pub(super) async fn jobs(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    visit.authorize(LIST)?;
    let before = visit.query("before").and_then(|before| before.parse().ok());
    let now = clock::get_now(&mut *app.engine.pool.acquire().await?).await?;
    let (found, next) = ops::list(&app.engine.pool, before, JOBS_MAX).await?;
    let rows: Vec<Cells> = found.iter().map(|job| cells(&visit, job, now)).collect();
    let note = html! {
        @if before.is_some() { a href=(visit.link("/jobs")) { "the newest" } " · " }
        @match next {
            Some(seq) => { a href={ (visit.link("/jobs")) "?before=" (seq) "&refresh=off" } { "older ones" } }
            None => { (found.len()) }
        }
    };
    let body = html! {
        h1 { "Jobs" }
        @if rows.is_empty() {
            (layout::section("Jobs", &note, &layout::empty(&html! { p {
                "No job here. A job cancels, reruns or reprioritises many tasks, and is listed for 14 days after its end."
            } })))
        } @else {
            (layout::section("Jobs", &note, &layout::table(&rows)))
        }
    };
    Ok(Page::new("Jobs", before.is_none().then_some(REFRESH), body))
}

fn cells(visit: &Visit, job: &Job, now: DateTime<Utc>) -> Cells {
    let id = job.id.to_string();
    vec![
        ("Job", html! { a href=(visit.link_to("jobs", &[&id])) title=(id) { code { (text::short(&id)) } } }),
        ("State", state(job)),
        ("Action", action(job.order)),
        ("Tasks", layout::said(&html! { (tasks_in_words(job.which.as_ref())) })),
        (">Found", layout::number(job.found.into())),
        (">Changed", layout::number(job.progress.done.into())),
        (">Refused", layout::number(job.progress.refused.into())),
        ("Client", html! { code { (job.client_id) } }),
        ("Started", layout::time(job.started, now)),
    ]
}

async fn read(app: &Site, visit: &Visit) -> Result<Job, PageError> {
    let id: JobId =
        visit.param("jobId").parse().map_err(|_| PageError::NotFound("This is not the id of a job.".to_owned()))?;
    Ok(ops::get(&app.engine.pool, id).await?)
}

fn required(scopes: &Template, visit: &Visit, job: &Job) -> Result<Expression, PageError> {
    scopes.fill(&values(job, visit.client_id()), &Values::of_path()).map_err(|_| PageError::Internal)
}

/// `GET /jobs/:jobId`
pub(super) async fn job(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let job = read(&app, &visit).await?;
    visit.authorize(required(&READING, &visit, &job)?)?;
    let mut conn = app.engine.pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let changes = audit::latest(&mut conn, &visit, Kind::Job, &[job.id.to_string()]).await?;
    drop(conn);
    let is_running = job.state() == JobState::Running;
    let title = match job.order.map(Order::action) {
        Some(JobAction::Cancel) => "Cancel tasks",
        Some(JobAction::Rerun) => "Run tasks again",
        Some(JobAction::Priority) => "Change priorities",
        None => "Change tasks",
    };
    let stop = if is_running { Some(stop_button(&visit, &job)?) } else { None };
    let body = html! {
        h1 { span.kind { "Job" } (title) }
        (progress(&job))
        (audit::shown(&changes, now))
        @if let Some(stop) = stop { (stop) }
        (facts(&job, now))
        @if let Some(Which::Filter(filter)) = &job.which {
            (layout::section("Tasks", &html! { "all that matched at the start" }, &conditions(filter)))
        }
        @if !job.progress.refusals.is_empty() { (refusals(&visit, &job)) }
        p { a href=(visit.link("/jobs")) { "All jobs" } }
    };
    Ok(Page::new(format!("Job {}", job.id), is_running.then_some(REFRESH), body))
}

fn progress(job: &Job) -> Markup {
    let progress = &job.progress;
    let tried = progress.done + progress.unchanged + progress.refused;
    let all = if job.more { job.found.max(tried) } else { job.found };
    html! {
        p.verdict {
            (state(job)) " "
            (text::count(progress.done.into())) " of " @if job.more { "at least " } (text::count(job.found.into()))
            " tasks changed"
            @if progress.unchanged > 0 { ", " (text::count(progress.unchanged.into())) " needed no change" }
            @if progress.refused > 0 { ", " (text::count(progress.refused.into())) " refused" }
            "."
            @if let Some(by) = &job.stopped_by { " Stopped by " code { (by) } "." }
            @if let Some(error) = &job.error { " It ended early: " (error) "." }
        }
        @if job.state() == JobState::Running {
            progress aria-label="Progress of the job" max=(all.max(1)) value=(tried.min(all)) {}
        }
    }
}

fn facts(job: &Job, now: DateTime<Utc>) -> Markup {
    html! { dl.facts {
        div { dt { "Action" } dd { (action(job.order)) } }
        div { dt { "Client" } dd { code { (job.client_id) } } }
        div { dt { "Started" } dd { (layout::time(job.started, now)) } }
        @if let Some(ended) = job.ended { div { dt { "Ended" } dd { (layout::time(ended, now)) } } }
        div { dt { "Id" } dd { code { (job.id) } } }
    } }
}

fn refusals(visit: &Visit, job: &Job) -> Markup {
    let cells = |refused: &RefusedTask| {
        vec![
            ("Task", layout::task(visit, &refused.task_id.to_string(), None)),
            ("Why", layout::said(&html! { (refused.message) })),
        ]
    };
    let rows: Vec<Cells> = job.progress.refusals.iter().map(cells).collect();
    let note = html! {
        @if (rows.len() as u64) < u64::from(job.progress.refused) { "the first " (rows.len()) " of " }
        (text::count(job.progress.refused.into()))
    };
    layout::section("Refused", &note, &layout::table(&rows))
}

fn stop_button(visit: &Visit, job: &Job) -> Result<Markup, PageError> {
    let required = required(&STOPPING, visit, job)?;
    let Some(session) = &visit.session else { return Ok(html! {}) };
    Ok(html! { div.actions role="group" aria-label="Actions" {
        @if visit.may(required.clone()) {
            form method="post" action={ (visit.link_to("jobs", &[&job.id.to_string()])) "/stop" } {
                input type="hidden" name="token" value=(session.form_token.as_str());
                button type="submit" { "Stop" }
            }
        } @else {
            span.lacking { button type="button" disabled { "Stop" } " needs " code { (required) } }
        }
    } })
}

/// `POST /jobs/:jobId/stop`
pub(super) async fn stop(State(app): State<Site>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let visit = match read_visit(&app, Request::from_parts(parts.clone(), Body::empty())).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let headers = parts.headers.clone();
    let form = read_form::<StopForm>(&app, Request::from_parts(parts, body)).await;
    let response = match act(&app, &visit, &headers, form).await {
        Ok(job) => done::see_other(&app, &visit.link_to("jobs", &[&job.id.to_string()]), "The job is stopped."),
        Err(error) => refuse(&visit, &error),
    };
    of_visitor(&visit, response)
}

async fn act(app: &Site, visit: &Visit, headers: &HeaderMap, form: Option<StopForm>) -> Result<Job, PageError> {
    let (Some(form), Some(session), true) = (form, &visit.session, is_from_us(app, headers)) else {
        return Err(foreign_form());
    };
    if !session.form_token.matches(&form.token) {
        return Err(foreign_form());
    }
    let job = read(app, visit).await?;
    visit.authorize(required(&STOPPING, visit, &job)?)?;
    Ok(ops::stop(&app.engine.pool, &visit.actor(), job.id).await?)
}
