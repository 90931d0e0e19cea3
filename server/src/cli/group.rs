//! `tenure group`: groups of tasks.

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
        /// The tasks that ended as exceptions, such as canceled ones
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
    rows.iter().map(|(name, value)| format!("{name:13}  {value}\n")).collect()
}

fn states(tasks: &[Value]) -> BTreeMap<String, usize> {
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for task in tasks {
        *states.entry(field(task, "/status/state")).or_default() += 1;
    }
    states
}
