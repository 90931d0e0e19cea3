//! `tenure queue`: counts, policies and pauses of queues.

mod dead_letters;
mod keys;
mod policy;
mod statistics;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;
use tenure_api::ids::TaskQueueId;
use tenure_client::PauseRequest;

use super::http::{CommandError, Server, entries, field};
use super::print::table;
use super::when::{When, parse_when};
use dead_letters::{DeadLettersArgs, RedriveArgs};
use keys::KeyCommand;
use policy::PolicyCommand;
use statistics::StatisticsArgs;

#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List all queues with their counts
    List,
    /// Show the counts of one queue by the state of its tasks, and its pause
    Show(QueueArg),
    /// Show the numbers of a queue, or of all queues together, over time
    Statistics(StatisticsArgs),
    /// Show, set and delete the policy of a queue
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// List the keys of a queue, with the runs of each
    Keys(QueueArg),
    /// Show, set and delete the rules that override the policy for one key
    #[command(subcommand)]
    Key(KeyCommand),
    /// Give workers no tasks of a queue until it is resumed
    Pause(PauseArgs),
    /// Give workers the tasks of a queue again
    Resume(QueueArg),
    /// List the failed tasks of a queue that wait to be run again
    DeadLetters(DeadLettersArgs),
    /// Run failed tasks of a queue again
    Redrive(RedriveArgs),
    /// Replace the server that schedules a queue, as if that server were lost
    ReplaceScheduler(QueueArg),
}

#[derive(Debug, Args)]
pub struct QueueArg {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    pub queue: TaskQueueId,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    pub queue: TaskQueueId,
    /// The reason, for people
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// When the queue resumes by itself: after a duration such as 2h, or at a time such as
    /// 2027-01-31T12:00:00Z [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub until: Option<When>,
}

pub async fn run(server: &Server, command: QueueCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        QueueCommand::List => {
            let answer = client.list_queues().await.map_err(refused)?;
            server.print(&answer, |answer| counts(entries(answer, "queues")))?;
        }
        QueueCommand::Show(QueueArg { queue }) => {
            let mut answer = client.get_queue(&queue).await.map_err(refused)?;
            // For programs that read Taskcluster's counts here.
            for (name, in_taskcluster) in [("pending", "pendingTasks"), ("claimed", "claimedTasks")] {
                let number = answer[name].clone();
                if let Some(fields) = answer.as_object_mut() {
                    fields.insert(in_taskcluster.to_owned(), number);
                }
            }
            server.print(&answer, shown)?;
        }
        QueueCommand::Statistics(args) => statistics::run(server, args).await?,
        QueueCommand::Policy(command) => policy::run(server, command).await?,
        QueueCommand::Keys(QueueArg { queue }) => keys::list(server, &queue).await?,
        QueueCommand::Key(command) => keys::run(server, command).await?,
        QueueCommand::Pause(PauseArgs { queue, reason, until }) => {
            let pause = PauseRequest { reason, until: server.time(until).await? };
            server.print(&client.pause_queue(&queue, &pause).await.map_err(refused)?, paused)?;
        }
        QueueCommand::Resume(QueueArg { queue }) => {
            server.print(&client.resume_queue(&queue).await.map_err(refused)?, paused)?;
        }
        QueueCommand::DeadLetters(args) => dead_letters::list(server, args).await?,
        QueueCommand::Redrive(args) => return dead_letters::redrive(server, args).await,
        QueueCommand::ReplaceScheduler(QueueArg { queue }) => {
            server.print(&client.replace_scheduler(&queue).await.map_err(refused)?, replaced)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn counts(queues: &[Value]) -> String {
    let fields = [
        "/pendingTasks",
        "/waitingTasks",
        "/runnableTasks",
        "/claimedTasks",
        "/delayedTasks",
        "/paused",
        "/taskQueueId",
    ];
    let head = ["PENDING", "WAITING", "RUNNABLE", "CLAIMED", "DELAYED", "PAUSED", "QUEUE"];
    table(head, queues.iter().map(|queue| fields.map(|at| field(queue, at))))
}

fn shown(queue: &Value) -> String {
    let counts = ["pending", "ready", "waiting", "assigned", "delayed", "claimed", "runnable"];
    let mut rows = vec![("queue", field(queue, "/taskQueueId"))];
    rows.extend(counts.map(|name| (name, field(queue, &format!("/{name}")))));
    if let Some(limits) = queue["backlog"]["limit"].as_object() {
        let used = |(name, limit): (&String, &Value)| format!("{} of {limit} {name}", queue["backlog"][name]);
        rows.push(("backlog", limits.iter().map(used).collect::<Vec<_>>().join(", ")));
    }
    if queue["deadLetters"].as_i64().is_some_and(|letters| letters > 0) {
        rows.push(("dead letters", field(queue, "/deadLetters")));
    }
    rows.push(("policy version", field(queue, "/policyVersion")));
    let pause = &queue["pause"];
    rows.push(("paused", if pause.is_null() { "no".to_owned() } else { paused_by(pause, "/by") }));
    rows.into_iter().map(|(name, value)| format!("{name:15}  {value}\n")).collect()
}

fn paused(answer: &Value) -> String {
    let queue = field(answer, "/taskQueueId");
    if answer["paused"] != Value::Bool(true) {
        return format!("Queue {queue} is not paused.");
    }
    format!("Queue {queue} was paused {}.", paused_by(answer, "/clientId"))
}

/// `by` points to the client.
fn paused_by(pause: &Value, by: &str) -> String {
    let reason = if pause["reason"].is_null() { String::new() } else { format!(" ({})", field(pause, "/reason")) };
    let until = if pause["until"].is_null() { "it is resumed".to_owned() } else { field(pause, "/until") };
    format!("by {} at {}{reason}, until {until}", field(pause, by), field(pause, "/since"))
}

fn replaced(answer: &Value) -> String {
    let (queue, term) = (field(answer, "/taskQueueId"), field(answer, "/term"));
    match answer["serverId"].as_str() {
        Some(server) => format!("Server {server} is the scheduler of queue {queue} in term {term}."),
        None => format!("Queue {queue} has no scheduler: start a server with a --scheduler-weight above 0."),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Tenure {
        #[command(subcommand)]
        queue: QueueCommand,
    }

    #[test]
    fn wrong_arguments_are_usage_errors() {
        for (words, kind) in [
            (&["policy"][..], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["policy", "show"], ErrorKind::MissingRequiredArgument),
            (&["policy", "set", "p/w"], ErrorKind::MissingRequiredArgument),
            (&["policy", "set", "p/w", "--merge"], ErrorKind::MissingRequiredArgument),
            (&["policy", "set", "p/w", "--burst", "5"], ErrorKind::MissingRequiredArgument),
            (&["policy", "set", "p/w", "--delivery", "twice"], ErrorKind::InvalidValue),
            (&["policy", "set", "p/w", "--fair=often"], ErrorKind::InvalidValue),
            (&["policy", "change", "p/w"], ErrorKind::InvalidSubcommand),
            (&["keys"], ErrorKind::MissingRequiredArgument),
            (&["key"], ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            (&["key", "set", "p/w"], ErrorKind::MissingRequiredArgument),
            (&["key", "set", "p/w", "k", "--rate", "5"], ErrorKind::ValueValidation),
            (&["key", "set", "p/w", "k", "--burst", "5"], ErrorKind::MissingRequiredArgument),
            (&["key", "delete", "p/w"], ErrorKind::MissingRequiredArgument),
            (&["pause"], ErrorKind::MissingRequiredArgument),
            (&["pause", "p_w"], ErrorKind::ValueValidation),
            (&["pause", "p/w", "--until", "soon"], ErrorKind::ValueValidation),
            (&["resume", "p/w", "--reason", "x"], ErrorKind::UnknownArgument),
            (&["statistics", "p/w", "--since", "soon"], ErrorKind::ValueValidation),
            (&["statistics", "p/w", "--step", "1.5"], ErrorKind::ValueValidation),
            (&["replace-scheduler"], ErrorKind::MissingRequiredArgument),
            (&["dead-letters"], ErrorKind::MissingRequiredArgument),
            (&["dead-letters", "p/w", "--reason", "boredom"], ErrorKind::ValueValidation),
            (&["dead-letters", "p/w", "--before", "2h"], ErrorKind::ValueValidation),
            (&["dead-letters", "p/w", "--limit", "0"], ErrorKind::ValueValidation),
            (&["redrive"], ErrorKind::MissingRequiredArgument),
            (&["redrive", "p/w", "task"], ErrorKind::ValueValidation),
            (&["redrive", "p/w", "9HrBC1jMQ3KlZw4CssPUeQ", "--limit", "5"], ErrorKind::ArgumentConflict),
            (&["redrive", "p/w", "--copy", "soon"], ErrorKind::ValueValidation),
        ] {
            let parsed = Tenure::try_parse_from(["queue"].iter().chain(words));
            assert_eq!(parsed.map_err(|error| error.kind()).err(), Some(kind), "{words:?}");
        }
        for words in [
            &["policy", "set", "-p/w", "-"][..],
            &["policy", "set", "p/w", "--fair", "--merge"],
            &["policy", "set", "p/w", "-", "--rate", "5/1h", "--burst", "2"],
            &["key", "set", "p/w", "-k", "--rate", "5/1h", "--burst", "2"],
            &["pause", "-p/w", "--reason", "r", "--until", "1h"],
            &["statistics"],
            &["statistics", "-p/w", "--since", "24h", "--step", "10m"],
            &["dead-letters", "-p/w", "--reason", "claim-expired", "--before", "2027-01-31T12:00:00Z"],
            &["redrive", "-p/w", "--reason", "failed", "--limit", "5", "--copy", "1d"],
            &["redrive", "p/w", "9HrBC1jMQ3KlZw4CssPUeQ", "--copy", "60"],
        ] {
            assert!(Tenure::try_parse_from(["queue"].iter().chain(words)).is_ok(), "{words:?}");
        }
    }

    #[test]
    fn policy_and_pause_are_shown_for_people() {
        let text = policy::shown(&json!({"taskQueueId": "p/w", "version": 3, "updated": "2026-01-31T12:00:00.000Z",
            "clientId": "root", "refiling": 0, "policy": {"delivery": "at-most-once", "retryDelay": {"first": 5}}}));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "queue            p/w");
        assert_eq!(lines[1], "version          3");
        assert_eq!(lines[5..], ["  delivery       at-most-once", "  retryDelay     {\"first\":5}"]);
        assert_eq!(paused(&json!({"taskQueueId": "p/w", "paused": false})), "Queue p/w is not paused.");
        let mut answer = json!({"taskQueueId": "p/w", "term": 4, "serverId": "S"});
        assert_eq!(replaced(&answer), "Server S is the scheduler of queue p/w in term 4.");
        answer.as_object_mut().unwrap().remove("serverId");
        assert!(replaced(&answer).starts_with("Queue p/w has no scheduler"));
        let mut pause = json!({"taskQueueId": "p/w", "paused": true, "since": "S", "clientId": "root"});
        assert_eq!(paused(&pause), "Queue p/w was paused by root at S, until it is resumed.");
        pause["reason"] = "disk".into();
        pause["until"] = "U".into();
        assert_eq!(paused(&pause), "Queue p/w was paused by root at S (disk), until U.");
    }

    #[test]
    fn counts_are_shown_for_people() {
        let mut queue = json!({"taskQueueId": "p/w", "pending": 5, "ready": 2, "waiting": 2, "assigned": 1, "delayed": 4,
            "claimed": 3, "runnable": 6});
        let text = shown(&queue);
        let lines: Vec<&str> = text.lines().collect();
        let expected = ["queue            p/w", "pending          5", "ready            2", "waiting          2"];
        assert_eq!(lines[..4], expected);
        assert_eq!(lines[4..7], ["assigned         1", "delayed          4", "claimed          3"]);
        assert_eq!(lines[7..], ["runnable         6", "policy version   -", "paused           no"]);
        queue["pause"] = json!({"since": "S", "by": "root", "reason": "disk"});
        assert!(shown(&queue).ends_with("paused           by root at S (disk), until it is resumed\n"));
        queue["backlog"] = json!({"tasks": 9, "limit": {"tasks": 1000}});
        assert_eq!(shown(&queue).lines().nth(8), Some("backlog          9 of 1000 tasks"));
        queue["backlog"] = json!({"tasks": 9, "bytes": 70, "limit": {"bytes": 500}});
        assert_eq!(shown(&queue).lines().nth(8), Some("backlog          70 of 500 bytes"));
        let listed = json!({"taskQueueId": "p/w", "pendingTasks": 5, "waitingTasks": 2, "claimedTasks": 3, "delayedTasks": 4,
            "runnableTasks": 0, "paused": "S"});
        let expected = "PENDING  WAITING  RUNNABLE  CLAIMED  DELAYED  PAUSED  QUEUE\n\
                        5        2        0         3        4        S       p/w\n";
        assert_eq!(counts(&[listed]), expected);
    }
}
