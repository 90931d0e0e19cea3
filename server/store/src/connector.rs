//! How this server reaches its database: every connection that it makes is made here.
//!
//! A connection is used only when it has been checked: [`session_check`]. When none can be made, one task tries, less and
//! less often, for all sessions and pools together; whatever needs a connection meanwhile is refused at once. An outage is
//! logged when it begins and when it ends.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::continuity::{Continuity, Incarnation};
use crate::failure::is_lost_connection;
use crate::hosts::Hosts;
use crate::hot::pipeline::Pipeline;
use crate::session::{self, Kind, Locks, Pools};
use crate::session_check::{self, Unfit};
use crate::{cluster, operator_hints, outage};

/// How long making and checking a connection may take. Less than what batchers and pools wait for one, so that they learn
/// why there is none.
const CONNECT_MAX: Duration = Duration::from_millis(2_500);
/// An outage that begins sooner after the last one is the same trouble, and is not logged again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a connection of the pool may take to say that it lives.
const PING_MAX: Duration = Duration::from_secs(2);

/// Makes connections. Clones share what the connections have found out.
#[derive(Debug, Clone)]
pub struct Connector {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hosts: Hosts,
    /// The host that was good last.
    current: AtomicUsize,
    /// How often another host became that, or another database answered there.
    switches: AtomicU64,
    /// Sessions that wait for a synchronous standby.
    stalled: AtomicUsize,
    continuity: Continuity,
    state: Mutex<State>,
    /// Sends after each attempt of the task that looks for the database.
    attempts: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    outage: Option<Outage>,
    /// When the last outage began, whether or not it has ended, or the database was replaced without one.
    began: Option<Instant>,
    ended: Option<Instant>,
    looking: bool,
    /// The pools for cold statements, which connect by themselves.
    pools: Vec<PgPool>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    error: String,
    /// Whether it is known that connections can be made, but are not fit to be used.
    unfit: bool,
    /// Whether the log has it.
    logged: bool,
}

/// Whether a server has reached its database before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// A pooler may be in between.
    First,
    /// It was reached, without a pooler.
    Again,
}

/// Where an attempt failed, and why.
type Failed = (usize, sqlx::Error);

impl Connector {
    /// Connects to one of these.
    pub fn new(hosts: impl Into<Hosts>) -> Self {
        let shared = Shared {
            hosts: hosts.into(),
            current: AtomicUsize::new(0),
            switches: AtomicU64::new(0),
            stalled: AtomicUsize::new(0),
            continuity: Continuity::default(),
            state: Mutex::default(),
            attempts: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The options of the host that was good last, for messages about it.
    pub fn options(&self) -> &PgConnectOptions {
        self.shared.hosts.get(self.shared.current.load(Ordering::SeqCst))
    }

    /// Whether the database is still the one that this server has read from.
    pub fn continuity(&self) -> &Continuity {
        &self.shared.continuity
    }

    /// A session waits for a synchronous standby since a run that had no answer, or does not any more.
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

    /// How often another host was chosen, or another database answered. A connection from before the last time is not to be
    /// used.
    pub fn switches(&self) -> u64 {
        self.shared.switches.load(Ordering::SeqCst)
    }

    /// Whether no connection can be made at present.
    pub fn is_out(&self) -> bool {
        self.state().outage.is_some()
    }

    /// A pool for cold statements. Connects when it is first used.
    pub fn pool(&self) -> PgPool {
        self.pool_with(session::pool_options())
    }

    /// The pools of a server. They connect when they are first used.
    pub fn pools(&self) -> Pools {
        Pools::make(|options| self.pool_with(options))
    }

    fn pool_with(&self, options: PgPoolOptions) -> PgPool {
        // The connector holds its pools, to point them at another host; therefore they must not hold it.
        let connector = Arc::downgrade(&self.shared);
        let pool = checked(options, move || connector.upgrade().map(|shared| Self { shared }));
        let mut state = self.state();
        let pool = pool.connect_lazy_with(self.pool_options(&state, Kind::Cold));
        state.pools.retain(|pool| !pool.is_closed());
        state.pools.push(pool.clone());
        pool
    }

    /// A pool of one connection for something that keeps it, which says in `pg_stat_activity` what it is for. It stays with
    /// the host that is good now: make another one when it fails.
    pub fn small_pool(&self, role: &str) -> PgPool {
        let (connector, options) = (self.clone(), self.pool_options(&self.state(), Kind::Cold));
        let pool = checked(session::small_pool_options(), move || Some(connector.clone()));
        pool.connect_lazy_with(options.application_name(&session::application(role)))
    }

    /// A session of its own for hot statements: plans are made only from index scans and nested loops, so that no
    /// statistics can turn them into scans of whole tables.
    ///
    /// # Errors
    /// If the database cannot be reached or takes no writes, or something between drops the settings; at once, without an
    /// attempt, while that is known.
    pub async fn connect_hot(&self, locks: Locks) -> Result<PgConnection, sqlx::Error> {
        if let Some(outage) = &self.state().outage {
            return Err(outage::unreachable(&outage.error));
        }
        let host = self.shared.current.load(Ordering::SeqCst);
        let attempt = self.attempt(host, Kind::Hot(locks), Contact::Again, CONNECT_MAX).await;
        self.note_attempt(host, attempt)
    }

    /// The same for a session that sends several statements at once. It waits hardly for locks.
    ///
    /// # Errors
    /// As [`Connector::connect_hot`].
    pub async fn connect_pipeline(&self) -> Result<Pipeline, sqlx::Error> {
        if let Some(outage) = &self.state().outage {
            return Err(outage::unreachable(&outage.error));
        }
        let host = self.shared.current.load(Ordering::SeqCst);
        let mut attempt = self.attempt_pipeline(host).await;
        if attempt.as_ref().is_err_and(is_lost_connection) {
            attempt = self.attempt_pipeline(host).await;
        }
        self.note_attempt(host, attempt)
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

    /// What follows from an attempt of a session.
    fn note_attempt<T>(&self, host: usize, attempt: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        match &attempt {
            Err(error) if self.shared.current.load(Ordering::SeqCst) == host => self.fail(host, error),
            Err(_) => self.look(Duration::ZERO),
            Ok(_) => {}
        }
        attempt
    }

    /// Connects once and hangs up, and waits a little for a PostgreSQL that is being started. Unlike the pool, whose only
    /// error then is that it waited in vain, it names what is wrong. Refuses poolers too, as [`session_check`] describes.
    ///
    /// # Errors
    /// If no host can be used; [`Connector::options`] are those of the host that the error is about.
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

    /// A connection seems dead: finds out whether others can be made, and returns when that is known. Until they can,
    /// whatever needs one is refused at once.
    pub async fn suspect(&self) {
        let mut attempts = self.shared.attempts.subscribe();
        if !self.is_out() {
            self.look(Duration::ZERO);
            // The connector is there, and with it the sender.
            drop(attempts.changed().await);
        }
    }

    /// Checks a new connection. What was read from an earlier life of the database is dropped before it is used.
    async fn admit(&self, conn: &mut PgConnection, kind: Kind) -> Result<(), sqlx::Error> {
        self.note_incarnation(session_check::check(conn, kind).await?);
        Ok(())
    }

    fn note_incarnation(&self, incarnation: Incarnation) {
        // Whatever is connected to the old one is not used any more, even if it lives.
        self.shared.continuity.connected(incarnation, || self.retire(&mut self.state()));
    }

    /// An attempt, and another one when it was cut off, as by a proxy that has just changed what it leads to.
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

    /// Tries one host after the other, that which was good last first. The error is that of the first one which is not
    /// just a standby.
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

    /// No connection could be made: the beginning of an outage, unless it has begun.
    fn fail(&self, host: usize, error: &sqlx::Error) {
        {
            let mut state = self.state();
            let unfit = Unfit::of(error).is_some();
            let is_new = state.outage.as_ref().is_none_or(|outage| unfit && !outage.unfit);
            if is_new && !outage::is_known(error) {
                let place = operator_hints::place(self.shared.hosts.get(host));
                // Where connections come and go, as when the database has no slot left, not every one is an outage.
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
        // The other hosts have not been tried yet.
        let alone = self.shared.hosts.len() == 1;
        self.look(if alone { outage::pause_after(1, chance()) } else { Duration::ZERO });
    }

    /// This host can be used.
    fn succeed(&self, host: usize) {
        let before = self.shared.current.swap(host, Ordering::SeqCst);
        let mut state = self.state();
        state.looking = false;
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

    /// Starts the task that looks for the database, unless it runs. It ends when it has found one, and with the connector.
    fn look(&self, pause: Duration) {
        if !std::mem::replace(&mut self.state().looking, true) {
            tokio::spawn(look(Arc::downgrade(&self.shared), pause));
        }
    }

    /// Has the pools connect to the host that is good, or to none.
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

    /// No connection that was made before is used again.
    fn retire(&self, state: &mut State) {
        state.began = Some(Instant::now());
        self.shared.switches.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a connection of this age was made before an outage that has ended: it may lead to a machine that is gone.
    fn is_from_before_an_outage(&self, age: Duration) -> bool {
        let state = self.state();
        state.outage.is_none() && state.began.is_some_and(|began| age > began.elapsed())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries until a connection can be made.
async fn look(shared: Weak<Shared>, mut pause: Duration) {
    for failures in 1.. {
        sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        let connector = Connector { shared };
        let found = match connector.try_hosts(Contact::Again, CONNECT_MAX).await {
            Ok((host, conn)) => {
                // First: its slot may be the last one.
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

/// A pool whose connections are checked when they are made, before they are used again, and after they were used.
fn checked(
    options: PgPoolOptions,
    connector: impl Fn() -> Option<Connector> + Send + Sync + Clone + 'static,
) -> PgPoolOptions {
    let (when_made, before_use, after_use) = (connector.clone(), connector.clone(), connector);
    options
        // Below, so that a connection that is dead is noticed.
        .test_before_acquire(false)
        .after_connect(move |conn, _| {
            let connector = when_made();
            Box::pin(async move {
                let Some(connector) = connector else {
                    return session_check::check(conn, Kind::Cold).await.map(drop);
                };
                let admitted = connector.admit(conn, Kind::Cold).await;
                if admitted.is_err() {
                    // Which host it leads to is not known: another one may be in use by now.
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
                    // So that what takes the place of this one is not the first to find out.
                    connector.suspect().await;
                }
                Ok(lives)
            })
        })
        .after_release(move |conn, _| {
            let connector = after_use();
            Box::pin(async move {
                let mut usable = session::leave_transaction(conn).await;
                // Its backend does not end before the standby has answered. It keeps its place until then, or each statement
                // that is given up would leave one more behind, until the database has none left.
                while matches!(usable, Err(sqlx::Error::PoolTimedOut))
                    && connector.as_ref().is_some_and(Connector::is_stalled)
                {
                    usable = session::leave_transaction(conn).await;
                }
                if let (Err(error), Some(connector)) = (&usable, connector) {
                    tracing::debug!(error = %error, "a connection of the pool cannot be used again");
                    connector.look(Duration::ZERO);
                }
                Ok(usable.is_ok())
            })
        })
}

/// The error of what has waited for so long.
pub(crate) fn no_answer(within: Duration) -> sqlx::Error {
    let tenths = (within.as_secs_f64() * 10.0).round() / 10.0;
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {tenths} s")).into()
}

fn chance() -> u8 {
    uuid::Uuid::new_v4().as_bytes()[0]
}
