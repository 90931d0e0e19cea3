//! `tenure task command`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_api::checkpoints::{CommandOfTask, TaskCommandRequest};
use tenure_api::states::TaskCommand as Word;

use super::id::TaskRef;
use super::{CommandError, Server};
use crate::cli::when::{When, parse_when};

#[derive(Debug, Args)]
pub struct CommandArgs {
    /// The id of the task, or its first 8 characters
    #[arg(allow_hyphen_values = true)]
    pub task: TaskRef,
    /// run, sleep, pause, kill, error, complete, checkpoint or release [default: show the pending
    /// command]
    #[arg(value_parser = parse_word)]
    pub command: Option<Word>,
    /// When the task goes on: after a duration such as 2h, or at a time such as
    /// 2027-01-31T12:00:00Z; with sleep, and only with it
    #[arg(long, value_name = "WHEN", value_parser = parse_when, requires = "command")]
    pub until: Option<When>,
}

fn parse_word(word: &str) -> Result<Word, String> {
    let all = || Word::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let found = Word::ALL.iter().find(|command| command.as_str() == word);
    found.copied().ok_or_else(|| format!("choose one of {}", all()))
}

pub(super) async fn command(server: &Server, args: &CommandArgs) -> Result<ExitCode, CommandError> {
    let CommandArgs { task, command, until } = *args;
    let task = task.find(server).await?;
    let refused = |error| server.error(&error);
    let of_task = match command {
        Some(command) => {
            let until = server.time(until).await?;
            server.client.command_task(task, &TaskCommandRequest { command, until }).await.map_err(refused)?
        }
        None => match server.client.get_task_command(task).await.map_err(refused)? {
            Some(of_task) => of_task,
            None => {
                // Distinguishes a missing task from a missing command.
                server.client.status(task).await.map_err(refused)?;
                return Err(CommandError::Refused(format!("no command for task {task} waits")));
            }
        },
    };
    server.print(&json!(of_task), |_| text(&of_task))?;
    Ok(ExitCode::SUCCESS)
}

fn text(of_task: &CommandOfTask) -> String {
    let CommandOfTask { task_id, id, command, until, sent } = of_task;
    let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
    format!("Command {id} for task {task_id}, sent {sent}: {command}{until}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_shown_in_one_line() {
        let mut of_task: CommandOfTask = serde_json::from_value(json!({
            "taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "id": 7, "command": "pause", "sent": "2027-01-31T12:00:00Z",
        }))
        .unwrap();
        let begin = "Command 7 for task 9HrBC1jMQ3KlZw4CssPUeQ, sent 2027-01-31T12:00:00.000Z: ";
        assert_eq!(text(&of_task), format!("{begin}pause."));
        (of_task.command, of_task.until) = (Word::Sleep, Some(of_task.sent));
        assert_eq!(text(&of_task), format!("{begin}sleep until 2027-01-31T12:00:00.000Z."));
    }
}
