//! Numbers of queues over time, collected after each commit.
//!
//! They are added up in memory, by queue and minute of the database's clock, and stored every few
//! seconds, so that no hot statement counts anything. A killed server loses unstored numbers.
//! [`totals`] has the same numbers since the start of the server, for the metrics.

pub mod totals;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgPool};
use tenure_api::ids::TaskQueueId;
use tenure_api::states::{EndedBy, ReasonResolved};
use tenure_domain::statistics::{Numbers, Step, bucket, is_lost, place};
use tenure_domain::traces::SpanContext;
use tenure_store::statistics::{self as store, ALL, OTHER, Row};
use tenure_store::transitions::end::Resolved;
use tenure_store::transitions::end_open;
use uuid::Uuid;

use crate::shown_queues::{self, SHOWN_AFTER, ShownQueues};
use totals::Totals;

/// Queues with numbers of their own, by default.
pub const QUEUES_DEFAULT: usize = 1_000;
/// Rows per statement.
const WRITTEN_MAX: usize = 500;

/// A new task.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    pub queue: i32,
    pub task: Uuid,
    pub at: DateTime<Utc>,
    /// For its trace.
    pub link: Option<SpanContext>,
}

/// A claimed run.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub queue: i32,
    /// Since when the run was pending.
    pub scheduled: DateTime<Utc>,
    pub at: DateTime<Utc>,
}

/// An ended run.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub queue: i32,
    pub reason: ReasonResolved,
    pub by: Option<EndedBy>,
    /// True if its task is resolved; otherwise another run follows.
    pub resolves: bool,
    /// Start of the claim; none if no worker held the run.
    pub started: Option<DateTime<Utc>>,
    pub at: DateTime<Utc>,
}

impl End {
    pub fn of_run(run: &Resolved) -> Option<Self> {
        let (queue, by, resolves) = (run.queue, run.ended_by(), run.next_reason.is_none());
        Some(Self { queue, reason: run.reason()?, by, resolves, started: Some(run.started), at: run.now })
    }

    pub fn of_tasks(ended: &end_open::Ended, reason: ReasonResolved) -> impl Iterator<Item = Self> {
        let (by, at) = (ended.by, ended.now);
        let runs = ended.queues.iter().zip(&ended.starts);
        runs.map(move |(&queue, &started)| Self { queue, reason, by, resolves: true, started, at })
    }
}

/// Counts of a queue as the pass `counters` has read them.
#[derive(Debug, Clone, Copy)]
pub struct Depth<'a> {
    pub queue: i32,
    pub name: &'a str,
    pub pending: i64,
    pub claimed: i64,
    pub at: DateTime<Utc>,
}

/// Clones share the numbers.
#[derive(Clone)]
pub struct Statistics {
    known: Arc<Mutex<Known>>,
}

struct Known {
    queues_max: usize,
    /// By `task_queues.id`.
    queues: HashMap<i32, Counted>,
    /// Listed queues in which nothing was counted yet. With `queues`, at most `queues_max`.
    uncounted: BTreeMap<i32, TaskQueueId>,
    other: Counted,
    all: Counted,
    /// Totals of the queues that metrics do not name. A queue that is named later begins with its
    /// own, so that these never fall.
    hidden: Totals,
    /// Last call of [`Statistics::show`].
    shown: Instant,
}

/// The numbers of one queue.
struct Counted {
    /// Unknown until the pass `counters` has read it.
    name: Option<TaskQueueId>,
    /// Numbers that are not stored yet, by minute.
    unwritten: BTreeMap<DateTime<Utc>, Numbers>,
    /// The largest counts of the last minute in which any were read.
    most: (DateTime<Utc>, [i64; 2]),
    totals: Totals,
    /// True if metrics name the queue; None if undecided.
    is_shown: Option<bool>,
    used: Instant,
}

impl Counted {
    fn new(name: Option<TaskQueueId>, now: Instant) -> Self {
        let most = (DateTime::default(), [0; 2]);
        Self { name, unwritten: BTreeMap::new(), most, totals: Totals::default(), is_shown: None, used: now }
    }

    fn minute(&mut self, minute: DateTime<Utc>) -> &mut Numbers {
        self.unwritten.entry(minute).or_default()
    }

    /// Notes the counts if they are the largest of this minute so far, so that a queue in which
    /// nothing happens is stored once a minute.
    fn note_depth(&mut self, minute: DateTime<Utc>, counts: [i64; 2]) {
        let before = if self.most.0 == minute { self.most.1 } else { [0; 2] };
        let most = [counts[0].max(before[0]), counts[1].max(before[1])];
        if most == before {
            return;
        }
        self.most = (minute, most);
        let numbers = self.minute(minute);
        numbers.add(&Numbers { pending_most: most[0], claimed_most: most[1], ..Numbers::default() });
    }
}

impl Known {
    /// True if the queue has numbers of its own from now on; false if too many others have some.
    fn admit(&mut self, queue: i32, now: Instant) -> bool {
        if self.queues.contains_key(&queue) {
            return true;
        }
        if self.queues.len() >= self.queues_max {
            return false;
        }
        let name = self.uncounted.remove(&queue);
        if self.queues.len() + self.uncounted.len() >= self.queues_max {
            self.uncounted.pop_last();
        }
        self.queues.insert(queue, Counted::new(name, now));
        true
    }

    fn of(&mut self, queue: i32, now: Instant) -> &mut Counted {
        self.admit(queue, now);
        self.queues.get_mut(&queue).unwrap_or(&mut self.other)
    }

    /// Applies a change to the numbers of a queue and of all queues.
    fn count(
        &mut self,
        queue: i32,
        (at, now): (DateTime<Utc>, Instant),
        change: impl Fn(&mut Numbers),
        add: impl FnOnce(&mut Totals),
    ) {
        let minute = Step::Minute.floor(at);
        change(self.all.minute(minute));
        // Most queues are known: one lookup.
        let counted = match self.queues.get_mut(&queue) {
            Some(counted) => counted,
            None => {
                self.admit(queue, now);
                self.queues.get_mut(&queue).unwrap_or(&mut self.other)
            }
        };
        change(counted.minute(minute));
        add(if counted.is_shown == Some(false) { &mut self.hidden } else { &mut counted.totals });
        counted.used = now;
    }

    fn by_key(&mut self, key: i32, now: Instant) -> &mut Counted {
        match key {
            ALL => &mut self.all,
            OTHER => &mut self.other,
            queue => self.of(queue, now),
        }
    }
}

/// Numbers being stored. Without [`Taken::written`], a drop adds them again.
struct Taken<'a> {
    rows: Vec<Row>,
    statistics: &'a Statistics,
}

/// Minutes of a queue that are kept while they cannot be stored.
const UNWRITTEN_MAX: usize = 60;

impl Taken<'_> {
    fn written(mut self) {
        self.rows.clear();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut known = self.statistics.lock();
        for Row { queue, minute, numbers } in self.rows.drain(..) {
            let unwritten = &mut known.by_key(queue, now).unwritten;
            unwritten.entry(minute).or_default().add(&numbers);
            if unwritten.len() > UNWRITTEN_MAX {
                unwritten.pop_first();
            }
        }
    }
}

impl Default for Statistics {
    fn default() -> Self {
        Self::new(QUEUES_DEFAULT)
    }
}

impl Statistics {
    /// Up to `queues_max` queues have numbers of their own; all others are added up.
    #[must_use]
    pub fn new(queues_max: usize) -> Self {
        let shown = Instant::now();
        let counted = || Counted::new(None, shown);
        let (queues, uncounted, hidden) = (HashMap::new(), BTreeMap::new(), Totals::default());
        let known = Known { queues_max, queues, uncounted, other: counted(), all: counted(), hidden, shown };
        Self { known: Arc::new(Mutex::new(known)) }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts tasks created by a statement that has or may have committed; so do the others.
    pub fn created(&self, created: &[Creation]) {
        if created.is_empty() {
            return;
        }
        let (now, mut known) = (Instant::now(), self.lock());
        for &Creation { queue, at, .. } in created {
            known.count(queue, (at, now), |numbers| numbers.created += 1, |totals| totals.created += 1);
        }
    }

    pub fn started(&self, started: impl IntoIterator<Item = Start>) {
        let (now, mut known) = (Instant::now(), self.lock());
        for Start { queue, scheduled, at } in started {
            let seconds = seconds(scheduled, at);
            let change = |numbers: &mut Numbers| {
                numbers.started += 1;
                numbers.waits[bucket(seconds)] += 1;
            };
            known.count(queue, (at, now), change, |totals| totals.waits.add(seconds));
        }
    }

    pub fn ended(&self, ended: &[End]) {
        if ended.is_empty() {
            return;
        }
        let (now, mut known) = (Instant::now(), self.lock());
        for &End { queue, reason, by, resolves, started, at } in ended {
            let lost = by.filter(|by| is_lost(*by));
            let ran = started.map(|started| seconds(started, at));
            let change = |numbers: &mut Numbers| {
                numbers.ends[place(reason)] += i64::from(resolves);
                numbers.lost += i64::from(lost.is_some());
                if let Some(ran) = ran {
                    numbers.runs[bucket(ran)] += 1;
                }
            };
            known.count(queue, (at, now), change, |totals| totals.end(reason, lost, resolves, ran));
        }
    }

    /// Notes the counts of all open queues, and perhaps others.
    pub fn note_depths<'a>(&self, listed: impl IntoIterator<Item = Depth<'a>>) {
        let (now, mut known) = (Instant::now(), self.lock());
        let (mut all, mut other, mut read) = ([0; 2], [0; 2], None);
        for Depth { queue, name, pending, claimed, at } in listed {
            let (counts, minute) = ([pending.max(0), claimed.max(0)], Step::Minute.floor(at));
            read = Some(minute);
            if counts == [0; 2] {
                let is_new = !known.queues.contains_key(&queue) && !known.uncounted.contains_key(&queue);
                if is_new && known.queues.len() + known.uncounted.len() < known.queues_max {
                    known.uncounted.extend(name.parse::<TaskQueueId>().ok().map(|name| (queue, name)));
                }
                continue;
            }
            all = [all[0] + counts[0], all[1] + counts[1]];
            if known.admit(queue, now)
                && let Some(own) = known.queues.get_mut(&queue)
            {
                own.used = now;
                own.note_depth(minute, counts);
                if own.name.is_none() {
                    own.name = name.parse().ok();
                }
            } else {
                other = [other[0] + counts[0], other[1] + counts[1]];
            }
        }
        if let Some(minute) = read {
            known.all.note_depth(minute, all);
            known.other.note_depth(minute, other);
        }
    }

    /// Lists queues whose numbers wait for a name.
    pub fn list_unnamed(&self, limit: usize) -> Vec<i32> {
        let known = self.lock();
        let unnamed = known.queues.iter().filter(|(_, counted)| counted.name.is_none());
        unnamed.take(limit).map(|(queue, _)| *queue).collect()
    }

    /// Returns the name of a queue that has numbers of its own, once it is known.
    pub fn name_of(&self, queue: i32) -> Option<TaskQueueId> {
        self.lock().queues.get(&queue)?.name.clone()
    }

    /// Names the numbers of a queue, or drops them if the queue is gone.
    pub fn set_name(&self, queue: i32, name: Option<TaskQueueId>) {
        let mut known = self.lock();
        match name {
            Some(name) => {
                if let Some(counted) = known.queues.get_mut(&queue) {
                    counted.name = Some(name);
                }
            }
            None => drop(known.queues.remove(&queue)),
        }
    }

    /// Drops queues in which nothing was counted for an hour.
    pub fn drop_idle(&self, now: Instant) -> usize {
        let mut known = self.lock();
        let before = known.queues.len();
        known.queues.retain(|_, counted| {
            !counted.unwritten.is_empty() || now.saturating_duration_since(counted.used) < SHOWN_AFTER
        });
        before - known.queues.len()
    }

    /// Decides which queues the metrics name. Queues in which something was counted since the last
    /// call are admitted: their runs may have ended before any pass saw them.
    pub fn show(&self, shown: &ShownQueues) {
        let mut known = self.lock();
        let since = std::mem::replace(&mut known.shown, Instant::now());
        let is_used = |counted: &&Counted| counted.is_shown.is_none() || counted.used >= since;
        let used = known.queues.values().filter(is_used);
        shown.admit(used.filter_map(|counted| counted.name.as_ref()).map(TaskQueueId::as_str), known.shown);
        let names = shown.names();
        let Known { queues, hidden, .. } = &mut *known;
        for counted in queues.values_mut() {
            let Some(name) = &counted.name else { continue };
            let is_shown = names.contains(name.as_str());
            if counted.is_shown.is_none() && !is_shown {
                hidden.join(&std::mem::take(&mut counted.totals));
            }
            counted.is_shown = Some(is_shown);
        }
    }

    /// Appends the metrics in the Prometheus text format. Unnamed queues are added up as `other`.
    pub fn render(&self, text: &mut String, shown: &ShownQueues) {
        let mut rows: BTreeMap<String, Totals> = BTreeMap::new();
        {
            let known = self.lock();
            let names = shown.names();
            for name in known.uncounted.values().filter(|name| names.contains(name.as_str())) {
                rows.entry(name.to_string()).or_default();
            }
            for counted in known.queues.values().filter(|counted| counted.is_shown == Some(true)) {
                if let Some(name) = &counted.name {
                    rows.entry(name.to_string()).or_default().join(&counted.totals);
                }
            }
            for others in
                [&known.hidden, &known.other.totals].into_iter().filter(|others| **others != Totals::default())
            {
                rows.entry(shown_queues::OTHER.to_owned()).or_default().join(others);
            }
        }
        totals::render(&rows, text);
    }

    fn take(&self) -> Taken<'_> {
        let mut known = self.lock();
        let Known { queues, other, all, .. } = &mut *known;
        let own = queues.iter_mut().map(|(&queue, counted)| (queue, counted));
        let mut rows: Vec<Row> = [(ALL, all), (OTHER, other)]
            .into_iter()
            .chain(own)
            .flat_map(|(queue, counted)| {
                let minutes = std::mem::take(&mut counted.unwritten).into_iter();
                minutes.map(move |(minute, numbers)| Row { queue, minute, numbers })
            })
            .collect();
        rows.sort_by_key(|row| (row.queue, row.minute));
        Taken { rows, statistics: self }
    }

    /// Stores the numbers of this server and returns the number of rows.
    pub async fn write_down(&self, pool: &PgPool) -> Result<usize, sqlx::Error> {
        let taken = self.take();
        let written = taken.rows.len();
        if written == 0 {
            return Ok(0);
        }
        let mut conn = pool.acquire().await?;
        let mut transaction = conn.begin().await?;
        for part in taken.rows.chunks(WRITTEN_MAX) {
            store::add(&mut transaction, Step::Minute, part).await?;
        }
        // A commit without an answer may have happened: rather lose numbers than count them twice.
        taken.written();
        transaction.commit().await?;
        Ok(written)
    }
}

/// Negative if the clock was set back.
fn seconds(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).as_seconds_f64()
}

#[cfg(test)]
mod tests;
