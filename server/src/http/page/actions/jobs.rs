//! Jobs that forms start: `POST /jobs` of lists of tasks, and *rerun failed* of a group. Both show
//! the number of tasks first.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use chrono::{DateTime, Utc};
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde_json::json;
use tenure_api::ids::{JobId, TaskId};
use tenure_api::jobs::StartJobRequest;
use tenure_api::states::{JobAction, Priority};
use tenure_api::tasks::TaskFilter;

use super::form::{self, Field, Fields, Form};
use super::{Failed, Order, Outcome, Subject, mismatch};
use crate::http::api::jobs::{START, new_id};
use crate::http::page::answer::{answer, read_visit, refuse};
use crate::http::page::done;
use crate::http::page::error::PageError;
use crate::http::page::jobs::{conditions, listed};
use crate::http::page::layout::{self, Page};
use crate::http::page::of_visitor;
use crate::http::page::state::Site;
use crate::http::page::tasks::{self, read_filter};
use crate::http::page::text;
use crate::http::page::visit::Visit;
use tenure_domain::bulk_job::{NewJob, Order as JobOrder, Which};
use tenure_domain::unacceptable::Unacceptable;
use tenure_engine::ops::OpError;
use tenure_engine::ops::bulk_jobs::{self as ops, Counted};

const JOB: &str = "job_id";
const TASK: &str = "task_id";
const CONFIRMED: &str = "confirmed";
const STATE: &str = "state";
const BACKGROUND: &str =
    "A job does this in the background, with the rights that you have for each task. It can be stopped.";

/// `POST /jobs`: shows the number of tasks and asks; once confirmed, starts the job.
pub(in crate::http::page) async fn order(State(app): State<Site>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let headers = parts.headers.clone();
    let visit = match read_visit(&app, Request::from_parts(parts, Body::empty())).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let response = act(&app, &visit, &headers, body).await;
    of_visitor(&visit, response.unwrap_or_else(|error| refuse(&visit, &error)))
}

async fn act(app: &Site, visit: &Visit, headers: &HeaderMap, body: Body) -> Result<Response, PageError> {
    let sent = form::read(app, visit, headers, body).await?;
    check_visitor(visit)?;
    let job = read_job(&sent, form::now(app).await?)?;
    let _slot = app.intake.read_slots.take(visit.share()).await?;
    let counted = app.engine.count_tasks(&job.which).await.map_err(refused)?;
    if sent.non_empty(CONFIRMED).is_none() {
        return Ok(answer(StatusCode::OK, &layout::frame(visit, &question(visit, &sent, &job, counted))));
    }
    let id = sent.text(JOB).parse::<JobId>().map_err(|_| wrong("`job_id` must be that of the form"))?;
    let started = ops::start(&app.engine.pool, &visit.actor(), id, &job, counted).await.map_err(refused)?;
    Ok(done::see_other(app, &visit.link_to("jobs", &[&started.id.to_string()]), "The job was started."))
}

/// A job has the rights of its client, and may outlive temporary credentials.
fn check_visitor(visit: &Visit) -> Result<(), PageError> {
    visit.authorize(START)?;
    match &visit.session {
        Some(session) if !session.principal.is_temporary => Ok(()),
        Some(_) | None => {
            let message = "Log in as a client first: a job acts with its rights.";
            Err(PageError::Refused(StatusCode::FORBIDDEN, message.to_owned()))
        }
    }
}

fn wrong(message: impl Into<String>) -> PageError {
    PageError::Refused(StatusCode::BAD_REQUEST, message.into())
}

fn refused(error: OpError) -> PageError {
    match error {
        OpError::Conflict(message) => PageError::Refused(StatusCode::CONFLICT, message),
        other => other.into(),
    }
}

/// Reads the fields of a form, whose conditions have the names of the query of `/tasks`.
fn read_job(sent: &Fields, now: DateTime<Utc>) -> Result<NewJob, PageError> {
    let action = serde_json::from_value::<JobAction>(sent.text("action").into());
    let action = action.map_err(|error| wrong(format!("`action`: {error}")))?;
    let ids = sent.all(TASK).map(str::parse::<TaskId>).collect::<Result<Vec<_>, _>>();
    let ids = ids.map_err(|error| wrong(error.to_string()))?;
    let filter = read_filter(|name| sent.non_empty(name), now).map_err(wrong)?;
    if ids.is_empty() && filter == TaskFilter::default() {
        return Err(wrong("Select tasks first, or give at least one condition."));
    }
    // The form has one field of the priority for all of its buttons.
    let priority = match action {
        JobAction::Priority => Some(serde_json::from_value::<Priority>(sent.text("priority").into())),
        JobAction::Cancel | JobAction::Rerun => None,
    };
    let priority = priority.transpose().map_err(|error| wrong(format!("`priority`: {error}")))?;
    let mut request = StartJobRequest { priority, ..StartJobRequest::new(action, filter) };
    if !ids.is_empty() {
        request = StartJobRequest { filter: None, task_ids: Some(ids), ..request };
    }
    NewJob::from_request(&request).map_err(|unacceptable| match unacceptable {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => wrong(message),
        Unacceptable::Unserializable(error) => wrong(error.to_string()),
    })
}

fn question(visit: &Visit, sent: &Fields, job: &NewJob, counted: Counted) -> Page {
    let token = visit.session.as_ref().map_or("", |session| session.form_token.as_str());
    let (title, effect) = match job.order {
        JobOrder::Cancel => ("Cancel tasks", html! { "Unresolved ones end as exceptions, with the reason canceled." }),
        JobOrder::Rerun => ("Run tasks again", html! { "Each gets a new run." }),
        JobOrder::Priority(priority) => (
            "Change priorities",
            html! { "Their priority becomes " (priority) ". Tasks that were resolved keep theirs." },
        ),
    };
    let named = ["action", "priority", TASK].into_iter();
    let mut hidden: Vec<(&str, String)> =
        named.flat_map(|field| sent.all(field).map(move |value| (field, value.to_owned()))).collect();
    if let Which::Filter(filter) = &job.which {
        hidden.extend(listed(filter));
    }
    let back = match &job.which {
        Which::Filter(filter) => tasks::link(visit, filter, None),
        Which::Tasks(_) => visit.link("/tasks"),
    };
    let body = html! { section.panel.form.wide {
        h1 { (title) }
        @if let Which::Filter(filter) = &job.which { (conditions(filter)) }
        @if counted.found == 0 && !counted.more {
            p { "No task matches." }
        } @else {
            p.warning { (number(counted)) " " (effect) }
            p.dim { (BACKGROUND) }
            form method="post" action=(visit.link("/jobs")) {
                input type="hidden" name="token" value=(token);
                input type="hidden" name=(JOB) value=(new_id());
                input type="hidden" name=(CONFIRMED) value="yes";
                @for (field, value) in &hidden { input type="hidden" name=(field) value=(value); }
                button type="submit" autofocus { "Start the job" }
            }
        }
        a.button href=(back) { "Back" }
        @if let Some(command) = command(job) {
            p.dim { "As a command:" }
            pre tabindex="0" { "tenure " (command) }
        }
    } };
    Page::new(title, None, body)
}

fn number(Counted { found, more }: Counted) -> Markup {
    html! {
        @if more { "At least " }
        (text::count(found.into())) @if found == 1 { " task." } @else { " tasks." }
    }
}

/// The same job on the command line, without the program's name. None for named tasks.
fn command(job: &NewJob) -> Option<String> {
    let Which::Filter(filter) = &job.which else { return None };
    let verb = match job.order {
        JobOrder::Cancel => "task cancel".to_owned(),
        JobOrder::Rerun => "task rerun".to_owned(),
        JobOrder::Priority(priority) => format!("task priority {priority}"),
    };
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:=@".contains(&byte));
    let quoted = |text: &str| if plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) };
    // A value that begins with a dash would be an option.
    let sign = |value: &str| if value.starts_with('-') { '=' } else { ' ' };
    let option = |(name, value): (&str, String)| format!(" --{name}{}{}", sign(&value), quoted(&value));
    Some(listed(filter).into_iter().fold(verb, |command, given| command + &option(given)))
}

/// Shows the numbers of tasks of a group that can be rerun.
pub(super) async fn rerun_form(order: &Order<'_>) -> Result<Form, PageError> {
    let mut counts = Vec::new();
    for state in ["failed", "exception"] {
        let job = rerun_of(order, state).map_err(|_| PageError::Internal)?;
        counts.push(order.app.engine.count_tasks(&job.which).await.map_err(refused)?);
    }
    let about = html! {
        p.warning {
            "Failed: " (number(counts[0])) " Ended as exceptions, cancelled ones among them: " (number(counts[1]))
            " Each task gets a new run."
        }
        p.dim { (BACKGROUND) }
    };
    let states = ["failed", "exception"].map(|state| (state.to_owned(), state.to_owned())).to_vec();
    let fields = [Field::hidden(JOB, new_id().to_string()), Field::choice(STATE, "Tasks that ended as", states)];
    Ok(Form::new("Run these tasks again", about).with(fields))
}

pub(super) async fn rerun(order: &Order<'_>) -> Result<Outcome, Failed> {
    check_visitor(order.visit)?;
    let id = order.sent.text(JOB).parse::<JobId>();
    let id = id.map_err(|_| Failed::input("`job_id` must be that of the form"))?;
    let job = rerun_of(order, order.sent.text(STATE))?;
    let counted = {
        let slot = order.app.intake.read_slots.take(order.visit.share()).await;
        let _slot = slot.map_err(PageError::from)?;
        order.app.engine.count_tasks(&job.which).await?
    };
    let started = ops::start(&order.app.engine.pool, &order.actor, id, &job, counted).await?;
    let link = order.visit.link_to("jobs", &[&started.id.to_string()]);
    Ok(Outcome::DoneAt("The job was started.".to_owned(), link))
}

fn rerun_of(order: &Order<'_>, state: &str) -> Result<NewJob, Failed> {
    let Subject::Group(group) = order.subject else { return Err(mismatch().into()) };
    let filter = json!({"taskGroupId": group.id, "state": state});
    let request = serde_json::from_value(json!({"action": "rerun", "filter": filter}));
    let request: StartJobRequest = request.map_err(|_| Failed::input("`state` must be failed or exception"))?;
    Ok(NewJob::from_request(&request)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_quotes_conditions_for_a_shell() {
        let filter = json!({"taskQueueId": "acme/linux", "state": "failed", "name": "it's $(x)", "owner": "-x"});
        let request: StartJobRequest = serde_json::from_value(json!({"action": "rerun", "filter": filter})).unwrap();
        let expected = r"task rerun --queue acme/linux --state failed --name 'it'\''s $(x)' --owner=-x";
        assert_eq!(command(&NewJob::from_request(&request).unwrap()).as_deref(), Some(expected));
    }
}
