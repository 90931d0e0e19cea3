//! Requests that wait for inbox items of a session. The same polls find ended sessions, for these
//! requests and for claims of a session.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::PgPool;
use tenure_api::sessions::InboxItem;
use tenure_api::states::SessionEnd;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::end_signals::EndSignals;
use crate::notifiers::Notifiers;
use crate::ops::OpError;
use crate::parked::{self, Due, GiveUp, Parked, Parking, Timing};
use crate::wait_limit::{Caller, WaitLimit};
use tenure_store::worker_sessions::{self, StillLive};

/// Waiting requests per server.
pub const WAITERS_MAX: usize = 10_000;
/// Interval of the polls for the ends of all sessions.
const ENDED_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Just renewed.
    Live,
    /// The first poll reads the session's row to find out.
    MayHaveEnded,
}

#[derive(Debug, Default)]
pub struct InboxAnswer {
    /// Empty if none arrived in time.
    pub items: Vec<InboxItem>,
    pub live: Option<StillLive>,
}

type Answer = Result<InboxAnswer, OpError>;

#[derive(Clone)]
pub struct Inboxes {
    parking: Parking<Reader>,
    wait_limit: WaitLimit,
}

/// [`WAITERS_MAX`], unless a test sets fewer.
fn waiters_max() -> usize {
    #[cfg(feature = "test-util")]
    return tenure_store::breakage::inbox_waiters_max(WAITERS_MAX);
    #[cfg(not(feature = "test-util"))]
    WAITERS_MAX
}

impl Inboxes {
    #[must_use]
    pub fn start(
        pool: PgPool,
        notifiers: &Notifiers,
        end_signals: EndSignals,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let reader = Reader { pool, end_signals, ended_from: Instant::now() };
        let parking = Parking::start(reader, notifiers.inboxes(), Timing::default(), tasks, stop);
        Self { parking, wait_limit: WaitLimit::new(waiters_max()) }
    }

    pub fn waiting(&self) -> usize {
        self.wait_limit.in_use()
    }

    /// Waits for inbox items after the item `after`; the result is empty after `wait`. Fails if the
    /// session has ended, too many requests wait, or the database does not respond.
    pub async fn read(&self, epoch: i64, after: i64, wait: Duration, certainty: Certainty) -> Answer {
        let _permit = self.wait_limit.acquire(Caller::Authenticated).ok_or(OpError::Overloaded("inbox"))?;
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter { after, reply, certainty, live: None };
        self.parking.park(epoch, Some(Instant::now() + wait), waiter);
        answer.await.unwrap_or(Err(OpError::Unavailable))
    }
}

struct Waiter {
    after: i64,
    reply: oneshot::Sender<Answer>,
    certainty: Certainty,
    live: Option<StillLive>,
}

impl Waiter {
    fn is_uncertain(&self) -> bool {
        self.certainty == Certainty::MayHaveEnded && self.live.is_none()
    }

    fn send(self, items: Vec<InboxItem>) {
        let answer =
            if self.is_uncertain() { Err(OpError::Unavailable) } else { Ok(InboxAnswer { items, live: self.live }) };
        drop(self.reply.send(answer));
    }
}

impl parked::Waiter for Waiter {
    fn is_closed(&self) -> bool {
        self.reply.is_closed()
    }

    fn give_up(self, reason: GiveUp) {
        match reason {
            GiveUp::Deadline | GiveUp::Draining => self.send(Vec::new()),
            GiveUp::Unpolled => drop(self.reply.send(Err(OpError::Unavailable))),
        }
    }
}

struct Reader {
    pool: PgPool,
    end_signals: EndSignals,
    /// Time from which all sessions are polled for their end.
    ended_from: Instant,
}

#[derive(Default)]
struct Plan {
    /// Inboxes, each with the highest item known to any reader: that reader has acknowledged it for
    /// all.
    readers: Vec<(i64, i64)>,
    sessions: Vec<i64>,
    uncertain: Vec<i64>,
}

#[derive(Default)]
struct Read {
    items: Vec<(i64, InboxItem)>,
    ended: Vec<(i64, SessionEnd)>,
    live: Vec<StillLive>,
}

impl parked::Source for Reader {
    type Key = i64;
    type Waiter = Waiter;
    const GAUGE: &'static str = "tenure_inbox_waiters";

    async fn poll(&mut self, parked: &mut Parked<Self>, due: &Due<i64>) -> Result<bool, sqlx::Error> {
        let plan = self.plan(parked, due);
        if plan.readers.is_empty() && plan.sessions.is_empty() {
            return Ok(false);
        }
        let Read { items, ended, live } = self.read(&plan).await?;
        self.end_signals.note(&ended);
        for (epoch, by) in ended {
            parked.take(epoch).for_each(|waiter| drop(waiter.reply.send(Err(OpError::SessionEnded(by)))));
        }
        for session in live {
            parked.get_mut(session.epoch).for_each(|waiter| waiter.live = Some(session));
        }
        let mut found: HashMap<i64, Vec<InboxItem>> = HashMap::new();
        for (epoch, item) in items {
            found.entry(epoch).or_default().push(item);
        }
        for (epoch, items) in found {
            parked.take(epoch).for_each(|waiter| waiter.send(items.clone()));
        }
        Ok(false)
    }
}

impl Reader {
    fn plan(&mut self, parked: &Parked<Self>, due: &Due<i64>) -> Plan {
        let epochs: HashSet<i64> = if due.all { parked.keys().collect() } else { due.named().collect() };
        let mut plan = Plan::default();
        for &epoch in &epochs {
            let Some(after) = parked.get(epoch).map(|waiter| waiter.after).max() else { continue };
            plan.readers.push((epoch, after));
            if parked.get(epoch).any(Waiter::is_uncertain) {
                plan.uncertain.push(epoch);
            }
        }
        let now = Instant::now();
        let sessions: HashSet<i64> = if due.all && now >= self.ended_from {
            self.ended_from = now + ENDED_EVERY;
            epochs.into_iter().chain(self.end_signals.epochs()).collect()
        } else {
            let needed = |epoch: &i64| parked.get(*epoch).next().is_some() || self.end_signals.has_subscriber(*epoch);
            due.notified.iter().chain(&plan.uncertain).copied().filter(needed).collect()
        };
        plan.sessions = sessions.into_iter().collect();
        plan
    }

    async fn read(&self, plan: &Plan) -> Result<Read, sqlx::Error> {
        let mut conn = self.pool.acquire().await?;
        let mut read = Read::default();
        if !plan.readers.is_empty() {
            read.items = worker_sessions::read_inboxes(&mut conn, &plan.readers).await?;
        }
        // Before the ends, so that a session that ends in between is found there.
        if !plan.uncertain.is_empty() {
            read.live = worker_sessions::list_live(&mut conn, &plan.uncertain).await?;
        }
        if !plan.sessions.is_empty() {
            read.ended = worker_sessions::list_ended(&mut conn, &plan.sessions).await?;
        }
        Ok(read)
    }
}
