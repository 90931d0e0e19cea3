//! The processes of the demonstration: one server and its workers. Each child has its own process
//! group, so that Ctrl-C reaches only this process, which stops them in the right order.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_client::Credentials;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::{QUEUE, Result};

const READY: &str = "tenure ready: ";
/// The first start compiles PostgreSQL and creates a cluster.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Short, so that tasks of a killed worker come back soon.
pub const CLAIM_TIMEOUT: &str = "15s";
/// Short for the same reason: messages that a killed worker had polled and not claimed.
const MESSAGE_VISIBILITY: &str = "15s";
const WORKER_GROUP: &str = "demo";
const WORKER_CAPACITY: &str = "4";
/// Settings passed on from the environment: the PostgreSQL to use, and the log level.
const KEPT_SETTINGS: [&str; 2] = ["TENURE_PG_BIN", "TENURE_LOG"];
const LOG_TAIL: usize = 15;

pub struct Server {
    child: Child,
    root_url: String,
    credentials_file: PathBuf,
    credentials: Credentials,
}

impl Server {
    pub async fn start(bin_dir: &Path, data_dir: &Path, listen: &str, scratch: &Path) -> Result<Self> {
        let log_path = scratch.join("server.log");
        let log = File::create(&log_path)?;
        let mut command = Command::new(bin_dir.join("tenure"));
        command.args(["serve", "--listen", listen, "--claim-timeout", CLAIM_TIMEOUT]);
        command.args(["--message-visibility", MESSAGE_VISIBILITY, "--data-dir"]).arg(data_dir);
        // Otherwise the server would use the environment's database instead of its own.
        command.env_remove("DATABASE_URL").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = spawn(&mut command)?;
        let Ok(ready) = timeout(START_TIMEOUT, ready_line(&mut child)).await else {
            end(&mut child).await;
            return Err(format!("tenure serve was not ready after {START_TIMEOUT:?}\n{}", tail(&log_path)).into());
        };
        let Some(root_url) = ready? else {
            let status = child.wait().await?;
            return Err(format!("tenure serve ended at its start ({status})\n{}", tail(&log_path)).into());
        };
        let credentials_file = data_dir.join("root-credentials.json");
        let text = std::fs::read_to_string(&credentials_file)
            .map_err(|e| format!("{} cannot be read: {e}", credentials_file.display()))?;
        let credentials = serde_json::from_str(&text)?;
        Ok(Self { child, root_url, credentials_file, credentials })
    }

    pub fn root_url(&self) -> &str {
        &self.root_url
    }

    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub fn credentials_file(&self) -> &Path {
        &self.credentials_file
    }

    pub async fn stop(mut self) {
        end(&mut self.child).await;
    }
}

async fn ready_line(child: &mut Child) -> Result<Option<String>> {
    let output = child.stdout.take().ok_or("the server has no standard output")?;
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(root_url) = line.strip_prefix(READY) {
            // Drains the pipe, so that the server never blocks on it.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(Some(root_url.trim().to_owned()));
        }
        say!("  {line}");
    }
    Ok(None)
}

pub struct Workers {
    program: PathBuf,
    scratch: PathBuf,
    root_url: String,
    credentials: Credentials,
    running: BTreeMap<String, Running>,
}

struct Running {
    child: Child,
    plane: &'static str,
}

impl Workers {
    /// Starts no worker yet; the arguments apply to all later starts.
    pub fn new(bin_dir: &Path, scratch: &Path, root_url: &str, credentials: Credentials) -> Self {
        let (program, scratch) = (bin_dir.join("tenure-worker"), scratch.to_owned());
        Self { program, scratch, root_url: root_url.to_owned(), credentials, running: BTreeMap::new() }
    }

    pub fn start(&mut self, name: &str, plane: &'static str) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(name))?;
        let mut command = Command::new(&self.program);
        command
            .args(["run", "--task-queue", QUEUE, "--worker-group", WORKER_GROUP, "--worker-id", name])
            .args(["--plane", plane, "--capacity", WORKER_CAPACITY, "--work-dir"])
            .arg(self.scratch.join("work"))
            .env("TASKCLUSTER_ROOT_URL", &self.root_url)
            .env("TASKCLUSTER_CLIENT_ID", &self.credentials.client_id)
            .env("TASKCLUSTER_ACCESS_TOKEN", self.credentials.access_token.expose())
            .env_remove("TASKCLUSTER_CERTIFICATE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.running.insert(name.to_owned(), Running { child: spawn(&mut command)?, plane });
        Ok(())
    }

    /// Kills a worker with SIGKILL, so that it can report nothing more; returns its plane.
    pub async fn kill(&mut self, name: &str) -> Result<&'static str> {
        let mut worker = self.running.remove(name).ok_or("a worker that does not run cannot be killed")?;
        worker.child.kill().await?;
        Ok(worker.plane)
    }

    pub fn planes(&self) -> BTreeMap<String, &'static str> {
        self.running.iter().map(|(name, worker)| (name.clone(), worker.plane)).collect()
    }

    pub fn find_ended(&mut self) -> Result<Option<String>> {
        for (name, worker) in &mut self.running {
            if let Some(status) = worker.child.try_wait()? {
                let log = tail(&self.scratch.join(format!("{name}.log")));
                return Ok(Some(format!("{name} ended by itself ({status})\n{log}")));
            }
        }
        Ok(None)
    }

    pub fn describe(&self) -> String {
        let one = |(name, worker): (&String, &Running)| {
            format!("{name} (process {}, --plane {})", worker.child.id().unwrap_or_default(), worker.plane)
        };
        self.running.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    pub fn print_warnings(&self) {
        for name in self.running.keys() {
            let log = std::fs::read_to_string(self.log(name)).unwrap_or_default();
            let warnings = log.lines().filter(|line| line.contains(" WARN ") || line.contains("ERROR "));
            warnings.take(LOG_TAIL).for_each(|line| say!("{name}: {line}"));
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.scratch.join(format!("{name}.log"))
    }

    pub async fn stop(&mut self) {
        futures_util::future::join_all(self.running.values_mut().map(|worker| end(&mut worker.child))).await;
    }
}

fn spawn(command: &mut Command) -> Result<Child> {
    // The demonstration uses arguments. The user's settings for other servers and workers would
    // make it use their artifacts or rules.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") && !KEPT_SETTINGS.iter().any(|kept| name == *kept) {
            command.env_remove(name);
        }
    }
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let child = command.process_group(0).kill_on_drop(true).spawn();
    Ok(child.map_err(|e| format!("{program} cannot be started: {e}"))?)
}

/// Sends SIGTERM, and SIGKILL after a timeout.
async fn end(child: &mut Child) {
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
    let _ended_already = kill(Pid::from_raw(pid), Signal::SIGTERM);
    if timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        eprintln!("process {pid} did not end within {STOP_TIMEOUT:?} and is killed");
        let _ended_now = child.kill().await;
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let shown = lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n  ");
    format!("  {shown}\n  (all of it: {})", log.display())
}
