//! Pausing and resuming a queue. Requires a login: the form contains the session's token.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;
use tenure_api::policy::PauseRequest;

use super::answer::{read_visit, refuse};
use super::done;
use super::error::PageError;
use super::layout::{self, Page};
use super::login::read_form;
use super::of_visitor;
use super::state::Site;
use super::visit::{Visit, is_from_us};
use tenure_domain::policy::pause::Paused;
use tenure_domain::scopes::Expression;
use tenure_engine::ops::queue_policy as ops;
use tenure_store::clock;

/// In minutes.
pub(super) const TIMES: [(i64, &str); 5] = [
    (15, "15 minutes from now"),
    (60, "an hour from now"),
    (240, "4 hours from now"),
    (1_440, "a day from now"),
    (10_080, "a week from now"),
];

#[derive(Deserialize)]
struct PauseForm {
    token: String,
    #[serde(default)]
    reason: String,
    /// One of [`TIMES`]; empty for a pause without an end.
    #[serde(default)]
    minutes: String,
}

enum Change {
    Pause,
    Resume,
}

pub(super) fn queue_of(visit: &Visit) -> Result<TaskQueueId, PageError> {
    let name = format!("{}/{}", visit.param("provisionerId"), visit.param("workerType"));
    TaskQueueId::read_full(&name).map_err(|_| PageError::NotFound("This is not the name of a queue.".to_owned()))
}

fn scope(queue: &TaskQueueId) -> String {
    format!("tenure:manage-queue:{queue}")
}

/// As for getQueue and getQueuePolicy.
pub(super) fn reading_scope(name: &TaskQueueId) -> Expression {
    format!("tenure:get-queue:{name}").into()
}

fn link(visit: &Visit, queue: &TaskQueueId) -> String {
    visit.link_to("queue", &[queue.provisioner_id(), queue.worker_type()])
}

/// A separate page, because the queue's page refreshes itself.
pub(super) async fn form(_: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let queue = queue_of(&visit)?;
    visit.authorize(scope(&queue))?;
    let Some(session) = &visit.session else {
        return Err(PageError::Refused(StatusCode::FORBIDDEN, "Log in to pause a queue.".to_owned()));
    };
    let back = link(&visit, &queue);
    let body = html! { section.panel.form {
        h1 { span.kind { "Pause the queue" } (queue) }
        p.dim { "Workers then get no runs of this queue. They continue with the runs they hold, and tasks can be \
                 created." }
        form method="post" action={ (back) "/pause" } {
            input type="hidden" name="token" value=(session.form_token.as_str());
            label for="reason" { "Reason" }
            input #reason name="reason" maxlength="255" autocomplete="off" autofocus;
            label for="minutes" { "Until" }
            select #minutes name="minutes" {
                option value="" { "it is resumed by hand" }
                @for (minutes, words) in TIMES { option value=(minutes) { (words) } }
            }
            button type="submit" { "Pause" }
        }
        a.button href=(back) { "Cancel" }
    } };
    Ok(Page::new(format!("Pause {queue}"), None, body))
}

/// `POST /queue/:provisionerId/:workerType/pause`
pub(super) async fn pause(State(app): State<Site>, request: Request) -> Response {
    change(&app, request, Change::Pause).await
}

/// `POST /queue/:provisionerId/:workerType/resume`
pub(super) async fn resume(State(app): State<Site>, request: Request) -> Response {
    change(&app, request, Change::Resume).await
}

async fn change(app: &Site, request: Request, what: Change) -> Response {
    let (parts, body) = request.into_parts();
    let visit = match read_visit(app, Request::from_parts(parts.clone(), Body::empty())).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let headers = parts.headers.clone();
    let form = read_form::<PauseForm>(app, Request::from_parts(parts, body)).await;
    let line = match what {
        Change::Pause => "The queue is paused.",
        Change::Resume => "The queue is resumed.",
    };
    let response = match act(app, &visit, &headers, form, what).await {
        Ok(queue) => done::see_other(app, &link(&visit, &queue), line),
        Err(error) => refuse(&visit, &error),
    };
    of_visitor(&visit, response)
}

pub(super) fn foreign_form() -> PageError {
    let message = "The form was not sent from this page, or belongs to another session.";
    PageError::Refused(StatusCode::FORBIDDEN, message.to_owned())
}

async fn act(
    app: &Site,
    visit: &Visit,
    headers: &HeaderMap,
    form: Option<PauseForm>,
    what: Change,
) -> Result<TaskQueueId, PageError> {
    let (Some(form), Some(session), true) = (form, &visit.session, is_from_us(app, headers)) else {
        return Err(foreign_form());
    };
    if !session.form_token.matches(&form.token) {
        return Err(foreign_form());
    }
    let queue = queue_of(visit)?;
    visit.authorize(scope(&queue))?;
    let actor = visit.actor();
    match what {
        Change::Resume => ops::resume(app.engine.queue_parts(), &actor, &queue).await?,
        Change::Pause => {
            let now = clock::get_now(&mut *app.engine.pool.acquire().await?).await?;
            let request = PauseRequest { reason: reason(&form.reason), until: until(&form.minutes, now)? };
            ops::pause(app.engine.queue_parts(), &actor, &queue, &request).await?;
        }
    }
    Ok(queue)
}

fn reason(text: &str) -> Option<String> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn until(minutes: &str, now: DateTime<Utc>) -> Result<Option<Timestamp>, PageError> {
    if minutes.is_empty() {
        return Ok(None);
    }
    let chosen = TIMES.iter().find(|(offered, _)| offered.to_string() == minutes);
    let (minutes, _) = chosen.ok_or_else(|| {
        PageError::Refused(StatusCode::BAD_REQUEST, "Choose one of the offered times for the pause.".to_owned())
    })?;
    Ok(Some(Timestamp::new(now + TimeDelta::minutes(*minutes))))
}

/// Resumes a paused queue. Empty without a login.
pub(super) fn resume_button(visit: &Visit, queue: &TaskQueueId) -> Markup {
    let Some(session) = &visit.session else { return html! {} };
    html! {
        @if visit.may(scope(queue)) {
            form method="post" action={ (link(visit, queue)) "/resume" } {
                input type="hidden" name="token" value=(session.form_token.as_str());
                button type="submit" { "Resume" }
            }
        } @else {
            span.lacking { button type="button" disabled { "Resume" } " needs " code { (scope(queue)) } }
        }
    }
}

/// Shows the pause, or a link to the form. Author and reason require the scope of getQueue.
pub(super) fn shown(visit: &Visit, queue: &TaskQueueId, paused: Option<&Paused>, now: DateTime<Utc>) -> Markup {
    let session = visit.session.as_ref().filter(|_| visit.may(scope(queue)));
    let may_read = visit.may(reading_scope(queue));
    let link = link(visit, queue);
    html! {
        @if let Some(paused) = paused {
            div.warning.paused {
                span {
                    "Paused " @if may_read { "by " code { (paused.by) } " " } (layout::time(paused.since, now)) ", "
                    @match paused.until {
                        Some(until) => { "resumes " (layout::time(until, now)) }
                        None => { "until it is resumed" }
                    }
                    "." @if let Some(reason) = paused.reason.as_ref().filter(|_| may_read) { " " q { (reason) } }
                }
                @if session.is_some() { (resume_button(visit, queue)) }
            }
        } @else if session.is_some() {
            div.actions { a.button href={ (link) "/pause" } { "Pause…" } }
        } @else if visit.session.is_some() {
            div.actions { span.lacking { button type="button" disabled { "Pause…" } " needs " code { (scope(queue)) } } }
        }
    }
}
