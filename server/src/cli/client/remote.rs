//! `tenure client --http`: manages clients by calling a server.

use std::process::ExitCode;

use serde_json::{Value, json};
use tenure_api::credentials::AccessToken;
use tenure_api::dates::Timestamp;
use tenure_store::clients::ClientInfo;

use super::{ClientArgs, ClientCommand, CreateArgs, End, IdArg, UpdateArgs, credentials_json, details, list};
use crate::cli::http::{CommandError, Server, entries};
use crate::cli::print::{complain, finish};
use crate::http::api::clients::NEVER_MS;

pub(in crate::cli) async fn run(
    server: &Server,
    root_url: Option<&str>,
    args: ClientArgs,
) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match args.command {
        ClientCommand::Create(args) => return create(server, root_url, &args).await,
        ClientCommand::List => all(server).await?,
        ClientCommand::Show(IdArg { client_id }) => {
            show(server, &client.get_client(&client_id).await.map_err(refused)?)?;
        }
        ClientCommand::Update(args) => update(server, args).await?,
        ClientCommand::Disable(IdArg { client_id }) => {
            show(server, &client.set_client_disabled(&client_id, true).await.map_err(refused)?)?;
        }
        ClientCommand::Enable(IdArg { client_id }) => {
            show(server, &client.set_client_disabled(&client_id, false).await.map_err(refused)?)?;
        }
        ClientCommand::Delete(IdArg { client_id }) => {
            client.delete_client(&client_id).await.map_err(refused)?;
            let answer = json!({ "clientId": client_id, "deleted": true });
            server.print(&answer, |_| format!("Deleted client {client_id}."))?;
        }
        ClientCommand::ResetToken(IdArg { client_id }) => {
            let answer = client.reset_access_token(&client_id).await.map_err(refused)?;
            return credentials(server, root_url, &client_id, &answer);
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(server: &Server, root_url: Option<&str>, args: &CreateArgs) -> Result<ExitCode, CommandError> {
    let expires = args.expires.or_else(never);
    let body = json!({ "description": args.description, "expires": expires, "scopes": args.all_scopes() });
    let answer = server.client.create_client(&args.client_id, &body).await.map_err(|error| server.error(&error))?;
    // Standard output has the credentials only.
    args.grants().iter().for_each(|grant| complain(grant));
    credentials(server, root_url, &args.client_id, &answer)
}

fn credentials(
    server: &Server,
    root_url: Option<&str>,
    client_id: &str,
    answer: &Value,
) -> Result<ExitCode, CommandError> {
    let token = answer["accessToken"].as_str();
    let token = token.ok_or_else(|| CommandError::Refused("the server returned no access token".to_owned()))?;
    let root_url = root_url.unwrap_or_else(|| server.client.root_url());
    Ok(finish(&credentials_json(client_id, &AccessToken::new(token.to_owned()), root_url)))
}

async fn all(server: &Server) -> Result<(), CommandError> {
    let (mut clients, mut token) = (Vec::new(), None::<String>);
    loop {
        let page = server.client.list_clients(token.as_deref()).await.map_err(|error| server.error(&error))?;
        clients.extend_from_slice(entries(&page, "clients"));
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    let known = clients.iter().map(|client| parse(server, client)).collect::<Result<Vec<_>, _>>()?;
    server.print(&json!(clients), |_| list(&known))
}

/// The request has all fields but the scopes, so the others are read first.
async fn update(server: &Server, args: UpdateArgs) -> Result<(), CommandError> {
    let refused = |error| server.error(&error);
    let UpdateArgs { client_id, scopes, no_scopes, description, expires } = args;
    let current = server.client.get_client(&client_id).await.map_err(refused)?;
    let expires = match expires {
        Some(End::Never) => json!(never()),
        Some(End::At(time)) => json!(time),
        None => current["expires"].clone(),
    };
    let description = description.map_or_else(|| current["description"].clone(), Value::String);
    let mut body = json!({ "description": description, "expires": expires,
        "deleteOnExpiration": current["deleteOnExpiration"] });
    if no_scopes || !scopes.is_empty() {
        body["scopes"] = json!(scopes);
    }
    show(server, &server.client.update_client(&client_id, &body).await.map_err(refused)?)
}

/// The API has no clients without an expiry.
fn never() -> Option<Timestamp> {
    chrono::DateTime::from_timestamp_millis(NEVER_MS).map(Timestamp::new)
}

fn parse(server: &Server, answer: &Value) -> Result<ClientInfo, CommandError> {
    let client: ClientInfo = serde_json::from_value(answer.clone()).map_err(|error| server.strange(&error))?;
    Ok(ClientInfo { expires: client.expires.filter(|expires| Some(*expires) != never()), ..client })
}

fn show(server: &Server, answer: &Value) -> Result<(), CommandError> {
    let client = parse(server, answer)?;
    server.print(answer, |_| details(&client))
}
