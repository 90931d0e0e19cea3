//! A worker's database session: connects on demand and reconnects after a loss.

use std::future::Future;
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::failure::Failure;
use tenure_store::connector::Connector;
use tenure_store::hot::pipeline::Pipeline;
use tenure_store::outage;
use tenure_store::session::{self, Backend, Locks};

/// Time limit of a batch, connecting included. Longer than the statement timeout.
const ATTEMPT_MAX: Duration = Duration::from_secs(40);
const CONNECT_MAX: Duration = Duration::from_secs(3);
const STALLED: &str = "the last commit waits for a synchronous standby still";
const REPLACED: &str = "the database was replaced while a session was being opened";

pub trait Link: Sized + Send {
    /// Connects. Returns the connection, its backend, and [`Connector::switches`] from when the
    /// host was checked.
    fn connect(
        connector: &Connector,
        locks: Locks,
    ) -> impl Future<Output = Result<(Self, Backend, u64), sqlx::Error>> + Send;

    /// True if a backend waits for a synchronous standby.
    fn awaits_standby(&mut self, backend: Backend) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

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

pub struct Session<L = PgConnection> {
    connector: Connector,
    locks: Locks,
    conn: Option<L>,
    connections: u64,
    /// [`Connector::switches`] at the time of connecting.
    switches: u64,
    backend: Option<Backend>,
    /// Backend of a run without an answer. While it waits for a synchronous standby, nothing runs
    /// on another backend: each would wait too, until no connection is left.
    unanswered: Option<Backend>,
    stalled: bool,
}

impl Session<Pipeline> {
    /// A session that pipelines statements. Connects on first use.
    pub fn pipeline(connector: Connector) -> Self {
        Self::with(connector, Locks::WaitsBriefly)
    }
}

impl Session {
    /// Connects on first use.
    pub fn new(connector: Connector) -> Self {
        Self::with(connector, Locks::Waits)
    }

    /// A session with a short lock timeout, because others wait for it.
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

    /// The last connected backend.
    pub fn backend(&self) -> Option<Backend> {
        self.backend
    }

    pub fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Runs statements. If a failure leaves the session in doubt, the next run reconnects.
    pub async fn run<T>(
        &mut self,
        statements: impl AsyncFnOnce(&mut L) -> Result<T, sqlx::Error>,
    ) -> Result<T, Failure> {
        // Do not use a connection to a replaced host, or one closed while idle.
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
                        "a commit waits for a synchronous standby; requests get 503 until the standby answers"
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
        // Kept only now: a run dropped half-way must not leave its session to the next one.
        if result.as_ref().err().is_none_or(Failure::keeps_session) {
            self.conn = Some(conn);
            self.unanswered = None;
        }
        result
    }

    async fn connect(&mut self) -> Result<L, sqlx::Error> {
        let connected = tokio::time::timeout(CONNECT_MAX, L::connect(&self.connector, self.locks)).await;
        let (conn, backend, switches) = connected.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        // The connection may lead to the previous host, which is still alive.
        if switches != self.connector.switches() {
            return Err(outage::unreachable(REPLACED));
        }
        self.backend = Some(backend);
        self.connections += 1;
        self.switches = switches;
        Ok(conn)
    }

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

    /// A connection made just before the database is replaced.
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
    async fn connection_to_replaced_database_is_rejected() {
        let database = TestDatabase::create().await;
        let mut session = Session::<Overtaken>::with(database.connector(), Locks::Waits);
        let ran = session.run(async |_: &mut Overtaken| Ok(())).await;
        assert!(matches!(ran, Err(Failure::NotRun(_))), "{ran:?}");
        assert!(!session.is_connected());
        session.close().await;
        database.finish().await;
    }
}
