//! Subscriptions on the overview, and resuming one. Requires a login: the form contains the
//! session's token.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use chrono::{DateTime, Utc};
use http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;
use sqlx::PgConnection;
use tenure_api::states::SubscriptionState;

use super::answer::{read_visit, refuse};
use super::done;
use super::error::PageError;
use super::layout::{self, Cells};
use super::login::read_form;
use super::of_visitor;
use super::pause::foreign_form;
use super::state::Site;
use super::text;
use super::visit::{Visit, is_from_us};
use tenure_domain::delivery::{Subscription, named};
use tenure_engine::ops::OpError;
use tenure_engine::ops::subscriptions as ops;
use tenure_store::subscriptions;

const LISTING: &str = "tenure:list-subscriptions";

#[derive(Deserialize)]
struct ResumeForm {
    token: String,
}

fn scope(name: &str) -> String {
    format!("tenure:manage-subscription:{name}")
}

/// Lists the subscriptions for visitors who may see them.
pub(super) async fn list(app: &Site, visit: &Visit, conn: &mut PgConnection) -> Result<Vec<Subscription>, sqlx::Error> {
    if app.engine.facts.subscriptions.get().is_empty() || !visit.may(LISTING) {
        return Ok(Vec::new());
    }
    subscriptions::list(conn, None).await
}

/// `now` is the real time, by which deliveries go.
pub(super) fn section(visit: &Visit, subscriptions: &[Subscription], now: DateTime<Utc>) -> Markup {
    if subscriptions.is_empty() {
        return html! {};
    }
    let rows: Vec<Cells> = subscriptions.iter().map(|subscription| cells(visit, subscription, now)).collect();
    layout::section("Subscriptions", &html! { (subscriptions.len()) }, &layout::table(&rows))
}

fn cells(visit: &Visit, subscription: &Subscription, now: DateTime<Utc>) -> Cells {
    let date = |time: Option<DateTime<Utc>>| time.map_or_else(layout::none, |time| layout::time(time, now));
    let Subscription { name, definition, lag, error, .. } = subscription;
    let age = lag.age.to_std().unwrap_or_default();
    let behind = html! { @if lag.events == 0 { span.zero { "0 s" } } @else { (text::age(age)) } };
    vec![
        ("Subscription", html! { (name) }),
        ("State", state(subscription, now)),
        (">Behind", behind),
        (">Events", layout::number(lag.events)),
        ("Last success", date(subscription.last_success)),
        ("Receiver", html! { code { (definition.url) } }),
        ("Last error", error.as_ref().map_or_else(layout::none, |error| html! { (error) })),
        ("Action", resume_button(visit, subscription)),
    ]
}

fn state(subscription: &Subscription, now: DateTime<Utc>) -> Markup {
    let state = subscription.state();
    let class = match state {
        SubscriptionState::Active => "completed",
        SubscriptionState::Failing => "pending",
        SubscriptionState::Suspended => "exception",
    };
    html! {
        span class={ "state " (class) } { (state.as_str()) }
        @if let Some(suspended) = &subscription.suspended { " " (layout::time(suspended.since, now)) }
        @else if let Some(next) = subscription.next_try { " next try " (layout::time(next, now)) }
    }
}

fn resume_button(visit: &Visit, subscription: &Subscription) -> Markup {
    let name = subscription.name.as_str();
    let stands = subscription.state() != SubscriptionState::Active;
    let Some(session) = visit.session.as_ref().filter(|_| stands) else { return html! {} };
    html! {
        @if visit.may(scope(name)) {
            form method="post" action={ (visit.link_to("subscription", &[name])) "/resume" } {
                input type="hidden" name="token" value=(session.form_token.as_str());
                button type="submit" { "Resume" }
            }
        } @else {
            span.lacking { button type="button" disabled { "Resume" } " needs " code { (scope(name)) } }
        }
    }
}

/// `POST /subscription/:subscriptionName/resume`
pub(super) async fn resume(State(app): State<Site>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let visit = match read_visit(&app, Request::from_parts(parts.clone(), Body::empty())).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let headers = parts.headers.clone();
    let form = read_form::<ResumeForm>(&app, Request::from_parts(parts, body)).await;
    let response = match act(&app, &visit, &headers, form).await {
        Ok(()) => done::see_other(&app, &visit.link("/"), "The subscription is resumed."),
        Err(error) => refuse(&visit, &error),
    };
    of_visitor(&visit, response)
}

/// Resumes the subscription where it stopped.
async fn act(app: &Site, visit: &Visit, headers: &HeaderMap, form: Option<ResumeForm>) -> Result<(), PageError> {
    let (Some(form), Some(session), true) = (form, &visit.session, is_from_us(app, headers)) else {
        return Err(foreign_form());
    };
    if !session.form_token.matches(&form.token) {
        return Err(foreign_form());
    }
    let name = named(visit.param("subscriptionName"))
        .map_err(|_| PageError::NotFound("This is not the name of a subscription.".to_owned()))?;
    visit.authorize(scope(&name))?;
    match ops::resume(app.engine.subscription_parts(), &visit.actor(), &name, None).await {
        Ok(_) => Ok(()),
        Err(OpError::Expired(message)) => Err(PageError::Refused(StatusCode::GONE, message)),
        Err(error) => Err(error.into()),
    }
}
