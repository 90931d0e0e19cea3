//! One PostgreSQL of a replicated pair: its processes, started, stopped where they are, killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, Row as _};

use crate::postgres::{INITDB, children, command, free_port, make, runs};

/// By this name the test's own sessions are distinguished from the servers'.
pub const APPLICATION: &str = "test";
/// A start with recovery, a promotion, the end of processes: each takes about a second; a busy machine needs more.
pub(super) const WITHIN: Duration = Duration::from_secs(60);
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// For a PostgreSQL that is asked to end at once, before it is killed.
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// Settings of every cluster. Nothing is flushed to the disk: the processes die here, the machine does not, and what a
/// process has written is kept by the system. Commits that do not wait are written late, so that there is something to lose.
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

/// A PostgreSQL with a name. Dropped, it is stopped; its data goes with the folder that it lies in.
#[derive(Debug)]
pub struct Node {
    name: String,
    data: PathBuf,
    port: u16,
    postmaster: Option<Child>,
}

impl Node {
    /// A new cluster, not yet started.
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

    /// A standby of this one as it is now, not yet started. It lies where one of this name has lain before.
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

    /// Its name, by which the other one knows it as a standby.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its port on the loopback interface.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where to reach it, as the superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts it and waits until it takes connections.
    ///
    /// # Panics
    ///
    /// If it does not; the panic quotes its log.
    pub async fn start(&mut self) {
        let file = self.log_file();
        let log = std::fs::File::options().create(true).append(true).open(file).expect("the folder can be written");
        let deadline = Instant::now() + WITHIN;
        // Another program may have taken the port, and processes of a killed one may live on for a short time.
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

    /// A session of the superuser.
    ///
    /// # Panics
    ///
    /// If it takes no connections.
    pub async fn connect(&self) -> PgConnection {
        let options: PgConnectOptions = self.url().parse().expect("it is a URL");
        let options = options.application_name(APPLICATION).disable_statement_logging();
        options.connect().await.unwrap_or_else(|error| panic!("{} takes no connections: {error}", self.name))
    }

    /// Runs a statement on a session of its own; gives the first column of its first row.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub async fn ask<T>(&self, statement: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let mut session = self.connect().await;
        let row = sqlx::query(AssertSqlSafe(statement.to_owned())).fetch_one(&mut session).await;
        row.unwrap_or_else(|error| panic!("{statement}: {error}")).get(0)
    }

    /// Sets a setting for all sessions, those that exist too, and waits until new ones have it.
    ///
    /// # Panics
    ///
    /// If PostgreSQL refuses.
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

    /// Kills all of its processes without warning.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn kill(&mut self) {
        let mut child = self.postmaster.take().expect("it runs");
        let postmaster = pid_of(&child);
        // Stopped first, so that it neither starts processes nor notices that some have ended.
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

    /// Stops all of its processes where they are: connections stay open, and nothing is answered.
    pub fn freeze(&self) {
        // The postmaster first: it must not start new ones meanwhile.
        self.signal_all(Signal::SIGSTOP);
    }

    /// Lets processes that were stopped go on.
    pub fn thaw(&self) {
        self.signal_all(Signal::SIGCONT);
    }

    fn signal_all(&self, signal: Signal) {
        let Some(child) = &self.postmaster else { return };
        let postmaster = pid_of(child);
        for pid in std::iter::once(postmaster).chain(children(postmaster)) {
            // A session may have ended just now.
            let _ = kill(pid, signal);
        }
    }

    fn log_file(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// What it has written into its log.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.thaw();
        let Some(child) = &mut self.postmaster else { return };
        // Asked first: one that is killed leaves shared memory behind.
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
