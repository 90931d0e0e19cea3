//! `tenure task`.

mod artifacts;
mod command;
pub(super) mod create;
pub(super) mod id;
mod list;
mod logs;
mod many;
mod options;
pub(super) mod outlook;
pub(super) mod progress;
mod run;
pub(super) mod shown;
mod sink;
mod stalled;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::states::{OnDuplicate, Priority};
use tenure_client::{ReleaseRequest, TaskChange};
use tenure_domain::policy::why::words;
use tenure_domain::verdict::Report;

use artifacts::{ArtifactsArgs, DownloadArgs};
use command::CommandArgs;
use id::TaskRef;
use list::ListArgs;
use many::{ManyArgs, PriorityArgs};
use options::TaskOptions;
use outlook::Outlook;

use super::http::{CommandError, Server, entries, field};
use super::print::{pretty, table};
use super::when::{parse_date, parse_seconds};

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Create a task that runs a command, or tasks from a file
    Create(Box<CreateArgs>),
    /// Create a task that runs a command, print the command's output as it comes, and exit with its
    /// exit code
    Run(Box<RunArgs>),
    /// Print the log of a task
    #[command(visible_alias = "log")]
    Logs(LogArgs),
    /// Wait until tasks are resolved, or certain not to run; fails unless all of them were
    /// completed
    Wait {
        /// The ids of the tasks, or their first 8 characters
        #[arg(required = true)]
        tasks: Vec<TaskRef>,
    },
    /// Show a task
    Show {
        /// The id of the task, or its first 8 characters
        #[arg(allow_hyphen_values = true)]
        task: TaskRef,
    },
    /// Cancel tasks by their ids, or all that meet conditions; then shows their number and asks, and
    /// fails if a task was refused
    Cancel(Box<ManyArgs>),
    /// Run resolved tasks once more, by their ids or by conditions, as `cancel` does
    Rerun(Box<ManyArgs>),
    /// Change the priority of a task, or of all tasks that meet conditions
    Priority(Box<PriorityArgs>),
    /// Explain why a task is not running, or how it ended
    Why {
        /// The id of the task, or its first 8 characters
        #[arg(allow_hyphen_values = true)]
        task: TaskRef,
    },
    /// Release a claimed run; the next run uses up no retry
    Release(ReleaseArgs),
    /// Print the result that the worker of a task reported; fails with the failure if there is none
    Result {
        /// The id of the task, or its first 8 characters
        #[arg(allow_hyphen_values = true)]
        task: TaskRef,
        /// The number of the run [default: the last one]
        #[arg(long)]
        run: Option<RunId>,
    },
    /// List the artifacts of a run
    Artifacts(ArtifactsArgs),
    /// Download an artifact of a run
    Download(DownloadArgs),
    /// Send a command to the worker of a task, or show the pending one
    Command(CommandArgs),
    /// List tasks by queue, state, name and other conditions, or the tasks of a group
    List(ListArgs),
}

impl TaskCommand {
    /// True if the command reacts to signals itself.
    pub(super) fn handles_signals(&self) -> bool {
        match self {
            Self::Run(args) => args.cancel_on_interrupt,
            Self::Download(_) => true,
            _ => false,
        }
    }
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The queue, as `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(short, long, allow_hyphen_values = true, required_unless_present = "file", conflicts_with = "file")]
    pub queue: Option<TaskQueueId>,
    /// A file with the body of the request, one task or several under "tasks"; a dash is standard
    /// input
    #[arg(long, value_name = "FILE", conflicts_with = "TaskOptions")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub options: TaskOptions,
    /// Wait until all created tasks are resolved, as `tenure task wait` does
    #[arg(long)]
    pub wait: bool,
    /// The command and its arguments, after two dashes
    #[arg(last = true, required_unless_present = "file", conflicts_with = "file")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The queue, as `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(short, long, allow_hyphen_values = true)]
    pub queue: TaskQueueId,
    #[command(flatten)]
    pub options: TaskOptions,
    /// Cancel the task if this command is interrupted, by SIGINT (Ctrl-C), SIGTERM or SIGHUP
    #[arg(long)]
    pub cancel_on_interrupt: bool,
    /// The command and its arguments, after two dashes
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

impl From<RunArgs> for CreateArgs {
    fn from(args: RunArgs) -> Self {
        let RunArgs { queue, options, cancel_on_interrupt: _, command } = args;
        Self { queue: Some(queue), file: None, options, wait: false, command }
    }
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// The id of the task, or its first 8 characters
    #[arg(allow_hyphen_values = true)]
    pub task: TaskRef,
    /// Continue until the run has ended
    #[arg(short, long)]
    pub follow: bool,
    /// The number of the run [default: the last one]
    #[arg(long)]
    pub run: Option<RunId>,
}

#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// The id of the task, or its first 8 characters
    #[arg(allow_hyphen_values = true)]
    pub task: TaskRef,
    /// The number of the run
    pub run: RunId,
    /// Delay of the next run: seconds, or a duration such as 2h, up to 366d [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, conflicts_with = "not_before")]
    pub delay: Option<i64>,
    /// Earliest start of the next run, such as 2027-01-31T12:00:00Z
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub not_before: Option<Timestamp>,
}

fn parse_priority(text: &str) -> Result<Priority, String> {
    let rule = || "choose one of highest, very-high, high, medium, low, very-low, lowest".to_owned();
    serde_json::from_value(json!(text)).map_err(|_| rule())
}

pub(super) fn parse_on_duplicate(text: &str) -> Result<OnDuplicate, String> {
    serde_json::from_value(json!(text)).map_err(|_| "choose one of reject, coalesce, queue".to_owned())
}

/// Rearranges ids beginning with a dash, which clap would parse as options. Commands with one id
/// configure clap to accept them; with several ids, clap would then take options for ids too.
#[must_use]
pub fn shelter_ids(args: Vec<OsString>) -> Vec<OsString> {
    let text = |word: &OsString| word.to_str().unwrap_or_default().to_owned();
    let end = args.iter().position(|word| word == "--").unwrap_or(args.len());
    let mut before: Vec<OsString> = args;
    let behind = before.split_off(end);
    if !matches!(verb(&before).as_deref(), Some("wait" | "cancel" | "rerun" | "priority")) {
        return [repeat_after(before), behind].concat();
    }
    // The value of an option stays in place, even if it looks like an id.
    let (mut ids, mut others, mut is_value) = (Vec::new(), Vec::new(), false);
    for word in before {
        let text = text(&word);
        let is_id = is_id(&text) && !is_value;
        is_value = takes_value(&text) && !is_value;
        if is_id { ids.push(word) } else { others.push(word) }
    }
    [others, vec!["--".into()], ids, behind.into_iter().skip(1).collect()].concat()
}

/// Returns the subcommand of `tenure task`.
pub(crate) fn verb(args: &[OsString]) -> Option<String> {
    let mut is_value = false;
    let words = args.iter().map(|word| word.to_string_lossy().into_owned());
    words.skip_while(|word| word != "task").skip(1).find(|word| {
        let found = !is_value && !word.starts_with('-');
        is_value = takes_value(word) && !is_value;
        found
    })
}

/// True if the next word is the value of `word`, before a subcommand or among several tasks.
fn takes_value(word: &str) -> bool {
    word.starts_with("--") && !matches!(word, "--json" | "--yes") && !word.contains('=') && !is_id(word)
}

fn is_id(word: &str) -> bool {
    word.parse::<TaskId>().is_ok()
}

/// Writes `--after` before each id that follows it: then it takes one value, which may begin with a
/// dash.
fn repeat_after(args: Vec<OsString>) -> Vec<OsString> {
    const AFTER: &str = "--after";
    let mut repeated = Vec::with_capacity(args.len());
    // None outside the option; inside, true once its first value has been seen.
    let mut within: Option<bool> = None;
    for word in args {
        let text = word.to_str().unwrap_or_default();
        match within {
            Some(true) if text.parse::<TaskRef>().is_ok() => repeated.push(AFTER.into()),
            Some(false) => within = Some(true),
            _ if text == AFTER => within = Some(false),
            _ => within = text.starts_with("--after=").then_some(true),
        }
        repeated.push(word);
    }
    repeated
}

pub async fn run(server: &Server, command: TaskCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    match command {
        TaskCommand::Create(mut args) => {
            args.options.find_tasks(server).await?;
            return create::create(server, *args).await;
        }
        TaskCommand::Run(mut args) => {
            args.options.find_tasks(server).await?;
            return run::run(server, *args).await;
        }
        TaskCommand::Command(args) => return command::command(server, &args).await,
        TaskCommand::Artifacts(args) => artifacts::list(server, &args).await?,
        TaskCommand::Download(args) => return artifacts::download(server, &args).await,
        TaskCommand::Logs(args) => return logs::logs(server, &args).await,
        TaskCommand::Wait { tasks } => return wait(server, &TaskRef::find_all(server, &tasks).await?).await,
        TaskCommand::Show { task } => {
            let task = task.find(server).await?;
            server.print(&shown::read(server, task).await?, |answer| shown::details(server, answer))?;
        }
        TaskCommand::Cancel(args) => return many::run(server, TaskChange::Cancel, *args).await,
        TaskCommand::Rerun(args) => return many::run(server, TaskChange::Rerun, *args).await,
        TaskCommand::Priority(args) => return many::change_priority(server, *args).await,
        TaskCommand::Why { task } => {
            let task = task.find(server).await?;
            let answer = server.client.why(task).await.map_err(refused)?;
            let why = serde_json::from_value(answer.clone()).map_err(|error| server.strange(&error))?;
            // Contains foreign text, such as the reason of a pause.
            let sentences = words(&why).into_iter().map(|sentence| sentence.replace(char::is_control, "\u{fffd}"));
            server.print(&answer, |_| sentences.collect::<Vec<_>>().join("\n"))?;
        }
        TaskCommand::Release(ReleaseArgs { task, run, delay, not_before }) => {
            let task = task.find(server).await?;
            let release = ReleaseRequest { delay, not_before };
            let answer = server.client.release_run(task, run, &release).await.map_err(refused)?;
            server.print(&answer, |answer| states(std::slice::from_ref(answer)))?;
        }
        TaskCommand::Result { task, run } => {
            let task = task.find(server).await?;
            let answer = server.client.get_result(task, run).await.map_err(refused)?;
            if answer.get("result").is_none() && !server.json {
                return Err(CommandError::Refused(no_result(task, &answer)));
            }
            server.print(&answer, |answer| pretty(&answer["result"]))?;
        }
        TaskCommand::List(args) => list::list(server, args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn wait(server: &Server, tasks: &[TaskId]) -> Result<ExitCode, CommandError> {
    let known = Outlook::new(server);
    known.read(tasks).await?;
    // Having answered once, the server may be away for a while.
    let server = &server.patient();
    let outlook = known.asking(server);
    for group in outlook.groups(tasks).into_iter().take(progress::LINES_MAX) {
        progress::announce(server, group);
    }
    let answers = progress::wait(server, &outlook, tasks).await?;
    let code = outcome(&answers);
    server.print(&json!({ "tasks": answers }), |answer| states(entries(answer, "tasks")))?;
    Ok(code)
}

/// Changes tasks one after the other. Changes made before a refusal remain and are printed.
async fn change(server: &Server, tasks: &[TaskRef], change: TaskChange) -> Result<(), CommandError> {
    let tasks = TaskRef::find_all(server, tasks).await?;
    let mut answers = Vec::new();
    let mut failure = None;
    for task in tasks {
        match server.client.change_task(task, change).await {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                failure = Some(server.error(&error));
                break;
            }
        }
    }
    if !answers.is_empty() {
        server.print(&json!({ "tasks": answers }), |answer| states(entries(answer, "tasks")))?;
    }
    failure.map_or(Ok(()), Err)
}

fn outcome(answers: &[Value]) -> ExitCode {
    let completed = answers.iter().all(|answer| field(answer, "/status/state") == "completed");
    if completed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn no_result(task: TaskId, answer: &Value) -> String {
    let why = Report::of(&answer["failure"], &Value::Null).failure;
    let why = why.map_or_else(String::new, |why| format!(", but failed: {why}"));
    format!("run {} of task {task} has no result{why}", field(answer, "/runId"))
}

fn runs(entry: &Value) -> String {
    entries(&entry["status"], "runs").len().to_string()
}

fn reason(entry: &Value) -> String {
    entries(&entry["status"], "runs").last().map_or_else(|| "-".to_owned(), |run| field(run, "/reasonResolved"))
}

fn states(answers: &[Value]) -> String {
    let row =
        |entry: &Value| [field(entry, "/status/taskId"), field(entry, "/status/state"), runs(entry), reason(entry)];
    table(["TASK", "STATE", "RUNS", "REASON"], answers.iter().map(row))
}

#[cfg(test)]
mod tests;
