//! `tenure job`, and the commands that start jobs: they show the number of tasks, ask, and follow
//! the job to its end.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{JobId, TaskGroupId, TaskQueueId};
use tenure_api::states::{JobAction, Priority, ReasonResolved};
use tenure_api::tasks::{ListState, TaskFilter};
use tenure_client::StartJobRequest;

use super::http::{CommandError, Server, entries, field};
use super::print::{complain, plain, print_bytes_aside, table};
use super::when::{When, parse_when};

/// Between two reads of a job's progress.
const POLL: Duration = Duration::from_millis(500);
/// Options of [`FilterArgs`].
pub(super) const CONDITIONS: [&str; 11] =
    ["queue", "group", "state", "reason", "worker", "name", "tag", "owner", "project", "since", "until"];

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List jobs, newest first
    List {
        /// The number of jobs to show
        #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show a job and its refused tasks
    Show {
        /// The whole id of the job
        #[arg(allow_hyphen_values = true)]
        job: JobId,
    },
    /// Stop a job; changed tasks stay changed
    Stop {
        /// The whole id of the job
        #[arg(allow_hyphen_values = true)]
        job: JobId,
    },
}

/// Conditions for the tasks of a job.
#[derive(Debug, Args, Default, PartialEq, Eq)]
pub struct FilterArgs {
    /// All tasks of this queue that meet the other conditions, `<provisionerId>/<workerType>`
    #[arg(long, allow_hyphen_values = true)]
    pub queue: Option<TaskQueueId>,
    /// Only tasks of this group
    #[arg(long, allow_hyphen_values = true)]
    pub group: Option<TaskGroupId>,
    /// Only tasks in this state: unscheduled, pending, held, running, completed, failed or exception
    #[arg(long, value_parser = parse_state)]
    pub state: Option<ListState>,
    /// Only tasks that ended for this reason, such as claim-expired
    #[arg(long, value_parser = parse_reason)]
    pub reason: Option<ReasonResolved>,
    /// Only tasks whose last run this worker had
    #[arg(long, value_name = "GROUP/ID", allow_hyphen_values = true)]
    pub worker: Option<String>,
    /// Only tasks with this text in their names
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only tasks with this tag
    #[arg(long, value_name = "KEY=VALUE")]
    pub tag: Option<String>,
    /// Only tasks of this owner
    #[arg(long)]
    pub owner: Option<String>,
    /// Only tasks of this project
    #[arg(long, allow_hyphen_values = true)]
    pub project: Option<String>,
    /// Only tasks that were created since this time, or within this duration, such as 2h; failed
    /// ones, if they failed since then
    #[arg(long, value_name = "TIME", value_parser = parse_ago)]
    pub since: Option<When>,
    /// Only tasks until this time, likewise
    #[arg(long, value_name = "TIME", value_parser = parse_ago)]
    pub until: Option<When>,
}

/// A job to start.
#[derive(Debug, Args, Default)]
pub struct JobArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Do not ask before many tasks are changed
    #[arg(long)]
    pub yes: bool,
}

fn parse_state(text: &str) -> Result<ListState, String> {
    let words = ListState::ALL.map(ListState::as_str).join(", ");
    serde_json::from_value(json!(text)).map_err(|_| format!("choose one of {words}"))
}

fn parse_reason(text: &str) -> Result<ReasonResolved, String> {
    serde_json::from_value(json!(text)).map_err(|_| {
        let words: Vec<&str> = ReasonResolved::ALL.iter().map(|reason| reason.as_str()).collect();
        format!("write one of {}", words.join(", "))
    })
}

/// Parses a date, or a duration before now.
fn parse_ago(text: &str) -> Result<When, String> {
    Ok(match parse_when(text)? {
        When::In(ago) => When::In(-ago),
        When::At(time) => When::At(time),
    })
}

impl FilterArgs {
    /// True if there is a condition.
    pub(super) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    async fn read(self, server: &Server) -> Result<TaskFilter, CommandError> {
        let (since, until) = (server.time(self.since).await?, server.time(self.until).await?);
        Ok(TaskFilter {
            task_queue_id: self.queue.map(|queue| queue.to_string()),
            task_group_id: self.group.map(|group| group.to_string()),
            state: self.state,
            reason: self.reason.map(|reason| reason.to_string()),
            worker: self.worker,
            name: self.name,
            tag: self.tag,
            owner: self.owner,
            project_id: self.project,
            since: since.map(Timestamp::time),
            until: until.map(Timestamp::time),
        })
    }
}

/// Starts a job after a question, and follows it. False if a task was refused, or the job ended
/// early.
pub(super) async fn change_many(
    server: &Server,
    action: JobAction,
    priority: Option<Priority>,
    args: JobArgs,
) -> Result<bool, CommandError> {
    let refused = |error| server.error(&error);
    let JobArgs { filter, yes } = args;
    let request = StartJobRequest { priority, ..StartJobRequest::new(action, filter.read(server).await?) };
    let counting = StartJobRequest { dry_run: true, ..request.clone() };
    let counted = server.client.start_job(&counting).await.map_err(refused)?;
    if counted["found"] == 0 && counted["more"] == false {
        server.print(&counted, |_| "No task matches.".to_owned())?;
        return Ok(true);
    }
    if !yes && !ask(&question(action, priority, &counted))? {
        return Err(CommandError::Refused("nothing was changed".to_owned()));
    }
    // With an id, a repeated request starts one job.
    let id = JobId::from_random(uuid::Uuid::new_v4().into_bytes());
    let request = StartJobRequest { job_id: Some(id), ..request };
    server.client.start_job(&request).await.map_err(refused)?;
    complain(&format!("job {id} has started; `tenure job stop {id}` stops it"));
    let ended = follow(&server.patient(), id).await?;
    server.print(&ended, details)?;
    Ok(ended["state"] == "completed" && ended["refusedCount"] == 0)
}

pub(super) fn exit_code(is_clean: bool) -> ExitCode {
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn question(action: JobAction, priority: Option<Priority>, counted: &Value) -> String {
    let verb = match action {
        JobAction::Cancel => "Cancel".to_owned(),
        JobAction::Rerun => "Rerun".to_owned(),
        JobAction::Priority => format!("Set the priority {} of", priority.unwrap_or(Priority::Lowest)),
    };
    let more = if counted["more"] == true { "at least " } else { "" };
    let tasks = if counted["found"] == 1 { "task" } else { "tasks" };
    format!("{verb} {more}{} {tasks}? [y/N] ", field(counted, "/found"))
}

/// Returns true for yes.
fn ask(question: &str) -> Result<bool, CommandError> {
    if !std::io::stdin().is_terminal() {
        let message = format!("{}standard input is no terminal: add --yes", question.trim_end_matches("[y/N] "));
        return Err(CommandError::Usage(message));
    }
    let unreadable = |error: std::io::Error| CommandError::Refused(format!("the answer cannot be read: {error}"));
    print_bytes_aside(question.as_bytes()).map_err(unreadable)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(unreadable)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Shows each change of the progress until the job has ended, and returns it.
async fn follow(server: &Server, id: JobId) -> Result<Value, CommandError> {
    let mut shown = String::new();
    loop {
        let job = server.client.get_job(id).await.map_err(|error| server.error(&error))?;
        if job["state"] != "running" {
            return Ok(job);
        }
        let line = progress(&job);
        if line != shown {
            complain(&line);
            shown = line;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Example: `120 of 500 tasks changed, 3 unchanged, 1 refused`.
fn progress(job: &Value) -> String {
    let [done, found, unchanged, refused] = ["/done", "/found", "/unchanged", "/refusedCount"].map(|at| field(job, at));
    let more = if job["more"] == true { "at least " } else { "" };
    format!("{done} of {more}{found} tasks changed, {unchanged} unchanged, {refused} refused")
}

fn details(job: &Value) -> String {
    let mut text = format!("Job {} {}: {}.\n", field(job, "/jobId"), field(job, "/state"), progress(job));
    for (at, words) in [("/stoppedBy", "stopped by"), ("/error", "ended early")] {
        if job.pointer(at).is_some() {
            text += &format!("{words}: {}\n", field(job, at));
        }
    }
    let refused = entries(job, "refused");
    if !refused.is_empty() {
        let row = |refused: &Value| [field(refused, "/taskId"), field(refused, "/code"), field(refused, "/message")];
        text += &table(["TASK", "CODE", "MESSAGE"], refused.iter().map(row));
    }
    text
}

pub async fn run(server: &Server, command: JobCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    match command {
        JobCommand::List { limit } => list(server, limit).await?,
        JobCommand::Show { job } => {
            server.print(&server.client.get_job(job).await.map_err(refused)?, details)?;
        }
        JobCommand::Stop { job } => {
            server.print(&server.client.stop_job(job).await.map_err(refused)?, details)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(server: &Server, limit: u32) -> Result<(), CommandError> {
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut all, mut token) = (Vec::new(), None::<String>);
    loop {
        let page = server.client.list_jobs(token.as_deref()).await.map_err(|error| server.error(&error))?;
        all.extend_from_slice(entries(&page, "jobs"));
        all.truncate(wanted);
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() || all.len() == wanted {
            break;
        }
    }
    server.print(&json!({ "jobs": all }), |answer| rows(entries(answer, "jobs")))
}

fn rows(jobs: &[Value]) -> String {
    let conditions = |job: &Value| {
        let given = job["filter"].as_object().into_iter().flatten();
        let given = given.map(|(name, value)| format!("{name} {}", plain(value.as_str().unwrap_or_default())));
        given.collect::<Vec<_>>().join(", ")
    };
    let row = |job: &Value| {
        [
            field(job, "/jobId"),
            field(job, "/state"),
            field(job, "/action"),
            field(job, "/started"),
            field(job, "/found"),
            field(job, "/done"),
            field(job, "/refusedCount"),
            field(job, "/clientId"),
            conditions(job),
        ]
    };
    let head = ["JOB", "STATE", "ACTION", "STARTED", "FOUND", "CHANGED", "REFUSED", "CLIENT", "TASKS"];
    table(head, jobs.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_has_number_and_action() {
        let counted = json!({"found": 120, "more": false});
        assert_eq!(question(JobAction::Cancel, None, &counted), "Cancel 120 tasks? [y/N] ");
        let more = json!({"found": 1, "more": true});
        let raised = question(JobAction::Priority, Some(Priority::High), &more);
        assert_eq!(raised, "Set the priority high of at least 1 task? [y/N] ");
    }

    #[test]
    fn job_is_shown_for_people() {
        let job = json!({"jobId": "J", "state": "failed", "action": "cancel", "found": 5, "more": false, "done": 2,
            "unchanged": 1, "refusedCount": 1, "error": "the client is disabled", "started": "S", "clientId": "ci",
            "filter": {"taskQueueId": "p/w", "state": "pending"},
            "refused": [{"taskId": "T", "code": "RequestConflict", "message": "m"}]});
        let text = details(&job);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Job J failed: 2 of 5 tasks changed, 1 unchanged, 1 refused.");
        assert_eq!(lines[1], "ended early: the client is disabled");
        assert_eq!(lines[3], "T     RequestConflict  m");
        assert!(rows(&[job]).lines().nth(1).is_some_and(|line| line.contains("taskQueueId p/w")));
    }
}
