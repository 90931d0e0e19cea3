//! `tenure client`: manages clients, directly in the database or by calling a server.

pub(super) mod remote;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use sqlx::PgPool;
use tenure_api::credentials::{AccessToken, valid_scope};
use tenure_api::dates::Timestamp;

use super::actor::local_actor;
use super::print::{complain, finish, plain, pretty, table};
use tenure_domain::grants::QueuePattern;
use tenure_domain::roles::SCOPE_CHARS_MAX;
use tenure_engine::ops::clients::{self as ops, check, check_client_id};
use tenure_store::clients::{self, ClientChange, ClientInfo, NewClient};
use tenure_store::secrets::SecretKeys;
use tenure_store::settings;

#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: ClientCommand,
}

#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Create a client and print its credentials; they cannot be shown again
    Create(CreateArgs),
    /// List all clients
    List,
    /// Show one client
    Show(IdArg),
    /// Change a client; omitted options stay unchanged
    Update(UpdateArgs),
    /// Refuse a client until it is enabled again; its credentials stop working within a second
    Disable(IdArg),
    /// Accept a disabled client again
    Enable(IdArg),
    /// Delete a client; its credentials stop working within a second
    Delete(IdArg),
    /// Give a client a new access token and print it; the old one stops working within a second
    ResetToken(IdArg),
}

#[derive(Debug, Args)]
pub struct IdArg {
    /// The id of the client
    #[arg(allow_hyphen_values = true)]
    pub client_id: String,
}

impl ClientCommand {
    pub(super) fn needs_key(&self) -> bool {
        matches!(self, Self::Create(_) | Self::ResetToken(_))
    }
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The id of the client
    #[arg(value_parser = parse_client_id, allow_hyphen_values = true)]
    pub client_id: String,
    /// A scope of the client; repeat it for more. A star at the end matches anything
    #[arg(long = "scope", value_name = "SCOPE", allow_hyphen_values = true, value_parser = parse_scope)]
    pub scopes: Vec<String>,
    /// Grant the scopes to submit tasks to these queues, such as `acme/*`: create, status, wait,
    /// result, cancel and rerun; repeat it for more
    #[arg(long, value_name = "QUEUES", allow_hyphen_values = true)]
    pub submit: Vec<QueuePattern>,
    /// Grant the scopes to work on tasks of these queues, such as `acme/*`: claim, renew, report,
    /// release, sessions, artifacts and logs; repeat it for more
    #[arg(long, value_name = "QUEUES", allow_hyphen_values = true)]
    pub work: Vec<QueuePattern>,
    /// Purpose of the client
    #[arg(long, default_value = "")]
    pub description: String,
    /// When the client expires, such as 2027-01-31T12:00:00Z [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub expires: Option<Timestamp>,
}

impl CreateArgs {
    /// Scopes of `--scope`, `--submit` and `--work`. The grants repeat no scope.
    fn all_scopes(&self) -> Vec<String> {
        let mut scopes = self.scopes.clone();
        let submit = self.submit.iter().flat_map(QueuePattern::submit_scopes);
        for scope in submit.chain(self.work.iter().flat_map(QueuePattern::work_scopes)) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes
    }

    /// Describes `--submit` and `--work`, for people.
    fn grants(&self) -> Vec<String> {
        let id = &self.client_id;
        let line = |queues: &QueuePattern, may: &str, scopes: Vec<String>| {
            format!("client {id} may {may} (queues {queues}):\n  {}", scopes.join("\n  "))
        };
        let submit = self.submit.iter().map(|queues| {
            let may = "create tasks, read their status and result, wait for, cancel and rerun them";
            line(queues, may, queues.submit_scopes())
        });
        let work = self.work.iter().map(|queues| {
            let may =
                "claim runs, have sessions, and renew, report and release its runs, with their artifacts and logs";
            line(queues, may, queues.work_scopes())
        });
        submit.chain(work).collect()
    }
}

#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The id of the client
    #[arg(allow_hyphen_values = true)]
    pub client_id: String,
    /// A scope that replaces the client's scopes; repeat it for more
    #[arg(long = "scope", value_name = "SCOPE", allow_hyphen_values = true, value_parser = parse_scope, conflicts_with = "no_scopes")]
    pub scopes: Vec<String>,
    /// Leave the client without scopes of its own
    #[arg(long)]
    pub no_scopes: bool,
    /// Purpose of the client
    #[arg(long)]
    pub description: Option<String>,
    /// When the client expires, such as 2027-01-31T12:00:00Z, or `never`
    #[arg(long, value_name = "TIME", value_parser = parse_end)]
    pub expires: Option<End>,
}

#[derive(Debug, Clone, Copy)]
pub enum End {
    Never,
    At(Timestamp),
}

fn parse_end(text: &str) -> Result<End, String> {
    if text == "never" {
        return Ok(End::Never);
    }
    parse_time(text).map(End::At).map_err(|error| format!("{error}; or write never"))
}

fn parse_client_id(text: &str) -> Result<String, String> {
    check_client_id(text).map(|()| text.to_owned())
}

pub(super) fn parse_scope(text: &str) -> Result<String, String> {
    let fits = valid_scope(text) && text.len() <= SCOPE_CHARS_MAX;
    let rule =
        || format!("a scope is up to {SCOPE_CHARS_MAX} characters of printable ASCII and does not end in two stars");
    fits.then(|| text.to_owned()).ok_or_else(rule)
}

fn parse_time(text: &str) -> Result<Timestamp, serde::de::value::Error> {
    use serde::Deserialize as _;
    use serde::de::IntoDeserializer as _;
    Timestamp::deserialize(text.into_deserializer())
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("client {0:?} already exists; `tenure client reset-token` gives it a new token")]
    Exists(String),
    #[error("client {0:?} does not exist; `tenure client list` shows all clients")]
    Missing(String),
    #[error("{0}")]
    Invalid(String),
    #[error("the database refused: {0}")]
    Database(#[from] sqlx::Error),
    /// No secret key exists to encrypt a token.
    #[error("there is no secret key yet: `tenure serve` creates it at its first start")]
    Keyless,
}

/// Runs the command and prints its result. Exit code: 0 or 1.
pub async fn run(pool: &PgPool, keys: Option<&SecretKeys>, root_url: &str, args: ClientArgs) -> ExitCode {
    let grants = if let ClientCommand::Create(args) = &args.command { args.grants() } else { Vec::new() };
    match execute(pool, keys, root_url, args).await {
        Ok(output) => {
            // Standard output has the credentials only.
            grants.iter().for_each(|grant| complain(grant));
            finish(&output)
        }
        Err(error) => {
            complain(&format!("tenure client: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub async fn execute(
    pool: &PgPool,
    keys: Option<&SecretKeys>,
    root_url: &str,
    args: ClientArgs,
) -> Result<String, CommandError> {
    match args.command {
        ClientCommand::Create(args) => {
            let scopes = args.all_scopes();
            let CreateArgs { client_id, description, expires, .. } = args;
            check(&description, &scopes).map_err(CommandError::Invalid)?;
            let expires = expires.map(Timestamp::time);
            let client = NewClient { client_id, scopes, description, expires, delete_on_expiration: false };
            let keys = keys.ok_or(CommandError::Keyless)?;
            let token = ops::create_new(pool, keys, &local_actor(), &client).await?;
            let token = token.ok_or_else(|| CommandError::Exists(client.client_id.clone()))?;
            Ok(credentials_json(&client.client_id, &token, root_url))
        }
        ClientCommand::List => {
            let all = clients::list(pool, "", None, None).await?;
            Ok(if args.json { pretty(&all) } else { list(&all) })
        }
        ClientCommand::Show(IdArg { client_id }) => {
            let client = clients::find(pool, &client_id).await?;
            show(args.json, client_id, client)
        }
        ClientCommand::Update(UpdateArgs { client_id, scopes, no_scopes, description, expires }) => {
            check(description.as_deref().unwrap_or_default(), &scopes).map_err(CommandError::Invalid)?;
            let change = ClientChange {
                scopes: (no_scopes || !scopes.is_empty()).then_some(scopes),
                description,
                expires: expires.map(|end| match end {
                    End::Never => None,
                    End::At(time) => Some(time.time()),
                }),
                delete_on_expiration: None,
            };
            let client = ops::update(pool, &local_actor(), &client_id, None, &change).await?;
            show(args.json, client_id, client)
        }
        ClientCommand::Disable(IdArg { client_id }) => {
            let client = ops::set_disabled(pool, &local_actor(), &client_id, true).await?;
            show(args.json, client_id, client)
        }
        ClientCommand::Enable(IdArg { client_id }) => {
            let client = ops::set_disabled(pool, &local_actor(), &client_id, false).await?;
            show(args.json, client_id, client)
        }
        ClientCommand::Delete(IdArg { client_id }) => {
            let deleted = ops::delete(pool, &local_actor(), &client_id).await?;
            // A database without clients accepts a new key: the only way to continue after a lost
            // key.
            settings::purge_keys_without_clients(pool).await?;
            require(deleted, || CommandError::Missing(client_id.clone()))?;
            let done = || format!("Deleted client {client_id}.");
            Ok(if args.json { json!({ "clientId": client_id, "deleted": true }).to_string() } else { done() })
        }
        ClientCommand::ResetToken(IdArg { client_id }) => {
            let keys = keys.ok_or(CommandError::Keyless)?;
            let token = ops::reset_token(pool, keys, &local_actor(), &client_id).await?;
            let token = token.ok_or_else(|| CommandError::Missing(client_id.clone()))?;
            Ok(credentials_json(&client_id, &token, root_url))
        }
    }
}

fn require(done: bool, otherwise: impl FnOnce() -> CommandError) -> Result<(), CommandError> {
    if done { Ok(()) } else { Err(otherwise()) }
}

/// Formats credentials as in `root-credentials.json`.
#[must_use]
pub fn credentials_json(client_id: &str, token: &AccessToken, root_url: &str) -> String {
    json!({ "clientId": client_id, "accessToken": token.expose(), "rootUrl": root_url }).to_string()
}

fn show(json: bool, client_id: String, client: Option<ClientInfo>) -> Result<String, CommandError> {
    let client = client.ok_or(CommandError::Missing(client_id))?;
    Ok(if json { pretty(&client) } else { details(&client) })
}

fn state(client: &ClientInfo) -> &'static str {
    if client.disabled { "disabled" } else { "enabled" }
}

fn expiry(client: &ClientInfo) -> String {
    client.expires.map_or_else(|| "never".to_owned(), |time| time.to_string())
}

fn list(all: &[ClientInfo]) -> String {
    let row = |client: &ClientInfo| {
        [client.client_id.clone(), state(client).to_owned(), expiry(client), client.scopes.join(" ")]
    };
    table(["CLIENT", "STATE", "EXPIRES", "SCOPES"], all.iter().map(row))
}

fn details(client: &ClientInfo) -> String {
    let rows = [
        ("client", client.client_id.clone()),
        ("state", state(client).to_owned()),
        ("description", plain(&client.description)),
        ("scopes", client.scopes.join("\n               ")),
        ("expires", expiry(client)),
        ("created", client.created.to_string()),
        ("last modified", client.last_modified.to_string()),
        ("token of", client.last_rotated.to_string()),
        ("last used", client.last_date_used.to_string()),
    ];
    rows.map(|(name, value)| format!("{name:13}  {value}")).join("\n")
}

#[cfg(test)]
mod tests;
