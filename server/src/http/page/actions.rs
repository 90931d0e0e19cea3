//! Actions of visitors on tasks, groups, queues, workers, sessions, clients and roles.
//!
//! An action is a row of a table. It names the API operation whose scopes it needs, its form, and
//! the function that carries it out, which the operation's handler calls too. A GET shows the form,
//! which says what will happen. A POST carries the action out and returns to the object's page,
//! which shows one line about it. Scopes are checked at each of these steps.

mod access;
mod again;
mod client;
mod form;
mod group;
mod jobs;
mod queue;
mod role;
mod session;
mod subject;
mod task;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use http::StatusCode;
use maud::{Markup, html};

use self::form::{Fields, Form, Notice};
pub(super) use self::jobs::order as order_job;
pub(super) use self::subject::Subject;
use super::answer::{answer, read_visit, refuse};
use super::done;
use super::error::PageError;
use super::layout::{self, Page};
use super::of_visitor;
use super::state::Site;
use super::visit::Visit;
use crate::http::access::Access;
use crate::http::error::ApiError;
use crate::http::scopes::{Template, Values};
use tenure_domain::scopes::Expression;
use tenure_domain::unacceptable::Unacceptable;
use tenure_engine::ops::OpError;
use tenure_engine::ops::actor::Actor;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Task,
    Group,
    Queue,
    /// A worker of a queue.
    Worker,
    Session,
    /// The list of clients and roles. The form names a client or role.
    Access,
    Client,
    Role,
}

impl On {
    const ALL: [Self; 8] =
        [Self::Task, Self::Group, Self::Queue, Self::Worker, Self::Session, Self::Access, Self::Client, Self::Role];

    fn path(self) -> &'static str {
        match self {
            Self::Task => "/task/{taskId}",
            Self::Group => "/group/{taskGroupId}",
            Self::Queue => "/queue/{provisionerId}/{workerType}",
            Self::Worker => "/worker/{workerGroup}/{workerId}/{provisionerId}/{workerType}",
            Self::Session => "/session/{sessionId}",
            Self::Access => "/access",
            Self::Client => "/client/{clientId}",
            Self::Role => "/role/{roleId}",
        }
    }

    fn actions(self) -> &'static [Action] {
        match self {
            Self::Task => task::ACTIONS,
            Self::Group => group::ACTIONS,
            Self::Queue => queue::ACTIONS,
            Self::Worker => worker::ACTIONS,
            Self::Session => session::ACTIONS,
            Self::Access => access::ACTIONS,
            Self::Client => client::ACTIONS,
            Self::Role => role::ACTIONS,
        }
    }
}

type Ask = for<'a> fn(&'a Order<'a>) -> BoxFuture<'a, Result<Form, PageError>>;
type Run = for<'a> fn(&'a Order<'a>) -> BoxFuture<'a, Result<Outcome, Failed>>;

pub(super) struct Action {
    /// Last segment of its path.
    name: &'static str,
    /// API operation whose scopes it needs.
    operation: &'static str,
    label: &'static str,
    /// The scope of an object that the form names, up to the name. Until the form is sent, the scope
    /// for any object is enough.
    creates: Option<&'static str>,
    /// True if its button acts without a form: it takes no input and can be undone.
    is_direct: bool,
    /// True if the object's page offers it.
    is_offered: fn(&Subject) -> bool,
    /// The same action on the command line, without the program's name.
    command: fn(&Subject) -> Option<String>,
    form: Ask,
    run: Run,
}

impl Action {
    const fn new(name: &'static str, operation: &'static str, label: &'static str, form: Ask, run: Run) -> Self {
        let (is_direct, creates) = (false, None);
        Self { name, operation, label, creates, is_direct, is_offered: |_| true, command: |_| None, form, run }
    }

    const fn creates(self, scope: &'static str) -> Self {
        Self { creates: Some(scope), ..self }
    }

    const fn direct(self) -> Self {
        Self { is_direct: true, ..self }
    }

    const fn offered(self, is_offered: fn(&Subject) -> bool) -> Self {
        Self { is_offered, ..self }
    }

    const fn command(self, command: fn(&Subject) -> Option<String>) -> Self {
        Self { command, ..self }
    }

    pub(super) fn path(&self, on: On) -> String {
        format!("{}/{}", on.path(), self.name)
    }

    /// Returns scopes that the visitor lacks to be shown the form; none if the form may be shown.
    fn lacking(&self, visit: &Visit, subject: &Subject) -> Result<Option<Expression>, PageError> {
        if let Some(scope) = self.creates {
            return Ok((!visit.may_some(scope)).then(|| format!("{scope}*").into()));
        }
        let required = self.required(subject)?;
        Ok((!visit.may(required.clone())).then_some(required))
    }

    /// Fails only if the subject lacks a value of the operation's scopes.
    fn required(&self, subject: &Subject) -> Result<Expression, PageError> {
        let template = OPERATIONS.get(self.operation);
        let filled = template.and_then(|template| template.fill(&subject.values(), &Values::of_path()).ok());
        filled.ok_or_else(|| {
            tracing::error!(operation = self.operation, "the scopes of an action cannot be filled");
            PageError::Internal
        })
    }
}

/// Scopes of the API's operations, by name.
static OPERATIONS: LazyLock<HashMap<&'static str, Template>> = LazyLock::new(|| {
    let scopes = crate::http::routes().into_iter().filter_map(|route| match route.endpoint.access {
        Access::Scopes(template) => Some((route.endpoint.name, template)),
        Access::Open | Access::SignedUrl | Access::ArtifactUrl | Access::PlainArtifactUrl => None,
    });
    scopes.collect()
});

/// An action that a visitor with its scopes asks for.
struct Order<'a> {
    app: &'a Site,
    visit: &'a Visit,
    subject: &'a Subject,
    /// Empty until the form is sent.
    sent: &'a Fields,
    actor: Actor,
}

enum Outcome {
    /// The line for the object's page.
    Done(String),
    /// The line, and the page that shows it.
    DoneAt(String, String),
    /// A page of its own, for a secret that is shown once.
    Page(Page),
    /// Asks again, because the input has consequences to show first.
    Review(form::Review),
}

enum Failed {
    Page(PageError),
    /// Shown in the form, which keeps its input. A field is named in backticks.
    Form(StatusCode, String),
}

impl Failed {
    fn input(message: impl Into<String>) -> Self {
        Self::Form(StatusCode::BAD_REQUEST, message.into())
    }

    /// Names the form's field whose content is refused.
    fn in_field(self, field: &str) -> Self {
        match self {
            Self::Form(status, message) => Self::Form(status, format!("`{field}`: {message}")),
            page @ Self::Page(_) => page,
        }
    }
}

impl From<PageError> for Failed {
    fn from(error: PageError) -> Self {
        Self::Page(error)
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        let status = StatusCode::from_u16(error.code().status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let message = error.into_message();
        // A form has no body.
        Self::Form(status, message.strip_prefix("the body: ").unwrap_or(&message).to_owned())
    }
}

impl From<OpError> for Failed {
    fn from(error: OpError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<Unacceptable> for Failed {
    fn from(error: Unacceptable) -> Self {
        ApiError::from(error).into()
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        ApiError::from(error).into()
    }
}

/// Checks the scopes of an operation on an object that the form names or changes. The form keeps
/// its input.
fn authorize(order: &Order<'_>, operation: &'static str, values: &Values<'_>) -> Result<(), Failed> {
    let filled = OPERATIONS.get(operation).and_then(|template| template.fill(values, &Values::of_path()).ok());
    let Some(required) = filled else {
        tracing::error!(operation, "the scopes of an action cannot be filled");
        return Err(PageError::Internal.into());
    };
    match order.visit.missing(required) {
        None => Ok(()),
        Some(missing) => {
            let message = format!("This needs {missing}, which you do not have.");
            Err(Failed::Form(StatusCode::FORBIDDEN, message))
        }
    }
}

/// For a subject of another kind, which the table of actions excludes.
fn mismatch() -> PageError {
    tracing::error!("an action was given an object of another kind");
    PageError::Internal
}

pub(super) fn all() -> impl Iterator<Item = (On, &'static Action)> {
    On::ALL.into_iter().flat_map(|on| on.actions().iter().map(move |action| (on, action)))
}

/// Reads the object and checks the scopes.
async fn admit(app: &Site, visit: &Visit, on: On, action: &Action) -> Result<Subject, PageError> {
    let subject = Subject::load(app, visit, on, action.operation).await?;
    match action.lacking(visit, &subject)? {
        None => Ok(subject),
        Some(required) => Err(PageError::Denied(required)),
    }
}

/// A separate page, because the object's page refreshes itself.
pub(super) async fn show(app: Site, visit: Arc<Visit>, on: On, action: &'static Action) -> Result<Page, PageError> {
    let subject = admit(&app, &visit, on, action).await?;
    let sent = Fields::default();
    let order = Order { app: &app, visit: &visit, subject: &subject, sent: &sent, actor: visit.actor() };
    if visit.session.is_none() {
        return Err(PageError::Refused(StatusCode::FORBIDDEN, "Log in first: actions need a login.".to_owned()));
    }
    let form = (action.form)(&order).await?;
    Ok(form::page(action, &order, &form, None))
}

pub(super) async fn act(app: Site, request: Request, on: On, action: &'static Action) -> Response {
    let (parts, body) = request.into_parts();
    let headers = parts.headers.clone();
    let visit = match read_visit(&app, Request::from_parts(parts, Body::empty())).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let response = carry_out(&app, &visit, (&headers, body), on, action).await;
    of_visitor(&visit, response.unwrap_or_else(|error| refuse(&visit, &error)))
}

async fn carry_out(
    app: &Site,
    visit: &Visit,
    (headers, body): (&http::HeaderMap, Body),
    on: On,
    action: &'static Action,
) -> Result<Response, PageError> {
    let sent = form::read(app, visit, headers, body).await?;
    let subject = admit(app, visit, on, action).await?;
    let order = Order { app, visit, subject: &subject, sent: &sent, actor: visit.actor() };
    let (status, notice) = match (action.run)(&order).await {
        Ok(Outcome::Done(line)) => return Ok(done::see_other(app, &subject.link(visit), &line)),
        Ok(Outcome::DoneAt(line, link)) => return Ok(done::see_other(app, &link, &line)),
        Ok(Outcome::Page(page)) => return Ok(answer(StatusCode::OK, &layout::frame(visit, &page))),
        Ok(Outcome::Review(review)) => (StatusCode::OK, Notice::Review(review)),
        Err(Failed::Page(error)) => return Err(error),
        Err(Failed::Form(status, message)) => (status, Notice::Wrong(message)),
    };
    let _slot = app.intake.read_slots.take(visit.share()).await?;
    let form = (action.form)(&order).await?;
    Ok(answer(status, &layout::frame(visit, &form::page(action, &order, &form, Some(&notice)))))
}

/// Buttons for the actions that fit the object's state. Actions whose scopes the visitor lacks are
/// disabled, and name the scopes. Empty without a login.
pub(super) fn bar(visit: &Visit, on: On, subject: &Subject) -> Markup {
    let Some(session) = &visit.session else { return Markup::default() };
    let button = |action: &Action| {
        let link = subject.action_link(visit, action.name);
        match action.lacking(visit, subject) {
            Ok(Some(required)) => html! {
                span.lacking { button type="button" disabled { (action.label) } " needs " code { (required) } }
            },
            Err(_) => Markup::default(),
            Ok(None) if action.is_direct => html! {
                form method="post" action=(link) {
                    input type="hidden" name="token" value=(session.form_token.as_str());
                    button type="submit" { (action.label) }
                }
            },
            Ok(None) => html! { a.button href=(link) { (action.label) } },
        }
    };
    html! { div.actions role="group" aria-label="Actions" {
        @for action in on.actions().iter().filter(|action| (action.is_offered)(subject)) { (button(action)) }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_needs_scopes_of_an_operation() {
        for (on, action) in all() {
            assert!(OPERATIONS.contains_key(action.operation), "{on:?} {}", action.name);
        }
    }

    #[test]
    fn names_of_actions_are_unique() {
        for on in On::ALL {
            let names: Vec<&str> = on.actions().iter().map(|action| action.name).collect();
            let mut distinct = names.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), names.len(), "{on:?}: {names:?}");
        }
    }
}
