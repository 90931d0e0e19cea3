//! Creating clients and roles, and the fields that their changes share.

use chrono::{DateTime, Utc};
use maud::html;
use tenure_api::dates::Timestamp;

use super::form::{Field, Fields, Form, ready};
use super::{Action, Failed, Order, Outcome, authorize};
use crate::http::error::ApiError;
use crate::http::page::access::client::token_page;
use crate::http::scopes::Values;
use tenure_domain::roles::{added, check_description, check_parameters, check_scopes, valid_role_id};
use tenure_engine::ops::{clients, roles};
use tenure_store::clients::NewClient;
use tenure_store::roles::NewRole;

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "create-client",
        "createClient",
        "Create a client…",
        |_| ready(Ok(client_form())),
        |order| Box::pin(create_client(order)),
    )
    .creates("auth:create-client:")
    .command(|_| Some("client create ID --scope SCOPE".to_owned())),
    Action::new(
        "create-role",
        "createRole",
        "Create a role…",
        |_| ready(Ok(role_form())),
        |order| Box::pin(create_role(order)),
    )
    .creates("auth:create-role:")
    .command(|_| Some("role create ID --scope SCOPE".to_owned())),
];

fn client_form() -> Form {
    let about =
        html! { p.dim { "You can grant only scopes that you have. The next page shows the access token, once." } };
    let id = Field::line("clientId", "Id").hint("such as acme/ci");
    Form::new("Create the client", about).with([id, description_field(""), scopes_field(&[]), expires_field(None)])
}

fn role_form() -> Form {
    let about = html! {
        p.dim {
            "A client with the scope " code { "assume:" i { "ID" } } " has the scopes of the role. A role whose id ends in a star is \
             for every name with this prefix, and " code { "<..>" } " stands for the rest of the name."
        }
        p.dim { "You can grant only scopes that you have." }
    };
    let id = Field::line("roleId", "Id").hint("such as team:*");
    Form::new("Create the role", about).with([id, description_field(""), scopes_field(&[])])
}

pub(super) fn description_field(value: &str) -> Field {
    Field::line("description", "Description").value(value)
}

pub(super) fn scopes_field(scopes: &[String]) -> Field {
    Field::text("scopes", "Scopes").hint("one per line").value(scopes.join("\n"))
}

pub(super) fn expires_field(expires: Option<Timestamp>) -> Field {
    let value = expires.map_or_else(String::new, |expires| expires.to_string());
    Field::line("expires", "Expires").hint("a date such as 2027-01-31T12:00:00Z; empty for never").value(value)
}

pub(super) fn read_scopes(sent: &Fields) -> Result<Vec<String>, Failed> {
    let lines = sent.text("scopes").lines().map(str::trim);
    let scopes: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    check_scopes(&scopes).map_err(|error| Failed::input(error).in_field("scopes"))?;
    Ok(scopes)
}

pub(super) fn read_description(sent: &Fields) -> Result<String, Failed> {
    let description = sent.text("description");
    check_description(description).map_err(Failed::input)?;
    Ok(description.to_owned())
}

pub(super) fn read_expires(sent: &Fields) -> Result<Option<DateTime<Utc>>, Failed> {
    Ok(sent.date("expires")?.map(Timestamp::time))
}

/// The scopes of a role, for its id.
pub(super) fn read_role(sent: &Fields, role_id: &str) -> Result<NewRole, Failed> {
    let scopes = read_scopes(sent)?;
    check_parameters(&scopes).map_err(|error| Failed::input(error).in_field("scopes"))?;
    Ok(NewRole { role_id: role_id.to_owned(), scopes, description: read_description(sent)? })
}

/// An id as an argument of a command.
pub(super) fn quoted(id: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@/:.+_-".contains(&byte);
    if id.bytes().all(is_plain) { id.to_owned() } else { format!("'{}'", id.replace('\'', "'\\''")) }
}

async fn create_client(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, sent) = (order.app, order.sent);
    let client_id = sent.text("clientId");
    clients::check_client_id(client_id).map_err(|error| Failed::input(error).in_field("clientId"))?;
    let (scopes, description, expires) = (read_scopes(sent)?, read_description(sent)?, read_expires(sent)?);
    let values = Values::of_path().text("clientId", client_id).list("scopesThatAreNew", added(None, &scopes, &[]));
    authorize(order, "createClient", &values)?;
    let client_id = client_id.to_owned();
    let new = NewClient { client_id, scopes, description, expires, delete_on_expiration: false };
    let keys = app.intake.authenticator.keys();
    let created = clients::create(&app.engine.pool, keys, &order.actor, &new).await.map_err(ApiError::from)?;
    let token = created?;
    app.intake.authenticator.client_changed(&new.client_id);
    Ok(Outcome::Page(token_page(order.visit, &new.client_id, &token, "The client is created.")))
}

async fn create_role(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (app, sent) = (order.app, order.sent);
    let id = sent.text("roleId");
    if !valid_role_id(id) {
        let rule = "up to 1000 characters of printable ASCII, which do not end in two stars";
        return Err(Failed::input(rule).in_field("roleId"));
    }
    let role = read_role(sent, id)?;
    let values = Values::of_path().text("roleId", id).list("scopesThatAreNew", added(Some(id), &role.scopes, &[]));
    authorize(order, "createRole", &values)?;
    let created = roles::create(&app.engine.pool, &order.actor, &role).await?;
    app.intake.authenticator.roles_changed();
    created?;
    Ok(Outcome::DoneAt("The role is created.".to_owned(), order.visit.link_to("role", &[id])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_quoted_for_a_shell() {
        for (id, expected) in
            [("acme/ci", "acme/ci"), ("team:*", "'team:*'"), ("a|b!", "'a|b!'"), ("it's", "'it'\\''s'"), ("", "")]
        {
            assert_eq!(quoted(id), expected);
        }
    }
}
