//! `tenure task run`: runs a command on a worker as if it ran locally.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tenure_api::ids::TaskId;
use tenure_api::states::TaskState;
use tenure_client::TaskChange;
use tenure_domain::verdict::{Report, verdict};

use super::create::definition;
use super::outlook::Outlook;
use super::stalled::Stalled;
use super::{CreateArgs, RunArgs, logs};
use crate::cli::http::{CommandError, Server, field};
use crate::cli::print::complain;
use crate::cli::signals;

const LOOK_SECONDS: u32 = 3;

/// Exit codes of a shell for a command that does not exist, cannot be executed, or was killed.
const COMMAND_NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const KILLED_BY: u8 = 128;
const SIGNALS: std::ops::RangeInclusive<u8> = 1..=64;

#[derive(Clone, Copy)]
struct Created {
    task: TaskId,
    /// False if an existing task has the unique name.
    is_new: bool,
}

/// Creates a task, prints its log while it runs, and returns its command's exit code. With
/// `--json`, the result is the task's end as in `wait`, and the log goes to standard error.
pub(super) async fn run(server: &Server, args: RunArgs) -> Result<ExitCode, CommandError> {
    let cancels = args.cancel_on_interrupt;
    let args = CreateArgs::from(args);
    if !cancels {
        let Created { task, .. } = create(server, &args).await?;
        return follow(&server.patient(), task).await;
    }
    let asked = signals::listen(Duration::ZERO).map_err(|error| CommandError::no_signals(&error))?;
    // A signal does not interrupt this: only the answer tells which task to cancel.
    let created = create(server, &args).await?;
    match asked.stop.run_until_cancelled(follow(&server.patient(), created.task)).await {
        Some(ended) => ended,
        None => Err(CommandError::Interrupted(cancel(server, created).await, asked.exit_code())),
    }
}

async fn create(server: &Server, args: &CreateArgs) -> Result<Created, CommandError> {
    // A retry after a lost response must not create anything twice.
    let key = uuid::Uuid::new_v4().to_string();
    let task = definition(args, server.time(args.options.deadline).await?);
    let answer = server.client.create_tasks(&task, &key).await.map_err(|error| server.error(&error))?;
    let id = field(&answer, "/tasks/0/taskId");
    let task: TaskId = id.parse().map_err(|_| CommandError::Refused(format!("the server named a task {id:?}")))?;
    complain(&format!("task {task}  {}/task/{task}", server.client.root_url()));
    Ok(Created { task, is_new: answer["tasks"][0]["deduplicated"] != Value::Bool(true) })
}

async fn cancel(server: &Server, Created { task, is_new }: Created) -> String {
    if !is_new {
        return format!("interrupted: task {task} existed before and is not cancelled");
    }
    match server.client.change_task(task, TaskChange::Cancel).await {
        Ok(_) => format!("interrupted: task {task} is cancelled"),
        Err(error) => format!("interrupted, but task {task} is not cancelled: {}", server.error(&error)),
    }
}

async fn follow(server: &Server, task: TaskId) -> Result<ExitCode, CommandError> {
    let refused = |error: tenure_client::Error| server.error(&error);
    if let Some(never) = wait_for_a_run(server, task).await? {
        complain(&format!("{task}: cannot run, {never}"));
        if server.json {
            let answer = server.client.wait_for_task(task, 0).await.map_err(refused)?;
            server.print(&answer, |_| String::new())?;
        }
        return Ok(ExitCode::FAILURE);
    }
    logs::follow_task(server, task).await?;
    let answer = server.client.wait_for_task(task, 0).await.map_err(refused)?;
    let status = serde_json::from_value(answer["status"].clone()).map_err(|error| server.strange(&error))?;
    let report = Report::of(&answer["failure"], &answer["result"]);
    complain(&verdict(&status, &report, server.client.now().time()));
    if server.json {
        server.print(&answer, |_| String::new())?;
    }
    Ok(exit_code(status.state, &report, &answer["failure"]))
}

/// Waits until a task has a run or has ended. Returns the reason if it never will.
async fn wait_for_a_run(server: &Server, task: TaskId) -> Result<Option<String>, CommandError> {
    let (outlook, stalled) = (Outlook::new(server), Stalled::new());
    let mut seconds = 0;
    loop {
        let (status, resolved) = logs::look(server, task, seconds).await?;
        if resolved || !status.runs.is_empty() {
            return Ok(None);
        }
        let never = outlook.never(task).await?;
        if never.is_some() {
            return Ok(never);
        }
        stalled.complain(server, task).await;
        seconds = LOOK_SECONDS;
    }
}

/// The command's exit code as a shell would return it, if it is known and agrees with the task's
/// state.
fn exit_code(state: TaskState, report: &Report, failure: &Value) -> ExitCode {
    match (state, report.exit_code.and_then(|code| u8::try_from(code).ok())) {
        (TaskState::Completed, _) => ExitCode::SUCCESS,
        (_, Some(code)) if code != 0 => ExitCode::from(code),
        _ => shell_code(failure).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

/// Exit code for a command that did not exit. `tenure-worker` writes the kinds and messages.
fn shell_code(failure: &Value) -> Option<u8> {
    let message = failure["message"].as_str()?;
    match failure["kind"].as_str()? {
        "signal" => {
            let signal: u8 = message.strip_prefix("killed by signal ")?.parse().ok()?;
            SIGNALS.contains(&signal).then(|| KILLED_BY + signal)
        }
        // ENOENT.
        "not-started" if message.ends_with("(os error 2)") => Some(COMMAND_NOT_FOUND),
        "not-started" => Some(NOT_EXECUTABLE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn exit_code_is_the_commands_and_agrees_with_state() {
        for (state, code, expected) in [
            (TaskState::Completed, Some(0), 0),
            (TaskState::Completed, None, 0),
            (TaskState::Failed, Some(3), 3),
            (TaskState::Failed, Some(0), 1),
            (TaskState::Failed, Some(-9), 1),
            (TaskState::Failed, Some(256), 1),
            (TaskState::Failed, None, 1),
            (TaskState::Exception, None, 1),
        ] {
            let report = Report { exit_code: code, failure: None };
            assert_eq!(exit_code(state, &report, &Value::Null), ExitCode::from(expected), "{state} {code:?}");
        }
    }

    #[test]
    fn command_without_exit_code_gets_code_of_shell() {
        for (kind, message, expected) in [
            ("not-started", "\"x\" cannot be started: No such file or directory (os error 2)", 127),
            ("not-started", "\"x\" cannot be started: Permission denied (os error 13)", 126),
            ("signal", "killed by signal 9", 137),
            ("signal", "killed by signal 15", 143),
            ("signal", "killed by signal 200", 1),
            ("signal", "killed by a signal", 1),
            ("max-run-time", "maxRunTime of 60 s exceeded", 1),
        ] {
            let failure = json!({"kind": kind, "message": message});
            let code = exit_code(TaskState::Failed, &Report::default(), &failure);
            assert_eq!(code, ExitCode::from(expected), "{message}");
        }
    }
}
