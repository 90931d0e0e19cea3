//! Schedulers: of the servers of a database, the one that gives out the runs of each queue that assigns them. The rule is
//! [`tenure_domain::election`]; here a server follows it after each of its beats, and remembers in which term it is the scheduler of
//! which queue. That it remembers wrongly does no harm: every transaction that gives out a run compares server and term.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tenure_api::states::SchedulerEnd;
use tenure_domain::election::{Active, Server, Silence, Step, View, step};
use tenure_store::admission::Leader;
use tenure_store::failure::{Class, classify};
use tenure_store::memory::Memory;
use tenure_store::schedulers::{self, Scheduled};
use tenure_store::servers::{self, Member};
use tenure_store::session::{self, Locks};
use uuid::Uuid;

use crate::gauges::{Metric, QueueGauges};
use crate::notifiers::{Effects, Notifiers};

/// How often a server beats.
pub const BEAT: Duration = Duration::from_secs(1);
/// The metric of queues that assign their runs.
const METRICS: [Metric; 1] = [(
    "tenure_scheduler_term",
    "The term of the scheduler of a task queue that assigns its tasks: it grows with each change; 0 of one that does not any more",
)];

/// What is remembered of the last look.
#[derive(Debug, Default)]
struct Known {
    /// The queues of which this server is the scheduler, with its terms.
    terms: HashMap<i32, i64>,
    /// Schedulers that are silent.
    silences: HashMap<i32, Silence>,
    /// Whether there are queues that assign their runs.
    any: bool,
    /// Whether it was logged that no server may be a scheduler.
    no_candidate: bool,
    /// Whether there was a look.
    looked: bool,
}

impl Known {
    /// What was found by a later look takes its place: the queues in which this server has a new term.
    fn replace(&mut self, later: Self) -> Vec<i32> {
        let before = std::mem::replace(self, later);
        let gained = self.terms.iter().filter(|(queue, term)| before.terms.get(queue) != Some(*term));
        gained.map(|(queue, _)| *queue).collect()
    }
}

/// The schedulers, as one server knows them.
#[derive(Debug, Clone)]
pub struct Schedulers {
    member: Member,
    known: Memory<Known>,
    /// The terms that the metrics show.
    pub terms: Arc<QueueGauges<{ METRICS.len() }>>,
}

/// What a look belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A beat of this server: the silence of others counts.
    AfterBeat,
    /// Something was changed between two beats.
    Early,
}

impl Schedulers {
    /// Those that a server knows when it starts: none.
    pub fn new(member: Member) -> Self {
        Self { member, known: Memory::default(), terms: Arc::new(QueueGauges::new(METRICS)) }
    }

    pub fn member(&self) -> &Member {
        &self.member
    }

    /// In which term this server is the scheduler of a queue, if it is.
    pub fn leader(&self, queue: i32) -> Leader {
        Leader { server: self.member.id, term: self.known.read(|known| known.terms.get(&queue).copied()) }
    }

    /// Whether there were queues that assign their runs when this server looked last. One that may never be a scheduler looks once
    /// without them, to warn if no other may.
    pub fn expects_any(&self) -> bool {
        self.known.read(|known| known.any || (self.is_never_scheduler() && !known.looked))
    }

    /// Whether this server is never a scheduler.
    fn is_never_scheduler(&self) -> bool {
        self.member.weight == 0
    }

    /// Forgets everything; the next look finds it again.
    pub fn drop_all(&self) {
        self.known.drop_all();
    }

    /// Who of these is to be the scheduler of a queue.
    pub fn elected(&self, servers: &servers::Servers, queue: i32) -> Option<Uuid> {
        let candidates = candidates(servers);
        self.view(&candidates, servers).elected(queue)
    }

    fn view<'a>(&self, candidates: &'a [Server], servers: &servers::Servers) -> View<'a> {
        View { me: self.member.id, servers: candidates, now: servers.now }
    }

    /// Looks at every queue that assigns its runs, and does what the rule says of this server.
    pub async fn look(&self, conn: &mut PgConnection, notifiers: &Notifiers, look: Look) -> Result<(), sqlx::Error> {
        let since = self.known.epoch();
        let servers = servers::list(conn).await?;
        let scheduled = schedulers::list(conn).await?;
        let candidates = candidates(&servers);
        let view = self.view(&candidates, &servers);
        let before = self.known.read(|known| known.silences.clone());
        let mut known = Known { any: !scheduled.is_empty(), looked: true, ..Known::default() };
        let mut terms = HashMap::new();
        let mut locks = Locks::Waits;
        for one in &scheduled {
            let (active, seen) = (one.active, before.get(&one.active.queue).copied());
            let silence = match look {
                Look::AfterBeat => Silence::after_beat(seen, active, &view),
                Look::Early => seen,
            };
            known.silences.extend(silence.map(|silence| (active.queue, silence)));
            // Of others nothing is known between two beats that the last one has not said.
            let judged = silence.filter(|_| look == Look::AfterBeat);
            let term = match self.follow(conn, notifiers, one, step(active, &view, judged), locks).await {
                // Another transaction has its row for long. The next look tries again, and the other queues do not wait for that: where
                // there are more of these, the time of a beat would be over before the last queue.
                Err(error) if classify(&error) == Class::Contention => {
                    locks = Locks::WaitsBriefly;
                    let name = one.name.as_str();
                    tracing::warn!(queue.id = name, error = %error, "a queue is locked: its scheduler is not changed yet");
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
                "no server has a --scheduler-weight above 0: the runs of queues that assign them wait"
            );
        }
        // Admission asks for the terms, so that it is notified only when they are known.
        for queue in self.known.note(since, |remembered| remembered.replace(known)).unwrap_or_default() {
            notifiers.expect_limited(queue);
        }
        Ok(())
    }

    /// Does what the rule says of this server and a queue: its term, if it is the scheduler now.
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
                tracing::warn!(queue.id = name, term, server.id = %lost, "the scheduler of a queue is silent; this server replaces it");
            }
            _ => tracing::info!(queue.id = name, term, "this server is the scheduler of a queue"),
        }
        Ok(Some(term))
    }

    /// Hands over every queue of this server to those that go on, or leaves it without one, and deletes its row: no other server waits
    /// until it is silent.
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
            tracing::info!(queues = mine.len(), "the queues whose scheduler this server was are handed over");
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
