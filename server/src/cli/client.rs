//! `tenure client`: makes, shows and removes clients, on the database directly.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use sqlx::PgPool;
use tenure_api::credentials::{AccessToken, valid_scope};
use tenure_api::dates::Timestamp;

use crate::secrets::{SecretKeys, new_access_token};
use crate::store::clients::{self, CLIENT_ID_MAX, ClientInfo, NewClient, valid_client_id};

/// The options that every `tenure client` command has.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: ClientCommand,
}

/// What to do with clients.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Make a client and print its credentials; they cannot be shown again
    Create(CreateArgs),
    /// List all clients
    List,
    /// Show one client
    Show {
        /// The id of the client
        client_id: String,
    },
    /// Remove a client; its credentials stop working within a second
    Delete {
        /// The id of the client
        client_id: String,
    },
    /// Give a client a new access token and print it; the old one stops working within a second
    ResetToken {
        /// The id of the client
        client_id: String,
    },
}

/// The client that `tenure client create` makes.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The id of the client
    #[arg(value_parser = parse_client_id)]
    pub client_id: String,
    /// What the client may do; repeat it for more scopes. A star at the end matches anything
    #[arg(long = "scope", value_name = "SCOPE", value_parser = parse_scope)]
    pub scopes: Vec<String>,
    /// What the client is for
    #[arg(long, default_value = "")]
    pub description: String,
    /// When the client stops working, such as 2027-01-31T12:00:00Z [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub expires: Option<Timestamp>,
}

fn parse_client_id(text: &str) -> Result<String, String> {
    let rule = || format!("a client id has 1 to {CLIENT_ID_MAX} letters, digits and characters of !@/:.+|_-");
    valid_client_id(text).then(|| text.to_owned()).ok_or_else(rule)
}

fn parse_scope(text: &str) -> Result<String, &'static str> {
    valid_scope(text).then(|| text.to_owned()).ok_or("a scope is printable ASCII and does not end in two stars")
}

fn parse_time(text: &str) -> Result<Timestamp, serde::de::value::Error> {
    use serde::Deserialize as _;
    use serde::de::IntoDeserializer as _;
    Timestamp::deserialize(text.into_deserializer())
}

/// Why a command was not done.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// One of that id is there already.
    #[error("there is a client {0:?} already; `tenure client reset-token` gives it a new token")]
    Exists(String),
    /// None of that id is there.
    #[error("there is no client {0:?}; `tenure client list` shows those that exist")]
    Missing(String),
    /// The database did not answer as it should.
    #[error("the database refused: {0}")]
    Database(#[from] sqlx::Error),
}

/// Does the command and prints its result, or on standard error why not: exit code 0 or 1.
pub async fn run(pool: &PgPool, keys: &SecretKeys, root_url: &str, args: ClientArgs) -> ExitCode {
    match execute(pool, keys, root_url, args).await {
        Ok(output) => {
            println!("{}", output.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tenure client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does the command and gives what it prints.
///
/// # Errors
/// If the command is refused.
pub async fn execute(
    pool: &PgPool,
    keys: &SecretKeys,
    root_url: &str,
    args: ClientArgs,
) -> Result<String, CommandError> {
    match args.command {
        ClientCommand::Create(CreateArgs { client_id, scopes, description, expires }) => {
            let token = new_access_token();
            let client = NewClient { client_id, scopes, description, expires: expires.map(Timestamp::time) };
            let created = clients::create(pool, keys, &client, &token).await?;
            require(created, || CommandError::Exists(client.client_id.clone()))?;
            Ok(credentials_json(&client.client_id, &token, root_url))
        }
        ClientCommand::List => {
            let all = clients::list(pool).await?;
            Ok(if args.json { pretty(&all) } else { table(&all) })
        }
        ClientCommand::Show { client_id } => {
            let client = clients::find(pool, &client_id).await?.ok_or(CommandError::Missing(client_id))?;
            Ok(if args.json { pretty(&client) } else { details(&client) })
        }
        ClientCommand::Delete { client_id } => {
            let deleted = clients::delete(pool, &client_id).await?;
            require(deleted, || CommandError::Missing(client_id.clone()))?;
            let done = || format!("The client {client_id} is deleted.");
            Ok(if args.json { json!({ "clientId": client_id, "deleted": true }).to_string() } else { done() })
        }
        ClientCommand::ResetToken { client_id } => {
            let token = new_access_token();
            let reset = clients::reset_token(pool, keys, &client_id, &token).await?;
            require(reset, || CommandError::Missing(client_id.clone()))?;
            Ok(credentials_json(&client_id, &token, root_url))
        }
    }
}

fn require(done: bool, otherwise: impl FnOnce() -> CommandError) -> Result<(), CommandError> {
    if done { Ok(()) } else { Err(otherwise()) }
}

/// The form in which a client's credentials are handed over, here and in `root-credentials.json`.
#[must_use]
pub fn credentials_json(client_id: &str, token: &AccessToken, root_url: &str) -> String {
    json!({ "clientId": client_id, "accessToken": token.expose(), "rootUrl": root_url }).to_string()
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("clients are text, dates and lists")
}

fn state(client: &ClientInfo) -> &'static str {
    if client.disabled { "disabled" } else { "enabled" }
}

fn expiry(client: &ClientInfo) -> String {
    client.expires.map_or_else(|| "never".to_owned(), |time| time.to_string())
}

fn table(all: &[ClientInfo]) -> String {
    let width = all.iter().map(|client| client.client_id.len()).max().unwrap_or_default().max("CLIENT".len());
    let mut text = format!("{:width$}  {:8}  {:24}  SCOPES\n", "CLIENT", "STATE", "EXPIRES");
    for client in all {
        let (id, scopes) = (&client.client_id, client.scopes.join(" "));
        writeln!(text, "{id:width$}  {:8}  {:24}  {scopes}", state(client), expiry(client))
            .expect("writing to a String cannot fail");
    }
    text
}

fn details(client: &ClientInfo) -> String {
    let rows = [
        ("client", client.client_id.clone()),
        ("state", state(client).to_owned()),
        ("description", client.description.clone()),
        ("scopes", client.scopes.join("\n               ")),
        ("expires", expiry(client)),
        ("created", client.created.to_string()),
        ("last modified", client.last_modified.to_string()),
    ];
    rows.map(|(name, value)| format!("{name:13}  {value}")).join("\n")
}

#[cfg(test)]
mod tests;
