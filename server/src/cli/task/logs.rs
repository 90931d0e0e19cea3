//! Prints the output of a task's command: the live log while it runs, afterwards the uploaded
//! artifact.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tenure_api::bodies::Status;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::live_log::BACKING_LOG;
use tenure_api::states::RunState;
use tenure_client::Error;
use tenure_domain::live_log::deleted_line;

use super::LogArgs;
use super::sink::{LineSorter, Sink};
use super::stalled::Stalled;
use crate::cli::http::{CommandError, Server, may_pass};
use crate::cli::print::complain;

/// How long one request waits for a run to start.
const LOOK_SECONDS: u32 = 3;
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Transient failures in a row before giving up.
const FAILURES_MAX: u32 = 60;
const PIECE: usize = 64 << 10;

pub(super) async fn logs(server: &Server, args: &LogArgs) -> Result<ExitCode, CommandError> {
    if server.json {
        return Err(CommandError::Usage("--json: a log is printed unchanged; leave --json out".to_owned()));
    }
    // Report a wrong address at once; a server that has answered may be away for a while.
    let task = args.task.find(server).await?;
    look(server, task, 0).await?;
    let server = &server.patient();
    let run = match args.run {
        Some(run) => run,
        None => last_run(server, task, args.follow).await?,
    };
    if print_run(server, task, run, args.follow, &mut Sink::Whole).await? {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CommandError::Refused(format!("run {run} of task {task} has no log")))
}

/// Returns the last run of a task; with `--follow`, waits for one.
async fn last_run(server: &Server, task: TaskId, follow: bool) -> Result<RunId, CommandError> {
    let (mut seconds, stalled) = (0, Stalled::new());
    loop {
        let (status, resolved) = look(server, task, seconds).await?;
        match status.runs.last() {
            Some(run) => return Ok(run.run_id),
            None if follow && !resolved => {
                stalled.complain(server, task).await;
                seconds = LOOK_SECONDS;
            }
            None => return Err(CommandError::Refused(format!("task {task} has no run yet"))),
        }
    }
}

/// Returns the status and whether the task is resolved, after waiting up to `seconds` for its end.
pub(super) async fn look(server: &Server, task: TaskId, seconds: u32) -> Result<(Status, bool), CommandError> {
    let answer = server.client.wait_for_task(task, seconds).await.map_err(|error| server.error(&error))?;
    let resolved = answer["resolved"] == Value::Bool(true);
    let status = serde_json::from_value(answer["status"].clone()).map_err(|error| server.strange(&error))?;
    Ok((status, resolved))
}

/// Prints the log of a run; with `follow`, to the run's end. False if it has no log.
pub(super) async fn print_run(
    server: &Server,
    task: TaskId,
    run: RunId,
    follow: bool,
    sink: &mut Sink,
) -> Result<bool, CommandError> {
    let (mut printed, mut failures, mut seconds) = (Printed::default(), 0, 0);
    let stalled = Stalled::new();
    loop {
        let (status, _) = look(server, task, seconds).await?;
        let found = status.runs.iter().find(|known| known.run_id == run);
        let state = found.map(|run| run.state).ok_or_else(|| no_run(task, run))?;
        let ended = has_ended(state);
        // The stored log is complete; the live log may have lost parts.
        if ended && print_artifact(server, task, run, &printed, sink).await? {
            return Ok(true);
        }
        if state != RunState::Pending {
            let shown = (&mut printed, &mut *sink);
            match print_stream(server, task, run, shown, follow && !ended, &mut failures).await {
                // Deleted after the status was read: the run has ended, and its worker may have
                // stored the log before.
                Ok(true) if print_artifact(server, task, run, &printed, sink).await.unwrap_or(false) => {
                    return Ok(true);
                }
                Ok(_) => failures = 0,
                Err(error) if is_missing(&error) => failures = 0,
                Err(Error::File { source, .. }) if source.kind() == ErrorKind::BrokenPipe => return Ok(true),
                Err(error) if !may_pass(&error) || failures == FAILURES_MAX => return Err(server.error(&error)),
                Err(_) => failures += 1,
            }
        }
        if is_over(state, follow, failures) {
            return Ok(printed.offset > 0);
        }
        if state == RunState::Pending {
            stalled.complain(server, task).await;
            seconds = LOOK_SECONDS;
        } else {
            seconds = 0;
            tokio::time::sleep(OPEN_AGAIN_AFTER).await;
        }
    }
}

/// True if no live log exists. A proxy's 404 for an unavailable server does not count.
fn is_missing(error: &Error) -> bool {
    error.status() == Some(404) && !error.is_unclear()
}

/// True if everything requested was printed. After a failure, a cut stream is read on.
fn is_over(state: RunState, follow: bool, failures: u32) -> bool {
    failures == 0 && (has_ended(state) || !follow)
}

fn has_ended(state: RunState) -> bool {
    match state {
        RunState::Pending | RunState::Running => false,
        RunState::Completed | RunState::Failed | RunState::Exception => true,
    }
}

fn no_run(task: TaskId, run: RunId) -> CommandError {
    CommandError::Refused(format!("task {task} has no run {run}"))
}

/// Prints a live log from the offset on and advances it. True if the log was deleted meanwhile. An
/// opened stream resets the failures, since a silent task's stream is cut too.
async fn print_stream(
    server: &Server,
    task: TaskId,
    run: RunId,
    (printed, sink): (&mut Printed, &mut Sink),
    follow: bool,
    failures: &mut u32,
) -> Result<bool, Error> {
    let mut log = server.client.read_live_log(task, run, printed.offset, follow).await?;
    *failures = 0;
    while let Some(bytes) = log.read().await? {
        printed.offset = log.next_offset();
        printed.add(&bytes);
        sink.write(&bytes).map_err(|source| Error::File { what: "the log cannot be written".to_owned(), source })?;
    }
    Ok(printed.end_stream())
}

#[derive(Default)]
struct Printed {
    /// Next offset in the live log.
    offset: u64,
    /// Printed bytes; fewer than the offset if the live log lacks parts.
    length: u64,
    /// Digest of everything but the tail.
    digest: Sha256,
    /// The last bytes, up to the length of the line marking a deleted log.
    tail: Vec<u8>,
}

impl Printed {
    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let before = self.tail.len().saturating_sub(deleted_line().len());
        self.digest.update(&self.tail[..before]);
        self.tail.drain(..before);
    }

    /// True if the last line marks a deleted log; the stored log continues before it.
    fn end_stream(&mut self) -> bool {
        let deleted = self.tail == deleted_line().as_bytes();
        if deleted {
            self.length -= self.tail.len() as u64;
            self.tail.clear();
        }
        deleted
    }

    /// True if a file begins with the printed bytes; the next read continues after them. The stored
    /// log may differ: shortened, or complete where the live log lacked parts.
    fn begins(&self, file: &mut File) -> std::io::Result<bool> {
        let (mut digest, mut left, mut piece) = (Sha256::new(), self.length, vec![0; PIECE]);
        while left > 0 {
            let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match file.read(&mut piece[..most])? {
                0 => return Ok(false),
                length => {
                    digest.update(&piece[..length]);
                    left -= length as u64;
                }
            }
        }
        let mut printed = self.digest.clone();
        printed.update(&self.tail);
        Ok(digest.finalize() == printed.finalize())
    }
}

/// Prints the uploaded log from the printed part on, or the whole log if it does not begin with
/// that part. False if none exists.
async fn print_artifact(
    server: &Server,
    task: TaskId,
    run: RunId,
    printed: &Printed,
    sink: &mut Sink,
) -> Result<bool, CommandError> {
    // An unnamed file, so that an interrupted command leaves nothing behind.
    let folder = std::env::temp_dir();
    let mut stored = match server.client.download_unnamed(task, Some(run), BACKING_LOG, &folder).await {
        Ok(stored) => stored,
        Err(error) if matches!(error.status(), Some(404 | 410 | 424)) => return Ok(false),
        Err(error) => return Err(server.error(&error)),
    };
    match print_rest(&mut stored, printed, sink) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CommandError::Refused(format!("the log cannot be written: {error}")))
        }
        _ => Ok(true),
    }
}

fn print_rest(stored: &mut File, printed: &Printed, sink: &mut Sink) -> std::io::Result<()> {
    if !printed.begins(stored)? {
        sink.end()?;
        complain(
            "the stored log differs from the log printed so far, which may lack parts; printing it from the beginning:",
        );
        stored.seek(SeekFrom::Start(0))?;
    }
    let mut piece = vec![0; PIECE];
    loop {
        match stored.read(&mut piece)? {
            0 => return Ok(()),
            length => sink.write(&piece[..length])?,
        }
    }
}

/// Prints the logs of all runs until the task is resolved: command output to standard output, lines
/// of the worker to standard error. A log that cannot be shown is no error.
pub(super) async fn follow_task(server: &Server, task: TaskId) -> Result<(), CommandError> {
    let mut printed = None;
    loop {
        let (status, resolved) = look(server, task, if printed.is_none() { 0 } else { LOOK_SECONDS }).await?;
        let next = status.runs.iter().find(|run| printed.is_none_or(|last| run.run_id > last)).map(|run| run.run_id);
        match next {
            Some(run) => {
                if printed.is_some() {
                    complain(&format!("run {run} follows"));
                }
                let mut sink = if server.json { Sink::Aside } else { Sink::Sorted(LineSorter::default()) };
                let shown = print_run(server, task, run, true, &mut sink).await;
                drop(sink.end());
                if let Err(error) = shown {
                    let why = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
                    complain(&format!("the log of run {run} is not shown to its end: {why}"));
                }
                printed = Some(run);
            }
            None if resolved || printed.is_none() => return Ok(()),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Rest of a stored log after a stream's output; none if it begins differently.
    fn rest(stored: &str, stream: &str, piece: usize) -> Option<String> {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(stored.as_bytes()).unwrap();
        from.rewind().unwrap();
        let mut printed = Printed::default();
        stream.as_bytes().chunks(piece).for_each(|bytes| printed.add(bytes));
        assert_eq!(printed.end_stream(), stream.ends_with(&deleted_line()));
        let mut rest = String::new();
        printed.begins(&mut from).unwrap().then(|| from.read_to_string(&mut rest).unwrap())?;
        Some(rest)
    }

    #[test]
    fn cut_log_is_not_complete() {
        for (state, follow, over) in [
            (RunState::Running, false, true),
            (RunState::Running, true, false),
            (RunState::Failed, false, true),
            (RunState::Failed, true, true),
        ] {
            assert_eq!(is_over(state, follow, 0), over, "{state} {follow}");
            assert!(!is_over(state, follow, 1), "{state} {follow}");
        }
    }

    #[test]
    fn proxy_error_does_not_end_log() {
        let refused = |status, code: &str| {
            let (code, message) = (code.to_owned(), String::new());
            Error::Refused { status, code, message, retry_after: None }
        };
        assert!(is_missing(&refused(404, "ResourceNotFound")));
        for page in [refused(404, ""), refused(403, "")] {
            assert!(!is_missing(&page) && may_pass(&page), "{page}");
        }
    }

    #[test]
    fn stored_log_continues_where_stream_ended() {
        let stored = "one\ntwo\nthree\n".repeat(100);
        let (begun, expected) = stored.split_at(stored.len() / 2);
        for piece in [1, 7, 1_000, stored.len()] {
            for stream in [begun.to_owned(), format!("{begun}{}", deleted_line())] {
                assert_eq!(rest(&stored, &stream, piece).as_deref(), Some(expected), "in pieces of {piece}");
            }
            assert_eq!(rest(&stored, &stored, piece).as_deref(), Some(""), "in pieces of {piece}");
            assert_eq!(rest(&stored, "two\n", piece), None);
            assert_eq!(rest(begun, &stored, piece), None);
        }
    }
}
