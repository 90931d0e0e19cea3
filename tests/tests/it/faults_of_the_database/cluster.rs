//! A PostgreSQL cluster for one test, to be frozen, killed and starved.

use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use tenure_tests::postgres::{INITDB, children, command, free_port, make, new_folder, runs};

use super::RECOVERED_WITHIN;
use crate::rig::{LOOK_EVERY, eventually};

/// A running cluster without fsync: its data need not survive a crash of the machine.
pub struct Cluster {
    folder: TempDir,
    settings: Vec<String>,
    port: u16,
    postmaster: Pid,
}

impl Cluster {
    pub async fn start(settings: &[&str]) -> Self {
        Self::make(command("initdb").args(INITDB), settings).await
    }

    pub async fn standby_of(primary: &Self) -> Self {
        let mut backup = command("pg_basebackup");
        backup.args(["-d", &primary.url("postgres")]).args(["-c", "fast", "-X", "stream", "-R", "--no-sync"]);
        Self::make(&mut backup, &[]).await
    }

    async fn make(maker: &mut Command, settings: &[&str]) -> Self {
        let folder = new_folder();
        make(maker, &folder.path().join("data"));
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut cluster = Self { folder, settings, port: free_port(), postmaster: Pid::from_raw(0) };
        cluster.start_again().await;
        cluster
    }

    pub async fn start_again(&mut self) {
        let deadline = Instant::now() + RECOVERED_WITHIN;
        // Sessions of a killed PostgreSQL survive for a moment; until then a new one refuses to
        // start.
        while !self.try_start().await {
            assert!(Instant::now() < deadline, "PostgreSQL does not start: {}", self.log());
        }
    }

    async fn try_start(&mut self) -> bool {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = command("postgres");
        command.arg("-D").arg(self.folder.path().join("data")).args(["-p", &self.port.to_string(), "-k", ""]);
        for setting in self.settings.iter().map(String::as_str).chain(["fsync=off", "listen_addresses=127.0.0.1"]) {
            command.args(["-c", setting]);
        }
        let errors = log.try_clone().unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("postgres is installed");
        self.postmaster = Pid::from_raw(i32::try_from(child.id()).unwrap());
        loop {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if PgConnection::connect(&self.url("postgres")).await.is_ok() {
                // The child is not awaited: a zombie is dead enough for the test, and ends with
                // this process.
                std::thread::spawn(move || child.wait());
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}@{}/postgres", self.authority())
    }

    pub fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url("postgres")).await.expect("the cluster takes connections")
    }

    pub fn kill(&self) {
        kill(self.postmaster, Signal::SIGKILL).expect("the postmaster runs");
    }

    /// Kills the postmaster and waits for the end of its sessions. A delayed session may still
    /// commit. A standby must only be promoted after this, otherwise two databases accept writes.
    pub async fn fence(&self) {
        let sessions = children(self.postmaster);
        self.kill();
        eventually("the sessions of the killed PostgreSQL have ended", async || {
            sessions.iter().all(|&session| !runs(session)).then_some(())
        })
        .await;
    }

    /// Stops PostgreSQL as `pg_ctl stop -m fast` does: rolls back open transactions and writes
    /// everything.
    pub async fn stop(&self) {
        kill(self.postmaster, Signal::SIGINT).expect("the postmaster runs");
        eventually("PostgreSQL has stopped", async || (!runs(self.postmaster)).then_some(())).await;
    }

    /// Stops all processes with SIGSTOP: connections stay open and unanswered.
    pub fn freeze(&self) {
        // The postmaster first: it must not start processes meanwhile.
        self.signal_all(Signal::SIGSTOP);
    }

    /// Stops only the postmaster: sessions work, new connections hang.
    pub fn freeze_postmaster(&self) {
        kill(self.postmaster, Signal::SIGSTOP).expect("the postmaster runs");
    }

    pub fn thaw(&self) {
        self.signal_all(Signal::SIGCONT);
    }

    fn signal_all(&self, signal: Signal) {
        for pid in std::iter::once(self.postmaster).chain(children(self.postmaster)) {
            let _ = kill(pid, signal);
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.postmaster.as_raw() > 0 {
            self.thaw();
            let _ = kill(self.postmaster, Signal::SIGQUIT);
        }
    }
}
