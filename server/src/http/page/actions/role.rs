//! Actions on roles.

use http::StatusCode;
use maud::html;

use super::access::{description_field, quoted, read_role, scopes_field};
use super::form::{Field, Form, ready};
use super::{Action, Failed, Order, Outcome, Subject, authorize, mismatch};
use crate::http::page::error::PageError;
use crate::http::scopes::Values;
use tenure_domain::roles::added;
use tenure_engine::ops::{OpError, roles as ops};
use tenure_store::roles::{self, RoleInfo};

/// Time of the last change that the form shows.
const MODIFIED: &str = "lastModified";

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "change",
        "updateRole",
        "Change…",
        |order| Box::pin(change_form(order)),
        |order| Box::pin(change(order)),
    )
    .command(|subject| command(subject, "update", " --scope SCOPE")),
    Action::new("delete", "deleteRole", "Delete…", |_| ready(Ok(delete_form())), |order| Box::pin(delete(order)))
        .command(|subject| command(subject, "delete", "")),
];

fn of<'a>(order: &Order<'a>) -> Result<&'a str, PageError> {
    match order.subject {
        Subject::Role(id) => Ok(id),
        _ => Err(mismatch()),
    }
}

fn command(subject: &Subject, verb: &str, rest: &str) -> Option<String> {
    match subject {
        Subject::Role(id) => Some(format!("role {verb} {}{rest}", quoted(id))),
        _ => None,
    }
}

/// For visitors who may read it.
async fn get(order: &Order<'_>) -> Result<RoleInfo, PageError> {
    let id = of(order)?;
    order.visit.authorize(format!("auth:get-role:{id}"))?;
    let found = roles::find(&order.app.engine.pool, id).await?;
    found.ok_or_else(|| ops::missing(id).into())
}

async fn change_form(order: &Order<'_>) -> Result<Form, PageError> {
    let role = get(order).await?;
    let about = html! {
        p.dim { "Clients that assume the role get and lose scopes within a second. You can grant only scopes that you have." }
    };
    let modified = Field::hidden(MODIFIED, role.last_modified.to_string());
    let fields = [modified, description_field(&role.description), scopes_field(&role.scopes)];
    Ok(Form::new("Change the role", about).with(fields))
}

async fn change(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, id) = (order.app, of(order)?);
    let role = read_role(order.sent, id)?;
    let existing = get(order).await?;
    if order.sent.text(MODIFIED) != existing.last_modified.to_string() {
        let message = "the role has changed since this form was shown: open it again";
        return Err(OpError::Conflict(message.to_owned()).into());
    }
    let more = added(Some(id), &role.scopes, &existing.scopes);
    authorize(order, "updateRole", &Values::of_path().text("roleId", id).list("scopesThatAreNew", more))?;
    // Exactly the scopes added to `existing.scopes` were authorized.
    let changed = ops::update(&app.engine.pool, &order.actor, &role, Some(&existing.scopes)).await?;
    app.intake.authenticator.roles_changed();
    changed?;
    Ok(Outcome::Done("The role is changed.".to_owned()))
}

fn delete_form() -> Form {
    let about = html! { p.warning { "Clients that assume the role lose its scopes within a second." } };
    Form::new("Delete the role", about)
}

async fn delete(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, id) = (order.app, of(order)?);
    let existed = ops::delete(&app.engine.pool, &order.actor, id).await?;
    app.intake.authenticator.roles_changed();
    if !existed {
        let message = format!("There is no role {id}: it was deleted before.");
        return Err(Failed::Form(StatusCode::NOT_FOUND, message));
    }
    Ok(Outcome::DoneAt(format!("Role {id} is deleted."), order.visit.link("/access")))
}
