//! A primary PostgreSQL and its standby for one test, to be killed, stopped and promoted. Servers
//! reach the current primary through a proxy.

mod forwarder;
mod node;

use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::Row as _;
use tempfile::TempDir;

pub use forwarder::Forwarder;
pub use node::{APPLICATION, Node};
use node::{LOOK_EVERY, WITHIN};

use crate::postgres::new_folder;

const NAMES: [&str; 2] = ["a", "b"];
const NAMES_SETTING: &str = "synchronous_standby_names";

/// A primary, its standby if it has one, and the proxy. All are stopped and deleted with this
/// value.
#[derive(Debug)]
pub struct Replicated {
    pub primary: Node,
    pub standby: Option<Node>,
    pub forwarder: Forwarder,
    // Last: fields drop in order, and the data must outlive the processes.
    folder: TempDir,
}

impl Replicated {
    pub async fn alone() -> Self {
        let folder = new_folder();
        let mut primary = Node::make(folder.path(), NAMES[0], "");
        primary.start().await;
        let forwarder = Forwarder::start(primary.port()).await;
        Self { primary, standby: None, forwarder, folder }
    }

    /// Starts a primary with a streaming standby. Commits do not wait for the standby.
    pub async fn asynchronous() -> Self {
        let mut replicated = Self::alone().await;
        replicated.add_standby().await;
        replicated
    }

    /// Starts a primary whose commits wait until the standby has flushed them, and wait forever
    /// without one.
    pub async fn synchronous() -> Self {
        let replicated = Self::asynchronous().await;
        replicated.make_synchronous().await;
        replicated
    }

    pub fn copy_primary(&mut self) {
        assert!(self.standby.is_none(), "there is a standby");
        let name = NAMES.into_iter().find(|name| *name != self.primary.name()).expect("there are two names");
        self.standby = Some(self.primary.copy(self.folder.path(), name));
    }

    pub async fn add_standby(&mut self) {
        self.standby = None;
        self.copy_primary();
        self.standby().start().await;
        self.until("the standby streams", "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
            .await;
    }

    pub async fn make_synchronous(&self) {
        self.primary.set(NAMES_SETTING, &format!("FIRST 1 ({})", NAMES.join(", "))).await;
        self.until(
            "the standby is synchronous",
            "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'",
        )
        .await;
    }

    /// Commits a message. All commits acknowledged before are then written, and flushed by a
    /// synchronous standby.
    pub async fn flush(&self) {
        let _: String = self.primary.ask("SELECT pg_logical_emit_message(true, 'test', 'flush')::text").await;
    }

    /// Waits until the standby has flushed everything committed before the call.
    pub async fn caught_up(&self) {
        let position: String = self.primary.ask("SELECT pg_current_wal_lsn()::text").await;
        let seen = format!("SELECT count(*) = 1 FROM pg_stat_replication WHERE flush_lsn >= '{position}'");
        self.until("the standby has everything", &seen).await;
    }

    async fn until(&self, what: &str, condition: &str) {
        let deadline = Instant::now() + WITHIN;
        while !self.primary.ask::<bool>(condition).await {
            assert!(Instant::now() < deadline, "timed out: {what}\n{}", self.primary.log());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub fn standby(&mut self) -> &mut Node {
        self.standby.as_mut().expect("there is a standby")
    }

    /// Stops the WAL senders with SIGSTOP: the standby receives nothing, and looks connected.
    pub async fn stall(&self) -> Stall {
        let mut session = self.primary.connect().await;
        let rows = sqlx::query("SELECT pid FROM pg_stat_replication").fetch_all(&mut session).await;
        let rows = rows.expect("the superuser sees who replicates");
        assert!(!rows.is_empty(), "nothing replicates");
        let stall = Stall(rows.iter().map(|row| Pid::from_raw(row.get(0))).collect());
        stall.signal(Signal::SIGSTOP);
        stall
    }

    /// Promotes the standby of a primary that the caller has killed or frozen, and switches the
    /// proxy, as high availability software does. Returns the old primary.
    ///
    /// Commits do not wait until a new standby exists and [`Self::make_synchronous`] is called.
    pub async fn fail_over(&mut self) -> Node {
        let old = self.promote().await;
        self.forward();
        old
    }

    /// First half of [`Self::fail_over`]: afterwards the servers reach no PostgreSQL.
    pub async fn promote(&mut self) -> Node {
        self.forwarder.switch(None);
        let standby = self.standby.take().expect("there is a standby");
        let promoted: bool = standby.ask(&format!("SELECT pg_promote(true, {})", WITHIN.as_secs())).await;
        assert!(promoted, "the standby is not promoted: {}", standby.log());
        // A copy has the settings of its source.
        standby.set(NAMES_SETTING, "").await;
        std::mem::replace(&mut self.primary, standby)
    }

    /// Second half of [`Self::fail_over`]: the servers reach the new primary.
    pub fn forward(&self) {
        self.forwarder.switch(Some(self.primary.port()));
    }
}

/// Stopped WAL senders, which continue when this value is dropped.
#[derive(Debug)]
pub struct Stall(Vec<Pid>);

impl Stall {
    fn signal(&self, signal: Signal) {
        for &pid in &self.0 {
            // A sender may have been killed with its PostgreSQL.
            let _ = kill(pid, signal);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}
