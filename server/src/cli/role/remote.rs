//! `tenure role --http`: manages roles by calling a server.

use std::process::ExitCode;

use serde_json::{Value, json};
use tenure_store::roles::RoleInfo;

use super::{CreateArgs, RoleArgs, RoleCommand, UpdateArgs, details, list};
use crate::cli::http::{CommandError, Server, entries};

pub(in crate::cli) async fn run(server: &Server, args: RoleArgs) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match args.command {
        RoleCommand::Create(CreateArgs { role_id, scopes, description }) => {
            let body = json!({ "description": description, "scopes": scopes });
            show(server, &client.create_role(&role_id, &body).await.map_err(refused)?)?;
        }
        RoleCommand::List => all(server).await?,
        RoleCommand::Show { role_id } => show(server, &client.get_role(&role_id).await.map_err(refused)?)?,
        RoleCommand::Update(UpdateArgs { role_id, scopes, no_scopes, description }) => {
            // The request has both fields, so the other one is read first.
            let current = client.get_role(&role_id).await.map_err(refused)?;
            let keeps = scopes.is_empty() && !no_scopes;
            let scopes = if keeps { current["scopes"].clone() } else { json!(scopes) };
            let description = description.map_or_else(|| current["description"].clone(), Value::String);
            let body = json!({ "description": description, "scopes": scopes });
            show(server, &client.update_role(&role_id, &body).await.map_err(refused)?)?;
        }
        RoleCommand::Delete { role_id } => {
            client.delete_role(&role_id).await.map_err(refused)?;
            let answer = json!({ "roleId": role_id, "deleted": true });
            server.print(&answer, |_| format!("Deleted role {role_id}."))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn all(server: &Server) -> Result<(), CommandError> {
    let (mut roles, mut token) = (Vec::new(), None::<String>);
    loop {
        let page = server.client.list_roles(token.as_deref()).await.map_err(|error| server.error(&error))?;
        roles.extend_from_slice(entries(&page, "roles"));
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    let known = roles.iter().map(|role| parse(server, role)).collect::<Result<Vec<_>, _>>()?;
    server.print(&json!(roles), |_| list(&known))
}

fn parse(server: &Server, answer: &Value) -> Result<RoleInfo, CommandError> {
    serde_json::from_value(answer.clone()).map_err(|error| server.strange(&error))
}

fn show(server: &Server, answer: &Value) -> Result<(), CommandError> {
    let role = parse(server, answer)?;
    server.print(answer, |_| details(&role))
}
