//! `tenure schedule`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::ids::TaskQueueId;
use tenure_api::states::{CatchUp, OnDuplicate};

use super::http::{CommandError, Server, entries, field};
use super::input;
use super::print::table;
use super::task::create::command_task;
use super::task::parse_on_duplicate;
use super::when::parse_seconds;

#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Store a schedule, in place of the one of its name
    Set(Box<SetArgs>),
    /// List schedules, with the next time and the last outcome of each
    List,
    /// Show a schedule, with its next times and its last outcome
    Show(NameArg),
    /// Create a task of a schedule now, even if it is paused
    Trigger(NameArg),
    /// Create no tasks of a schedule until it is resumed
    Pause(NameArg),
    /// Create the tasks of a schedule again, from its next time on
    Resume(NameArg),
    /// Delete a schedule; its tasks stay
    Delete(NameArg),
}

#[derive(Debug, Args)]
pub struct NameArg {
    /// The name of the schedule
    pub name: String,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// The name of the schedule
    pub name: String,
    /// When: minute, hour, day of month, month and day of week, such as '0 3 * * *'; or a word such
    /// as @daily
    #[arg(long, value_name = "EXPR")]
    pub cron: String,
    /// The time zone, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub timezone: Option<String>,
    /// The queue, as `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(short, long, allow_hyphen_values = true, required_unless_present = "task", conflicts_with = "task")]
    pub queue: Option<TaskQueueId>,
    /// A file with the task as JSON, as in `tenure task create --file`, but without dates and
    /// dependencies; a dash is standard input
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// A name that at most one unresolved task of the queue may have: no task is created while the
    /// last one has not ended
    #[arg(long, value_name = "NAME", conflicts_with = "task")]
    pub unique: Option<String>,
    /// While the last task has not ended: reject and coalesce create none, queue lets the next one
    /// wait [default: as the policy of the queue says, or reject]
    #[arg(long, value_name = "WHAT", value_parser = parse_on_duplicate, requires = "unique")]
    pub on_duplicate: Option<OnDuplicate>,
    /// From the creation of each task to its deadline: seconds, or a duration such as 2h, from 60s to
    /// 366d [default: as the policy of the queue says, or 366 days]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub deadline_after: Option<i64>,
    /// Of times at which no server ran: none creates no task, last one for the latest, all one for
    /// each of up to 100 [default: last]
    #[arg(long, value_name = "WHICH", value_parser = parse_catch_up)]
    pub catch_up: Option<CatchUp>,
    /// The command and its arguments, after two dashes
    #[arg(last = true, required_unless_present = "task", conflicts_with = "task")]
    pub command: Vec<String>,
}

fn parse_catch_up(text: &str) -> Result<CatchUp, String> {
    serde_json::from_value(json!(text)).map_err(|_| "choose one of none, last, all".to_owned())
}

pub async fn run(server: &Server, command: ScheduleCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        ScheduleCommand::Set(args) => {
            let wanted = definition(&args)?;
            server.print(&client.set_schedule(&args.name, &wanted).await.map_err(refused)?, shown)?;
        }
        ScheduleCommand::List => list(server).await?,
        ScheduleCommand::Show(NameArg { name }) => {
            server.print(&client.get_schedule(&name).await.map_err(refused)?, shown)?;
        }
        ScheduleCommand::Trigger(NameArg { name }) => {
            let task = client.trigger_schedule(&name).await.map_err(refused)?.task_id();
            server.print(&json!({ "taskId": task }), |_| format!("Schedule {name} created task {task}."))?;
        }
        ScheduleCommand::Pause(NameArg { name }) => {
            let answer = client.pause_schedule(&name).await.map_err(refused)?;
            server.print(&answer, |_| format!("Schedule {name} is paused."))?;
        }
        ScheduleCommand::Resume(NameArg { name }) => {
            let answer = client.resume_schedule(&name).await.map_err(refused)?;
            server.print(&answer, |answer| format!("Schedule {name} is not paused. Next: {}.", next(answer)))?;
        }
        ScheduleCommand::Delete(NameArg { name }) => {
            let answer = client.delete_schedule(&name).await.map_err(refused)?;
            server.print(&answer, |_| format!("Schedule {name} is deleted."))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn definition(args: &SetArgs) -> Result<Value, CommandError> {
    let task = match &args.task {
        Some(file) => input::read_json("--task", file)?,
        None => command_task(args.queue.as_ref(), &args.command, args.unique.as_deref(), args.on_duplicate),
    };
    let mut body = json!({ "cron": args.cron, "task": task });
    if let Some(timezone) = &args.timezone {
        body["timezone"] = json!(timezone);
    }
    if let Some(seconds) = args.deadline_after {
        body["deadlineAfter"] = json!(seconds);
    }
    if let Some(catch_up) = args.catch_up {
        body["catchUp"] = json!(catch_up);
    }
    Ok(body)
}

async fn list(server: &Server) -> Result<(), CommandError> {
    let (mut schedules, mut token) = (Vec::new(), None::<String>);
    loop {
        let page = server.client.list_schedules(token.as_deref()).await.map_err(|error| server.error(&error))?;
        schedules.extend_from_slice(entries(&page, "schedules"));
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    server.print(&json!({ "schedules": schedules }), |answer| rows(entries(answer, "schedules")))
}

fn rows(schedules: &[Value]) -> String {
    let row = |schedule: &Value| {
        [
            field(schedule, "/name"),
            field(schedule, "/cron"),
            field(schedule, "/timezone"),
            next(schedule),
            field(schedule, "/last/at"),
            field(schedule, "/last/outcome"),
            field(schedule, "/last/taskId"),
        ]
    };
    table(["SCHEDULE", "CRON", "TIMEZONE", "NEXT", "LAST", "OUTCOME", "TASK"], schedules.iter().map(row))
}

fn next(schedule: &Value) -> String {
    if is_paused(schedule) { "paused".to_owned() } else { field(schedule, "/next/0") }
}

fn is_paused(schedule: &Value) -> bool {
    schedule["paused"] == Value::Bool(true)
}

fn shown(schedule: &Value) -> String {
    let of = |pointer: &str| field(schedule, pointer);
    let mut rows = vec![
        ("schedule", of("/name")),
        ("cron", of("/cron")),
        ("timezone", of("/timezone")),
        ("paused", if is_paused(schedule) { "yes" } else { "no" }.to_owned()),
        ("queue", of("/task/taskQueueId")),
        ("payload", of("/task/payload")),
        ("unique", of("/task/options/unique")),
        ("catch up", of("/catchUp")),
        ("client", of("/clientId")),
    ];
    rows.extend(entries(schedule, "next").iter().map(|time| ("next", field(time, ""))));
    let last = &schedule["last"];
    if !last.is_null() {
        let task = last["taskId"].as_str().map(|_| format!(", task {}", field(last, "/taskId"))).unwrap_or_default();
        rows.push(("last", format!("{} {}{task}", field(last, "/at"), field(last, "/outcome"))));
    }
    if !schedule["error"].is_null() {
        rows.push(("error", of("/error")));
    }
    rows.into_iter().map(|(name, value)| format!("{name:8}  {value}\n")).collect()
}

#[cfg(test)]
mod tests;
