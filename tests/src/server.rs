//! A real `tenure serve` process: started, awaited, stopped or killed.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::http::Account;

const READY: &str = "tenure ready: ";
/// Includes the creation of an embedded cluster on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The server promises 10 s; the rest is for a busy machine.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
const QUOTED_LINES: usize = 40;

/// Returns the program under test: `TENURE_BIN`, or the program that cargo built beside the running
/// test.
///
/// # Panics
///
/// If there is no such file.
#[must_use]
pub fn binary() -> PathBuf {
    let path = std::env::var_os("TENURE_BIN").map_or_else(
        || {
            let mut folder = std::env::current_exe().expect("a running program has a path");
            // target/<profile>/deps/it-0123 for a test, target/<profile>/tenure-bench for a
            // program.
            folder.pop();
            if folder.ends_with("deps") {
                folder.pop();
            }
            folder.join("tenure")
        },
        PathBuf::from,
    );
    assert!(path.is_file(), "{} does not exist: build it with `cargo build`, or set TENURE_BIN", path.display());
    path
}

#[derive(Debug, Clone, Default)]
pub struct Launch {
    program: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    listen: Option<String>,
    user: Option<u32>,
    open_files: Option<(u32, u32)>,
    terminal: bool,
    pid_one: bool,
}

impl Launch {
    /// Returns a server on an existing database and a free port.
    #[must_use]
    pub fn on_database(database_url: &str, secret_key: &str) -> Self {
        Self::default().flag("--database-url", database_url).flag("--secret-key", secret_key)
    }

    #[must_use]
    pub fn program(mut self, path: &Path) -> Self {
        self.program = Some(path.to_owned());
        self
    }

    #[must_use]
    pub fn flag(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.args.extend([OsString::from(name), value.into()]);
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the address; the default is a free port of the loopback interface.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    #[must_use]
    pub fn user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    #[must_use]
    pub fn open_files(mut self, soft: u32, hard: u32) -> Self {
        self.open_files = Some((soft, hard));
        self
    }

    /// Starts the server with the default action of SIGHUP, even if the tests run under nohup.
    #[must_use]
    pub fn with_a_terminal(mut self) -> Self {
        self.terminal = true;
        self
    }

    /// Runs the server as PID 1 of a new namespace. The namespace ends with `unshare`, the server's
    /// parent.
    #[must_use]
    pub fn as_pid_one(mut self) -> Self {
        self.pid_one = true;
        self
    }

    #[must_use]
    pub fn command(&self, data_dir: &Path) -> Command {
        let program = self.program.clone().unwrap_or_else(binary);
        let mut command = match self.open_files {
            Some((soft, hard)) => {
                let mut shell = Command::new("sh");
                let limits = format!("ulimit -S -n {soft} && ulimit -H -n {hard} && exec \"$0\" \"$@\"");
                shell.arg("-c").arg(limits).arg(program);
                shell
            }
            None if self.pid_one => {
                let mut unshare = Command::new("unshare");
                unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(program);
                unshare
            }
            None if self.terminal => {
                let mut env = Command::new("env");
                env.arg("--default-signal=HUP").arg(program);
                env
            }
            None => Command::new(program),
        };
        command
            .args(["serve", "--listen", self.listen.as_deref().unwrap_or("127.0.0.1:0"), "--data-dir"])
            .arg(data_dir)
            .args(&self.args)
            // Tests read metrics right after their requests.
            .env("TENURE_METRICS_LIFE_MS", "0")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Starts the server and waits until it can serve. `folder` is its data directory and holds its
    /// log; `name` distinguishes servers of one folder.
    pub async fn start(&self, folder: &Path, name: &str) -> Server {
        let log = folder.join(format!("{name}.log"));
        let output = std::fs::File::create(&log).expect("the test's folder can be written");
        let errors = output.try_clone().expect("a file handle can be copied");
        let child = self
            .command(&folder.join(name))
            .stdout(output)
            .stderr(errors)
            .spawn()
            .expect("the server's program can be started");
        let mut server = Server { child, root_url: String::new(), log };
        server.root_url = server.wait_until_ready().await;
        server
    }
}

/// A running server, killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    root_url: String,
    log: PathBuf,
}

impl Server {
    #[must_use]
    pub fn root_url(&self) -> &str {
        &self.root_url
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Kills the server without warning, as a power cut would, and waits until it is gone.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// Sends SIGTERM without waiting.
    pub fn terminate(&self) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).map_err(io::Error::from)
    }

    pub async fn stop(mut self) -> ExitStatus {
        self.terminate().expect("a child that was not waited for can be signalled");
        self.ended().await
    }

    /// Sends SIGTERM to a server that may have stopped already, and waits for its end.
    pub async fn stop_if_it_runs(mut self) {
        if !self.has_ended() {
            let _ = self.terminate();
            self.ended().await;
        }
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + STOPPED_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("the server did not stop within {STOPPED_WITHIN:?} of SIGTERM:\n{}", self.log_tail());
    }

    async fn wait_until_ready(&mut self) -> String {
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            // Without its newline the line may be incomplete.
            let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
            if let Some(url) = complete.lines().find_map(|line| line.strip_prefix(READY)) {
                return url.trim().to_owned();
            }
            assert!(!self.has_ended(), "the server ended instead of serving:\n{}", self.log_tail());
            tokio::time::sleep(POLL).await;
        }
        panic!("the server was not ready within {READY_WITHIN:?}:\n{}", self.log_tail());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed test must leave no process behind. The server may have ended already.
        let _ = self.kill();
    }
}

/// Creates the client `root` with all scopes, in a database that a server has migrated.
#[must_use]
pub fn create_root_client(database_url: &str, secret_key: &str) -> Account {
    client_command(&["create", "root", "--scope", "*"], database_url, secret_key)
}

/// Gives the client `root` another token, encrypted with the first of these keys.
pub fn reset_root_token(database_url: &str, secret_keys: &str) -> Account {
    client_command(&["reset-token", "root"], database_url, secret_keys)
}

fn client_command(words: &[&str], database_url: &str, secret_key: &str) -> Account {
    let output = Command::new(binary())
        .arg("client")
        .args(words)
        .arg("--json")
        .env("DATABASE_URL", database_url)
        .env("TENURE_SECRET_KEY", secret_key)
        .output()
        .expect("the server's program can be started");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tenure client {words:?}: {complaint}");
    serde_json::from_slice(&output.stdout).expect("tenure client --json prints the credentials")
}

#[must_use]
pub fn fresh_secret_key() -> String {
    use base64::Engine;
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
