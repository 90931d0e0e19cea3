//! `tenure task cancel`, `rerun` and `priority`: of named tasks one by one, and of all that meet
//! conditions as a job.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_api::states::{JobAction, Priority};
use tenure_client::TaskChange;

use super::id::TaskRef;
use super::{change, parse_priority, states};
use crate::cli::http::{CommandError, Server, entries};
use crate::cli::job::{CONDITIONS, JobArgs, change_many, exit_code};

#[derive(Debug, Args)]
pub struct ManyArgs {
    /// The ids of the tasks, or their first 8 characters
    #[arg(required_unless_present_any = CONDITIONS, conflicts_with_all = CONDITIONS)]
    pub tasks: Vec<TaskRef>,
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
pub struct PriorityArgs {
    /// The id of a task, or its first 8 characters, and its new priority; with conditions, only the
    /// priority. Priorities: highest, very-high, high, medium, low, very-low, lowest
    #[arg(required = true, num_args = 1..=2, value_names = ["TASK", "PRIORITY"])]
    pub words: Vec<String>,
    #[command(flatten)]
    pub job: JobArgs,
}

pub(super) async fn run(server: &Server, what: TaskChange, args: ManyArgs) -> Result<ExitCode, CommandError> {
    let ManyArgs { tasks, job } = args;
    if tasks.is_empty() {
        let action = match what {
            TaskChange::Cancel => JobAction::Cancel,
            TaskChange::Rerun => JobAction::Rerun,
        };
        return Ok(exit_code(change_many(server, action, None, job).await?));
    }
    change(server, &tasks, what).await?;
    Ok(ExitCode::SUCCESS)
}

/// Object of `tenure task priority`.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    One(TaskRef, Priority),
    Many(Priority),
}

/// The words may be in either order: an id that begins with a dash comes last.
fn read(words: &[String]) -> Result<Wanted, CommandError> {
    let wrong = CommandError::Usage;
    let priority = |word: &String| parse_priority(word).map_err(|rule| wrong(format!("the priority {word:?}: {rule}")));
    let task = |word: &String| word.parse::<TaskRef>().map_err(|error| wrong(error.to_string()));
    match words {
        [one] => Ok(Wanted::Many(priority(one)?)),
        [first, second] if parse_priority(first).is_ok() => Ok(Wanted::One(task(second)?, priority(first)?)),
        [first, second] => Ok(Wanted::One(task(first)?, priority(second)?)),
        _ => Err(wrong("write the id of a task and a priority".to_owned())),
    }
}

pub(super) async fn change_priority(server: &Server, args: PriorityArgs) -> Result<ExitCode, CommandError> {
    let PriorityArgs { words, job } = args;
    let has_conditions = job.filter.is_given();
    match read(&words)? {
        Wanted::Many(priority) if has_conditions => {
            Ok(exit_code(change_many(server, JobAction::Priority, Some(priority), job).await?))
        }
        Wanted::Many(_) => {
            let message = "write the id of a task before the priority, or conditions such as --queue";
            Err(CommandError::Usage(message.to_owned()))
        }
        Wanted::One(..) if has_conditions => {
            Err(CommandError::Usage("write the id of a task or conditions, not both".to_owned()))
        }
        Wanted::One(task, priority) => {
            let id = task.find(server).await?;
            let answer = server.client.change_priority(id, priority).await.map_err(|error| server.error(&error))?;
            server.print(&json!({ "tasks": [answer] }), |answer| {
                format!("{}The priority is {priority}.", states(entries(answer, "tasks")))
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

    #[test]
    fn priority_follows_or_precedes_the_task() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let one = Wanted::One(ID.parse().unwrap(), Priority::High);
        for given in [[ID, "high"], ["high", ID]] {
            assert_eq!(read(&words(&given)).ok().as_ref(), Some(&one), "{given:?}");
        }
        assert_eq!(read(&words(&["low"])).ok(), Some(Wanted::Many(Priority::Low)));
        for wrong in [&["urgent"][..], &[ID], &["high", "low"], &["x", "high"]] {
            assert!(matches!(read(&words(wrong)), Err(CommandError::Usage(_))), "{wrong:?}");
        }
    }
}
