//! Schedulers: the server that dispatches runs of each assign queue. After each heartbeat this
//! server applies the rule of [`tenure_domain::election`], and caches its terms. A wrong cache is
//! harmless: every dispatching transaction compares server and term.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tenure_api::states::SchedulerEnd;
use tenure_domain::election::{Active, Server, Silence, Step, View, step};
use tenure_store::admission::Leader;
use tenure_store::cached::Cached;
use tenure_store::failure::{Class, classify};
use tenure_store::schedulers::{self, Scheduled};
use tenure_store::servers::{self, Member};
use tenure_store::session::{self, Locks};
use uuid::Uuid;

use crate::gauges::{Metric, QueueGauges};
use crate::notifiers::{Effects, Notifiers};

pub const BEAT: Duration = Duration::from_secs(1);
const METRICS: [Metric; 1] = [(
    "tenure_scheduler_term",
    "Term of the scheduler of a task queue that assigns its tasks; grows with each change; 0 once it no longer assigns",
)];

#[derive(Debug, Default)]
struct Known {
    /// This server's term for each queue that it schedules.
    terms: HashMap<i32, i64>,
    silences: HashMap<i32, Silence>,
    any: bool,
    no_candidate: bool,
    has_elected: bool,
}

impl Known {
    /// Replaces the state, and returns the queues with a new term of this server.
    fn replace(&mut self, later: Self) -> Vec<i32> {
        let before = std::mem::replace(self, later);
        let gained = self.terms.iter().filter(|(queue, term)| before.terms.get(queue) != Some(*term));
        gained.map(|(queue, _)| *queue).collect()
    }
}

#[derive(Debug, Clone)]
pub struct Schedulers {
    member: Member,
    known: Cached<Known>,
    pub terms: Arc<QueueGauges<{ METRICS.len() }>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionTrigger {
    /// After a heartbeat: the silence of others counts.
    AfterBeat,
    /// After a change between two heartbeats.
    Early,
}

impl Schedulers {
    pub fn new(member: Member) -> Self {
        Self { member, known: Cached::default(), terms: Arc::new(QueueGauges::new(METRICS)) }
    }

    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns this server's term if it is the queue's scheduler.
    pub fn leader(&self, queue: i32) -> Leader {
        Leader { server: self.member.id, term: self.known.read(|known| known.terms.get(&queue).copied()) }
    }

    /// True if the last election found assign queues. A server of weight 0 also looks once without
    /// them, to warn if there is no candidate.
    pub fn expects_any(&self) -> bool {
        self.known.read(|known| known.any || (self.is_never_scheduler() && !known.has_elected))
    }

    fn is_never_scheduler(&self) -> bool {
        self.member.weight == 0
    }

    pub fn drop_all(&self) {
        self.known.drop_all();
    }

    /// Returns the scheduler that the rule elects for a queue.
    pub fn elected(&self, servers: &servers::Servers, queue: i32) -> Option<Uuid> {
        let candidates = candidates(servers);
        self.view(&candidates, servers).elected(queue)
    }

    fn view<'a>(&self, candidates: &'a [Server], servers: &servers::Servers) -> View<'a> {
        View { me: self.member.id, servers: candidates, now: servers.now }
    }

    /// Applies the rule to every assign queue.
    pub async fn elect(
        &self,
        conn: &mut PgConnection,
        notifiers: &Notifiers,
        trigger: ElectionTrigger,
    ) -> Result<(), sqlx::Error> {
        let since = self.known.epoch();
        let servers = servers::list(conn).await?;
        let scheduled = schedulers::list(conn).await?;
        let candidates = candidates(&servers);
        let view = self.view(&candidates, &servers);
        let before = self.known.read(|known| known.silences.clone());
        let mut known = Known { any: !scheduled.is_empty(), has_elected: true, ..Known::default() };
        let mut terms = HashMap::new();
        let mut locks = Locks::Waits;
        for one in &scheduled {
            let (active, seen) = (one.active, before.get(&one.active.queue).copied());
            let silence = match trigger {
                ElectionTrigger::AfterBeat => Silence::after_beat(seen, active, &view),
                ElectionTrigger::Early => seen,
            };
            known.silences.extend(silence.map(|silence| (active.queue, silence)));
            // Between two heartbeats nothing new is known about other servers.
            let judged = silence.filter(|_| trigger == ElectionTrigger::AfterBeat);
            let term = match self.follow(conn, notifiers, one, step(active, &view, judged), locks).await {
                // The row is locked for long. The next election retries. Further locked queues wait
                // only briefly, or the heartbeat's time would be used up.
                Err(error) if classify(&error) == Class::Contention => {
                    locks = Locks::WaitsBriefly;
                    let name = one.name.as_str();
                    tracing::warn!(
                        queue.id = name, error = %error,
                        "a queue is locked; its scheduler will be changed later"
                    );
                    active.server.filter(|server| *server == view.me).map(|_| active.term)
                }
                followed => followed?,
            };
            known.terms.extend(term.map(|term| (active.queue, term)));
            terms.insert(one.name.clone(), [term.unwrap_or(active.term) as f64]);
        }
        self.terms.replace(terms, Instant::now());
        known.no_candidate = (known.any || self.is_never_scheduler()) && !view.has_candidate();
        let is_news = self.known.read(|before| !before.no_candidate || (known.any && !before.any));
        if known.no_candidate && is_news {
            tracing::warn!(
                queues = scheduled.len(),
                "no server has a --scheduler-weight above 0; runs of queues with dispatch `assign` wait"
            );
        }
        // Notified only now, because admission needs the terms.
        for queue in self.known.update(since, |remembered| remembered.replace(known)).unwrap_or_default() {
            notifiers.expect_limited(queue);
        }
        Ok(())
    }

    /// Executes a step. Returns the term if this server is the scheduler now.
    async fn follow(
        &self,
        conn: &mut PgConnection,
        notifiers: &Notifiers,
        Scheduled { active, name, .. }: &Scheduled,
        step: Step,
        locks: Locks,
    ) -> Result<Option<i64>, sqlx::Error> {
        let seen = (*active, name.as_str());
        match step {
            Step::Keep => Ok(Some(active.term)),
            Step::Nothing => Ok(None),
            Step::TakeOver => self.take(conn, notifiers, seen, SchedulerEnd::Lost, locks).await,
            Step::TakeVacant => self.take(conn, notifiers, seen, SchedulerEnd::Stopped, locks).await,
            Step::HandOver(to) => hand_over(conn, notifiers, seen, to, locks).await.map(|()| None),
        }
    }

    async fn take(
        &self,
        conn: &mut PgConnection,
        notifiers: &Notifiers,
        (seen, name): (Active, &str),
        why: SchedulerEnd,
        locks: Locks,
    ) -> Result<Option<i64>, sqlx::Error> {
        let mut transaction = conn.begin().await?;
        if locks == Locks::WaitsBriefly {
            session::hardly_wait(&mut transaction).await?;
        }
        let me = self.member.id;
        let Some(term) = schedulers::change(&mut transaction, seen, Some(me), why).await? else { return Ok(None) };
        notifiers.commit(transaction, Effects::default()).await?;
        match (why, seen.server) {
            (SchedulerEnd::Lost, Some(lost)) => {
                tracing::warn!(
                    queue.id = name, term, server.id = %lost,
                    "the scheduler of a queue is silent; this server replaces it"
                );
            }
            _ => tracing::info!(queue.id = name, term, "this server is the scheduler of a queue"),
        }
        Ok(Some(term))
    }

    /// Hands over or vacates this server's queues and deletes its row, so that no server waits for
    /// its silence.
    pub async fn leave(&self, conn: &mut PgConnection, notifiers: &Notifiers) -> Result<(), sqlx::Error> {
        let me = self.member.id;
        let mut servers = servers::list(conn).await?;
        servers.servers.retain(|server| server.server.id != me);
        let candidates = candidates(&servers);
        let view = self.view(&candidates, &servers);
        let mut mine = schedulers::list(conn).await?;
        mine.retain(|one| one.active.server == Some(me));
        mine.sort_by_key(|one| one.active.queue);
        let mut transaction = conn.begin().await?;
        for Scheduled { active, .. } in &mine {
            let to = view.elected(active.queue);
            schedulers::change(&mut transaction, *active, to, SchedulerEnd::Stopped).await?;
        }
        servers::leave(&mut transaction, me).await?;
        notifiers.commit(transaction, Effects::default()).await?;
        self.drop_all();
        if !mine.is_empty() {
            tracing::info!(queues = mine.len(), "this server has handed over all queues that it scheduled");
        }
        Ok(())
    }
}

async fn hand_over(
    conn: &mut PgConnection,
    notifiers: &Notifiers,
    (seen, name): (Active, &str),
    to: Uuid,
    locks: Locks,
) -> Result<(), sqlx::Error> {
    let mut transaction = conn.begin().await?;
    if locks == Locks::WaitsBriefly {
        session::hardly_wait(&mut transaction).await?;
    }
    let changed = schedulers::change(&mut transaction, seen, Some(to), SchedulerEnd::HandedOver).await?;
    notifiers.commit(transaction, Effects::default()).await?;
    if let Some(term) = changed {
        tracing::info!(queue.id = name, term, server.id = %to, "this server has handed over a queue");
    }
    Ok(())
}

fn candidates(servers: &servers::Servers) -> Vec<Server> {
    servers.servers.iter().map(|server| server.server).collect()
}
