//! `tenure queue`: how much waits and runs.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;
use tenure_api::ids::TaskQueueId;

use super::http::{CommandError, Server, entries, field};
use super::print::table;

/// What to show of queues.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List all queues with their counts
    List,
    /// Show the counts of one queue
    Show {
        /// The queue, <provisionerId>/<workerType>
        #[arg(allow_hyphen_values = true)]
        queue: TaskQueueId,
    },
}

/// Does the command.
///
/// # Errors
/// If it is refused.
pub async fn run(server: &Server, command: QueueCommand) -> Result<ExitCode, CommandError> {
    let answer = match command {
        QueueCommand::List => server.client.list_queues().await,
        QueueCommand::Show { ref queue } => server.client.get_queue(queue).await,
    };
    let answer = answer.map_err(|error| server.error(&error))?;
    let row =
        |queue: &Value| [field(queue, "/pendingTasks"), field(queue, "/claimedTasks"), field(queue, "/taskQueueId")];
    server.print(&answer, |answer| {
        let rows = match command {
            QueueCommand::List => entries(answer, "queues"),
            QueueCommand::Show { .. } => std::slice::from_ref(answer),
        };
        table(["PENDING", "CLAIMED", "QUEUE"], rows.iter().map(row))
    })?;
    Ok(ExitCode::SUCCESS)
}
