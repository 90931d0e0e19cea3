//! `tenure role`: manages roles, directly in the database or by calling a server.

pub(super) mod remote;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use sqlx::PgPool;

use super::actor::local_actor;
use super::client::parse_scope;
use super::print::{complain, finish, plain, pretty, table};
use tenure_domain::roles::valid_role_id;
use tenure_engine::ops::{OpError, roles as ops};
use tenure_store::roles::{self, NewRole, RoleInfo};

#[derive(Debug, Args)]
pub struct RoleArgs {
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: RoleCommand,
}

#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// Create a role: clients with the scope assume:<ROLE_ID> have its scopes too
    Create(CreateArgs),
    /// List all roles
    List,
    /// Show one role
    Show {
        /// The id of the role
        #[arg(allow_hyphen_values = true)]
        role_id: String,
    },
    /// Change a role; omitted options stay unchanged. Servers apply it within a second
    Update(UpdateArgs),
    /// Delete a role; its scopes are lost within a second
    Delete {
        /// The id of the role
        #[arg(allow_hyphen_values = true)]
        role_id: String,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The id of the role; with a star at its end it matches every name with this prefix
    #[arg(value_parser = parse_role_id, allow_hyphen_values = true)]
    pub role_id: String,
    /// A scope of the role; repeat it for more. `<..>` is replaced by the part that a star at the
    /// end of the id matched
    #[arg(long = "scope", value_name = "SCOPE", allow_hyphen_values = true, value_parser = parse_scope)]
    pub scopes: Vec<String>,
    /// Purpose of the role
    #[arg(long, default_value = "")]
    pub description: String,
}

#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The id of the role
    #[arg(allow_hyphen_values = true)]
    pub role_id: String,
    /// A scope that replaces the role's scopes; repeat it for more
    #[arg(long = "scope", value_name = "SCOPE", allow_hyphen_values = true, value_parser = parse_scope, conflicts_with = "no_scopes")]
    pub scopes: Vec<String>,
    /// Leave the role without scopes
    #[arg(long)]
    pub no_scopes: bool,
    /// Purpose of the role
    #[arg(long)]
    pub description: Option<String>,
}

fn parse_role_id(text: &str) -> Result<String, &'static str> {
    let rule = "a role id is up to 1000 characters of printable ASCII, and does not end in two stars";
    valid_role_id(text).then(|| text.to_owned()).ok_or(rule)
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("role {0:?} does not exist; `tenure role list` shows all roles")]
    Missing(String),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Refused(#[from] OpError),
    #[error("the database refused: {0}")]
    Database(#[from] sqlx::Error),
}

/// Runs the command and prints its result. Exit code: 0 or 1.
pub async fn run(pool: &PgPool, args: RoleArgs) -> ExitCode {
    match execute(pool, args).await {
        Ok(output) => finish(&output),
        Err(error) => {
            complain(&format!("tenure role: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub async fn execute(pool: &PgPool, args: RoleArgs) -> Result<String, CommandError> {
    match args.command {
        RoleCommand::Create(CreateArgs { role_id, scopes, description }) => {
            let role = NewRole { role_id, scopes, description };
            ops::check(&role).map_err(CommandError::Invalid)?;
            Ok(show(args.json, &ops::create(pool, &local_actor(), &role).await??))
        }
        RoleCommand::List => {
            let all = roles::list(pool, None, None).await?;
            Ok(if args.json { pretty(&all) } else { list(&all) })
        }
        RoleCommand::Show { role_id } => Ok(show(args.json, &find(pool, &role_id).await?)),
        RoleCommand::Update(UpdateArgs { role_id, scopes, no_scopes, description }) => {
            let existing = find(pool, &role_id).await?;
            let keeps = scopes.is_empty() && !no_scopes;
            let role = NewRole {
                role_id,
                scopes: if keeps { existing.scopes.clone() } else { scopes },
                description: description.unwrap_or(existing.description),
            };
            ops::check(&role).map_err(CommandError::Invalid)?;
            Ok(show(args.json, &ops::update(pool, &local_actor(), &role, Some(&existing.scopes)).await??))
        }
        RoleCommand::Delete { role_id } => {
            if !ops::delete(pool, &local_actor(), &role_id).await? {
                return Err(CommandError::Missing(role_id));
            }
            let done = || format!("Deleted role {role_id}.");
            Ok(if args.json { json!({ "roleId": role_id, "deleted": true }).to_string() } else { done() })
        }
    }
}

async fn find(pool: &PgPool, role_id: &str) -> Result<RoleInfo, CommandError> {
    roles::find(pool, role_id).await?.ok_or_else(|| CommandError::Missing(role_id.to_owned()))
}

fn show(json: bool, role: &RoleInfo) -> String {
    if json { pretty(role) } else { details(role) }
}

fn list(all: &[RoleInfo]) -> String {
    let row = |role: &RoleInfo| [role.role_id.clone(), role.scopes.join(" ")];
    table(["ROLE", "SCOPES"], all.iter().map(row))
}

fn details(role: &RoleInfo) -> String {
    let rows = [
        ("role", role.role_id.clone()),
        ("description", plain(&role.description)),
        ("scopes", role.scopes.join("\n               ")),
        ("created", role.created.to_string()),
        ("last modified", role.last_modified.to_string()),
    ];
    rows.map(|(name, value)| format!("{name:13}  {value}")).join("\n")
}

#[cfg(test)]
mod tests;
