//! `tenure group show --watch`: a line for each change of a group.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_api::ids::{TaskGroupId, TaskId};
use tenure_client::RetryPolicy;
use tenure_domain::duty_cycle::DutyCycle;

use super::never::has_failed;
use super::{label, states};
use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::complain;
use crate::cli::task::outlook::Outlook;
use crate::cli::task::progress::announce;
use crate::cli::task::shown::verdict_of;

/// Reading many tasks may take long.
const LOOK_CYCLE: DutyCycle = DutyCycle::new(10, Duration::from_secs(3), Duration::from_secs(10));
const NAMED_MAX: usize = 20;

/// Shows the progress of a group until each task is resolved or certain not to run. Returns the
/// exit code and the group's final state.
pub(super) async fn watch(server: &Server, group: TaskGroupId) -> Result<(ExitCode, Value), CommandError> {
    announce(server, group);
    let patient = server.patient();
    let outlook = Outlook::new(&patient);
    let once = server.client.with_retry_policy(RetryPolicy::never());
    // Report a wrong address at once. Later the server may be away for a while.
    let mut first = Some(server.client.list_group(group).await.map_err(|error| server.error(&error))?);
    let mut line = Line { shown: String::new(), rewrites: std::io::stderr().is_terminal() };
    loop {
        let began = Instant::now();
        let (answer, took) = match first.take() {
            Some(answer) => (answer, None),
            None => match once.list_group(group).await {
                Ok(answer) => (answer, Some(began.elapsed())),
                Err(_) => (patient.client.list_group(group).await.map_err(|error| server.error(&error))?, None),
            },
        };
        let tasks = entries(&answer, "tasks");
        line.show(summary(tasks));
        if let Some(never) = ended(&outlook, tasks).await? {
            line.end();
            name_failed(&patient, tasks).await;
            let more = never.len().saturating_sub(NAMED_MAX);
            never.iter().take(NAMED_MAX).for_each(|line| complain(line));
            if more > 0 {
                complain(&format!("{more} more cannot run"));
            }
            let completed = tasks.iter().all(|task| field(task, "/status/state") == "completed");
            return Ok((if completed { ExitCode::SUCCESS } else { ExitCode::FAILURE }, answer));
        }
        tokio::time::sleep(LOOK_CYCLE.pause_after(took)).await;
    }
}

/// None while tasks can still change by themselves; otherwise the reason why each task without a
/// run cannot run.
async fn ended(outlook: &Outlook<'_>, tasks: &[Value]) -> Result<Option<Vec<String>>, CommandError> {
    let state = |task: &Value| field(task, "/status/state");
    if tasks.iter().any(|task| matches!(state(task).as_str(), "pending" | "running")) {
        return Ok(None);
    }
    let mut lines = Vec::new();
    for task in tasks.iter().filter(|task| state(task) == "unscheduled") {
        let Ok(id) = field(task, "/status/taskId").parse::<TaskId>() else { return Ok(None) };
        outlook.name(id, &field(task, "/task/metadata/name"));
        let Some(never) = outlook.never(id).await? else { return Ok(None) };
        lines.push(format!("{}: cannot run, {never}", outlook.short(id)));
    }
    Ok(Some(lines))
}

/// Prints a line for each failed task, with its exit code or failure if the caller may read it.
async fn name_failed(server: &Server, tasks: &[Value]) {
    let failed: Vec<&Value> = tasks.iter().filter(|task| has_failed(task)).collect();
    for task in failed.iter().take(NAMED_MAX) {
        let answer = match field(task, "/status/taskId").parse::<TaskId>() {
            Ok(id) => server.client.wait_for_task(id, 0).await.ok(),
            Err(_) => None,
        };
        let verdict = verdict_of(server, answer.as_ref().unwrap_or(task));
        complain(&format!("{}: {}", label(task), verdict.unwrap_or_else(|| field(task, "/status/state"))));
    }
    if failed.len() > NAMED_MAX {
        complain(&format!("{} more failed", failed.len() - NAMED_MAX));
    }
}

/// Example: `3 of 5 tasks have ended: 2 completed, 1 failed, 1 pending, 1 running`.
fn summary(tasks: &[Value]) -> String {
    let counts = states(tasks);
    let ended: usize = ["completed", "failed", "exception"].iter().filter_map(|state| counts.get(*state)).sum();
    let parts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    format!("{ended} of {} tasks have ended: {}", tasks.len(), parts.join(", "))
}

struct Line {
    shown: String,
    rewrites: bool,
}

impl Line {
    fn show(&mut self, line: String) {
        if self.shown == line {
            return;
        }
        let mut out = std::io::stderr().lock();
        let written = if self.rewrites { write!(out, "\r\x1b[2K{line}") } else { writeln!(out, "{line}") };
        drop(written.and_then(|()| out.flush()));
        self.shown = line;
    }

    fn end(&self) {
        if self.rewrites {
            complain("");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn summary_of_group_is_one_line() {
        let tasks = ["completed", "running", "completed", "failed", "unscheduled"]
            .map(|state| json!({"status": {"state": state}}));
        let line = "3 of 5 tasks have ended: 2 completed, 1 failed, 1 running, 1 unscheduled";
        assert_eq!(summary(&tasks), line);
        assert_eq!(summary(&tasks[..1]), "1 of 1 tasks have ended: 1 completed");
    }
}
