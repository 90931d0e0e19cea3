//! `tenure enqueue`: tasks enqueued from SQL, directly in the database.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sqlx::PgPool;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;

use super::actor::local_actor;
use super::print::{complain, finish, plain, pretty, table};
use tenure_engine::background::enqueued::REFUSED_MAX;
use tenure_engine::ops::enqueue_roles as ops;
use tenure_store::clients;
use tenure_store::enqueued::{self, Allowed, Refused, Role};

#[derive(Debug, Args)]
pub struct EnqueueArgs {
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: EnqueueCommand,
}

#[derive(Debug, Subcommand)]
pub enum EnqueueCommand {
    /// Let a database role enqueue tasks as a client; grants it the function `tenure_enqueue`
    Allow {
        /// The role with which the application logs in to the database
        role: String,
        /// The client whose scopes the tasks need
        #[arg(long = "client", value_name = "CLIENT_ID", allow_hyphen_values = true)]
        client_id: String,
    },
    /// Deny a database role; its tasks that are not created yet are refused
    Deny {
        /// The role with which the application logs in to the database
        role: String,
    },
    /// List the database roles that may enqueue tasks
    List,
    /// List refused tasks with their reasons, oldest first
    Refused,
    /// Try to create a refused task again
    Retry {
        /// The id of the task
        #[arg(allow_hyphen_values = true)]
        task_id: TaskId,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("client {0:?} does not exist; `tenure client create` creates it")]
    MissingClient(String),
    #[error("the database has no role {0:?}; create it with CREATE ROLE")]
    MissingRole(String),
    #[error("role {0:?} is not allowed; `tenure enqueue list` shows the roles that are")]
    NotAllowed(String),
    #[error("task {0} was not refused; `tenure enqueue refused` lists refused tasks")]
    NotRefused(TaskId),
    #[error("the database refused: {0}")]
    Database(#[from] sqlx::Error),
}

/// Runs the command and prints its result. Exit code: 0 or 1.
pub async fn run(pool: &PgPool, args: EnqueueArgs) -> ExitCode {
    match execute(pool, args).await {
        Ok(output) => finish(&output),
        Err(error) => {
            complain(&format!("tenure enqueue: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub async fn execute(pool: &PgPool, args: EnqueueArgs) -> Result<String, CommandError> {
    match args.command {
        EnqueueCommand::Allow { role, client_id } => {
            let allowed = allow(pool, &role, &client_id).await?;
            Ok(if args.json {
                pretty(&json!({"role": role, "clientId": client_id, "function": allowed.function}))
            } else {
                describe(&role, &client_id, &allowed)
            })
        }
        EnqueueCommand::Deny { role } => {
            if !ops::deny(pool, &local_actor(), &role).await? {
                return Err(CommandError::NotAllowed(role));
            }
            let done = || format!("Role {} may no longer enqueue tasks.", plain(&role));
            Ok(if args.json { json!({"role": role, "denied": true}).to_string() } else { done() })
        }
        EnqueueCommand::List => {
            let roles = enqueued::list_roles(pool).await?;
            Ok(if args.json { pretty(&allowed_json(&roles)) } else { list(&roles) })
        }
        EnqueueCommand::Refused => {
            let rows = enqueued::list_refused(pool, None, REFUSED_MAX).await?;
            Ok(if args.json { pretty(&rows.iter().map(refused_json).collect::<Vec<_>>()) } else { refused(&rows) })
        }
        EnqueueCommand::Retry { task_id } => {
            if !enqueued::retry(pool, task_id.uuid()).await? {
                return Err(CommandError::NotRefused(task_id));
            }
            let done = || format!("Task {task_id} is tried again.");
            Ok(if args.json { json!({"taskId": task_id, "retried": true}).to_string() } else { done() })
        }
    }
}

async fn allow(pool: &PgPool, role: &str, client_id: &str) -> Result<Allowed, CommandError> {
    if clients::find(pool, client_id).await?.is_none() {
        return Err(CommandError::MissingClient(client_id.to_owned()));
    }
    let allowed = ops::allow(pool, &local_actor(), role, client_id).await?;
    allowed.ok_or_else(|| CommandError::MissingRole(role.to_owned()))
}

fn describe(role: &str, client_id: &str, allowed: &Allowed) -> String {
    let role = plain(role);
    let mut text = format!(
        "Role {role} may enqueue tasks as client {client_id}:\n  SELECT {}('acme/mail', '{{\"to\": \"a@example.com\"}}');",
        allowed.function
    );
    if allowed.may_create {
        text.push_str(&format!(
            "\nWarning: role {role} may create objects in Tenure's schema, and so change what Tenure executes. \
             Revoke CREATE on the schema, or keep Tenure's tables in a schema of their own."
        ));
    }
    text
}

fn allowed_json(roles: &[Role]) -> Vec<Value> {
    let allowed = roles.iter().filter_map(|role| Some((role, role.client_id.as_ref()?)));
    allowed.map(|(role, client_id)| json!({"role": role.role, "clientId": client_id})).collect()
}

fn list(roles: &[Role]) -> String {
    let row = |role: &Role| Some([plain(&role.role), role.client_id.clone()?]);
    table(["ROLE", "CLIENT"], roles.iter().filter_map(row))
}

fn task_id(row: &Refused) -> String {
    TaskId::from_uuid(row.task).map_or_else(|| row.task.to_string(), |id| id.to_string())
}

fn refused_json(row: &Refused) -> Value {
    json!({
        "taskId": task_id(row),
        "taskQueueId": row.queue,
        "role": row.role,
        "enqueued": Timestamp::new(row.at),
        "error": row.error,
    })
}

fn refused(rows: &[Refused]) -> String {
    let row = |row: &Refused| {
        [task_id(row), row.queue.clone(), plain(&row.role), Timestamp::new(row.at).to_string(), plain(&row.error)]
    };
    table(["TASK", "QUEUE", "ROLE", "ENQUEUED", "REASON"], rows.iter().map(row))
}

#[cfg(test)]
mod tests;
