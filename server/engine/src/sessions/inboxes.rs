//! Inboxes: one task for all requests of this server that wait for an item of one. It reads at once what it is notified of, and
//! everything twice a second, because other servers fill inboxes too. With it it finds the sessions that have ended: then what waits for
//! their inbox or for claims in their name is answered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tenure_api::sessions::InboxItem;
use tenure_api::states::SessionEnd;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::endings::Endings;
use super::waiters::{Answer, Waiter, Waiters};
use crate::essential;
use crate::notifiers::{Notifiers, fallbacks_are_on};
use crate::ops::OpError;
use tenure_store::worker_sessions::{self, StillLive};

/// Requests that may wait at one server.
pub const WAITERS_MAX: usize = 10_000;
/// How often all inboxes are read that are waited for, in case a notification was lost or the item is another server's.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often all sessions are looked up that are waited for, for the same reason.
const ENDED_EVERY: Duration = Duration::from_secs(1);
/// The least time between two looks, however often one is requested.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// How long a look may take: the database may have gone silent.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// What is known of a session whose inbox is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// It was just renewed.
    Live,
    /// That was not looked up, nor what it is like now: the first look at its inbox does it.
    MayHaveEnded,
}

/// The sending side: what request handlers use.
#[derive(Debug, Clone)]
pub struct Inboxes {
    queue: mpsc::UnboundedSender<Waiter>,
    places: Arc<Semaphore>,
    places_max: usize,
}

/// [`WAITERS_MAX`], unless a test has fewer.
fn waiters_max() -> usize {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::inbox_waiters_max(WAITERS_MAX);
    #[cfg(not(feature = "test-util"))]
    WAITERS_MAX
}

impl Inboxes {
    /// Starts the task. It ends when the sending side is dropped; when it is stopped, all waiters are answered empty.
    #[must_use]
    pub fn start(
        pool: PgPool,
        notifiers: Notifiers,
        endings: Endings,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        // Bounded by the places.
        let (queue, inbox) = mpsc::unbounded_channel();
        let now = Instant::now();
        let reader = Reader {
            pool,
            notifiers,
            endings,
            stop,
            inbox,
            waiters: Waiters::default(),
            looked: now,
            all_looked: now,
            all_ended: now,
        };
        essential::spawn(tasks, reader.work());
        let places_max = waiters_max();
        Self { queue, places: Arc::new(Semaphore::new(places_max)), places_max }
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.places_max - self.places.available_permits()
    }

    /// The items of an inbox after this one; none if none came in time.
    ///
    /// # Errors
    /// If the session has ended, too many requests wait, or the database does not answer.
    pub async fn read(&self, epoch: i64, after: i64, wait: Duration, certainty: Certainty) -> Answer {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| OpError::Overloaded("inbox"))?;
        let (reply, answer) = oneshot::channel();
        let until = Instant::now() + wait;
        let waiter = Waiter { epoch, after, until, reply, certainty, live: None, looked: false, _place: place };
        self.queue.send(waiter).map_err(|_| OpError::Unavailable)?;
        answer.await.unwrap_or(Err(OpError::Unavailable))
    }
}

struct Reader {
    pool: PgPool,
    notifiers: Notifiers,
    endings: Endings,
    stop: CancellationToken,
    inbox: mpsc::UnboundedReceiver<Waiter>,
    waiters: Waiters,
    /// When something was looked at last.
    looked: Instant,
    /// When all inboxes were read last, or need not have been.
    all_looked: Instant,
    /// The same of the ends of all sessions.
    all_ended: Instant,
}

/// What a look reads.
#[derive(Default)]
struct Plan {
    /// Inboxes, each after an item.
    readers: Vec<(i64, i64)>,
    /// Sessions that may have ended.
    sessions: Vec<i64>,
    /// Those of them whose requests are to say what they are like now.
    uncertain: Vec<i64>,
}

impl Reader {
    async fn work(mut self) {
        loop {
            let mut arrived = HashSet::new();
            let look_at = self.all_looked + LOOK_EVERY;
            let wake_at = self.waiters.next().map_or(look_at, |next| next.min(look_at));
            tokio::select! {
                waiter = self.inbox.recv() => match waiter {
                    Some(waiter) => self.enter(waiter, &mut arrived),
                    None => break,
                },
                () = self.notifiers.inboxes() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
                () = self.stop.cancelled(), if !self.waiters.is_empty() => {}
            }
            // More arrives meanwhile, for the same statement.
            tokio::time::sleep_until((self.looked + LOOK_AT_MOST_EVERY).into()).await;
            while let Ok(waiter) = self.inbox.try_recv() {
                self.enter(waiter, &mut arrived);
            }
            if self.stop.is_cancelled() {
                self.waiters.answer_all();
                // Nothing is read any more: what would wake it for that is put off, so that it only answers who still comes.
                (self.looked, self.all_looked) = (Instant::now(), Instant::now());
                drop(self.notifiers.take_inboxes());
                continue;
            }
            let plan = self.plan(&arrived);
            self.look(plan).await;
            self.waiters.answer_timed_out(Instant::now());
            metrics::gauge!("tenure_inbox_waiters").set(self.waiters.count() as f64);
        }
    }

    fn enter(&mut self, waiter: Waiter, arrived: &mut HashSet<i64>) {
        arrived.insert(waiter.epoch);
        self.waiters.enter(waiter);
    }

    /// What is to be read now: that of requests that have just come, what was notified, and from time to time everything.
    fn plan(&mut self, arrived: &HashSet<i64>) -> Plan {
        let now = Instant::now();
        let notified = self.notifiers.take_inboxes();
        let mut plan = Plan { uncertain: self.waiters.uncertain(), ..Plan::default() };
        if now >= self.all_looked + LOOK_EVERY {
            self.all_looked = now;
            self.waiters.drop_closed();
            if fallbacks_are_on() {
                plan.readers = self.waiters.readers(self.waiters.epochs());
            }
        }
        if plan.readers.is_empty() {
            plan.readers = self.waiters.readers(arrived.union(&notified).copied());
        }
        if now >= self.all_ended + ENDED_EVERY {
            self.all_ended = now;
            if fallbacks_are_on() {
                let all: HashSet<i64> = self.waiters.epochs().chain(self.endings.epochs()).collect();
                plan.sessions = all.into_iter().collect();
            }
        }
        if plan.sessions.is_empty() {
            let is_waited_for = |epoch: &i64| self.waiters.has(*epoch) || self.endings.is_watched(*epoch);
            let named: HashSet<i64> = notified.iter().chain(&plan.uncertain).copied().collect();
            plan.sessions = named.into_iter().filter(is_waited_for).collect();
        }
        plan
    }

    async fn look(&mut self, plan: Plan) {
        if plan.readers.is_empty() && plan.sessions.is_empty() && plan.uncertain.is_empty() {
            return;
        }
        self.looked = Instant::now();
        let read = tokio::time::timeout(LOOK_MAX, read(&self.pool, &plan)).await;
        match read.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok(Read { items, ended, live }) => {
                self.endings.note(&ended);
                self.waiters.answer_ended(&ended);
                self.waiters.note_live(&plan.uncertain, live);
                self.waiters.answer(&plan.readers, items);
            }
            Err(error) => tracing::debug!(error = %error, "inboxes could not be read"),
        }
    }
}

/// What a look has read.
#[derive(Default)]
struct Read {
    items: Vec<(i64, InboxItem)>,
    ended: Vec<(i64, SessionEnd)>,
    live: Vec<StillLive>,
}

async fn read(pool: &PgPool, plan: &Plan) -> Result<Read, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let mut read = Read::default();
    if !plan.readers.is_empty() {
        read.items = worker_sessions::read_inboxes(&mut conn, &plan.readers).await?;
    }
    // Before those that have ended: one that ends in between is found there.
    if !plan.uncertain.is_empty() {
        read.live = worker_sessions::list_live(&mut conn, &plan.uncertain).await?;
    }
    if !plan.sessions.is_empty() {
        read.ended = worker_sessions::list_ended(&mut conn, &plan.sessions).await?;
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// Far longer than the time after which all inboxes are read again.
    const STOPPED_FOR: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_stopped_reader_answers_late_requests_and_rests_between_them() {
        let (queue, inbox) = mpsc::unbounded_channel();
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://nowhere.invalid").unwrap();
        let (stop, now) = (CancellationToken::new(), Instant::now());
        let reader = Reader {
            pool,
            notifiers: Notifiers::default(),
            endings: Endings::default(),
            stop: stop.clone(),
            inbox,
            waiters: Waiters::default(),
            looked: now,
            all_looked: now,
            all_ended: now,
        };
        let places = Arc::new(Semaphore::new(1));
        let inboxes = Inboxes { queue, places, places_max: 1 };
        stop.cancel();
        let mut work = pin!(reader.work());
        let mut polls = 0;
        let counted = poll_fn(|context| -> Poll<()> {
            polls += 1;
            work.as_mut().poll(context)
        });
        let served = async {
            tokio::time::sleep(STOPPED_FOR).await;
            let items = inboxes.read(1, 0, STOPPED_FOR * 100, Certainty::Live).await;
            assert!(items.is_ok_and(|found| found.items.is_empty()), "a stopped reader answers with nothing");
            let items = inboxes.read(1, 0, STOPPED_FOR * 100, Certainty::MayHaveEnded).await;
            assert!(items.is_err(), "it does not say until when a session is live that it has not looked up");
        };
        tokio::select! {
            () = counted => panic!("it ends with the sending side"),
            () = served => {}
        }
        let most = STOPPED_FOR.as_millis() / LOOK_AT_MOST_EVERY.as_millis();
        assert!(polls < most, "it was polled {polls} times in {STOPPED_FOR:?}");
    }
}
