//! The state or outcome of a task as one line, shown by the command line and the operator's page.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use tenure_api::bodies::{Run, Status};
use tenure_api::policy::Failure;
use tenure_api::states::{ReasonResolved, RunState, TaskState};

pub const FAILURE_CHARS_MAX: usize = 200;

/// Why a run failed, in one line, and the exit code of its command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub exit_code: Option<i32>,
    pub failure: Option<String>,
}

impl Report {
    /// Both values are as the API shows them, or null.
    pub fn of(failure: &Value, result: &Value) -> Self {
        match serde_json::from_value::<Failure>(failure.clone()) {
            Ok(failure) => Self::from(&failure),
            Err(_) => Self::of_earlier_worker(result),
        }
    }

    /// Releases of `tenure-worker` without failures have both in the result. Results of other
    /// programs yield an empty report.
    fn of_earlier_worker(result: &Value) -> Self {
        let exit_code = result["exitCode"].as_i64().and_then(|code| u8::try_from(code).ok());
        Self {
            exit_code: exit_code.map(i32::from),
            failure: result["failure"].as_str().map(one_line).filter(|text| !text.is_empty()),
        }
    }

    fn reason(&self) -> Option<String> {
        self.failure.clone().or_else(|| self.exit_code.map(|code| format!("exit code {code}")))
    }
}

impl From<&Failure> for Report {
    fn from(failure: &Failure) -> Self {
        let line = failure_line(failure);
        Self { exit_code: failure.exit_code, failure: Some(line).filter(|line| !line.is_empty()) }
    }
}

/// Returns a failure's kind and message: `ValueError: bad port`.
pub fn failure_line(failure: &Failure) -> String {
    let Failure { message, kind, exit_code: _ } = failure;
    match kind {
        Some(kind) if !message.starts_with(kind.as_str()) => one_line(&format!("{kind}: {message}")),
        Some(_) | None => one_line(message),
    }
}

/// Returns the beginning of a text in one line, without control characters.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|character: char| character.is_whitespace() || character.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ");
    match line.char_indices().nth(FAILURE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The report belongs to the task's last run.
pub fn verdict(status: &Status, report: &Report, now: DateTime<Utc>) -> String {
    let Some(run) = status.runs.last() else {
        return "Unscheduled: it has no run yet".to_owned();
    };
    match status.state {
        TaskState::Unscheduled => "Unscheduled: it has no run yet".to_owned(),
        TaskState::Pending => format!("Pending for {}{}", span(now - run.scheduled.time()), number(run)),
        TaskState::Running => {
            let started = run.started.unwrap_or(run.scheduled);
            format!("Running for {}{}{}", span(now - started.time()), place(run), number(run))
        }
        TaskState::Completed => format!("Completed{}", course(run)),
        TaskState::Failed => format!("Failed{}{}", course(run), because(report)),
        TaskState::Exception => {
            let reason = run.reason_resolved.map_or("", ReasonResolved::as_str);
            let before = if run.started.is_some() { "" } else { " before a worker had it" };
            format!("Exception{}{before}: {reason}{}", course(run), because(report))
        }
    }
}

fn because(report: &Report) -> String {
    report.reason().map_or_else(String::new, |reason| format!(": {reason}"))
}

/// Worker and duration of an ended run; empty if it was never claimed.
fn course(run: &Run) -> String {
    let took = run.started.zip(run.resolved).map(|(from, to)| span(to.time() - from.time()));
    took.map_or_else(String::new, |took| format!("{} after {took}", place(run)))
}

fn place(run: &Run) -> String {
    let worker = run.worker_group.as_ref().zip(run.worker_id.as_ref());
    worker.map_or_else(String::new, |(group, id)| format!(" on {group}/{id}"))
}

/// The run's number; empty for the first run.
fn number(run: &Run) -> String {
    if run.run_id.number() == 0 { String::new() } else { format!(" (run {})", run.run_id) }
}

/// The rest of a sentence that begins with the task's name.
pub fn ended(state: RunState, reason: Option<ReasonResolved>) -> String {
    match (state, reason) {
        (RunState::Pending | RunState::Running, _) => "has not ended".to_owned(),
        (RunState::Completed, _) => "was completed".to_owned(),
        (RunState::Failed, _) => "failed".to_owned(),
        (RunState::Exception, Some(ReasonResolved::Canceled)) => "was cancelled".to_owned(),
        (RunState::Exception, Some(ReasonResolved::DeadlineExceeded)) => "missed its deadline".to_owned(),
        (RunState::Exception, Some(reason)) => format!("ended as exception ({reason})"),
        (RunState::Exception, None) => "ended as exception".to_owned(),
    }
}

/// The two largest units, without a sign: `3 m 20 s`.
pub fn span(span: TimeDelta) -> String {
    let seconds = span.num_seconds().unsigned_abs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| {
        if small == 0 { format!("{large} {large_unit}") } else { format!("{large} {large_unit} {small} {small_unit}") }
    };
    if days > 0 {
        two(days, "d", hours, "h")
    } else if hours > 0 {
        two(hours, "h", minutes, "m")
    } else if minutes > 0 {
        two(minutes, "m", seconds % 60, "s")
    } else {
        format!("{seconds} s")
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
