//! Tests with a real PostgreSQL: which crashes it survives, and which starts are refused with which
//! line.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid, getpgid};
use sqlx::{ConnectOptions as _, PgConnection};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::account::Account;
use super::postmaster::PidFile;
use super::*;

mod lifecycle;
mod refusals;

/// Generous for busy machines.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Makes the test [`serves_until_its_input_ends`] a server, and sets its directory.
const SERVE_IN: &str = "TENURE_TEST_EMBEDDED_SERVE_IN";

struct TestFolder {
    base: TempDir,
    data_dir: PathBuf,
}

impl TestFolder {
    fn new() -> Self {
        let base = tempfile::Builder::new().prefix("tenure-embedded-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let data_dir = base.path().join("data");
        Self { base, data_dir }
    }

    fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }

    fn pg_dir(&self) -> PathBuf {
        self.data_dir().join("pg")
    }

    fn settings(&self) -> EmbeddedSettings {
        EmbeddedSettings { data_dir: self.data_dir(), pg_bin: test_pg_bin() }
    }

    async fn start(&self) -> Embedded {
        Embedded::start(&self.settings()).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn refusal(&self) -> String {
        one_line(&Embedded::start(&self.settings()).await.err().expect("the start should have been refused"))
    }

    fn postgres_pid(&self) -> i32 {
        PidFile::find_running(&self.pg_dir()).expect("PostgreSQL should be running").pid
    }
}

impl Drop for TestFolder {
    /// A failed test must not leave a PostgreSQL running in a directory that is being removed.
    fn drop(&mut self) {
        if let Some(running) = PidFile::find_running(&self.pg_dir()) {
            let _ = kill(Pid::from_raw(running.pid), Signal::SIGQUIT);
        }
    }
}

/// Set by `scripts/with-pg`; otherwise the usual search applies.
fn test_pg_bin() -> Option<PathBuf> {
    std::env::var_os("TENURE_TEST_PG_BIN").map(PathBuf::from)
}

#[track_caller]
fn one_line(error: &EmbeddedError) -> String {
    let line = error.to_string();
    assert!(!line.contains('\n') && !line.trim().is_empty(), "not one line: {line:?}");
    line
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < deadline, "timed out: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn connect(options: &PgConnectOptions) -> PgConnection {
    options.connect().await.unwrap()
}

async fn remember(options: &PgConnectOptions) {
    let sql = "CREATE TABLE kept (n integer); INSERT INTO kept VALUES (42)";
    sqlx::raw_sql(sql).execute(&mut connect(options).await).await.unwrap();
}

async fn assert_remembered(options: &PgConnectOptions) {
    let n: i32 = sqlx::query_scalar("SELECT n FROM kept").fetch_one(&mut connect(options).await).await.unwrap();
    assert_eq!(n, 42);
}

/// Not a test: the server process that tests start and kill. Prints `ready` or the refusal,
/// supervises, and stops when its input ends.
#[tokio::test]
async fn serves_until_its_input_ends() {
    let Some(data_dir) = std::env::var_os(SERVE_IN) else { return };
    let settings = EmbeddedSettings { data_dir: data_dir.into(), pg_bin: test_pg_bin() };
    let embedded = match Embedded::start(&settings).await {
        Ok(embedded) => embedded,
        Err(error) => {
            println!("\nrefused: {error}");
            return;
        }
    };
    println!("\nready");
    let input_ends = async {
        let wait = || std::io::stdin().read_line(&mut String::new());
        tokio::task::spawn_blocking(wait).await.unwrap().unwrap();
        embedded.stop().await;
    };
    tokio::join!(embedded.supervise(), input_ends);
    println!("\nstopped");
}

struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn spawn(folder: &TestFolder) -> Self {
        Self::run(folder, &mut Command::new(std::env::current_exe().unwrap()))
    }

    /// Runs as another user, who gets a readable copy of the program.
    fn spawn_as(folder: &TestFolder, uid: u32) -> Self {
        let program = folder.base.path().join("program");
        if !program.exists() {
            fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        }
        Self::run(folder, Command::new(program).uid(uid).gid(uid).current_dir("/"))
    }

    fn run(folder: &TestFolder, command: &mut Command) -> Self {
        let mut child = command
            .args(["--exact", "tests::serves_until_its_input_ends", "--nocapture"])
            .env(SERVE_IN, folder.data_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the next line of the server, skipping the test runner's.
    async fn news(&mut self) -> String {
        let news = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if ["ready", "refused", "stopped"].iter().any(|word| line.starts_with(word)) {
                    return line;
                }
            }
            "ended".to_owned()
        };
        tokio::time::timeout(TIMEOUT, news).await.expect("the server should have printed a line")
    }

    async fn ready(folder: &TestFolder) -> Self {
        let mut server = Self::spawn(folder);
        assert_eq!(server.news().await, "ready");
        server
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    async fn stop(mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.news().await, "stopped");
        self.child.wait().await.unwrap();
    }
}

async fn options_of(folder: &TestFolder) -> PgConnectOptions {
    match open(&folder.settings(), IfAbsent::Make).await.unwrap() {
        Access::Running(options) => *options,
        Access::Own(_) => panic!("a server should be running"),
    }
}
