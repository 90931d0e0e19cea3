//! One PostgreSQL of a replicated pair, whose processes can be started, frozen and killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, Row as _};

use crate::postgres::{INITDB, children, command, free_port, make, runs};

pub const APPLICATION: &str = "test";
/// Limit for a start with recovery, a promotion or the end of processes. Each takes about a second
/// on an idle machine.
pub(super) const WITHIN: Duration = Duration::from_secs(60);
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// Settings of every cluster. Nothing is fsynced: only processes die here, and the system keeps
/// their writes. WAL of asynchronous commits is written late, so that a kill loses some.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 120
shared_buffers = 64MB
fsync = off
wal_level = replica
max_wal_senders = 8
wal_keep_size = 256MB
hot_standby = on
wal_retrieve_retry_interval = 200ms
wal_writer_delay = 10s
checkpoint_timeout = 5min
max_wal_size = 1GB
random_page_cost = 1.1
jit = off
";

/// A named PostgreSQL, stopped when dropped. Its data goes with the enclosing folder.
#[derive(Debug)]
pub struct Node {
    name: String,
    data: PathBuf,
    port: u16,
    postmaster: Option<Child>,
}

impl Node {
    pub(super) fn make(folder: &Path, name: &str, settings: &str) -> Self {
        let node = Self::at(folder, name);
        make(command("initdb").args(INITDB), &node.data);
        let file = node.data.join("postgresql.conf");
        let mut text = std::fs::read_to_string(&file).expect("initdb writes settings");
        text.push_str(SETTINGS);
        text.push_str(settings);
        std::fs::write(&file, text).expect("the test may write its cluster's settings");
        node
    }

    /// Copies this cluster to a standby without starting it. Replaces an earlier cluster of the
    /// same name.
    pub(super) fn copy(&self, folder: &Path, name: &str) -> Self {
        let node = Self::at(folder, name);
        if node.data.exists() {
            std::fs::remove_dir_all(&node.data).expect("the data of a dead cluster can be removed");
        }
        let source = format!("host=127.0.0.1 port={} user=postgres", self.port);
        let mut copying = command("pg_basebackup");
        make(copying.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &source]), &node.data);
        node
    }

    fn at(folder: &Path, name: &str) -> Self {
        Self { name: name.to_owned(), data: folder.join(name), port: free_port(), postmaster: None }
    }

    /// The primary knows a standby by this name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub async fn start(&mut self) {
        let file = self.log_file();
        let log = std::fs::File::options().create(true).append(true).open(file).expect("the folder can be written");
        let deadline = Instant::now() + WITHIN;
        // Another program may hold the port, and killed processes may survive for a moment.
        loop {
            let mut command = command("postgres");
            command.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
            command.args(["-c", &format!("cluster_name={}", self.name)]);
            let (output, errors) = (log.try_clone(), log.try_clone());
            command.stdin(Stdio::null()).stdout(output.expect("a file handle can be copied"));
            command.stderr(errors.expect("a file handle can be copied"));
            let child = self.postmaster.insert(command.spawn().expect("postgres is installed"));
            while child.try_wait().expect("a child can be waited for").is_none() {
                let options: PgConnectOptions =
                    format!("postgres://postgres@127.0.0.1:{}/postgres", self.port).parse().expect("it is a URL");
                if options.disable_statement_logging().connect().await.is_ok() {
                    return;
                }
                assert!(Instant::now() < deadline, "PostgreSQL does not start: {}", self.log());
                tokio::time::sleep(LOOK_EVERY).await;
            }
            assert!(Instant::now() < deadline, "PostgreSQL does not start: {}", self.log());
            tokio::time::sleep(10 * LOOK_EVERY).await;
        }
    }

    pub async fn connect(&self) -> PgConnection {
        let options: PgConnectOptions = self.url().parse().expect("it is a URL");
        let options = options.application_name(APPLICATION).disable_statement_logging();
        options.connect().await.unwrap_or_else(|error| panic!("{} takes no connections: {error}", self.name))
    }

    /// Runs a statement in a new session and returns the first column of the first row.
    pub async fn ask<T>(&self, statement: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let mut session = self.connect().await;
        let row = sqlx::query(AssertSqlSafe(statement.to_owned())).fetch_one(&mut session).await;
        row.unwrap_or_else(|error| panic!("{statement}: {error}")).get(0)
    }

    /// Changes a setting for new and existing sessions, and waits until new ones have it.
    pub async fn set(&self, name: &str, value: &str) {
        let mut session = self.connect().await;
        for statement in [format!("ALTER SYSTEM SET {name} = '{value}'"), "SELECT pg_reload_conf()".to_owned()] {
            let done = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut session).await;
            done.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        let shown = format!("SELECT current_setting('{name}')");
        let deadline = Instant::now() + WITHIN;
        while self.ask::<String>(&shown).await != value {
            assert!(Instant::now() < deadline, "{name} does not become {value}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub fn kill(&mut self) {
        let mut child = self.postmaster.take().expect("it runs");
        let postmaster = pid_of(&child);
        // Stopped first, so that the postmaster neither starts processes nor notices that some have
        // ended.
        let _ = kill(postmaster, Signal::SIGSTOP);
        let all = children(postmaster);
        for &pid in all.iter().chain([&postmaster]) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = child.wait();
        let deadline = Instant::now() + WITHIN;
        while all.iter().any(|&pid| runs(pid)) {
            assert!(Instant::now() < deadline, "killed processes live");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Stops all processes with SIGSTOP: connections stay open and unanswered.
    pub fn freeze(&self) {
        // The postmaster first: it must not start processes meanwhile.
        self.signal_all(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal_all(Signal::SIGCONT);
    }

    fn signal_all(&self, signal: Signal) {
        let Some(child) = &self.postmaster else { return };
        let postmaster = pid_of(child);
        for pid in std::iter::once(postmaster).chain(children(postmaster)) {
            let _ = kill(pid, signal);
        }
    }

    fn log_file(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.thaw();
        let Some(child) = &mut self.postmaster else { return };
        // A killed postmaster leaves shared memory behind.
        let _ = kill(pid_of(child), Signal::SIGQUIT);
        let deadline = Instant::now() + ENDED_WITHIN;
        while child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > deadline {
                self.kill();
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("the system's process numbers are small"))
}
