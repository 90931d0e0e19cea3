//! `tenure task run`: runs a command on a worker as if it ran locally.

use std::process::ExitCode;

use tenure_api::ids::TaskId;
use tenure_api::states::TaskState;
use tenure_domain::verdict::{Report, verdict};

use super::create::definition;
use super::outlook::Outlook;
use super::{CreateArgs, logs};
use crate::cli::http::{CommandError, Server, field};
use crate::cli::print::complain;

const LOOK_SECONDS: u32 = 3;

/// Creates a task, prints its log while it runs, and returns its command's exit code. With
/// `--json`, the result is the task's end as in `wait`, and the log goes to standard error.
pub(super) async fn run(server: &Server, args: &CreateArgs) -> Result<ExitCode, CommandError> {
    let refused = |error: tenure_client::Error| server.error(&error);
    // A retry after a lost response must not create anything twice.
    let key = uuid::Uuid::new_v4().to_string();
    let task = definition(args, server.time(args.deadline).await?);
    let answer = server.client.create_tasks(&task, &key).await.map_err(refused)?;
    let server = &server.patient();
    let refused = |error: tenure_client::Error| server.error(&error);
    let id = field(&answer, "/tasks/0/taskId");
    let task: TaskId = id.parse().map_err(|_| CommandError::Refused(format!("the server named a task {id:?}")))?;
    complain(&format!("task {task}  {}/task/{task}", server.client.root_url()));
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
    Ok(exit_code(status.state, &report))
}

/// Waits until a task has a run or has ended. Returns the reason if it never will.
async fn wait_for_a_run(server: &Server, task: TaskId) -> Result<Option<String>, CommandError> {
    let outlook = Outlook::new(server);
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
        seconds = LOOK_SECONDS;
    }
}

/// The command's exit code, if it is known and agrees with the task's state.
fn exit_code(state: TaskState, report: &Report) -> ExitCode {
    match (state, report.exit_code.and_then(|code| u8::try_from(code).ok())) {
        (TaskState::Completed, _) => ExitCode::SUCCESS,
        (_, Some(code)) if code != 0 => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(exit_code(state, &report), ExitCode::from(expected), "{state} {code:?}");
        }
    }
}
