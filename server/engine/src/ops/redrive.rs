//! Runs dead letters again: reruns tasks before their deadline, and copies others.
//!
//! Tasks are handled in slices, one transaction each. A slice locks the names, the backlog and the
//! rows of its tasks, and then reads which tasks are still dead letters, so that only one of two
//! redrives gets a task. A copied task is unmarked in the transaction that creates its copy.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure_api::ids::{TaskId, TaskQueueId};
use uuid::Uuid;

use super::OpError;
use super::actor::{Actor, Recorded};
use super::guarded::{self, Locking, Made, Wanted};
use super::queue_policy::Parts;
use super::rerun::rerun_locked;
use crate::notifiers::Effects;
use tenure_domain::audit::{Action, Entry};
use tenure_domain::create::NewTask;
use tenure_domain::dead_letter::{Cursor, Filter, Original, Place, REFUSED_MAX, Redrive, Way, Which, copy_of, way};
use tenure_domain::policy::guard::BacklogLock;
#[cfg(feature = "test-util")]
use tenure_store::breakage::{Breakage, strikes};
use tenure_store::dead_letters::{self, DeadLetter};
use tenure_store::failure::{Class, classify};
use tenure_store::guarded::{self as store, Held};
use tenure_store::tasks::{self, Loaded};
use tenure_store::{clock, page, session};

/// Tasks per transaction.
const SLICE: u32 = 200;
/// Pages read per request: with a reason, a page may have few tasks.
const PAGES_MAX: usize = 100;
/// After this time a request ends with a position to continue from: clients wait 30 seconds.
const TIME_MAX: Duration = Duration::from_secs(15);
/// Tries of a slice that meets locks.
const TRIES_MAX: usize = 5;

/// Checks that the caller may create a copy.
pub type MayCreate<'a> = dyn Fn(&NewTask) -> Result<(), OpError> + Send + Sync + 'a;

#[derive(Debug, Default)]
pub struct Outcome {
    pub redriven: u32,
    pub copied: u32,
    /// Number of all refused tasks.
    pub refused_count: u32,
    /// The first [`REFUSED_MAX`] refused tasks.
    pub refused: Vec<(TaskId, OpError)>,
    /// Where to continue; none at the end of the list.
    pub next: Option<Cursor>,
}

impl Outcome {
    fn refuse(&mut self, task: TaskId, refusal: OpError) {
        self.refused_count += 1;
        if self.refused.len() < REFUSED_MAX {
            self.refused.push((task, refusal));
        }
    }
}

/// Runs dead letters of a queue again. A refused task stays a dead letter and stops no other one.
///
/// # Errors
/// If the database is unavailable. Earlier slices are committed; a repeat handles the others.
pub async fn redrive(
    parts: Parts<'_>,
    actor: &Actor,
    queue: &TaskQueueId,
    request: &Redrive,
    may_create: &MayCreate<'_>,
) -> Result<Outcome, OpError> {
    let Some(key) = parts.queues.find_key(parts.pool, queue).await? else {
        let mut outcome = Outcome::default();
        if let Which::Tasks(ids) = &request.which {
            ids.iter().for_each(|id| outcome.refuse(*id, not_listed(*id, queue)));
        }
        return Ok(outcome);
    };
    let (copy, outcome) = (request.copy, Outcome::default());
    let mut redriving = Redriving { parts, actor, queue, key, copy, may_create, outcome, recorded: None };
    let done = match &request.which {
        Which::Tasks(ids) => redriving.tasks(ids).await,
        Which::Oldest { filter, limit, from } => redriving.oldest(*filter, *limit, *from).await,
    };
    let Redriving { outcome, recorded, .. } = redriving;
    recorded.into_iter().for_each(Recorded::log);
    done.map(|()| outcome)
}

fn not_listed(task: TaskId, queue: &TaskQueueId) -> OpError {
    OpError::NotFound(format!("task {task} is no dead letter of queue {queue}"))
}

struct Redriving<'a> {
    parts: Parts<'a>,
    actor: &'a Actor,
    queue: &'a TaskQueueId,
    /// Key of the queue.
    key: i32,
    copy: Option<TimeDelta>,
    may_create: &'a MayCreate<'a>,
    outcome: Outcome,
    recorded: Option<Recorded<'a>>,
}

/// A slice until its commit.
#[derive(Default)]
struct Slice {
    /// Tasks that are dead letters.
    found: HashSet<TaskId>,
    /// `tasks.seq` of reruns and copied tasks, which are no longer dead letters.
    done: Vec<i64>,
    redriven: u32,
    copied: u32,
    refused: Vec<(TaskId, OpError)>,
    effects: Effects,
}

enum Done {
    Rerun,
    Copied,
}

impl<'a> Redriving<'a> {
    async fn tasks(&mut self, ids: &[TaskId]) -> Result<(), OpError> {
        let mut seen = HashSet::new();
        let ids: Vec<TaskId> = ids.iter().copied().filter(|id| seen.insert(*id)).collect();
        for slice in ids.chunks(SLICE as usize) {
            let found = self.slice(slice).await?;
            for id in slice.iter().filter(|id| !found.contains(id)) {
                self.outcome.refuse(*id, not_listed(*id, self.queue));
            }
        }
        Ok(())
    }

    /// Leaves out tasks that fail again meanwhile.
    async fn oldest(&mut self, filter: Filter, limit: u32, from: Option<Cursor>) -> Result<(), OpError> {
        let now = clock::get_now(&mut *self.parts.pool.acquire().await?).await?;
        let begun = from.map_or(now, |cursor| cursor.until);
        let until = filter.until.map_or(begun, |until| until.min(begun));
        let filter = Filter { until: Some(until), ..filter };
        let (mut after, mut left) = (from.map_or(Place::START, |cursor| cursor.after), limit);
        let started = Instant::now();
        for _ in 0..PAGES_MAX {
            let mut conn = page::begin(self.parts.pool).await?;
            let page = dead_letters::list(&mut conn, self.key, filter, after, left.min(SLICE).into()).await?;
            conn.commit().await?;
            let ids: Vec<TaskId> = page.rows.iter().map(|letter| letter.task).collect();
            self.slice(&ids).await?;
            left = left.saturating_sub(u32::try_from(ids.len()).unwrap_or(u32::MAX));
            let Some(next) = page.next else { return Ok(()) };
            after = next;
            if left == 0 || started.elapsed() > TIME_MAX {
                break;
            }
        }
        self.outcome.next = Some(Cursor { after, until });
        Ok(())
    }

    /// Returns the tasks that were dead letters.
    async fn slice(&mut self, ids: &[TaskId]) -> Result<HashSet<TaskId>, OpError> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        for _ in 0..TRIES_MAX {
            let was_recorded = self.recorded.is_some();
            match self.attempt(ids).await {
                Ok(slice) => return self.take_in(slice).await.map_err(OpError::from),
                Err(error) => {
                    if !was_recorded {
                        // Rolled back.
                        self.recorded = None;
                    }
                    if classify(&error) != Class::Contention {
                        return Err(error.into());
                    }
                    tracing::debug!(error = %error, "a redrive met a lock; retrying");
                }
            }
        }
        Err(OpError::Unavailable)
    }

    async fn attempt(&mut self, ids: &[TaskId]) -> Result<Slice, sqlx::Error> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
        let mut conn = self.parts.pool.acquire().await?;
        let mut transaction = conn.begin().await?;
        session::idle_briefly(&mut transaction).await?;
        session::plan_as_hot(&mut transaction).await?;
        let names = self.lock(&mut transaction, &ids).await?;
        let letters = dead_letters::find(&mut transaction, self.key, &ids).await?;
        let ids: Vec<Uuid> = letters.iter().map(|letter| letter.task.uuid()).collect();
        let mut loaded = tasks::load(&mut transaction, &ids).await?;
        let mut slice = Slice::default();
        for letter in &letters {
            slice.found.insert(letter.task);
            let id = letter.task.uuid();
            let Some(loaded) = loaded.remove(&id) else { continue };
            let name = names.get(&id);
            match self.run_again(&mut transaction, letter, &loaded, name, &mut slice.effects).await? {
                Ok(done) => {
                    slice.done.push(letter.seq);
                    match done {
                        Done::Rerun => slice.redriven += 1,
                        Done::Copied => slice.copied += 1,
                    }
                }
                Err(refusal) => slice.refused.push((letter.task, refusal)),
            }
        }
        if !slice.done.is_empty() {
            dead_letters::clear(&mut transaction, &slice.done).await?;
            let (redriven, copied) = (self.outcome.redriven + slice.redriven, self.outcome.copied + slice.copied);
            let detail = json!({"redriven": redriven, "copied": copied});
            let entry = Entry::new(Action::RedriveQueue, self.queue, detail);
            let actor: &'a Actor = self.actor;
            actor.record_slice(&mut transaction, &mut self.recorded, entry).await?;
        }
        self.parts.notifiers.commit(transaction, std::mem::take(&mut slice.effects)).await?;
        Ok(slice)
    }

    /// Locks in the order of all creators. Returns the unique names.
    async fn lock(&self, transaction: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Held>, sqlx::Error> {
        let names = store::list_names(transaction, ids).await?;
        for name in names.values().map(|name| name.id).collect::<BTreeSet<i64>>() {
            store::lock_name(transaction, name).await?;
        }
        if self.copy.is_some() {
            store::lock_backlogs(transaction, &BTreeMap::from([(self.key, BacklogLock::Exclusive)])).await?;
        }
        tasks::lock_all(transaction, ids).await?;
        Ok(names)
    }

    /// Runs a locked task again, or returns the refusal.
    async fn run_again(
        &self,
        transaction: &mut PgConnection,
        letter: &DeadLetter,
        loaded: &Loaded,
        name: Option<&Held>,
        effects: &mut Effects,
    ) -> Result<Result<Done, OpError>, sqlx::Error> {
        let id = letter.task;
        let Some(way) = way(loaded.task.deadline, loaded.now, self.copy) else {
            return Ok(Err(OpError::Conflict(format!(
                "the deadline of task {id} has passed: only a copy of it can run, which `copy` makes"
            ))));
        };
        let definition = tasks::find_definition(transaction, id.uuid()).await?.unwrap_or_default();
        match way {
            Way::Rerun => {
                if is_lost() {
                    return Ok(Ok(Done::Rerun));
                }
                let rerun = rerun_locked(transaction, loaded, &definition, name, effects).await?;
                Ok(rerun.map(|()| Done::Rerun))
            }
            Way::Copy(after) => self.copy(transaction, loaded, &definition, after, effects).await,
        }
    }

    async fn copy(
        &self,
        transaction: &mut PgConnection,
        loaded: &Loaded,
        definition: &str,
        after: TimeDelta,
        effects: &mut Effects,
    ) -> Result<Result<Done, OpError>, sqlx::Error> {
        let task = &loaded.task;
        let original = Original { id: task.id, definition, deadline: task.deadline, expires: task.expires };
        let id = TaskId::from_random(Uuid::new_v4().into_bytes());
        let copy = match copy_of(original, id, loaded.now, after) {
            Ok(copy) => copy,
            Err(wrong) => return Ok(Err(wrong.into())),
        };
        if let Err(refusal) = (self.may_create)(&copy) {
            return Ok(Err(refusal));
        }
        let wanted = [Wanted { task: &copy, queue: self.key }];
        let made = guarded::create(transaction, self.parts.sequenced, &wanted, Locking::Waits, effects).await?;
        Ok(match made.into_iter().next() {
            Some(Made::Created(_) | Made::Repeat(_)) => Ok(Done::Copied),
            Some(Made::Refused(refusal)) => Err(refusal),
            Some(Made::Again) | None => Err(OpError::Unavailable),
        })
    }

    /// Adds a committed slice, and returns the tasks that were dead letters.
    async fn take_in(&mut self, slice: Slice) -> Result<HashSet<TaskId>, sqlx::Error> {
        let Slice { found, redriven, copied, refused, .. } = slice;
        self.outcome.redriven += redriven;
        self.outcome.copied += copied;
        refused.iter().for_each(|(_, refusal)| guarded::count_refusal(refusal));
        let full: Vec<&OpError> =
            refused.iter().map(|(_, refusal)| refusal).filter(|of| matches!(of, OpError::BacklogFull(_))).collect();
        if !full.is_empty() {
            guarded::note_refusals(&mut *self.parts.pool.acquire().await?, &full).await?;
        }
        for (task, refusal) in refused {
            self.outcome.refuse(task, refusal);
        }
        Ok(found)
    }
}

#[cfg(feature = "test-util")]
fn is_lost() -> bool {
    strikes(Breakage::LoseRedrive)
}

#[cfg(not(feature = "test-util"))]
fn is_lost() -> bool {
    false
}
