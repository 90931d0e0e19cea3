//! Workers without sessions that watch the runs that they hold: one task for all requests of this server that wait until one of
//! theirs ends. It looks at once at what has just come and at what it is notified of, and twice a second at everything, because a
//! notification may be lost.

mod waiters;

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tenure_api::ids::RunId;
use tenure_api::watch::EndedClaim;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::essential;
use crate::notifiers::{Notifiers, fallbacks_are_on};
use crate::ops::OpError;
use crate::rooms::{Caller, Rooms};
use tenure_domain::watch::Watch;
use tenure_store::watched_claims::{self, Held, LOOKED_AT_MAX, Seen};
use waiters::{Plan, Request, Waiters};

/// Requests that may wait at one server.
pub const WATCHES_MAX: usize = 10_000;
/// Runs that all of them may watch together.
pub const WATCHED_RUNS_MAX: usize = 100_000;
/// How often all runs are looked at, in case a notification was lost.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The same while other servers take away more runs than they name.
const LOOK_EVERY_OF_MANY: Duration = Duration::from_millis(250);
/// The least time between two looks, however often one is requested.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// How long a look at so many runs as one statement takes may take: the database may have gone silent.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// The sending side: what request handlers use.
#[derive(Debug, Clone)]
pub struct Watches {
    queue: mpsc::UnboundedSender<Request>,
    rooms: Rooms,
}

impl Watches {
    /// Starts the task. It ends when the sending side is dropped; when it is stopped, all requests are answered empty.
    #[must_use]
    pub fn start(pool: PgPool, notifiers: Notifiers, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        // Bounded by the room that there is.
        let (queue, arriving) = mpsc::unbounded_channel();
        let now = Instant::now();
        let waiters = Waiters::default();
        let reader = Reader { pool, notifiers, stop, arriving, waiters, looked: now, all_looked: now, many: false };
        essential::spawn(tasks, reader.work());
        Self { queue, rooms: Rooms::new(watches_max(), WATCHED_RUNS_MAX) }
    }

    /// Those of these runs that no worker holds, as soon as there are some; none if there are none in time.
    ///
    /// # Errors
    /// If too many requests wait, or watch too many runs, or the database does not answer.
    pub async fn watch(&self, watch: Watch, caller: Caller) -> Result<Vec<EndedClaim>, OpError> {
        let room = self.rooms.enter(watch.runs.len(), caller).ok_or(OpError::Overloaded("watchClaims"))?;
        let (reply, answer) = oneshot::channel();
        let runs = watch.runs.into_iter().map(|(task, run)| (task.uuid(), number(run))).collect();
        let request = Request { runs, until: Instant::now() + watch.wait, reply, _room: room };
        self.queue.send(request).map_err(|_| OpError::Unavailable)?;
        answer.await.unwrap_or(Err(OpError::Unavailable))
    }
}

/// [`WATCHES_MAX`], unless a test has fewer.
fn watches_max() -> usize {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::watches_max(WATCHES_MAX);
    #[cfg(not(feature = "test-util"))]
    WATCHES_MAX
}

/// As the database stores it: the wire allows up to 1,000.
fn number(run: RunId) -> i16 {
    run.number().cast_signed()
}

struct Reader {
    pool: PgPool,
    notifiers: Notifiers,
    stop: CancellationToken,
    arriving: mpsc::UnboundedReceiver<Request>,
    waiters: Waiters,
    /// When something was looked at last.
    looked: Instant,
    /// When all runs were looked at last, or need not have been.
    all_looked: Instant,
    /// Whether another server has taken away runs that it has not named since then.
    many: bool,
}

impl Reader {
    async fn work(mut self) {
        loop {
            let look_at = self.all_looked + self.look_every();
            let wake_at = self.waiters.next().map_or(look_at, |next| next.min(look_at));
            tokio::select! {
                request = self.arriving.recv() => match request {
                    Some(request) => self.waiters.enter(request),
                    None => break,
                },
                () = self.notifiers.taken_away() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
                () = self.stop.cancelled(), if !self.waiters.is_empty() => {}
            }
            // More arrives meanwhile, for the same statement.
            tokio::time::sleep_until((self.looked + LOOK_AT_MOST_EVERY).into()).await;
            while let Ok(request) = self.arriving.try_recv() {
                self.waiters.enter(request);
            }
            if self.stop.is_cancelled() {
                self.waiters.answer_all();
                // Nothing is looked at any more: what would wake it for that is put off, so that it only answers who still comes.
                (self.looked, self.all_looked) = (Instant::now(), Instant::now());
                drop(self.notifiers.take_taken_away());
                continue;
            }
            let plan = self.plan();
            if self.look(plan).await {
                self.waiters.note_looked();
            }
            self.waiters.answer_timed_out(Instant::now());
            metrics::gauge!("tenure_claim_watchers").set(self.waiters.count() as f64);
            metrics::gauge!("tenure_watched_runs").set(self.waiters.runs() as f64);
        }
    }

    fn look_every(&self) -> Duration {
        if self.many { LOOK_EVERY_OF_MANY } else { LOOK_EVERY }
    }

    /// What is to be looked at now: the runs of requests that have just come, those that were notified, and from time to time all.
    fn plan(&mut self) -> Plan {
        let notified = self.notifiers.take_taken_away();
        self.many |= notified.is_none();
        let now = Instant::now();
        if now >= self.all_looked + self.look_every() {
            self.all_looked = now;
            self.waiters.drop_closed();
            if std::mem::take(&mut self.many) || fallbacks_are_on() {
                return self.waiters.all();
            }
        }
        self.waiters.some(&notified.unwrap_or_default())
    }

    /// Looks at these runs, and answers the requests that watch those that have ended; whether that was possible.
    async fn look(&mut self, plan: Plan) -> bool {
        let Plan { mut unsure, held } = plan;
        for part in held.chunks(LOOKED_AT_MAX) {
            self.looked = Instant::now();
            let Some(gone) = in_time(list_let_go(&self.pool, part)).await else { return false };
            unsure.extend(gone);
        }
        let unsure: Vec<(Uuid, i16)> = unsure.into_iter().collect();
        for part in unsure.chunks(LOOKED_AT_MAX) {
            self.looked = Instant::now();
            let Some(seen) = in_time(look_up(&self.pool, part)).await else { return false };
            self.waiters.see(&seen);
        }
        true
    }
}

/// What the database answers in time.
async fn in_time<T>(reading: impl Future<Output = Result<T, sqlx::Error>>) -> Option<T> {
    match tokio::time::timeout(LOOK_MAX, reading).await.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
        Ok(answer) => Some(answer),
        Err(error) => {
            tracing::debug!(error = %error, "the runs that workers watch could not be looked at");
            None
        }
    }
}

async fn look_up(pool: &PgPool, watched: &[(Uuid, i16)]) -> Result<Vec<Seen>, sqlx::Error> {
    watched_claims::look_up(&mut *pool.acquire().await?, watched).await
}

async fn list_let_go(pool: &PgPool, held: &[Held]) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    watched_claims::list_let_go(&mut *pool.acquire().await?, held).await
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tenure_api::ids::TaskId;

    use super::*;

    /// Far longer than the time after which all runs are looked at again.
    const STOPPED_FOR: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_stopped_reader_answers_late_requests_and_rests_between_them() {
        let (queue, arriving) = mpsc::unbounded_channel();
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nowhere.invalid").unwrap();
        let (stop, now) = (CancellationToken::new(), Instant::now());
        let reader = Reader {
            pool,
            notifiers: Notifiers::default(),
            stop: stop.clone(),
            arriving,
            waiters: Waiters::default(),
            looked: now,
            all_looked: now,
            many: false,
        };
        let watches = Watches { queue, rooms: Rooms::new(8, 8) };
        stop.cancel();
        let mut work = pin!(reader.work());
        let mut polls = 0;
        let counted = poll_fn(|context| -> Poll<()> {
            polls += 1;
            work.as_mut().poll(context)
        });
        let served = async {
            tokio::time::sleep(STOPPED_FOR).await;
            let runs = vec![(TaskId::from_random([1; 16]), RunId::new(0).unwrap())];
            let ended = watches.watch(Watch { runs, wait: STOPPED_FOR * 100 }, Caller::Authenticated).await;
            assert!(ended.is_ok_and(|ended| ended.is_empty()), "a stopped reader answers with nothing");
        };
        tokio::select! {
            () = counted => panic!("it ends with the sending side"),
            () = served => {}
        }
        let most = STOPPED_FOR.as_millis() / LOOK_AT_MOST_EVERY.as_millis();
        assert!(polls < most, "it was polled {polls} times in {STOPPED_FOR:?}");
    }
}
