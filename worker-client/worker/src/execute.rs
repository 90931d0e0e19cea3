//! Runs the commands of a payload one after another, and stops them on request or when their time
//! is up.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use tokio::time::Instant;

use super::health::no_space;
use super::job::Job;
use super::payload::Payload;
use super::process::{NotStarted, Process};
use super::verdict::Problem;

/// Kind of a failure.
const SIGNAL: &str = "signal";
/// Kind of a failure.
const NOT_STARTED: &str = "not-started";

#[derive(Debug)]
pub(super) enum Execution {
    Succeeded,
    Failed(Problem),
    Stopped,
    /// The worker could not run them.
    WorkerFault(String),
    /// The worker had no disk space to start the first command.
    NoSpace(String),
}

/// None of the commands' processes is left when it returns.
pub(super) async fn execute(job: &Job, payload: &Payload) -> Execution {
    let Job { directory, guards, stop, settings, .. } = job;
    let deadline = Instant::now() + payload.max_run_time;
    for (place, argv) in payload.commands.iter().enumerate() {
        if stop.is_cancelled() {
            return Execution::Stopped;
        }
        directory.note(&format!("running {argv:?}"));
        let spec = directory.command(argv, &payload.env);
        let mut process =
            match Process::start(&settings.program, &spec, directory.log(), guards, directory.record()).await {
                Ok(process) => process,
                Err(NotStarted::Command(error)) => return not_started(&argv[0], &error),
                Err(NotStarted::Worker(error)) => return unguarded(&error, place == 0),
            };
        // Only `next` may be cancelled, not the work after the end of a command.
        let report = tokio::select! {
            // A command that has ended counts, even if it was stopped at the same time.
            biased;
            report = process.next() => report,
            () = stop.cancelled() => {
                process.stop(job.stop_grace.get().copied().unwrap_or(settings.stop_grace)).await;
                return Execution::Stopped;
            }
            () = tokio::time::sleep_until(deadline) => {
                process.stop(settings.stop_grace).await;
                let why = format!("maxRunTime of {} s exceeded", payload.max_run_time.as_secs());
                return Execution::Failed(Problem::failed(why).of_kind("max-run-time"));
            }
        };
        let ended = match report {
            Ok(report) => process.ended(report).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(Some(status)) if status.success() => directory.note(&describe(status)),
            Ok(Some(status)) => return Execution::Failed(failure(status, &payload.retry_on)),
            // Real-time signals have no name.
            Ok(None) => return Execution::Failed(Problem::failed("killed by a signal").of_kind(SIGNAL)),
            // The task could cause this itself, so it is not retried.
            Err(error) => return Execution::Failed(Problem::failed(error.to_string())),
        }
    }
    Execution::Succeeded
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn failure(status: ExitStatus, retry_on: &BTreeSet<i32>) -> Problem {
    let problem = Problem::failed(describe(status)).with_exit_code(status.code());
    match status.code() {
        Some(code) if retry_on.contains(&code) => problem.retried(),
        Some(_) => problem,
        None => problem.of_kind(SIGNAL),
    }
}

/// A missing or unusable program is the task's fault; a lack of resources is the worker's.
fn not_started(program: &str, error: &io::Error) -> Execution {
    let problem = format!("{program:?} cannot be started: {error}");
    match error.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::ArgumentListTooLong => Execution::Failed(Problem::failed(problem).of_kind(NOT_STARTED)),
        _ if error.raw_os_error() == Some(nix::libc::ENOEXEC) => {
            Execution::Failed(Problem::failed(problem).of_kind(NOT_STARTED))
        }
        _ => Execution::WorkerFault(problem),
    }
}

/// Before the first command the task has had no effect, so another worker with space may run it.
fn unguarded(error: &io::Error, is_first: bool) -> Execution {
    let problem = format!("no guard can be started: {error}");
    if is_first && no_space(error) { Execution::NoSpace(problem) } else { Execution::WorkerFault(problem) }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Outcome;
    use super::*;

    #[test]
    fn only_listed_exit_code_is_retried() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let retry_on = BTreeSet::from([1, 75]);
        for (status, outcome, why, exit_code) in [
            (exited(75), Outcome::Retry, "exit code 75", Some(75)),
            (exited(7), Outcome::Failed, "exit code 7", Some(7)),
            // Its number is in the list.
            (ExitStatus::from_raw(1), Outcome::Failed, "killed by signal 1", None),
        ] {
            let problem = failure(status, &retry_on);
            assert_eq!((problem.outcome, problem.why.as_str(), problem.exit_code), (outcome, why, exit_code));
        }
        assert_eq!(failure(exited(75), &BTreeSet::new()).outcome, Outcome::Failed);
    }

    #[test]
    fn full_disk_before_first_command_is_for_another_worker() {
        for (kind, is_first, is_for_another) in [
            (io::ErrorKind::StorageFull, true, true),
            (io::ErrorKind::QuotaExceeded, true, true),
            (io::ErrorKind::StorageFull, false, false),
            (io::ErrorKind::PermissionDenied, true, false),
        ] {
            let execution = unguarded(&kind.into(), is_first);
            assert_eq!(matches!(execution, Execution::NoSpace(_)), is_for_another, "{execution:?}");
            assert_eq!(matches!(execution, Execution::WorkerFault(_)), !is_for_another, "{execution:?}");
        }
    }
}
