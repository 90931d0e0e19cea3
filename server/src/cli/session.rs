//! `tenure session`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::ids::{SessionId, TaskQueueId};
use tenure_api::sessions::CommandRequest;
use tenure_api::states::WorkerCommand;

use super::http::{CommandError, Server, entries, field};
use super::print::table;
use super::task::id::TaskRef;

#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the live sessions of a queue, with their runs
    List {
        /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
        #[arg(allow_hyphen_values = true)]
        queue: TaskQueueId,
    },
    /// End a session and release its runs. Needs the scopes of its worker
    End {
        /// The whole id of the session, as `tenure session list` shows it
        session: SessionId,
    },
    /// Put a command into the inbox of a session; its worker carries it out
    Command(CommandArgs),
}

#[derive(Debug, Args)]
pub struct CommandArgs {
    /// The whole id of the session, as `tenure session list` shows it
    pub session: SessionId,
    /// freeze, unfreeze, balance, stop-task or shutdown
    #[arg(value_parser = parse_command)]
    pub command: WorkerCommand,
    /// The task to stop, or its first 8 characters: with stop-task, and only with it
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub task: Option<TaskRef>,
}

fn parse_command(word: &str) -> Result<WorkerCommand, String> {
    let all = || WorkerCommand::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let found = WorkerCommand::ALL.iter().find(|command| command.as_str() == word);
    found.copied().ok_or_else(|| format!("choose one of {}", all()))
}

pub async fn run(server: &Server, command: SessionCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        SessionCommand::List { queue } => {
            let answer = client.list_workers(&queue).await.map_err(refused)?;
            server.print(&json!(answer), |answer| sessions(entries(answer, "workers")))?;
        }
        SessionCommand::End { session } => {
            let returned = client.close_session(session).await.map_err(refused)?;
            server.print(&json!({ "returned": returned }), |_| ended(session, returned))?;
        }
        SessionCommand::Command(CommandArgs { session, command, task }) => {
            let task_id = match task {
                Some(task) => Some(task.find(server).await?),
                None => None,
            };
            let request = CommandRequest { command, task_id };
            let id = client.command_session(session, &request).await.map_err(refused)?;
            let text = format!("Item {id} of the inbox of session {session} is {command}.");
            server.print(&json!({ "id": id }), |_| text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sessions(workers: &[Value]) -> String {
    let row = |worker: &Value| {
        [
            format!("{}/{}", field(worker, "/workerGroup"), field(worker, "/workerId")),
            field(worker, "/running"),
            field(worker, "/assigned"),
            field(worker, "/capacity"),
            field(worker, "/weight"),
            if worker["frozen"] == Value::Bool(true) { "yes" } else { "no" }.to_owned(),
            field(worker, "/started"),
            field(worker, "/expires"),
            field(worker, "/sessionId"),
        ]
    };
    let head = ["WORKER", "RUNNING", "ASSIGNED", "CAPACITY", "WEIGHT", "FROZEN", "STARTED", "EXPIRES", "SESSION"];
    table(head, workers.iter().map(row))
}

fn ended(session: SessionId, returned: i64) -> String {
    match returned {
        0 => format!("Session {session} has ended; it held nothing."),
        1 => format!("Session {session} has ended; 1 run has left it."),
        runs => format!("Session {session} has ended; {runs} runs have left it."),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";
    const TASK: &str = "-HrBC1jMQ3KlZw4CssPUeQ";

    #[derive(Debug, Parser)]
    struct Tenure {
        #[command(subcommand)]
        session: SessionCommand,
    }

    #[test]
    fn wrong_arguments_are_usage_errors() {
        for (words, kind) in [
            (&["list"][..], ErrorKind::MissingRequiredArgument),
            (&["list", "p_w"], ErrorKind::ValueValidation),
            (&["end"], ErrorKind::MissingRequiredArgument),
            (&["end", "p/w"], ErrorKind::ValueValidation),
            (&["command", SESSION], ErrorKind::MissingRequiredArgument),
            (&["command", SESSION, "dance"], ErrorKind::ValueValidation),
            (&["command", SESSION, "stop-task", "--task", "x"], ErrorKind::ValueValidation),
            (&["start", "p/w"], ErrorKind::InvalidSubcommand),
        ] {
            let parsed = Tenure::try_parse_from(["session"].iter().chain(words));
            assert_eq!(parsed.map_err(|error| error.kind()).err(), Some(kind), "{words:?}");
        }
        let wrong = Tenure::try_parse_from(["session", "command", SESSION, "dance"]).unwrap_err().to_string();
        assert!(wrong.contains("choose one of freeze, unfreeze, balance, stop-task, shutdown"), "{wrong}");
        let stop = |task| ["command", SESSION, "stop-task", "--task", task];
        for words in [&["list", "-p/w"][..], &["end", SESSION], &stop(TASK), &stop("9HrBC1jM")] {
            assert!(Tenure::try_parse_from(["session"].iter().chain(words)).is_ok(), "{words:?}");
        }
    }

    #[test]
    fn sessions_are_shown_for_people() {
        let text =
            sessions(&[json!({"workerGroup": "g", "workerId": "w1", "running": 12, "assigned": 3, "capacity": 8,
            "weight": 1, "frozen": true, "started": "S", "expires": "E", "sessionId": SESSION})]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "WORKER  RUNNING  ASSIGNED  CAPACITY  WEIGHT  FROZEN  STARTED  EXPIRES  SESSION");
        assert_eq!(
            lines[1],
            format!("g/w1    12       3         8         1       yes     S        E        {SESSION}")
        );
        let session: SessionId = SESSION.parse().unwrap();
        for (returned, words) in [(0, "it held nothing."), (1, "1 run has left it."), (2, "2 runs have left it.")] {
            assert_eq!(ended(session, returned), format!("Session {SESSION} has ended; {words}"));
        }
    }
}
