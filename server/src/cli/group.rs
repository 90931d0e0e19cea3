//! `tenure group`: groups of tasks.

mod never;
mod watch;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;
use tenure_api::ids::TaskGroupId;
use tenure_api::states::JobAction;
use tenure_api::tasks::ListState;
use tenure_client::GroupChange;

use super::http::{CommandError, Server, entries, field};
use super::job::{FilterArgs, JobArgs, change_many, exit_code};
use super::task::id::short;
use never::Culprit;

const CULPRITS_SHOWN_MAX: usize = 5;

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Show a group and the number of its tasks in each state
    Show {
        /// The id of the group
        #[arg(allow_hyphen_values = true)]
        group: TaskGroupId,
        /// Show each change until every task is resolved or certain not to run; fails unless all
        /// were completed
        #[arg(long)]
        watch: bool,
    },
    /// Cancel all unresolved tasks of a group; the group must be sealed first
    Cancel {
        /// The id of the group
        #[arg(allow_hyphen_values = true)]
        group: TaskGroupId,
    },
    /// Run tasks of a group once more, as a job: shows their number and asks, and fails if a task was
    /// refused
    Rerun {
        /// The id of the group
        #[arg(allow_hyphen_values = true)]
        group: TaskGroupId,
        /// The failed tasks
        #[arg(long)]
        failed: bool,
        /// The tasks that ended as exceptions, such as cancelled ones
        #[arg(long)]
        exceptions: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Refuse further tasks in a group
    Seal {
        /// The id of the group
        #[arg(allow_hyphen_values = true)]
        group: TaskGroupId,
    },
}

pub async fn run(server: &Server, command: GroupCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        GroupCommand::Show { group, watch } if server.json => {
            let code = if watch { watch::watch(server, group).await?.0 } else { ExitCode::SUCCESS };
            server.print(&client.get_group(group).await.map_err(refused)?, |_| String::new())?;
            return Ok(code);
        }
        GroupCommand::Show { group, watch: true } => {
            let (code, answer) = watch::watch(server, group).await?;
            server.print(&answer, details)?;
            return Ok(code);
        }
        GroupCommand::Show { group, watch: false } => {
            server.print(&client.list_group(group).await.map_err(refused)?, details)?;
        }
        GroupCommand::Cancel { group } => {
            let answer = client.change_group(group, GroupChange::Cancel).await.map_err(refused)?;
            server.print(&answer, |answer| {
                let (cancelled, size) = (field(answer, "/cancelledCount"), field(answer, "/taskGroupSize"));
                format!("{cancelled} of the {size} tasks of group {group} were cancelled.")
            })?;
        }
        GroupCommand::Rerun { group, failed, exceptions, yes } => {
            if !failed && !exceptions {
                return Err(CommandError::Usage("add --failed, --exceptions or both".to_owned()));
            }
            let states = [(failed, ListState::Failed), (exceptions, ListState::Exception)];
            let mut is_clean = true;
            for (_, state) in states.into_iter().filter(|(wanted, _)| *wanted) {
                let filter = FilterArgs { group: Some(group), state: Some(state), ..FilterArgs::default() };
                is_clean &= change_many(server, JobAction::Rerun, None, JobArgs { filter, yes }).await?;
            }
            return Ok(exit_code(is_clean));
        }
        GroupCommand::Seal { group } => {
            let answer = client.change_group(group, GroupChange::Seal).await.map_err(refused)?;
            server.print(&answer, |answer| format!("Group {group} is sealed since {}.", field(answer, "/sealed")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn details(group: &Value) -> String {
    let tasks = entries(group, "tasks");
    let mut rows = vec![
        ("group".to_owned(), field(group, "/taskGroupId")),
        ("scheduler".to_owned(), field(group, "/schedulerId")),
        ("expires".to_owned(), field(group, "/expires")),
        ("sealed".to_owned(), field(group, "/sealed")),
        ("tasks".to_owned(), tasks.len().to_string()),
    ];
    rows.extend(states(tasks).into_iter().map(|(state, count)| (format!("  {state}"), count.to_string())));
    let culprits = never::culprits(tasks);
    if !culprits.is_empty() {
        rows.push(("never run".to_owned(), blocked(&culprits)));
    }
    rows.iter().map(|(name, value)| format!("{name:13}  {value}\n")).collect()
}

/// Example: `2 tasks, because check (PxxR0mgp) failed`.
fn blocked(culprits: &[Culprit<'_>]) -> String {
    let count: usize = culprits.iter().map(|culprit| culprit.blocked).sum();
    let mut failed: Vec<String> = culprits.iter().take(CULPRITS_SHOWN_MAX).map(|culprit| label(culprit.task)).collect();
    if culprits.len() > CULPRITS_SHOWN_MAX {
        failed.push(format!("{} others", culprits.len() - CULPRITS_SHOWN_MAX));
    }
    let tasks = if count == 1 { "task" } else { "tasks" };
    format!("{count} {tasks}, because {} failed", failed.join(", "))
}

/// Returns a task's name and the beginning of its id.
fn label(task: &Value) -> String {
    format!("{} ({})", field(task, "/task/metadata/name"), short(&field(task, "/status/taskId")))
}

fn states(tasks: &[Value]) -> BTreeMap<String, usize> {
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for task in tasks {
        *states.entry(field(task, "/status/state")).or_default() += 1;
    }
    states
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_that_can_never_run_are_counted_with_cause() {
        let task = |n: usize, state: &str, dependencies: Value| {
            json!({"status": {"taskId": format!("{n}xxR0mgpQ0qT5bXyXQ3e1A"), "state": state},
                "task": {"metadata": {"name": format!("t{n}\u{1b}")}, "dependencies": dependencies}})
        };
        let mut tasks = vec![task(1, "failed", json!([])), task(2, "unscheduled", json!(["1xxR0mgpQ0qT5bXyXQ3e1A"]))];
        let text = details(&json!({ "tasks": tasks }));
        assert!(text.ends_with("never run      1 task, because t1\u{fffd} (1xxR0mgp) failed\n"), "{text}");
        tasks[0]["status"]["state"] = json!("running");
        assert!(!details(&json!({ "tasks": tasks })).contains("never run"));
        // The beginning of this one would be an option.
        let dashed = json!({"status": {"taskId": "-HrBC1jMQ3KlZw4CssPUeQ"}, "task": {"metadata": {"name": "t"}}});
        assert_eq!(label(&dashed), "t (-HrBC1jMQ3KlZw4CssPUeQ)");
    }
}
