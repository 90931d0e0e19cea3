//! Two PostgreSQLs of a test's own, a primary and its standby, to be killed, stopped and promoted; and a forwarder in front
//! of them, through which servers reach whichever is the primary.

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

/// The names of the two.
const NAMES: [&str; 2] = ["a", "b"];
const NAMES_SETTING: &str = "synchronous_standby_names";

/// A primary, its standby if it has one, and the forwarder. Everything is stopped and deleted with this value.
#[derive(Debug)]
pub struct Replicated {
    /// The one that is written to.
    pub primary: Node,
    /// The other one.
    pub standby: Option<Node>,
    /// Through which the servers connect.
    pub forwarder: Forwarder,
    // Last: fields are dropped in their order, and the data goes when the processes have ended.
    folder: TempDir,
}

impl Replicated {
    /// A primary alone.
    pub async fn alone() -> Self {
        let folder = new_folder();
        let mut primary = Node::make(folder.path(), NAMES[0], "");
        primary.start().await;
        let forwarder = Forwarder::start(primary.port()).await;
        Self { primary, standby: None, forwarder, folder }
    }

    /// A primary with a standby that streams from it. Commits do not wait for it yet.
    pub async fn asynchronous() -> Self {
        let mut replicated = Self::alone().await;
        replicated.add_standby().await;
        replicated
    }

    /// A primary whose commits wait until its standby has them on its disk, and wait for ever while there is none.
    pub async fn synchronous() -> Self {
        let replicated = Self::asynchronous().await;
        replicated.make_synchronous().await;
        replicated
    }

    /// A copy of the primary as it is now, which does not run.
    ///
    /// # Panics
    ///
    /// If there is a standby already.
    pub fn copy_primary(&mut self) {
        assert!(self.standby.is_none(), "there is a standby");
        let name = NAMES.into_iter().find(|name| *name != self.primary.name()).expect("there are two names");
        self.standby = Some(self.primary.copy(self.folder.path(), name));
    }

    /// Makes the other node anew, from the primary, and waits until it streams.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub async fn add_standby(&mut self) {
        self.standby = None;
        self.copy_primary();
        self.standby().start().await;
        self.until("the standby streams", "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
            .await;
    }

    /// Has commits wait for the standby, and waits until they do.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub async fn make_synchronous(&self) {
        self.primary.set(NAMES_SETTING, &format!("FIRST 1 ({})", NAMES.join(", "))).await;
        self.until(
            "the standby is synchronous",
            "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'",
        )
        .await;
    }

    /// Commits something, and waits with it until everything that was acknowledged before is written, and at the standby if
    /// commits wait for it.
    pub async fn flush(&self) {
        let _: String = self.primary.ask("SELECT pg_logical_emit_message(true, 'test', 'flush')::text").await;
    }

    /// Waits until the standby has everything that is committed now.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub async fn caught_up(&self) {
        let position: String = self.primary.ask("SELECT pg_current_wal_lsn()::text").await;
        let seen = format!("SELECT count(*) = 1 FROM pg_stat_replication WHERE flush_lsn >= '{position}'");
        self.until("the standby has everything", &seen).await;
    }

    async fn until(&self, what: &str, condition: &str) {
        let deadline = Instant::now() + WITHIN;
        while !self.primary.ask::<bool>(condition).await {
            assert!(Instant::now() < deadline, "waited in vain: {what}\n{}", self.primary.log());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The standby.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn standby(&mut self) -> &mut Node {
        self.standby.as_mut().expect("there is a standby")
    }

    /// Stops the processes that send to the standby where they are: it gets nothing more, and looks connected.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub async fn stall(&self) -> Stall {
        let mut session = self.primary.connect().await;
        let rows = sqlx::query("SELECT pid FROM pg_stat_replication").fetch_all(&mut session).await;
        let rows = rows.expect("the superuser sees who replicates");
        assert!(!rows.is_empty(), "nothing replicates");
        let stall = Stall(rows.iter().map(|row| Pid::from_raw(row.get(0))).collect());
        stall.signal(Signal::SIGSTOP);
        stall
    }

    /// The primary is killed, or stands still (then it is the caller who has stopped it); the standby is promoted and the
    /// forwarder switched, as high availability software does. Gives the old primary.
    ///
    /// Commits do not wait until there is a standby again and [`Self::make_synchronous`] is called.
    ///
    /// # Panics
    ///
    /// If the standby cannot be promoted.
    pub async fn fail_over(&mut self) -> Node {
        let old = self.promote().await;
        self.forward();
        old
    }

    /// The first half of [`Self::fail_over`]: the servers reach no PostgreSQL afterwards.
    ///
    /// # Panics
    ///
    /// If the standby cannot be promoted.
    pub async fn promote(&mut self) -> Node {
        self.forwarder.switch(None);
        let standby = self.standby.take().expect("there is a standby");
        let promoted: bool = standby.ask(&format!("SELECT pg_promote(true, {})", WITHIN.as_secs())).await;
        assert!(promoted, "the standby is not promoted: {}", standby.log());
        // A copy has the settings of what it was copied from.
        standby.set(NAMES_SETTING, "").await;
        std::mem::replace(&mut self.primary, standby)
    }

    /// The second half of [`Self::fail_over`]: the servers reach the primary.
    pub fn forward(&self) {
        self.forwarder.switch(Some(self.primary.port()));
    }
}

/// Processes that send to a standby and are stopped where they are; dropped, they go on.
#[derive(Debug)]
pub struct Stall(Vec<Pid>);

impl Stall {
    fn signal(&self, signal: Signal) {
        for &pid in &self.0 {
            // One may have been killed together with its PostgreSQL.
            let _ = kill(pid, signal);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}
