//! Guarded creates: tasks with unique names, and tasks of queues with a backlog limit.
//!
//! A guarded create locks names, then backlogs, and reads with a later statement, which sees all
//! commits of earlier holders. [`tenure_domain::policy::guard`] decides, and the create statement
//! stores what goes on. Refusals that need no lock come first.
//!
//! Everything that creates tasks for a stored cause (a schedule, a row of SQL) calls [`create`] in
//! the transaction that marks the cause as done.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::PgConnection;
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::states::OnDuplicate;
use tenure_domain::create::NewTask;
use tenure_domain::events::note::Note;
use tenure_domain::policy::guard::{
    Backlog, BacklogLock, Decision, HOLDERS_MAX, Member, Name, Refusal, decide, refusal,
};
use tenure_domain::task::Task;
#[cfg(feature = "test-util")]
use tenure_store::breakage::{Breakage, is_on};
use tenure_store::events::Sequenced;
use tenure_store::groups;
use tenure_store::guarded::{self as store, Guards};
use tenure_store::transitions::create::{Created, Guarded};
use uuid::Uuid;

use super::OpError;
use super::drafts::{self, Draft};
use super::unstored::{Unstored, diagnose};
use crate::batch::Verdict;
use crate::failure::{BacklogFull, Duplicate};
use crate::notifiers::Effects;
use crate::statistics::Creation;

pub use tenure_store::guarded::Locking;

/// A task to create, with or without a name, in any queue.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub task: &'a NewTask,
    /// Key of its queue.
    pub queue: i32,
}

#[derive(Debug)]
pub enum Made {
    Created(Task),
    /// The task existed, created by the same request.
    Repeat(Task),
    /// [`OpError::Duplicate`], [`OpError::BacklogFull`], or as for createTask.
    Refused(OpError),
    /// A lock or another creator interfered: try again in a new transaction.
    Again,
}

/// The state that guards the creation of tasks.
pub struct Look {
    guards: Vec<Guards>,
    /// Of the queues with a limit.
    backlogs: HashMap<i32, Backlog>,
}

/// Creates tasks in the caller's transaction. Returns one result per task, in order. The caller
/// applies `effects` after the commit, and then counts refusals ([`count_refusal`]), because it knows
/// whether a duplicate was refused or replaced, and may call [`note_refusals`].
///
/// With [`Locking::Waits`], locks names, groups and backlogs, in this order, each waiting: the
/// transaction may hold no lock that comes later (ARCHITECTURE.md). With [`Locking::Tries`], waits
/// for backlogs only.
pub async fn create(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    wanted: &[Wanted<'_>],
    locking: Locking,
    effects: &mut Effects,
) -> Result<Vec<Made>, sqlx::Error> {
    let first = look(transaction, sequenced, wanted).await?;
    create_after(transaction, sequenced, wanted, first, locking, effects).await
}

/// Shares the locks of these backlogs, and returns the queues that are far from their limits.
pub async fn share_far(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    queues: &BTreeSet<i32>,
) -> Result<BTreeSet<i32>, sqlx::Error> {
    store::share_backlogs(transaction, queues).await?;
    let keys: Vec<i32> = queues.iter().copied().collect();
    let counted = store::count(transaction, sequenced, &keys, &BTreeMap::new()).await?;
    Ok(counted.iter().filter(|(_, backlog)| backlog.is_far()).map(|(&queue, _)| queue).collect())
}

/// Reads the guards without locks.
pub async fn look(conn: &mut PgConnection, sequenced: Sequenced, wanted: &[Wanted<'_>]) -> Result<Look, sqlx::Error> {
    look_with(conn, sequenced, wanted, &BTreeMap::new()).await
}

pub(super) async fn look_with(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    wanted: &[Wanted<'_>],
    locks: &BTreeMap<i32, BacklogLock>,
) -> Result<Look, sqlx::Error> {
    let tasks: Vec<store::Wanted<'_>> = wanted
        .iter()
        .map(|Wanted { task, queue }| store::Wanted {
            id: task.id.uuid(),
            queue: *queue,
            queue_name: task.queue.as_str(),
            scheduler: task.scheduler.as_str(),
            name: task.unique().map(|unique| unique.name.as_str()),
        })
        .collect();
    let guards = store::look(conn, &tasks).await?;
    let bounded = wanted.iter().zip(&guards).filter(|(_, guards)| guards.is_bounded).map(|(wanted, _)| wanted.queue);
    let bounded: Vec<i32> = bounded.collect::<BTreeSet<_>>().into_iter().collect();
    let backlogs =
        if bounded.is_empty() { HashMap::new() } else { store::count(conn, sequenced, &bounded, locks).await? };
    Ok(Look { guards, backlogs })
}

impl Made {
    pub fn refusal(&self) -> Option<&OpError> {
        match self {
            Self::Refused(error) => Some(error),
            Self::Created(_) | Self::Repeat(_) | Self::Again => None,
        }
    }
}

impl Look {
    /// True if the queue of this task has a limit.
    pub fn is_bounded(&self, position: usize) -> bool {
        self.guards[position].is_bounded
    }

    /// True if this queue has a limit and is far from it.
    pub fn is_far(&self, queue: i32) -> bool {
        self.backlogs.get(&queue).is_some_and(Backlog::is_far)
    }

    #[cfg(feature = "test-util")]
    fn with_locks(mut self, held: &HeldLocks) -> Self {
        for (queue, backlog) in &mut self.backlogs {
            backlog.lock = held.backlogs.get(queue).copied().unwrap_or(BacklogLock::None);
        }
        self
    }

    /// Refuses all tasks, if none of them needs a lock to be refused.
    pub fn refuse_all(&self, wanted: &[Wanted<'_>]) -> Option<Vec<Made>> {
        let refused = self.refusals(wanted);
        (refused.len() == wanted.len()).then(|| refused.into_values().map(Made::Refused).collect())
    }

    pub(super) fn exists(&self, position: usize) -> bool {
        self.guards[position].exists
    }

    pub(super) fn on_duplicate(&self, position: usize, task: &NewTask) -> OnDuplicate {
        let own = task.unique().and_then(|unique| unique.on_duplicate);
        own.or(self.guards[position].on_duplicate).unwrap_or(OnDuplicate::Reject)
    }

    /// Unresolved tasks with the name, the oldest first.
    pub(super) fn holders(&self, position: usize) -> Vec<Uuid> {
        self.guards[position].holders.iter().map(|holder| holder.id).collect()
    }

    pub(super) fn holder_seqs(&self, position: usize) -> Vec<i64> {
        self.guards[position].holders.iter().map(|holder| holder.seq).collect()
    }

    /// Decides for the tasks at these positions. `waits` is true of those with unsatisfied
    /// dependencies, `locked` of those whose name is locked.
    pub(super) fn decide(
        &self,
        wanted: &[Wanted<'_>],
        positions: &[usize],
        waits: impl Fn(usize) -> bool,
        locked: impl Fn(usize) -> bool,
    ) -> Vec<Decision> {
        let holders: Vec<Vec<Uuid>> = positions.iter().map(|&position| self.holders(position)).collect();
        let members: Vec<Member<'_>> = positions
            .iter()
            .zip(&holders)
            .map(|(&position, holders)| Member {
                waits: waits(position),
                ..self.member(position, wanted[position], holders, locked(position))
            })
            .collect();
        decide(&members, &self.backlogs)
    }

    /// Returns the holders of the names of stored tasks. `stored` has for each its position, the tasks
    /// that it waits for, and its `tasks.seq`.
    pub(super) fn new_holders<'a>(&self, stored: impl Iterator<Item = (usize, &'a [i64], i64)>) -> Vec<(i64, i64)> {
        let mut holders = Vec::new();
        for (position, waits_for, seq) in stored {
            let Some(name) = self.guards[position].name else { continue };
            holders.extend(waits_for.iter().map(|&holder| (name, holder)));
            holders.push((name, seq));
        }
        holders
    }

    /// Facts about a task. `holders` is [`Self::holders`].
    fn member<'a>(&self, position: usize, wanted: Wanted<'_>, holders: &'a [Uuid], locked: bool) -> Member<'a> {
        let guards = &self.guards[position];
        let on_duplicate = self.on_duplicate(position, wanted.task);
        let name = guards.name.map(|id| Name { id, on_duplicate, holders, locked });
        let bytes = i64::try_from(wanted.task.definition.len()).unwrap_or(i64::MAX);
        Member { exists: guards.exists, name, queue: wanted.queue, waits: false, bytes }
    }

    /// Returns the refusals that need no lock, with the position of each task.
    pub fn refusals(&self, wanted: &[Wanted<'_>]) -> BTreeMap<usize, OpError> {
        let early = |(position, wanted): (usize, &Wanted<'_>)| {
            let holders = self.holders(position);
            // A task with dependencies may need no run yet.
            let waits = !wanted.task.dependencies.is_empty();
            let member = Member { waits, ..self.member(position, *wanted, &holders, false) };
            let refusal = refusal(&member, self.backlogs.get(&wanted.queue))?;
            Some((position, self.error(refusal, *wanted)))
        };
        wanted.iter().enumerate().filter_map(early).collect()
    }

    pub(super) fn error(&self, refusal: Refusal, wanted: Wanted<'_>) -> OpError {
        match refusal {
            Refusal::Duplicate(holder) => duplicate(wanted.task, holder),
            Refusal::Crowded => OpError::Conflict(format!(
                "{HOLDERS_MAX} unresolved tasks of queue {} have the unique name {:?}, or wait for it: wait until some \
                 have ended",
                wanted.task.queue,
                name_of(wanted.task)
            )),
            Refusal::Full(used) => {
                let Some(Backlog { limit, .. }) = self.backlogs.get(&wanted.queue).copied() else {
                    return OpError::Unavailable;
                };
                let queue = wanted.task.queue.clone();
                OpError::BacklogFull(Box::new(BacklogFull { queue, key: wanted.queue, used, limit }))
            }
            Refusal::TooLarge { bytes, limit } => OpError::Conflict(format!(
                "the definition of the task has {bytes} bytes, and the pending tasks of queue {} may have {limit} together: \
                 shorten its payload, or raise `backlog.bytes` in the policy of the queue",
                wanted.task.queue
            )),
        }
    }
}

fn name_of(task: &NewTask) -> &str {
    task.unique().map_or("", |unique| unique.name.as_str())
}

fn duplicate(task: &NewTask, holder: Uuid) -> OpError {
    duplicate_of(&task.queue, name_of(task), holder)
}

/// Returns the refusal of a task with the name of an unresolved one.
pub(super) fn duplicate_of(queue: &TaskQueueId, name: &str, holder: Uuid) -> OpError {
    let Some(holder) = TaskId::from_uuid(holder) else { return OpError::Unavailable };
    let message = format!(
        "task {holder} of queue {queue} has the unique name {name:?} and is unresolved: wait until it has ended, or \
         choose another name"
    );
    OpError::Duplicate(Box::new(Duplicate { message, holder, entry: None }))
}

/// Like [`create`], after a look that may be from before the transaction.
pub async fn create_after(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    wanted: &[Wanted<'_>],
    first: Look,
    locking: Locking,
    effects: &mut Effects,
) -> Result<Vec<Made>, sqlx::Error> {
    let mut refused = first.refusals(wanted);
    let open: Vec<usize> = (0..wanted.len()).filter(|position| !refused.contains_key(position)).collect();
    #[cfg(feature = "test-util")]
    linger().await;
    let held = lock(transaction, wanted, &open, &first, locking).await?;
    let look = look_again(transaction, sequenced, wanted, first, &held).await?;
    let tasks = wanted.iter().map(|wanted| (wanted.task, wanted.queue)).collect();
    let mut drafts = drafts::read(transaction, tasks).await?;
    // Tasks with invalid dependencies take no name and no place, and are diagnosed.
    let valid: Vec<usize> = open.into_iter().filter(|&position| drafts[position].has_valid_dependencies()).collect();
    let waits = |position: usize| drafts[position].waits_for_dependencies();
    let decisions = look.decide(wanted, &valid, waits, |position| held.names.contains(&position));
    let (mut goes, mut behind, mut again) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (&position, decision) in valid.iter().zip(decisions) {
        match decision {
            Decision::Create => goes.push(position),
            Decision::Wait => {
                drafts[position].holders = look.holder_seqs(position);
                goes.push(position);
            }
            Decision::Refuse(refusal) => drop(refused.insert(position, look.error(refusal, wanted[position]))),
            Decision::Behind(first) => behind.push((position, valid[first])),
            Decision::Locked => {
                again.insert(position);
            }
        }
    }
    let outcome = drafts::store(transaction, &drafts, &goes, Guarded::Yes).await?;
    let stored: BTreeMap<usize, Created> = outcome.stored.into_iter().map(|row| (row.member, row)).collect();
    let holders = stored.iter().map(|(&position, row)| (position, drafts[position].holders.as_slice(), row.seq));
    store::hold_names(transaction, &look.new_holders(holders)).await?;
    for (position, first) in behind {
        let is_queued = look.on_duplicate(position, wanted[position].task) == OnDuplicate::Queue;
        if stored.contains_key(&first) && !is_queued {
            refused.insert(position, duplicate(wanted[position].task, wanted[first].task.id.uuid()));
        } else {
            again.insert(position);
        }
    }
    add_effects(effects, wanted, &stored);
    let queued = stored.keys().filter(|&&position| !drafts[position].holders.is_empty()).count();
    count_duplicates("queued", queued);
    answer(transaction, &drafts, stored, refused, &again).await
}

/// Reads the guards under the locks, which `first` precedes.
async fn look_again(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    wanted: &[Wanted<'_>],
    first: Look,
    held: &HeldLocks,
) -> Result<Look, sqlx::Error> {
    #[cfg(feature = "test-util")]
    if is_on(Breakage::LookBeforeLock) {
        return Ok(first.with_locks(held));
    }
    drop(first);
    look_with(transaction, sequenced, wanted, &held.backlogs).await
}

/// Gives other servers time for a look of their own.
#[cfg(feature = "test-util")]
async fn linger() {
    if is_on(Breakage::LookBeforeLock) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Locks of this transaction.
struct HeldLocks {
    /// Positions of the tasks whose names are locked.
    names: BTreeSet<usize>,
    backlogs: BTreeMap<i32, BacklogLock>,
}

async fn lock(
    transaction: &mut PgConnection,
    wanted: &[Wanted<'_>],
    open: &[usize],
    first: &Look,
    locking: Locking,
) -> Result<HeldLocks, sqlx::Error> {
    let open: Vec<usize> = open.iter().copied().filter(|&position| !first.guards[position].exists).collect();
    let named: Vec<usize> = open.iter().copied().filter(|&position| wanted[position].task.unique().is_some()).collect();
    let names: Vec<store::Name<'_>> = named.iter().map(|&position| name(wanted[position].task)).collect();
    let locked = store::lock_names(transaction, &names, locking).await?;
    if locking == Locking::Waits {
        let groups: BTreeSet<Uuid> = open.iter().map(|&position| wanted[position].task.group.uuid()).collect();
        for group in groups {
            groups::lock(transaction, group).await?;
        }
    }
    let mode = |backlog: &Backlog| match locking {
        Locking::Tries if backlog.is_far() => BacklogLock::Shared,
        Locking::Tries | Locking::Waits => BacklogLock::Exclusive,
    };
    let queues = open.iter().map(|&position| wanted[position].queue);
    let backlogs: BTreeMap<i32, BacklogLock> =
        queues.filter_map(|queue| Some((queue, mode(first.backlogs.get(&queue)?)))).collect();
    store::lock_backlogs(transaction, &backlogs).await?;
    let names = named.into_iter().zip(locked).filter(|(_, locked)| *locked).map(|(position, _)| position);
    Ok(HeldLocks { names: names.collect(), backlogs })
}

/// Locks the name of a task, waiting.
pub(super) async fn lock_name(conn: &mut PgConnection, task: &NewTask) -> Result<(), sqlx::Error> {
    store::lock_names(conn, &[name(task)], Locking::Waits).await?;
    Ok(())
}

/// The name of a task, for its lock.
pub(super) fn name(task: &NewTask) -> store::Name<'_> {
    store::Name { queue: task.queue.as_str(), scheduler: task.scheduler.as_str(), name: name_of(task) }
}

fn add_effects(effects: &mut Effects, wanted: &[Wanted<'_>], stored: &BTreeMap<usize, Created>) {
    for (&position, row) in stored {
        let Wanted { task, queue } = wanted[position];
        effects.created.push(Creation { queue, task: task.id.uuid(), at: row.now, link: None });
        if row.waits {
            effects.task_waits(task, queue);
        } else if row.held {
            effects.admission.push(queue);
        } else {
            effects.claimable.push(queue);
        }
    }
}

/// Counts tasks whose name was taken.
pub fn count_duplicates(outcome: &'static str, tasks: usize) {
    if tasks > 0 {
        metrics::counter!("tenure_duplicates_total", "outcome" => outcome).increment(tasks as u64);
    }
}

/// Counts a refusal because of a name or a limit.
pub fn count_refusal(error: &OpError) {
    match error {
        OpError::Duplicate(_) => count_duplicates("rejected", 1),
        OpError::BacklogFull(_) => metrics::counter!("tenure_backlog_refused_total").increment(1),
        _ => {}
    }
}

async fn answer(
    transaction: &mut PgConnection,
    drafts: &[Draft<'_>],
    stored: BTreeMap<usize, Created>,
    mut refused: BTreeMap<usize, OpError>,
    again: &BTreeSet<usize>,
) -> Result<Vec<Made>, sqlx::Error> {
    let mut made: Vec<Option<Made>> = drafts.iter().map(|_| None).collect();
    for (position, row) in stored {
        made[position] = Some(Made::Created(row.task(drafts[position].task)));
    }
    for position in again {
        made[*position] = Some(Made::Again);
    }
    while let Some((position, error)) = refused.pop_first() {
        made[position] = Some(Made::Refused(error));
    }
    let missing: Vec<usize> = (0..drafts.len()).filter(|&position| made[position].is_none()).collect();
    let unstored = |&position: &usize| {
        let Draft { task, queue, awaited, .. } = &drafts[position];
        Unstored { task, queue: *queue, awaited: awaited.as_slice() }
    };
    let unstored: Vec<Unstored<'_>> = missing.iter().map(unstored).collect();
    for (position, verdict) in missing.into_iter().zip(diagnose(transaction, &unstored).await?) {
        made[position] = Some(match verdict {
            Verdict::Done(task) => Made::Repeat(task),
            Verdict::Refused(error) => Made::Refused(error),
            Verdict::Locked | Verdict::Again => Made::Again,
        });
    }
    Ok(made.into_iter().map(|made| made.unwrap_or(Made::Again)).collect())
}

/// Writes a note about each full queue to the event log, at most one in ten seconds. Call it after
/// the commit or the rollback.
pub async fn note_refusals(conn: &mut PgConnection, errors: &[&OpError]) -> Result<(), sqlx::Error> {
    let mut full = BTreeMap::new();
    for &error in errors {
        if let OpError::BacklogFull(backlog) = error {
            full.insert(backlog.key, backlog);
        }
    }
    for (key, backlog) in full {
        let BacklogFull { queue, used, limit, .. } = &**backlog;
        let note = Note::backlog_limit_reached(queue.clone(), used.tasks, used.bytes, *limit);
        let details = note.details().map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
        store::note_limit(conn, key, &details).await?;
    }
    Ok(())
}
