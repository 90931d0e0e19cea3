//! `tenure task artifacts` and `tenure task download`.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tenure_api::ids::RunId;
use tenure_client::Artifact;
use tokio::sync::oneshot;

use super::id::TaskRef;
use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::{print_bytes, table};
use crate::cli::signals;

const PIECE: usize = 64 << 10;

#[derive(Debug, Args)]
pub struct ArtifactsArgs {
    /// The id of the task
    #[arg(allow_hyphen_values = true)]
    pub task: TaskRef,
    /// The number of the run [default: the last one]
    #[arg(long)]
    pub run: Option<RunId>,
}

#[derive(Debug, Args)]
pub struct DownloadArgs {
    /// The id of the task
    #[arg(allow_hyphen_values = true)]
    pub task: TaskRef,
    /// The name of the artifact, as `tenure task artifacts` shows it
    pub name: String,
    /// The number of the run [default: the last one]
    #[arg(long)]
    pub run: Option<RunId>,
    /// The file or directory to write to; a dash is standard output. A file is replaced once the
    /// download is complete [default: the last part of the name, in the current directory]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub(super) async fn list(server: &Server, args: &ArtifactsArgs) -> Result<(), CommandError> {
    let (task, run) = (args.task.find(server).await?, args.run);
    let artifacts = server.client.list_artifacts(task, run).await.map_err(|error| server.error(&error))?;
    let answer = json!({ "artifacts": artifacts.iter().map(as_json).collect::<Vec<_>>() });
    server.print(&answer, |answer| rows(entries(answer, "artifacts")))
}

pub(super) fn as_json(artifact: &Artifact) -> Value {
    json!({"name": artifact.name, "storageType": artifact.storage_type, "contentType": artifact.content_type,
        "size": artifact.size.or(artifact.content_length), "expires": artifact.expires})
}

pub(super) fn rows(artifacts: &[Value]) -> String {
    let row = |artifact: &Value| {
        [
            field(artifact, "/size"),
            field(artifact, "/storageType"),
            field(artifact, "/contentType"),
            field(artifact, "/name"),
        ]
    };
    table(["BYTES", "STORED AS", "TYPE", "ARTIFACT"], artifacts.iter().map(row))
}

/// Downloads an artifact. Interrupted, it leaves no part behind.
pub(super) async fn download(server: &Server, args: &DownloadArgs) -> Result<ExitCode, CommandError> {
    let asked = signals::listen(Duration::ZERO).map_err(|error| CommandError::no_signals(&error))?;
    let to_output = args.output.as_deref().is_some_and(|file| file.as_os_str() == "-");
    let downloading =
        async { if to_output { download_to_output(server, args).await } else { download_to_file(server, args).await } };
    match asked.stop.run_until_cancelled(downloading).await {
        Some(done) => done.map(|()| ExitCode::SUCCESS),
        None => {
            let message = if to_output { "interrupted" } else { "interrupted: nothing was written" };
            Err(CommandError::Interrupted(message.to_owned(), asked.exit_code()))
        }
    }
}

async fn download_to_file(server: &Server, args: &DownloadArgs) -> Result<(), CommandError> {
    let to = destination(&args.name, args.output.as_deref())?;
    let task = args.task.find(server).await?;
    let done = server.client.download(task, args.run, &args.name, &to).await;
    let done = done.map_err(|error| server.error(&error))?;
    let file = to.display().to_string();
    let answer = json!({ "file": file, "bytes": done.bytes, "sha256": done.sha256 });
    server.print(&answer, |answer| format!("{}: {} bytes", field(answer, "/file"), done.bytes))
}

async fn download_to_output(server: &Server, args: &DownloadArgs) -> Result<(), CommandError> {
    if server.json {
        return Err(CommandError::Usage("--json: standard output gets the artifact; leave --json out".to_owned()));
    }
    // Nothing is printed unless the whole artifact has arrived.
    let folder = std::env::temp_dir();
    let task = args.task.find(server).await?;
    let arrived = server.client.download_unnamed(task, args.run, &args.name, &folder).await;
    let file = arrived.map_err(|error| server.error(&error))?;
    // A thread of its own: a write blocks while nobody reads, and a signal must end the command.
    let (reply, printed) = oneshot::channel();
    std::thread::spawn(move || reply.send(print_file(file)));
    match printed.await.unwrap_or_else(|_| Err(ErrorKind::Other.into())) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CommandError::Refused(format!("the artifact cannot be written: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn print_file(mut file: File) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            length => print_bytes(&piece[..length])?,
        }
    }
}

/// The name comes from a worker: only its last part names the file.
fn destination(name: &str, output: Option<&Path>) -> Result<PathBuf, CommandError> {
    let last = Path::new(name).file_name().filter(|_| !name.ends_with('/'));
    match output {
        Some(file) if !file.is_dir() => Ok(file.to_owned()),
        folder => {
            let missing =
                || CommandError::Usage(format!("--output is missing: {name:?} does not end in a file's name"));
            Ok(folder.unwrap_or(Path::new("")).join(last.ok_or_else(missing)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_last_part_of_name() {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| destination(name, Some(folder.path())).ok();
        assert_eq!(destination("public/out.tar", None).unwrap(), Path::new("out.tar"));
        assert_eq!(destination("public/..", Some(Path::new("x"))).unwrap(), Path::new("x"));
        assert_eq!(below("public/out.tar"), Some(folder.path().join("out.tar")));
        for wrong in ["..", "public/..", "/", "out/"] {
            assert_eq!(below(wrong), None, "{wrong}");
            assert!(destination(wrong, None).unwrap_err().to_string().starts_with("--output is missing"), "{wrong}");
        }
    }
}
