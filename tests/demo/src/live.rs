//! Two tasks shown before the others: the log of one is followed while it runs, the other is
//! cancelled while it runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_client::live_log::BACKING_LOG;
use tenure_client::{Client, Error, LogStream, State, TaskChange};
use tokio::time::{Instant, sleep, timeout};

use crate::Result;
use crate::plan::{CANCELED, COMPLETED, Planned};

const COUNTS: &str = r#"for second in 1 2 3 4; do echo "second $second of 4"; sleep 1; done"#;
const LAST_COUNT: &str = "second 4 of 4\n";
const WORKS: &str = r#"trap 'echo "asked to stop"; exit' TERM; echo "process $$ at work"; while :; do sleep 0.1; done"#;
/// Output of the second task around its process id.
const AT_WORK: (&str, &str) = ("process ", " at work\n");
const ASKED: &str = "\nasked to stop\n";
/// Limit for each step of an idle server and worker.
const WITHIN: Duration = Duration::from_secs(60);
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// The same for a worker without a session, which learns of a cancel at its next renewal.
const GONE_AT_RENEWAL: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// `--plane` of each worker.
type Planes = BTreeMap<String, &'static str>;

pub async fn show(client: &Client, queue: &TaskQueueId, planes: &Planes, scratch: &Path) -> Result<()> {
    let counts = Planned::of_script("count seconds", COMPLETED, COUNTS)?;
    let works = Planned::of_script("work until it is cancelled", CANCELED, WORKS)?;
    within(&counts, follow(client, queue, &counts, scratch)).await?;
    within(&works, cancel(client, queue, planes, &works, scratch)).await
}

async fn within(task: &Planned, shown: impl Future<Output = Result<()>>) -> Result<()> {
    match timeout(WITHIN, shown).await {
        Ok(done) => done,
        Err(_elapsed) => Err(format!("task {} ({}) took more than {WITHIN:?}", task.id, task.name).into()),
    }
}

async fn follow(client: &Client, queue: &TaskQueueId, task: &Planned, scratch: &Path) -> Result<()> {
    say!("\nThe log of task {}, while it runs:", task.id);
    let mut log = begin(client, queue, task).await?;
    log.read_until("second 1").await?;
    if client.status(task.id).await?.state != State::Running {
        return Err("its log came only when it had ended".into());
    }
    log.read_to_end().await?;
    ends_as(client, task).await?;
    let whole = whole_log(client, task.id, scratch).await?;
    if !whole.starts_with(&log.text) || !whole.contains(LAST_COUNT) {
        return Err(
            format!("what was followed is not the log: {:?} is not the beginning of {whole:?}", log.text).into()
        );
    }
    say!("It has ended; the whole log, {} bytes, is the artifact {BACKING_LOG}.", whole.len());
    Ok(())
}

/// Cancels a task. Its process ends; a worker with a session also keeps its log.
async fn cancel(client: &Client, queue: &TaskQueueId, planes: &Planes, task: &Planned, scratch: &Path) -> Result<()> {
    say!("\nTask {}, which is cancelled while it runs:", task.id);
    let mut log = begin(client, queue, task).await?;
    log.read_until(AT_WORK.1).await?;
    let number = log.text.split(AT_WORK.1).next().and_then(|before| before.rsplit(AT_WORK.0).next());
    let process = Pid::from_raw(number.unwrap_or_default().parse()?);
    if is_gone(process) {
        return Err(format!("process {process} of a task that runs is not there").into());
    }
    let has_session = !planes.iter().any(|(name, plane)| *plane == "poll" && log.text.contains(&format!("/{name}\n")));
    let within = if has_session { GONE_WITHIN } else { GONE_AT_RENEWAL };
    let asked = Instant::now();
    client.change_task(task.id, TaskChange::Cancel).await?;
    while !is_gone(process) {
        if asked.elapsed() > within {
            return Err(format!("process {process} is there {within:?} after its task was cancelled").into());
        }
        sleep(POLL).await;
    }
    say!("Cancelled: process {process} was gone {:.2} s later.", asked.elapsed().as_secs_f64());
    ends_as(client, task).await?;
    if !has_session {
        say!("Its worker has no session: it learned of this at its next renewal, and uploaded no log.\n");
        return Ok(());
    }
    let whole = whole_log(client, task.id, scratch).await?;
    if !whole.starts_with(&log.text) || !whole.contains(ASKED) {
        return Err(format!("the log does not say how it ended: {whole:?}").into());
    }
    say!("Its log was kept: it ends with {:?}.\n", whole.lines().last().unwrap_or_default());
    Ok(())
}

async fn begin(client: &Client, queue: &TaskQueueId, task: &Planned) -> Result<Followed> {
    client.create_task(task.id, &task.definition(queue, task.id, client)).await?;
    loop {
        match client.read_live_log(task.id, run()?, 0, true).await {
            Ok(stream) => return Ok(Followed { stream, text: String::new(), shown: 0 }),
            Err(Error::Refused { status: 404, .. }) => sleep(POLL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

async fn ends_as(client: &Client, task: &Planned) -> Result<()> {
    loop {
        let status = client.status(task.id).await?;
        if status.state.is_resolved() {
            let reason = status.runs.last().and_then(|run| run.reason_resolved.as_deref()).unwrap_or_default();
            let expected = task.expected;
            if (status.state, reason) == (expected.state, expected.reason) {
                return Ok(());
            }
            return Err(format!("task {} ended as {reason}, not as {}", task.id, expected.reason).into());
        }
        sleep(POLL).await;
    }
}

/// Reads the log uploaded by the worker, which may happen after the end of the task.
async fn whole_log(client: &Client, task: TaskId, scratch: &Path) -> Result<String> {
    let file = scratch.join(format!("{task}.log"));
    loop {
        match client.download(task, Some(run()?), BACKING_LOG, &file).await {
            Ok(_downloaded) => return Ok(std::fs::read_to_string(&file)?),
            // The artifact does not exist yet, or its bytes are still being uploaded.
            Err(Error::Refused { status: 404, .. } | Error::Store { status: 404 }) => sleep(POLL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

fn run() -> Result<RunId> {
    Ok("0".parse()?)
}

fn is_gone(process: Pid) -> bool {
    kill(process, None) == Err(Errno::ESRCH)
}

struct Followed {
    stream: LogStream,
    text: String,
    shown: usize,
}

impl Followed {
    async fn read_until(&mut self, text: &str) -> Result<()> {
        while !self.text.contains(text) {
            if !self.read().await? {
                return Err(format!("the log ended without {text:?}: {:?}", self.text).into());
            }
        }
        Ok(())
    }

    async fn read_to_end(&mut self) -> Result<()> {
        while self.read().await? {}
        Ok(())
    }

    async fn read(&mut self) -> Result<bool> {
        let Some(bytes) = self.stream.read().await? else { return Ok(false) };
        self.text.push_str(&String::from_utf8(bytes)?);
        let whole = self.text.rfind('\n').map_or(0, |end| end + 1);
        if whole > self.shown {
            self.text[self.shown..whole].lines().for_each(|line| say!("  | {line}"));
            self.shown = whole;
        }
        Ok(true)
    }
}
