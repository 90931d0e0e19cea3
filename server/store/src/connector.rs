//! Makes every connection of this server to its database.
//!
//! A connection is used only after a [`session_check`]. If none can be made, one task retries with
//! backoff, and callers fail at once. The log reports the start and end of an outage.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::continuity::{Continuity, Incarnation};
use crate::failure::is_lost_connection;
use crate::hosts::Hosts;
use crate::hot::pipeline::Pipeline;
use crate::session::{self, Kind, Locks, Pools};
use crate::session_check::{self, Unfit};
use crate::{cluster, operator_hints, outage};

/// Timeout for making and checking a connection. Batchers and pools wait longer, so they learn the
/// cause.
const CONNECT_MAX: Duration = Duration::from_millis(2_500);
/// Hot sessions that a server begins at once. On a busy machine, more would run out of time.
const CONNECTING_MAX: usize = 4;
/// A new outage within this time of the last one is not logged again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Timeout of a ping before reuse.
const PING_MAX: Duration = Duration::from_secs(2);

/// Clones share their state.
#[derive(Debug, Clone)]
pub struct Connector {
    shared: Arc<ConnectorInner>,
}

#[derive(Debug)]
struct ConnectorInner {
    hosts: Hosts,
    /// The last usable host.
    current: AtomicUsize,
    /// Changes of host, or of the database there.
    switches: AtomicU64,
    /// Sessions that wait for a synchronous standby.
    stalled: AtomicUsize,
    continuity: Continuity,
    state: Mutex<State>,
    /// Permits to make a hot session.
    connecting: Semaphore,
    /// Sends after each attempt of the reconnecting task.
    attempts: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    outage: Option<Outage>,
    /// Start of the last outage, ended or not, or the last replacement without an outage.
    began: Option<Instant>,
    ended: Option<Instant>,
    reconnecting: bool,
    /// Pools for cold statements, which connect by themselves.
    pools: Vec<PgPool>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    error: String,
    /// True if connections can be made, but are unusable.
    unfit: bool,
    logged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// Possibly through a pooler.
    First,
    Again,
}

/// Host index and error.
type Failed = (usize, sqlx::Error);

impl Connector {
    pub fn new(hosts: impl Into<Hosts>) -> Self {
        let shared = ConnectorInner {
            hosts: hosts.into(),
            current: AtomicUsize::new(0),
            switches: AtomicU64::new(0),
            stalled: AtomicUsize::new(0),
            continuity: Continuity::default(),
            state: Mutex::default(),
            connecting: Semaphore::new(CONNECTING_MAX),
            attempts: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the options of the last usable host, for messages.
    pub fn options(&self) -> &PgConnectOptions {
        self.shared.hosts.get(self.shared.current.load(Ordering::SeqCst))
    }

    pub fn continuity(&self) -> &Continuity {
        &self.shared.continuity
    }

    /// Records that a session waits for a synchronous standby, or no longer.
    pub fn note_stalled(&self, stalled: bool) {
        if stalled {
            self.shared.stalled.fetch_add(1, Ordering::SeqCst);
        } else {
            self.shared.stalled.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn is_stalled(&self) -> bool {
        self.shared.stalled.load(Ordering::SeqCst) > 0
    }

    /// Counts changes of host or database. Earlier connections must not be used.
    pub fn switches(&self) -> u64 {
        self.shared.switches.load(Ordering::SeqCst)
    }

    pub fn is_out(&self) -> bool {
        self.state().outage.is_some()
    }

    pub fn pool(&self) -> PgPool {
        self.pool_with(session::pool_options())
    }

    pub fn pools(&self) -> Pools {
        Pools::make(|options| self.pool_with(options))
    }

    fn pool_with(&self, options: PgPoolOptions) -> PgPool {
        // The connector owns its pools, so they hold it weakly.
        let connector = Arc::downgrade(&self.shared);
        let pool = checked(options, move || connector.upgrade().map(|shared| Self { shared }));
        let mut state = self.state();
        let pool = pool.connect_lazy_with(self.pool_options(&state, Kind::Cold));
        state.pools.retain(|pool| !pool.is_closed());
        state.pools.push(pool.clone());
        pool
    }

    /// Returns a pool of one connection for long use; `role` appears in `pg_stat_activity`. It
    /// stays with the current host: replace it when it fails.
    pub fn small_pool(&self, role: &str) -> PgPool {
        let (connector, options) = (self.clone(), self.pool_options(&self.state(), Kind::Cold));
        let pool = checked(session::small_pool_options(), move || Some(connector.clone()));
        pool.connect_lazy_with(options.application_name(&session::application(role)))
    }

    /// Connects a session for hot statements, which plans only with index scans and nested loops:
    /// no statistics can cause table scans.
    ///
    /// # Errors If the database is unreachable or read-only, or settings are dropped in between.
    /// Fails without an attempt during a known outage.
    pub async fn connect_hot(&self, locks: Locks) -> Result<PgConnection, sqlx::Error> {
        let _turn = self.turn_to_connect().await?;
        let host = self.shared.current.load(Ordering::SeqCst);
        let attempt = self.attempt(host, Kind::Hot(locks), Contact::Again, CONNECT_MAX).await;
        self.note_attempt(host, attempt)
    }

    /// Like [`Connector::connect_hot`], for a session that sends several statements at once and
    /// hardly waits for locks.
    pub async fn connect_pipeline(&self) -> Result<Pipeline, sqlx::Error> {
        let _turn = self.turn_to_connect().await?;
        let host = self.shared.current.load(Ordering::SeqCst);
        let mut attempt = self.attempt_pipeline(host).await;
        if attempt.as_ref().is_err_and(is_lost_connection) {
            attempt = self.attempt_pipeline(host).await;
        }
        self.note_attempt(host, attempt)
    }

    /// Fails at once during a known outage, and after the wait if one has begun.
    async fn turn_to_connect(&self) -> Result<SemaphorePermit<'_>, sqlx::Error> {
        self.refuse_in_outage()?;
        let turn = self.shared.connecting.acquire().await.expect("it is never closed");
        self.refuse_in_outage()?;
        Ok(turn)
    }

    fn refuse_in_outage(&self) -> Result<(), sqlx::Error> {
        match &self.state().outage {
            Some(outage) => Err(outage::unreachable(&outage.error)),
            None => Ok(()),
        }
    }

    async fn attempt_pipeline(&self, host: usize) -> Result<Pipeline, sqlx::Error> {
        let kind = Kind::Hot(Locks::WaitsBriefly);
        let options = kind.options(self.shared.hosts.get(host)).application_name(&session::application(session::TICKS));
        let attempt = async {
            let mut pipeline = Pipeline::connect(&options).await?;
            let incarnation = session_check::check(&mut pipeline, kind).await?;
            self.note_incarnation(incarnation);
            Ok(pipeline)
        };
        timeout(CONNECT_MAX, attempt).await.unwrap_or_else(|_| Err(no_answer(CONNECT_MAX)))
    }

    fn note_attempt<T>(&self, host: usize, attempt: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        match &attempt {
            Err(error) if self.shared.current.load(Ordering::SeqCst) == host => self.fail(host, error),
            Err(_) => self.start_reconnecting(Duration::ZERO),
            Ok(_) => {}
        }
        attempt
    }

    /// Connects once and closes, waiting briefly for a starting PostgreSQL. Unlike a pool, it
    /// returns the cause of failure. Also refuses poolers; see [`session_check`].
    ///
    /// # Errors If no host is usable; [`Connector::options`] then belong to the host of the error.
    pub async fn reach(&self) -> Result<(), sqlx::Error> {
        let within = if self.shared.hosts.len() == 1 { cluster::REACH_MAX } else { CONNECT_MAX };
        let deadline = Instant::now() + cluster::REACH_MAX;
        let (host, result) = loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(cluster::REACH_LEAST);
            match self.try_hosts(Contact::First, within.min(left)).await {
                Ok((host, conn)) => break (host, conn.close().await),
                Err((_, error)) if cluster::may_start(&error) && Instant::now() + cluster::REACH_PAUSE < deadline => {
                    sleep(cluster::REACH_PAUSE).await;
                }
                Err((host, error)) => break (host, Err(error)),
            }
        };
        self.shared.current.store(host, Ordering::SeqCst);
        result
    }

    /// Call this for a connection that seems dead. Returns once it is known if others can be made.
    /// While they cannot, callers fail at once.
    pub async fn suspect(&self) {
        let mut attempts = self.shared.attempts.subscribe();
        if !self.is_out() {
            self.start_reconnecting(Duration::ZERO);
            // The connector, and so the sender, is alive.
            drop(attempts.changed().await);
        }
    }

    /// Checks a new connection. Clears caches of an earlier incarnation before its use.
    async fn admit(&self, conn: &mut PgConnection, kind: Kind) -> Result<(), sqlx::Error> {
        self.note_incarnation(session_check::check(conn, kind).await?);
        Ok(())
    }

    fn note_incarnation(&self, incarnation: Incarnation) {
        // Connections to the old incarnation must not be used, even if alive.
        self.shared.continuity.connected(incarnation, || self.retire(&mut self.state()));
    }

    /// Connects, retrying once if cut off, as by a proxy that has just switched its target.
    async fn attempt(
        &self,
        host: usize,
        kind: Kind,
        contact: Contact,
        within: Duration,
    ) -> Result<PgConnection, sqlx::Error> {
        let attempt = self.attempt_once(host, kind, contact, within).await;
        match attempt {
            Err(error) if contact == Contact::Again && is_lost_connection(&error) => {
                self.attempt_once(host, kind, contact, within).await
            }
            done => done,
        }
    }

    async fn attempt_once(
        &self,
        host: usize,
        kind: Kind,
        contact: Contact,
        within: Duration,
    ) -> Result<PgConnection, sqlx::Error> {
        let options = kind.options(self.shared.hosts.get(host));
        let attempt = async {
            let mut conn = PgConnection::connect_with(&options).await?;
            if contact == Contact::First {
                session_check::refuse_transaction_pooling(&mut conn, &options).await?;
            }
            self.admit(&mut conn, kind).await?;
            Ok(conn)
        };
        timeout(within, attempt).await.unwrap_or_else(|_| Err(no_answer(within)))
    }

    /// Tries the hosts, beginning with the last usable one. Returns the first error that is not
    /// only about a standby.
    async fn try_hosts(&self, contact: Contact, within: Duration) -> Result<(usize, PgConnection), Failed> {
        let (first, count) = (self.shared.current.load(Ordering::SeqCst), self.shared.hosts.len());
        let mut failed: Option<Failed> = None;
        for host in (0..count).map(|offset| (first + offset) % count) {
            match self.attempt(host, Kind::Cold, contact, within).await {
                Ok(conn) => return Ok((host, conn)),
                Err(error) if failed.as_ref().is_none_or(|(_, error)| Unfit::of(error) == Some(&Unfit::ReadOnly)) => {
                    failed = Some((host, error));
                }
                Err(_) => {}
            }
        }
        Err(failed.expect("there is at least one host"))
    }

    /// Starts an outage unless one has begun.
    fn fail(&self, host: usize, error: &sqlx::Error) {
        {
            let mut state = self.state();
            let unfit = Unfit::of(error).is_some();
            let is_new = state.outage.as_ref().is_none_or(|outage| unfit && !outage.unfit);
            if is_new && !outage::is_known(error) {
                let place = operator_hints::place(self.shared.hosts.get(host));
                // If connections come and go, as without free slots, not every failure is a new
                // outage.
                let logged = state.ended.is_none_or(|ended| ended.elapsed() > AGAIN_AFTER);
                if logged {
                    tracing::error!(
                        database.address = place,
                        error = %error,
                        "no connection to the database can be made; requests that need one are answered 503 until it can"
                    );
                } else {
                    tracing::debug!(database.address = place, error = %error, "no connection can be made again");
                }
                let now = Instant::now();
                let since = state.outage.as_ref().map_or(now, |outage| outage.since);
                let logged = logged || state.outage.as_ref().is_some_and(|outage| outage.logged);
                state.began = Some(since);
                state.outage = Some(Outage { since, error: error.to_string(), unfit, logged });
                self.point_pools(&mut state);
            }
        }
        // Try the other hosts at once.
        let alone = self.shared.hosts.len() == 1;
        self.start_reconnecting(if alone { outage::pause_after(1, chance()) } else { Duration::ZERO });
    }

    fn succeed(&self, host: usize) {
        let before = self.shared.current.swap(host, Ordering::SeqCst);
        let mut state = self.state();
        state.reconnecting = false;
        let outage = state.outage.take();
        if outage.is_none() && before == host {
            return;
        }
        if before != host {
            self.retire(&mut state);
        }
        self.point_pools(&mut state);
        state.ended = Some(Instant::now());
        if outage.as_ref().is_some_and(|outage| !outage.logged) {
            return;
        }
        let seconds = outage.map_or(0.0, |outage| outage.since.elapsed().as_secs_f64());
        let place = operator_hints::place(self.shared.hosts.get(host));
        tracing::warn!(database.address = place, outage.seconds = seconds, "the database can be reached again");
    }

    /// Starts the reconnecting task, unless it runs. It ends on success, or with the connector.
    fn start_reconnecting(&self, pause: Duration) {
        if !std::mem::replace(&mut self.state().reconnecting, true) {
            tokio::spawn(reconnect(Arc::downgrade(&self.shared), pause));
        }
    }

    /// Directs the pools to the usable host, or to none.
    fn point_pools(&self, state: &mut State) {
        state.pools.retain(|pool| !pool.is_closed());
        let options = self.pool_options(state, Kind::Cold);
        for pool in &state.pools {
            pool.set_connect_options(options.clone());
        }
    }

    fn pool_options(&self, state: &State, kind: Kind) -> PgConnectOptions {
        let options = kind.options(self.options());
        if state.outage.is_some() { outage::without_attempts(&options) } else { options }
    }

    /// Retires all existing connections.
    fn retire(&self, state: &mut State) {
        state.began = Some(Instant::now());
        self.shared.switches.fetch_add(1, Ordering::SeqCst);
    }

    /// True if a connection of this age predates an outage that has ended: its machine may be gone.
    fn is_from_before_an_outage(&self, age: Duration) -> bool {
        let state = self.state();
        state.outage.is_none() && state.began.is_some_and(|began| age > began.elapsed())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn reconnect(shared: Weak<ConnectorInner>, mut pause: Duration) {
    for failures in 1.. {
        sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        let connector = Connector { shared };
        let found = match connector.try_hosts(Contact::Again, CONNECT_MAX).await {
            Ok((host, conn)) => {
                // Close first: its slot may be the last one.
                drop(timeout(PING_MAX, conn.close()).await);
                connector.succeed(host);
                true
            }
            Err((host, error)) => {
                connector.fail(host, &error);
                false
            }
        };
        connector.shared.attempts.send_modify(|attempts| *attempts += 1);
        if found {
            return;
        }
        pause = outage::pause_after(failures, chance());
    }
}

/// Adds checks of connections: when made, before reuse and after use.
fn checked(
    options: PgPoolOptions,
    connector: impl Fn() -> Option<Connector> + Send + Sync + Clone + 'static,
) -> PgPoolOptions {
    let (when_made, before_use, after_use) = (connector.clone(), connector.clone(), connector);
    options
        // `before_acquire` detects dead connections.
        .test_before_acquire(false)
        .after_connect(move |conn, _| {
            let connector = when_made();
            Box::pin(async move {
                let Some(connector) = connector else {
                    return session_check::check(conn, Kind::Cold).await.map(drop);
                };
                let admitted = connector.admit(conn, Kind::Cold).await;
                if admitted.is_err() {
                    // The host of this connection is unknown: another may be current by now.
                    connector.suspect().await;
                }
                admitted
            })
        })
        .before_acquire(move |conn, meta| {
            let connector = before_use();
            Box::pin(async move {
                if connector.as_ref().is_some_and(|connector| connector.is_from_before_an_outage(meta.age)) {
                    return Ok(false);
                }
                let lives = matches!(timeout(PING_MAX, conn.ping()).await, Ok(Ok(())));
                if let (false, Some(connector)) = (lives, connector) {
                    // So that the replacement of this connection is not the first to find out.
                    connector.suspect().await;
                }
                Ok(lives)
            })
        })
        .after_release(move |conn, _| {
            let connector = after_use();
            Box::pin(async move {
                let mut usable = session::leave_transaction(conn).await;
                // The backend ends only after the standby's reply. Keep the slot until then: each
                // cancelled statement would otherwise leave a backend, until none are left.
                while matches!(usable, Err(sqlx::Error::PoolTimedOut))
                    && connector.as_ref().is_some_and(Connector::is_stalled)
                {
                    usable = session::leave_transaction(conn).await;
                }
                if let (Err(error), Some(connector)) = (&usable, connector) {
                    tracing::debug!(error = %error, "a pooled connection was closed, because it cannot be reused");
                    connector.start_reconnecting(Duration::ZERO);
                }
                Ok(usable.is_ok())
            })
        })
}

pub(crate) fn no_answer(within: Duration) -> sqlx::Error {
    let tenths = (within.as_secs_f64() * 10.0).round() / 10.0;
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {tenths} s")).into()
}

fn chance() -> u8 {
    uuid::Uuid::new_v4().as_bytes()[0]
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use sqlx::postgres::PgSslMode;
    use tokio::net::TcpListener;

    use super::*;

    const SESSIONS: usize = 30;

    #[tokio::test]
    async fn sessions_of_a_start_are_made_a_few_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
        let connector = Connector::new(options);
        let (mut open, sessions) = (Vec::new(), join_all((0..SESSIONS).map(|_| connector.connect_hot(Locks::Waits))));
        let made = tokio::select! {
            made = sessions => made,
            // Nobody answers.
            () = async { while let Ok((stream, _)) = listener.accept().await { open.push(stream) } } => unreachable!(),
        };
        assert!(made.iter().all(Result::is_err));
        // An attempt may be repeated once, and the connector tries whether the outage goes on.
        assert!(open.len() <= 3 * CONNECTING_MAX, "{} sessions at once", open.len());
    }
}
