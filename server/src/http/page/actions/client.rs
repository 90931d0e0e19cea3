//! Actions on clients.

use http::StatusCode;
use maud::{Markup, html};

use super::access::{
    description_field, expires_field, quoted, read_description, read_expires, read_scopes, scopes_field,
};
use super::form::{Field, Form, ready};
use super::{Action, Failed, Order, Outcome, Subject, authorize, mismatch};
use crate::http::page::access::client::token_page;
use crate::http::page::error::PageError;
use crate::http::scopes::Values;
use tenure_domain::roles::added;
use tenure_engine::ops::{OpError, clients as ops};
use tenure_store::clients::{self, ClientChange, ClientInfo};

/// Time of the last change that the form shows.
const MODIFIED: &str = "lastModified";

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "change",
        "updateClient",
        "Change…",
        |order| Box::pin(change_form(order)),
        |order| Box::pin(change(order)),
    )
    .command(|subject| command(subject, "update", " --scope SCOPE")),
    Action::new(
        "disable",
        "disableClient",
        "Disable…",
        |order| ready(disable_form(order)),
        |order| Box::pin(set_disabled(order, true)),
    )
    .offered(|subject| !is_disabled(subject))
    .command(|subject| command(subject, "disable", "")),
    Action::new(
        "enable",
        "enableClient",
        "Enable",
        |_| ready(Ok(Form::new("Enable the client", html! { p.dim { "Its requests are accepted again." } }))),
        |order| Box::pin(set_disabled(order, false)),
    )
    .direct()
    .offered(is_disabled)
    .command(|subject| command(subject, "enable", "")),
    Action::new(
        "reset-token",
        "resetAccessToken",
        "Reset the token…",
        |order| ready(reset_form(order)),
        |order| Box::pin(reset(order)),
    )
    .command(|subject| command(subject, "reset-token", "")),
    Action::new(
        "delete",
        "deleteClient",
        "Delete…",
        |order| ready(delete_form(order)),
        |order| Box::pin(delete(order)),
    )
    .command(|subject| command(subject, "delete", "")),
];

fn of<'a>(order: &Order<'a>) -> Result<&'a str, PageError> {
    match order.subject {
        Subject::Client { id, .. } => Ok(id),
        _ => Err(mismatch()),
    }
}

fn is_disabled(subject: &Subject) -> bool {
    matches!(subject, Subject::Client { is_disabled: true, .. })
}

fn command(subject: &Subject, verb: &str, rest: &str) -> Option<String> {
    match subject {
        Subject::Client { id, .. } => Some(format!("client {verb} {}{rest}", quoted(id))),
        _ => None,
    }
}

/// For visitors who may read it.
async fn get(order: &Order<'_>) -> Result<ClientInfo, PageError> {
    let id = of(order)?;
    order.visit.authorize(format!("auth:get-client:{id}"))?;
    let found = clients::find(&order.app.engine.pool, id).await?;
    found.ok_or_else(|| ops::missing(id).into())
}

async fn change_form(order: &Order<'_>) -> Result<Form, PageError> {
    let client = get(order).await?;
    let about = html! { p.dim { "You can grant only scopes that you have. The access token does not change." } };
    let fields = [
        Field::hidden(MODIFIED, client.last_modified.to_string()),
        description_field(&client.description),
        scopes_field(&client.scopes),
        expires_field(client.expires),
    ];
    Ok(Form::new("Change the client", about).with(fields))
}

async fn change(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, sent, id) = (order.app, order.sent, of(order)?);
    let (scopes, description, expires) = (read_scopes(sent)?, read_description(sent)?, read_expires(sent)?);
    let existing = get(order).await?;
    let changed_since =
        || OpError::Conflict("the client has changed since this form was shown: open it again".to_owned());
    if sent.text(MODIFIED) != existing.last_modified.to_string() {
        return Err(changed_since().into());
    }
    let more = added(None, &scopes, &existing.scopes);
    authorize(order, "updateClient", &Values::of_path().text("clientId", id).list("scopesThatAreNew", more))?;
    let change = ClientChange {
        scopes: Some(scopes),
        description: Some(description),
        expires: Some(expires),
        delete_on_expiration: None,
    };
    // Exactly the scopes added to `existing.scopes` were authorized.
    let changed = ops::update(&app.engine.pool, &order.actor, id, Some(&existing.scopes), &change).await?;
    app.intake.authenticator.client_changed(id);
    changed.ok_or_else(changed_since)?;
    Ok(Outcome::Done("The client is changed.".to_owned()))
}

/// Warns visitors who lock themselves out.
fn own(order: &Order<'_>, id: &str) -> Markup {
    html! { @if order.visit.client_id() == Some(id) { p.warning { "You are logged in as this client: your login ends." } } }
}

fn disable_form(order: &Order<'_>) -> Result<Form, PageError> {
    let about = html! {
        p.dim { "Within a second every server refuses requests of the client, until it is enabled again. Runs that its workers \
                 hold go on." }
        (own(order, of(order)?))
    };
    Ok(Form::new("Disable the client", about))
}

async fn set_disabled(order: &Order<'_>, disabled: bool) -> Result<Outcome, Failed> {
    let (app, id) = (order.app, of(order)?);
    let changed = ops::set_disabled(&app.engine.pool, &order.actor, id, disabled).await?;
    app.intake.authenticator.client_changed(id);
    changed.ok_or_else(|| ops::missing(id))?;
    let line = if disabled { "The client is disabled." } else { "The client is enabled." };
    Ok(Outcome::Done(line.to_owned()))
}

fn reset_form(order: &Order<'_>) -> Result<Form, PageError> {
    let about = html! {
        p.dim { "The next page shows the new access token, once. The old one is refused within a second." }
        (own(order, of(order)?))
    };
    Ok(Form::new("Reset the token", about))
}

async fn reset(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, id) = (order.app, of(order)?);
    let keys = app.intake.authenticator.keys();
    let token = ops::reset_token(&app.engine.pool, keys, &order.actor, id).await?;
    app.intake.authenticator.client_changed(id);
    let token = token.ok_or_else(|| ops::missing(id))?;
    Ok(Outcome::Page(token_page(order.visit, id, &token, "The client has a new access token.")))
}

fn delete_form(order: &Order<'_>) -> Result<Form, PageError> {
    let about = html! {
        p.warning { "Within a second every server refuses requests of the client. A new client of this name has another token." }
        (own(order, of(order)?))
    };
    Ok(Form::new("Delete the client", about))
}

async fn delete(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, id) = (order.app, of(order)?);
    let existed = ops::delete(&app.engine.pool, &order.actor, id).await?;
    app.intake.authenticator.client_changed(id);
    if !existed {
        let message = format!("There is no client {id}: it was deleted before.");
        return Err(Failed::Form(StatusCode::NOT_FOUND, message));
    }
    Ok(Outcome::DoneAt(format!("Client {id} is deleted."), order.visit.link("/access")))
}
