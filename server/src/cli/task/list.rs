//! `tenure task list`: the tasks of a group, or tasks by conditions.

use clap::Args;
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskGroupId, TaskQueueId};
use tenure_api::states::ReasonResolved;
use tenure_api::tasks::{ListState, TaskFilter};

use super::id::short;
use super::runs;
use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::table;
use crate::cli::when::{When, parse_when};

/// Tasks per request.
const PAGE: usize = 1_000;

#[derive(Debug, Args)]
pub struct ListArgs {
    /// All tasks of this group, in the order of their ids
    #[arg(long, allow_hyphen_values = true)]
    pub group: Option<TaskGroupId>,
    /// Only tasks in this state: unscheduled, pending, held, running, completed, failed or
    /// exception; held needs a queue; with --group, repeat it for more
    #[arg(long = "state", value_name = "STATE", value_parser = parse_state)]
    pub states: Vec<ListState>,
    /// Only tasks of this queue, `<provisionerId>/<workerType>`
    #[arg(long, allow_hyphen_values = true)]
    pub queue: Option<TaskQueueId>,
    /// Only tasks with this text in their names
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only tasks with this tag
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_tag, conflicts_with = "group")]
    pub tag: Option<String>,
    /// Only tasks of this owner
    #[arg(long, conflicts_with = "group")]
    pub owner: Option<String>,
    /// Only tasks of this project
    #[arg(long, allow_hyphen_values = true, conflicts_with = "group")]
    pub project: Option<String>,
    /// Only tasks whose last run ended for this reason, such as failed or claim-expired
    #[arg(long, value_parser = parse_reason, conflicts_with = "group")]
    pub reason: Option<ReasonResolved>,
    /// Only tasks whose last run is or was of this worker
    #[arg(long, value_name = "GROUP/ID", value_parser = parse_worker, conflicts_with = "group")]
    pub worker: Option<String>,
    /// Only tasks created since this time, or within this duration, such as 2h; with a state or a
    /// reason of failures, only tasks that failed since
    #[arg(long, value_name = "TIME", value_parser = parse_ago, conflicts_with = "group")]
    pub since: Option<When>,
    /// Only tasks until this time, likewise
    #[arg(long, value_name = "TIME", value_parser = parse_ago, conflicts_with = "group")]
    pub until: Option<When>,
    /// The number of tasks to show [default: 100]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "group")]
    pub limit: Option<u32>,
}

const LIMIT_DEFAULT: u32 = 100;

fn parse_state(text: &str) -> Result<ListState, String> {
    let words = || ListState::ALL.map(ListState::as_str).join(", ");
    serde_json::from_value(json!(text)).map_err(|_| format!("choose one of {}", words()))
}

fn parse_reason(text: &str) -> Result<ReasonResolved, String> {
    serde_json::from_value(json!(text)).map_err(|_| {
        let words: Vec<&str> = ReasonResolved::ALL.iter().map(|reason| reason.as_str()).collect();
        format!("write one of {}", words.join(", "))
    })
}

fn parse_tag(text: &str) -> Result<String, String> {
    let is_pair = text.split_once('=').is_some_and(|(key, _)| !key.is_empty());
    if is_pair { Ok(text.to_owned()) } else { Err("write a key and a value, such as kind=nightly".to_owned()) }
}

fn parse_worker(text: &str) -> Result<String, String> {
    let is_name = text.split_once('/').is_some_and(|(group, id)| !group.is_empty() && !id.is_empty());
    if is_name { Ok(text.to_owned()) } else { Err("write group and id of the worker, such as here/linux-1".to_owned()) }
}

fn parse_ago(text: &str) -> Result<When, String> {
    Ok(match parse_when(text)? {
        When::In(ago) => When::In(-ago),
        When::At(time) => When::At(time),
    })
}

impl ListArgs {
    fn has(&self, entry: &Value) -> bool {
        let state = field(entry, "/status/state");
        let name = field(entry, "/task/metadata/name");
        (self.states.is_empty() || self.states.iter().any(|wanted| wanted.as_str() == state))
            && self.queue.as_ref().is_none_or(|queue| queue.as_str() == field(entry, "/status/taskQueueId"))
            && self.name.as_ref().is_none_or(|text| name.contains(text))
    }
}

pub(super) async fn list(server: &Server, args: ListArgs) -> Result<(), CommandError> {
    match args.group {
        Some(group) => of_group(server, group, &args).await,
        None => by_conditions(server, args).await,
    }
}

async fn of_group(server: &Server, group: TaskGroupId, args: &ListArgs) -> Result<(), CommandError> {
    if args.states.contains(&ListState::Held) {
        return Err(CommandError::Usage("--state held needs --queue, and no --group".to_owned()));
    }
    let mut answer = server.client.list_group(group).await.map_err(|error| server.error(&error))?;
    if let Some(tasks) = answer["tasks"].as_array_mut() {
        tasks.retain(|entry| args.has(entry));
    }
    server.print(&answer, |answer| {
        let row = |entry: &Value| {
            [
                field(entry, "/status/taskId"),
                field(entry, "/status/state"),
                runs(entry),
                field(entry, "/status/taskQueueId"),
                field(entry, "/task/metadata/name"),
            ]
        };
        table(["TASK", "STATE", "RUNS", "QUEUE", "NAME"], entries(answer, "tasks").iter().map(row))
    })
}

async fn by_conditions(server: &Server, args: ListArgs) -> Result<(), CommandError> {
    let (since, until) = (server.time(args.since).await?, server.time(args.until).await?);
    let ListArgs { states, queue, name, tag, owner, project, reason, worker, limit, .. } = args;
    if states.len() > 1 {
        return Err(CommandError::Usage("without --group, give --state only once".to_owned()));
    }
    let filter = TaskFilter {
        task_queue_id: queue.map(|queue| queue.to_string()),
        state: states.first().copied(),
        reason: reason.map(|reason| reason.to_string()),
        worker,
        name,
        tag,
        owner,
        project_id: project,
        since: since.map(Timestamp::time),
        until: until.map(Timestamp::time),
        ..TaskFilter::default()
    };
    let wanted = usize::try_from(limit.unwrap_or(LIMIT_DEFAULT)).unwrap_or(usize::MAX);
    let (mut all, mut token) = (Vec::new(), None::<String>);
    loop {
        let limit = u16::try_from((wanted - all.len()).min(PAGE)).ok();
        let page = server.client.list_tasks(&filter, limit, token.as_deref()).await;
        let page = page.map_err(|error| server.error(&error))?;
        all.extend_from_slice(entries(&page, "tasks"));
        all.truncate(wanted);
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() || all.len() == wanted {
            break;
        }
    }
    server.print(&json!({ "tasks": all }), |answer| rows(entries(answer, "tasks")))
}

fn rows(tasks: &[Value]) -> String {
    let row = |task: &Value| {
        [
            short(&field(task, "/taskId")).to_owned(),
            field(task, "/state"),
            field(task, "/reasonResolved"),
            field(task, "/runs"),
            field(task, "/taskQueueId"),
            field(task, "/created"),
            field(task, "/name"),
        ]
    };
    table(["TASK", "STATE", "REASON", "RUNS", "QUEUE", "CREATED", "NAME"], tasks.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_shown_with_short_ids() {
        let task = json!({"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "state": "failed", "reasonResolved": "failed", "runs": 2,
            "taskQueueId": "p/w", "created": "C", "name": "n\u{1b}"});
        let text = rows(&[task]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "TASK      STATE   REASON  RUNS  QUEUE  CREATED  NAME");
        assert_eq!(lines[1], "9HrBC1jM  failed  failed  2     p/w    C        n\u{fffd}");
    }
}
