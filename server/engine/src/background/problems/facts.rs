//! The facts: bounded reads of the database, and this server's own knowledge.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::seen::Seeing;
use super::{ProblemsPass, lock};
use crate::background::clocks::SKEW_MAX;
use crate::engine::Engine;
use tenure_domain::delivery::{Subscription, age_limit};
use tenure_domain::policy::counts::shown;
use tenure_domain::policy::pause::Paused;
use tenure_domain::presence::SILENT_AFTER;
use tenure_domain::problems::{
    Barred, Blocked, Count, DatabaseFacts, Ends, Example, Facts, FailingPass, QueueEnds, QueueFacts, SilentServer,
    SubscriptionFacts, fails,
};
use tenure_store::admission::runnable;
use tenure_store::page::{self, Asked, Oldest};
use tenure_store::problems::{self, BarredQueue, BlockedRow, EndedRow, PausedQueue, PendingQueue};
use tenure_store::queues::parse_name;
use tenure_store::servers::{Servers, Stored};
use tenure_store::subscriptions::{self, Age};
use tenure_store::{clock, replication, schedulers, servers, session};

const RECENT: Duration = Duration::from_secs(15 * 60);
const BEFORE: Duration = Duration::from_secs(60 * 60);
const DISK_FREE_LEAST: f64 = 0.1;
const LIVE_LOGS_MAX: f64 = 0.9;
/// Characters of a server's id that name it, if it has no name.
const ID_SHOWN: usize = 8;

impl ProblemsPass {
    pub(super) async fn read(&self, engine: &Engine) -> Result<Facts, sqlx::Error> {
        let mut transaction = page::begin(&engine.background_pool).await?;
        let conn = &mut *transaction;
        let now = clock::get_now(conn).await?;
        let all_servers = servers::list(conn).await?;
        let scheduled = schedulers::list(conn).await?;
        let oldest_transaction = session::get_oldest_transaction(conn).await?;
        let warnings = replication::get(conn).await?.find_warnings();
        let refiling = problems::list_refiling(conn).await?;
        let blocked = problems::list_blocked(conn).await?;
        let ends = read_ends(conn).await?;
        let none_subscribed = engine.facts.subscriptions.get().is_empty();
        let ages = if none_subscribed { Vec::new() } else { subscriptions::list_ages(conn).await? };
        let barred = problems::list_barred(conn, within(SILENT_AFTER), engine.due_marks.get().claims).await?;
        let paused = problems::list_paused(conn).await?;
        let pending = problems::list_pending(conn, engine.sequencer.reached()).await?;
        // The number of runnable runs is only needed for queues that may be in trouble.
        let (oldest, admissible) = self.read_waiting(conn, engine, &pending, now).await?;
        transaction.commit().await?;

        let mut known = lock(&self.seen);
        let mut seeing = known.begin(now);
        let waiting = Waiting { pending, paused, barred, oldest, admissible };
        let mut facts = Facts {
            now,
            queues: queue_facts(waiting, &mut seeing)?,
            ends,
            blocked: blocked.into_iter().map(blocked_facts).collect::<Result<_, sqlx::Error>>()?,
            silent_servers: silent_servers(&all_servers, now),
            failing_passes: self.failing_passes(engine, now),
            subscriptions: ages.into_iter().map(|age| self.subscription(age, now, all_servers.now)).collect(),
            database: DatabaseFacts {
                oldest_transaction: TimeDelta::from_std(oldest_transaction).unwrap_or_default(),
                ..self.risks(engine, &mut seeing)
            },
            ..Facts::default()
        };
        for queue in refiling {
            facts.refiling.push((parse_name(&queue.name)?, queue.since));
        }
        for one in scheduled.iter().filter(|one| !has_live_scheduler(one.active.server, &all_servers)) {
            facts.without_scheduler.push((parse_name(&one.name)?, seeing.since(format!("scheduler of {}", one.name))));
        }
        for warning in warnings {
            let advice = format!("{} is '{}': {}", warning.setting, warning.value, warning.advice);
            let since = seeing.since(format!("replication: {advice}"));
            facts.database.replication.push((advice, since));
        }
        let still = seeing.end();
        *known = still;
        Ok(facts)
    }

    async fn read_waiting(
        &self,
        conn: &mut PgConnection,
        engine: &Engine,
        pending: &[PendingQueue],
        now: DateTime<Utc>,
    ) -> Result<(HashMap<i32, Oldest>, Admissible), sqlx::Error> {
        let asked =
            |queue: &PendingQueue| Asked { marks: engine.low_water_marks.peek(queue.key), counted: queue.counted };
        let asked = pending.iter().map(|queue| (queue.key, asked(queue))).collect();
        let found = page::list_oldest(conn, &asked).await?;
        // Not read in time behind an old transaction, which is a problem of its own. The last ages
        // stay.
        if let Some(oldest) = &found {
            self.oldest.publish(pending, oldest, now);
        }
        let oldest = found.unwrap_or_default();
        let mut admissible = HashMap::new();
        let marks = engine.admission_marks.all();
        for queue in pending {
            let runnable_since = oldest.get(&queue.key).and_then(|oldest| oldest.runnable);
            if runnable_since.is_some_and(|since| now - since > SILENT_AFTER) {
                let count = runnable::count(conn, queue.key, queue.counted, &marks).await?;
                admissible.insert(queue.key, count);
            }
        }
        Ok((oldest, admissible))
    }

    fn failing_passes(&self, engine: &Engine, now: DateTime<Utc>) -> Vec<FailingPass> {
        let server = engine.schedulers.member().name.clone();
        let failing = lock(&self.failing);
        let facts = failing.iter().map(|(&pass, since)| {
            let age = TimeDelta::from_std(since.elapsed()).unwrap_or_default();
            FailingPass { pass, server: server.clone(), since: now - age }
        });
        facts.collect()
    }

    /// Suspensions are in real time, as heartbeats.
    fn subscription(&self, stored: Age, now: DateTime<Utc>, real_now: DateTime<Utc>) -> SubscriptionFacts {
        let age = stored.counting();
        let Subscription { name, definition, suspended, error, .. } = stored.subscription;
        SubscriptionFacts {
            name,
            suspended: suspended.map(|suspended| (now - (real_now - suspended.since), suspended.by)),
            age,
            limit: age_limit(definition.give_up_after, self.hold),
            error,
        }
    }

    /// Risks that this server sees.
    fn risks(&self, engine: &Engine, seeing: &mut Seeing<'_>) -> DatabaseFacts {
        let free = self.machine.get().and_then(|machine| machine.free_disk.as_ref()?());
        let skew = TimeDelta::milliseconds(engine.skew.millis());
        let used = engine.live_logs.used();
        let mut since = |condition: &str| seeing.since(condition.to_owned());
        DatabaseFacts {
            disk_free: free.filter(|free| *free < DISK_FREE_LEAST).map(|free| (free, since("disk"))),
            skew: (skew.abs() > SKEW_MAX).then(|| (skew, since("clock"))),
            live_logs: (used > LIVE_LOGS_MAX).then(|| (used, since("live logs"))),
            artifacts: lock(&self.store).fails.then(|| since("artifacts")),
            ..DatabaseFacts::default()
        }
    }
}

fn within(time: TimeDelta) -> Duration {
    time.to_std().unwrap_or_default()
}

type Admissible = HashMap<i32, i64>;

struct Waiting {
    pending: Vec<PendingQueue>,
    paused: Vec<PausedQueue>,
    barred: Vec<BarredQueue>,
    oldest: HashMap<i32, Oldest>,
    admissible: Admissible,
}

fn queue_facts(waiting: Waiting, seeing: &mut Seeing<'_>) -> Result<Vec<QueueFacts>, sqlx::Error> {
    let Waiting { pending, paused, barred, oldest, admissible } = waiting;
    let mut queues: HashMap<i32, QueueFacts> = HashMap::new();
    for queue in pending {
        let counts =
            shown(queue.counted, queue.assigned, admissible.get(&queue.key).copied().unwrap_or_default(), false);
        let oldest = oldest.get(&queue.key);
        let facts = QueueFacts {
            runnable: counts.runnable,
            held: counts.waiting,
            oldest_runnable: oldest.and_then(|oldest| oldest.runnable),
            oldest_held: oldest.and_then(|oldest| oldest.held),
            has_worker: queue.counted.claimed > 0 || queue.has_session,
            last_contact: queue.last_seen,
            ..empty(&queue.name, queue.counted.pending)?
        };
        queues.insert(queue.key, facts);
    }
    for PausedQueue { key, name, since, by, reason, until, pending } in paused {
        let facts = of_queue(&mut queues, key, &name, pending)?;
        facts.paused = Some(Paused { since, by, reason, until });
    }
    for BarredQueue { key, name, quarantined, frozen, until, first, pending } in barred {
        let since = seeing.since(format!("workers of {name}"));
        let only = <[String; 2]>::try_from(first).ok().filter(|_| quarantined + frozen == 1).map(Into::into);
        let facts = of_queue(&mut queues, key, &name, pending)?;
        facts.barred = Some(Barred { quarantined, frozen, since, until, only });
    }
    Ok(queues.into_values().collect())
}

fn of_queue<'a>(
    queues: &'a mut HashMap<i32, QueueFacts>,
    key: i32,
    name: &str,
    pending: i64,
) -> Result<&'a mut QueueFacts, sqlx::Error> {
    let without_pending = empty(name, pending)?;
    Ok(queues.entry(key).or_insert(without_pending))
}

fn empty(name: &str, pending: i64) -> Result<QueueFacts, sqlx::Error> {
    Ok(QueueFacts {
        queue: parse_name(name)?,
        runnable: 0,
        held: 0,
        pending,
        oldest_runnable: None,
        oldest_held: None,
        paused: None,
        has_worker: false,
        last_contact: None,
        barred: None,
    })
}

async fn read_ends(conn: &mut PgConnection) -> Result<Vec<QueueEnds>, sqlx::Error> {
    let failing = problems::list_failing(conn, RECENT).await?;
    if failing.is_empty() {
        return Ok(Vec::new());
    }
    let mut queues: HashMap<i32, QueueEnds> = HashMap::new();
    for EndedRow { queue, name, is_recent, reason, number, since } in
        problems::count_ended(conn, &failing, RECENT, BEFORE).await?
    {
        let unread = QueueEnds {
            queue: parse_name(&name)?,
            recent: Ends::default(),
            before: Ends::default(),
            examples: Vec::new(),
        };
        let ends = queues.entry(queue).or_insert(unread);
        let part = if is_recent { &mut ends.recent } else { &mut ends.before };
        let count = Count { number, since };
        match reason {
            Some(reason) => {
                part.resolved.insert(reason, count);
            }
            None => part.lost = Some(count),
        }
    }
    let failing: Vec<i32> = queues.iter().filter(|(_, ends)| fails(ends)).map(|(queue, _)| *queue).collect();
    for row in problems::list_failures(conn, &failing, RECENT).await? {
        if let Some(ends) = queues.get_mut(&row.queue) {
            let (reason, exit_code, worker, number) = (row.reason, row.exit_code, row.worker, row.number);
            ends.examples.push(Example { reason, exit_code, worker, number });
        }
    }
    Ok(queues.into_values().collect())
}

fn blocked_facts(row: BlockedRow) -> Result<Blocked, sqlx::Error> {
    let BlockedRow { group, required, queue, reason, failed, tasks, at_least } = row;
    Ok(Blocked { group, required, queue: parse_name(&queue)?, reason, failed, tasks, at_least })
}

/// Lists silent servers. Heartbeats are in real time; `now` and the facts are in task time.
fn silent_servers(all: &Servers, now: DateTime<Utc>) -> Vec<SilentServer> {
    let is_live = |stored: &Stored| stored.server.is_live(all.now);
    // A server that was started again has the same name.
    let is_back = |lost: &Stored| {
        let later = |stored: &&Stored| stored.started > lost.server.beat && is_live(stored);
        all.servers.iter().filter(later).any(|stored| stored.name.is_some() && stored.name == lost.name)
    };
    let silent = all.servers.iter().filter(|stored| !is_live(stored) && !is_back(stored));
    let facts = silent.map(|stored| {
        let short = || stored.server.id.to_string().chars().take(ID_SHOWN).collect();
        let name = stored.name.clone().unwrap_or_else(short);
        SilentServer { name, beat: now - (all.now - stored.server.beat) }
    });
    facts.collect()
}

fn has_live_scheduler(server: Option<Uuid>, all: &Servers) -> bool {
    server.is_some_and(|id| all.servers.iter().any(|stored| stored.server.id == id && stored.server.is_live(all.now)))
}
