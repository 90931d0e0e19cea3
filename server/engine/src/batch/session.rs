//! A database session of one worker: connects when it is needed, and again after it was lost.

use std::future::Future;
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::failure::Failure;
use tenure_store::connector::Connector;
use tenure_store::hot::pipeline::Pipeline;
use tenure_store::outage;
use tenure_store::session::{self, Backend, Locks};

/// How long a batch may take, connecting included, before its session is given up. Longer than the statement timeout.
const ATTEMPT_MAX: Duration = Duration::from_secs(40);
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Why nothing is run.
const STALLED: &str = "the last commit waits for a synchronous standby still";
const REPLACED: &str = "it was replaced while a session was being made";

/// A connection that a session may have.
pub trait Link: Sized + Send {
    /// Connects; the connection, its backend, and [`Connector::switches`] of when it was checked.
    fn connect(
        connector: &Connector,
        locks: Locks,
    ) -> impl Future<Output = Result<(Self, Backend, u64), sqlx::Error>> + Send;

    /// Whether a backend waits for a synchronous standby.
    fn awaits_standby(&mut self, backend: Backend) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Whether it is known to be closed.
    fn is_closed(&self) -> bool {
        false
    }

    fn close(self) -> impl Future<Output = ()> + Send;
}

impl Link for PgConnection {
    async fn connect(connector: &Connector, locks: Locks) -> Result<(Self, Backend, u64), sqlx::Error> {
        let mut conn = connector.connect_hot(locks).await?;
        let switches = connector.switches();
        let backend = session::get_backend(&mut conn).await?;
        Ok((conn, backend, switches))
    }

    async fn awaits_standby(&mut self, backend: Backend) -> Result<bool, sqlx::Error> {
        session::awaits_standby(self, backend).await
    }

    async fn close(self) {
        drop(Connection::close(self).await);
    }
}

impl Link for Pipeline {
    async fn connect(connector: &Connector, _: Locks) -> Result<(Self, Backend, u64), sqlx::Error> {
        let mut pipeline = connector.connect_pipeline().await?;
        let switches = connector.switches();
        let backend = session::get_backend(&mut pipeline).await?;
        Ok((pipeline, backend, switches))
    }

    async fn awaits_standby(&mut self, backend: Backend) -> Result<bool, sqlx::Error> {
        session::awaits_standby(self, backend).await
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    async fn close(self) {}
}

/// A session for hot statements.
pub struct Session<L = PgConnection> {
    connector: Connector,
    locks: Locks,
    conn: Option<L>,
    connections: u64,
    /// How often another host had been chosen when it connected.
    switches: u64,
    backend: Option<Backend>,
    /// The backend of a run that had no answer. While it waits for a synchronous standby nothing is run on another one:
    /// each would wait too, and in the end no connection would be left.
    unanswered: Option<Backend>,
    /// Whether it was logged that it waits.
    stalled: bool,
}

impl Session<Pipeline> {
    /// A session that sends several statements at once. It connects when it is first used.
    pub fn pipeline(connector: Connector) -> Self {
        Self::with(connector, Locks::WaitsBriefly)
    }
}

impl Session {
    /// A session that connects when it is first used.
    pub fn new(connector: Connector) -> Self {
        Self::with(connector, Locks::Waits)
    }

    /// One that others wait for: it waits hardly for locks.
    pub fn brief(connector: Connector) -> Self {
        Self::with(connector, Locks::WaitsBriefly)
    }
}

impl<L: Link> Session<L> {
    fn with(connector: Connector, locks: Locks) -> Self {
        Self {
            connector,
            locks,
            conn: None,
            connections: 0,
            switches: 0,
            backend: None,
            unanswered: None,
            stalled: false,
        }
    }

    /// The backend that was connected last.
    pub fn backend(&self) -> Option<Backend> {
        self.backend
    }

    pub fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    /// How many connections it has made so far.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Runs statements. After a failure that leaves the session in doubt the next run connects anew.
    pub async fn run<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut L) -> Result<T, sqlx::Error>,
    ) -> Result<T, Failure> {
        // One that leads to a host which was replaced is not used, nor one that was closed while it was idle.
        let usable = |conn: &L| self.switches == self.connector.switches() && !conn.is_closed();
        let mut conn = match self.conn.take().filter(usable) {
            Some(conn) => conn,
            None => self.connect().await.map_err(Failure::NotRun)?,
        };
        if let Some(unanswered) = self.unanswered {
            let asked = tokio::time::timeout(CONNECT_MAX, conn.awaits_standby(unanswered)).await;
            if asked.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(Failure::NotRun)? {
                self.conn = Some(conn);
                if !std::mem::replace(&mut self.stalled, true) {
                    self.connector.note_stalled(true);
                    tracing::warn!(
                        "a commit waits for a synchronous standby; until it has an answer, requests get 503"
                    );
                }
                return Err(Failure::NotRun(outage::unreachable(STALLED)));
            }
            self.go_on();
        }
        self.unanswered = self.backend;
        let result = match tokio::time::timeout(ATTEMPT_MAX, statements(&mut conn)).await {
            Ok(result) => result.map_err(Failure::new),
            Err(_) => Err(Failure::Lost(sqlx::Error::PoolTimedOut)),
        };
        // Kept only now: a run that is dropped half-way must not leave its session to the next one.
        if result.as_ref().err().is_none_or(Failure::keeps_session) {
            self.conn = Some(conn);
            self.unanswered = None;
        }
        result
    }

    async fn connect(&mut self) -> Result<L, sqlx::Error> {
        let connected = tokio::time::timeout(CONNECT_MAX, L::connect(&self.connector, self.locks)).await;
        let (conn, backend, switches) = connected.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        // It may lead to the one before, which lives.
        if switches != self.connector.switches() {
            return Err(outage::unreachable(REPLACED));
        }
        self.backend = Some(backend);
        self.connections += 1;
        self.switches = switches;
        Ok(conn)
    }

    /// It does not wait for a standby any more.
    fn go_on(&mut self) {
        if std::mem::replace(&mut self.stalled, false) {
            self.connector.note_stalled(false);
        }
    }

    pub async fn close(mut self) {
        self.go_on();
        if let Some(conn) = self.conn {
            conn.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::continuity::Incarnation;
    use tenure_store::testing::TestDatabase;

    use super::*;

    /// A connection that is made just before the database is replaced.
    struct Overtaken;

    impl Link for Overtaken {
        async fn connect(connector: &Connector, locks: Locks) -> Result<(Self, Backend, u64), sqlx::Error> {
            let (conn, backend, switches) = <PgConnection as Link>::connect(connector, locks).await?;
            Link::close(conn).await;
            connector.continuity().connected(Incarnation { timeline: 99, started: 0 }, || ());
            Link::close(connector.connect_hot(locks).await?).await;
            Ok((Self, backend, switches))
        }

        async fn awaits_standby(&mut self, _: Backend) -> Result<bool, sqlx::Error> {
            Ok(false)
        }

        async fn close(self) {}
    }

    #[tokio::test]
    async fn a_connection_to_a_database_that_is_replaced_meanwhile_is_not_used() {
        let database = TestDatabase::create().await;
        let mut session = Session::<Overtaken>::with(database.connector(), Locks::Waits);
        let ran = session.run(async |_: &mut Overtaken| Ok(())).await;
        assert!(matches!(ran, Err(Failure::NotRun(_))), "{ran:?}");
        assert!(!session.is_connected());
        session.close().await;
        database.finish().await;
    }
}
