//! `tenure worker`: workers of a queue, and their quarantines.

use std::collections::HashMap;
use std::process::ExitCode;

use chrono::TimeDelta;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::ids::TaskQueueId;
use tenure_client::WorkerName;

use super::http::{CommandError, Server, entries, field};
use super::print::table;
use super::when::{When, parse_when};

/// The clocks of a server and its database may differ by less.
const IN_THE_PAST: When = When::In(TimeDelta::minutes(-1));

#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// List the workers of a queue that were seen within a day, or are quarantined
    List {
        /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
        #[arg(allow_hyphen_values = true)]
        queue: TaskQueueId,
        /// Only quarantined workers
        #[arg(long)]
        quarantined: bool,
    },
    /// Show a worker of a queue, with its latest runs and the changes of its quarantine
    Show(WorkerArg),
    /// Give a worker no tasks of a queue for a time; it may end its running ones
    Quarantine(QuarantineArgs),
    /// Give a quarantined worker tasks of a queue again
    Lift(WorkerArg),
}

#[derive(Debug, Args)]
pub struct WorkerArg {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    pub queue: TaskQueueId,
    /// The worker, `<workerGroup>/<workerId>`
    #[arg(value_parser = parse_worker, allow_hyphen_values = true)]
    pub worker: WorkerName,
}

#[derive(Debug, Args)]
pub struct QuarantineArgs {
    #[command(flatten)]
    pub of: WorkerArg,
    /// The reason, for people
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// When it ends by itself: after a duration such as 2h, or at a time such as
    /// 2027-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN", default_value = "1d", value_parser = parse_when)]
    pub until: When,
}

fn parse_worker(text: &str) -> Result<WorkerName, String> {
    let rule = || "write <workerGroup>/<workerId>, such as rack-1/worker-1".to_owned();
    let (group, id) = text.split_once('/').ok_or_else(rule)?;
    Ok(WorkerName { group: group.parse().map_err(|_| rule())?, id: id.parse().map_err(|_| rule())? })
}

pub async fn run(server: &Server, command: WorkerCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        WorkerCommand::List { queue, quarantined } => list(server, &queue, quarantined).await?,
        WorkerCommand::Show(WorkerArg { queue, worker }) => {
            server.print(&client.get_worker(&queue, &worker).await.map_err(refused)?, shown)?;
        }
        WorkerCommand::Quarantine(QuarantineArgs { of: WorkerArg { queue, worker }, reason, until }) => {
            let until = server.time(Some(until)).await?.unwrap_or_else(|| client.now());
            let answer = client.quarantine_worker(&queue, &worker, until, reason.as_deref()).await.map_err(refused)?;
            let name = name_of(&answer);
            server.print(&answer, |_| format!("Worker {name} gets no tasks of queue {queue} until {until}."))?;
        }
        WorkerCommand::Lift(WorkerArg { queue, worker }) => {
            let past = server.time(Some(IN_THE_PAST)).await?.unwrap_or_else(|| client.now());
            let answer = client.quarantine_worker(&queue, &worker, past, None).await.map_err(refused)?;
            let name = name_of(&answer);
            server.print(&answer, |_| format!("Worker {name} gets tasks of queue {queue} again."))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(server: &Server, queue: &TaskQueueId, quarantined: bool) -> Result<(), CommandError> {
    let refused = |error| server.error(&error);
    let only = quarantined.then_some(true);
    let (mut workers, mut token) = (Vec::new(), None::<String>);
    loop {
        let page = server.client.list_seen_workers(queue, only, token.as_deref()).await.map_err(refused)?;
        workers.extend_from_slice(entries(&page, "workers"));
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    if server.json {
        return server.print(&json!({ "workers": workers }), |_| String::new());
    }
    // Without the scope, the columns of sessions are empty.
    let sessions = match server.client.list_workers(queue).await {
        Ok(sessions) => json!(sessions),
        Err(error) if matches!(error.status(), Some(403 | 404)) => Value::Null,
        Err(error) => return Err(refused(error)),
    };
    server.print(&Value::Null, |_| rows(&workers, entries(&sessions, "workers")))
}

fn name_of(worker: &Value) -> String {
    format!("{}/{}", field(worker, "/workerGroup"), field(worker, "/workerId"))
}

fn rows(workers: &[Value], sessions: &[Value]) -> String {
    let sessions: HashMap<String, &Value> = sessions.iter().map(|session| (name_of(session), session)).collect();
    let none = Value::Null;
    let row = |worker: &Value| {
        let name = name_of(worker);
        let session = sessions.get(&name).copied().unwrap_or(&none);
        let runs = if session.is_null() {
            "-".to_owned()
        } else {
            format!("{} of {}", field(session, "/running"), field(session, "/capacity"))
        };
        [
            name,
            runs,
            if session["frozen"] == Value::Bool(true) { "yes" } else { "-" }.to_owned(),
            field(worker, "/quarantineUntil"),
            field(worker, "/lastDateActive"),
            field(worker, "/latestTask/taskId"),
        ]
    };
    let head = ["WORKER", "RUNNING", "FROZEN", "QUARANTINED UNTIL", "LAST ACTIVE", "LATEST TASK"];
    table(head, workers.iter().map(row))
}

fn shown(worker: &Value) -> String {
    let head = [
        ("worker", name_of(worker)),
        ("queue", field(worker, "/taskQueueId")),
        ("first active", field(worker, "/firstClaim")),
        ("last active", field(worker, "/lastDateActive")),
        ("quarantine", field(worker, "/quarantineUntil")),
        ("listed until", field(worker, "/expires")),
    ];
    let mut text: String = head.iter().map(|(name, value)| format!("{name:13}  {value}\n")).collect();
    let runs = entries(worker, "recentTasks");
    if !runs.is_empty() {
        let row = |run: &Value| [field(run, "/runId"), field(run, "/taskId")];
        text += &format!("\n{}", table(["RUN", "LATEST TASKS"], runs.iter().rev().map(row)));
    }
    let changes = entries(worker, "quarantineDetails");
    if !changes.is_empty() {
        let row = |change: &Value| {
            [
                field(change, "/updatedAt"),
                field(change, "/quarantineUntil"),
                field(change, "/clientId"),
                field(change, "/quarantineInfo"),
            ]
        };
        text +=
            &format!("\n{}", table(["CHANGED", "QUARANTINED UNTIL", "BY", "REASON"], changes.iter().rev().map(row)));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    #[derive(Debug, Parser)]
    struct Tenure {
        #[command(subcommand)]
        worker: WorkerCommand,
    }

    fn parse(words: &[&str]) -> Result<WorkerCommand, ErrorKind> {
        let parsed = Tenure::try_parse_from(["worker"].iter().chain(words));
        parsed.map(|tenure| tenure.worker).map_err(|error| error.kind())
    }

    #[test]
    fn wrong_arguments_are_usage_errors() {
        for (words, kind) in [
            (&["list"][..], ErrorKind::MissingRequiredArgument),
            (&["show", "p/w"], ErrorKind::MissingRequiredArgument),
            (&["show", "p/w", "linux-1"], ErrorKind::ValueValidation),
            (&["quarantine", "p/w", "g/w", "--until", "soon"], ErrorKind::ValueValidation),
            (&["lift", "p/w", "g/w", "--reason", "r"], ErrorKind::UnknownArgument),
        ] {
            assert_eq!(parse(words).err(), Some(kind), "{words:?}");
        }
        let Ok(WorkerCommand::Quarantine(args)) = parse(&["quarantine", "-p/w", "-g/w"]) else {
            panic!("a quarantine")
        };
        assert_eq!(args.until, When::In(TimeDelta::days(1)));
    }

    #[test]
    fn workers_are_shown_for_people() {
        let worker = json!({"workerGroup": "g", "workerId": "w", "lastDateActive": "A", "quarantineUntil": "Q",
            "latestTask": {"taskId": "T"}});
        let session = json!({"workerGroup": "g", "workerId": "w", "running": 1, "capacity": 4, "frozen": true});
        let columns = |sessions: &[Value]| {
            let text = rows(std::slice::from_ref(&worker), sessions);
            text.lines()
                .nth(1)
                .unwrap()
                .split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>()
                .join("|")
        };
        assert_eq!(columns(&[session]), "g/w|1 of 4|yes|Q|A|T");
        assert_eq!(columns(&[]), "g/w|-|-|Q|A|T");
        let mut one = worker.clone();
        one["quarantineDetails"] = json!([{"updatedAt": "U", "quarantineUntil": "Q", "clientId": "root",
            "quarantineInfo": "disk\u{1b}"}]);
        let text = shown(&one);
        assert!(
            text.starts_with("worker         g/w\n") && text.ends_with("Q                  root  disk\u{fffd}\n"),
            "{text}"
        );
    }
}
