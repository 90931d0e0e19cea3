//! Creates tasks in one transaction, all or none, by the statement and rules of createTask.

mod guards;
mod plain;
mod ticks;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::Requires;
use uuid::Uuid;

use super::unstored::{Unstored, diagnose};
use super::{OpError, guarded};
use crate::batch::Verdict;
use crate::notifiers::{Effects, Notifiers};
use crate::statistics::Creation;
use crate::traces;
use guards::Guards;
use plain::Plain;
use tenure_domain::create::{Awaited, NewTask, dependency_refusal};
use tenure_domain::policy::guard::Decision;
use tenure_domain::submit::{Defaults, DefaultsQuery, Graph};
use tenure_domain::task::Task;
use tenure_store::dependencies::{self, Edge, Required, Wanted};
use tenure_store::events::Sequenced;
use tenure_store::failure::{Class, classify};
use tenure_store::idempotency::{self, Keyed, StoredSubmission};
use tenure_store::queues::{Key as QueueKey, Queues};
use tenure_store::transitions::create::{self, Created, Member};
use tenure_store::{clock, groups, queues, session, submission_defaults, tasks};

pub use ticks::{SubmissionTicks, SubmitTasks};

pub const KEY_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Tries of a submission that meets locks.
const TRIES_MAX: usize = 5;

#[derive(Debug, Clone)]
pub struct Key {
    pub client_id: String,
    /// Value of the header.
    pub key: String,
    /// Digest of the body.
    pub digest: Vec<u8>,
}

#[derive(Debug)]
pub struct Submitted {
    pub group: TaskGroupId,
    /// In request order.
    pub tasks: Vec<SubmittedTask>,
}

#[derive(Debug)]
pub struct SubmittedTask {
    pub task: Task,
    /// True if the task existed, with the unique name of the entry.
    pub is_duplicate: bool,
}

/// Parts of the engine for submissions.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub queues: &'a Queues,
    pub notifiers: &'a Notifiers,
    /// Without it, each submission has its own transaction.
    pub ticks: Option<&'a SubmissionTicks>,
    /// Position after which counter changes are read.
    pub sequenced: Sequenced,
}

/// Returns the time at which a submission is checked, and the inputs of its default deadlines. A
/// repeat uses the time of the first submission, so that its dates stay acceptable.
pub async fn read_defaults(
    conn: &mut PgConnection,
    query: &DefaultsQuery,
    key: Option<&Key>,
) -> Result<(DateTime<Utc>, Defaults), sqlx::Error> {
    let (now, defaults) = if query.is_empty() {
        (clock::get_now(conn).await?, Defaults::default())
    } else {
        submission_defaults::get(conn, query).await?
    };
    let Some(key) = key else { return Ok((now, defaults)) };
    let first = idempotency::find_created(conn, &key.client_id, &key.key, now - KEY_KEPT).await?;
    Ok((first.unwrap_or(now), defaults))
}

/// Creates the tasks. If the key was used before, returns its tasks in their present state.
pub async fn submit(parts: Parts<'_>, graph: &Arc<Graph>, key: Option<&Key>) -> Result<Submitted, OpError> {
    // Before a connection is taken: this may need one.
    let mut plain = Plain::of(parts, graph).await?;
    if key.is_none()
        && plain.is_some()
        && let Some(place) = parts.ticks.and_then(|ticks| ticks.reserve(graph))
        && let Some(plain) = plain.take()
        && let Some(submitted) = place.submit(graph, plain).await?
    {
        return Ok(submitted);
    }
    for _ in 0..TRIES_MAX {
        match attempt(parts, graph, plain.as_ref(), key).await {
            Ok(Some(submitted)) => return Ok(submitted),
            Ok(None) => {}
            Err(SubmitError::Refused(error)) => {
                guarded::count_refusal(&error);
                if matches!(error, OpError::BacklogFull(_)) {
                    guarded::note_refusals(&mut *parts.pool.acquire().await?, &[&error]).await?;
                }
                return Err(error);
            }
            Err(SubmitError::Database(error)) if classify(&error) != Class::Contention => return Err(error.into()),
            Err(SubmitError::Database(error)) => {
                tracing::debug!(error = %error, "a submission met a lock; retrying");
            }
        }
    }
    Err(OpError::Unavailable)
}

enum SubmitError {
    Refused(OpError),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for SubmitError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// Runs one transaction. `None` requires a new attempt: another server interfered, or a new queue
/// got no key.
async fn attempt(
    parts: Parts<'_>,
    graph: &Graph,
    plain: Option<&Plain>,
    key: Option<&Key>,
) -> Result<Option<Submitted>, SubmitError> {
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = session::begin_as_hot(&mut conn).await?;
    if let Some(key) = key {
        let keyed = Keyed { client_id: &key.client_id, key: &key.key, digest: &key.digest };
        let ids = graph.ids();
        if let Some(known) = idempotency::take(&mut transaction, keyed, graph.group.uuid(), &ids, KEY_KEPT).await? {
            return replay(&mut transaction, graph, key, known).await.map(Some);
        }
    }
    if let Some(plain) = plain
        && let Some(stored) = plain.store(&mut transaction, graph).await?
    {
        let mut effects = Effects::default();
        plain.add_effects(graph, &stored, &mut effects);
        parts.notifiers.commit(transaction, effects).await?;
        return Ok(Some(plain::submitted(graph, &stored)));
    }
    guards::lock_names(&mut transaction, graph).await?;
    // Waits for transactions that purge or extend the group.
    groups::lock(&mut transaction, graph.group.uuid()).await?;
    let names: BTreeSet<_> = graph.entries.iter().map(|entry| &entry.task.queue).collect();
    let queues = queues::get_or_create_keys(&mut transaction, &names).await?;
    if queues.len() < names.len() {
        // A new queue drew a key in use: retry with another.
        return Ok(None);
    }
    let guards = guards::look(&mut transaction, parts.sequenced, graph, &queues).await?;
    let coalesced = guards.coalesced(graph);
    if let Some(key) = key.filter(|_| matches!(coalesced, Cow::Owned(_))) {
        let ids = coalesced.ids();
        idempotency::replace_tasks(&mut transaction, &key.client_id, &key.key, &ids).await?;
    }
    let submitted = create(parts, transaction, &coalesced, &queues, guards).await?;
    Ok(submitted.map(|tasks| Submitted { group: graph.group, tasks }))
}

/// Creates the tasks that no existing task replaces, and commits.
async fn create(
    parts: Parts<'_>,
    mut transaction: Transaction<'_, Postgres>,
    graph: &Graph,
    queues: &HashMap<TaskQueueId, QueueKey>,
    guards: Guards,
) -> Result<Option<Vec<SubmittedTask>>, SubmitError> {
    let mut plan = Plan::new(graph, list_required(&mut transaction, graph).await?);
    if !plan.apply(graph, &guards)? {
        return Ok(None);
    }
    let members: Vec<Member<'_>> = plan
        .valid
        .iter()
        .filter_map(|&n| {
            let task = &graph.entries[n].task;
            Some(Member { task, queue: queues.get(&task.queue)?.id, waits: plan.waits(n), ruled: false })
        })
        .collect();
    let outcome = create::create(&mut transaction, &members, guards.guarded()).await?;
    if !outcome.bounded.is_empty() {
        // A queue has a limit since its key was read.
        return Ok(None);
    }
    for mut row in outcome.stored {
        row.member = plan.valid[row.member];
        plan.stored.insert(row.member, row);
    }
    for row in plan.stored.values() {
        if let Some(key) = queues.get(&graph.entries[row.member].task.queue) {
            parts.queues.note_ruled(key.id, row.ruled);
        }
    }
    let Some(tasks) = answers(&mut transaction, graph, queues, &plan).await? else { return Ok(None) };
    let edges = plan.edges(graph, &tasks);
    dependencies::insert(&mut transaction, &edges).await?;
    guards.hold_names(&mut transaction, &plan).await?;
    let queues_of = |held: bool| {
        let pending = plan.stored.values().filter(move |row| !row.waits && row.held == held);
        let queues = pending.filter_map(|row| queues.get(&graph.entries[row.member].task.queue).map(|key| key.id));
        queues.collect::<BTreeSet<i32>>()
    };
    let admission = queues_of(true).into_iter().collect();
    let claimable = queues_of(false);
    let link = traces::link_of_new_task();
    let creation = |row: &Created| {
        let task = &graph.entries[row.member].task;
        Some(Creation { queue: queues.get(&task.queue)?.id, task: task.id.uuid(), at: row.now, link })
    };
    let created = plan.stored.values().filter_map(creation).collect();
    let mut effects = Effects { created, admission, ..Effects::claimable(claimable) };
    for row in plan.stored.values().filter(|row| row.waits) {
        let task = &graph.entries[row.member].task;
        if let Some(key) = queues.get(&task.queue) {
            effects.task_waits(task, key.id);
        }
    }
    parts.notifiers.commit(transaction, effects).await?;
    plan.count(graph);
    let is_duplicate = graph.entries.iter().map(|entry| entry.holder.is_some());
    Ok(Some(
        tasks.into_iter().zip(is_duplicate).map(|(task, is_duplicate)| SubmittedTask { task, is_duplicate }).collect(),
    ))
}

/// Returns the present state of all dependencies, by entry.
async fn list_required(transaction: &mut PgConnection, graph: &Graph) -> Result<Vec<Vec<Required>>, sqlx::Error> {
    let mut required: Vec<Vec<Required>> = graph.entries.iter().map(|_| Vec::new()).collect();
    let requested = |task: &NewTask| task.requires == Requires::AllResolved;
    if graph.entries.iter().any(|entry| !entry.task.dependencies.is_empty()) {
        let requested: Vec<Wanted<'_>> = graph
            .entries
            .iter()
            .map(|entry| Wanted { required: &entry.task.dependencies, any_end: requested(&entry.task) })
            .collect();
        for row in dependencies::list_required(transaction, &requested).await? {
            required[row.member].push(row);
        }
    }
    Ok(required)
}

struct Plan {
    required: Vec<Vec<Required>>,
    /// `required` as input of the rules.
    awaited: Vec<Vec<(TaskId, Awaited)>>,
    /// Entries with acceptable dependencies.
    valid: Vec<usize>,
    stored: BTreeMap<usize, Created>,
    /// By entry: `tasks.seq` of the tasks that hold its name.
    holders: HashMap<usize, Vec<i64>>,
}

impl Plan {
    fn new(graph: &Graph, required: Vec<Vec<Required>>) -> Self {
        let inside: HashMap<Uuid, &NewTask> =
            graph.entries.iter().map(|entry| (entry.task.id.uuid(), &entry.task)).collect();
        let found = |row: &Required| match (row.expires, inside.get(&row.id)) {
            (Some(expires), _) => Awaited::Until(expires),
            // Created together with its dependent.
            (None, Some(task)) => Awaited::Until(task.expires),
            (None, None) => Awaited::Missing,
        };
        let awaited: Vec<Vec<(TaskId, Awaited)>> = required
            .iter()
            .map(|rows| rows.iter().filter_map(|row| Some((TaskId::from_uuid(row.id)?, found(row)))).collect())
            .collect();
        let valid = (0..graph.entries.len())
            .filter(|&n| graph.entries[n].holder.is_none())
            .filter(|&n| dependency_refusal(&graph.entries[n].task, &awaited[n]).is_none())
            .collect();
        Self { required, awaited, valid, stored: BTreeMap::new(), holders: HashMap::new() }
    }

    /// Decides by names and limits. False if a lock is missing.
    fn apply(&mut self, graph: &Graph, guards: &Guards) -> Result<bool, SubmitError> {
        for (n, decision) in guards.decide(graph, &self.valid, |n| self.waits_for_dependencies(n)) {
            match decision {
                Decision::Create => {}
                Decision::Wait => drop(self.holders.insert(n, guards.holders(n))),
                Decision::Refuse(refusal) => return Err(SubmitError::Refused(guards.error(graph, n, refusal))),
                Decision::Behind(_) | Decision::Locked => return Ok(false),
            }
        }
        Ok(true)
    }

    fn waits_for_dependencies(&self, entry: usize) -> bool {
        self.required[entry].iter().any(|required| !required.satisfied)
    }

    fn waits(&self, entry: usize) -> bool {
        self.holders.contains_key(&entry) || self.waits_for_dependencies(entry)
    }

    /// Counts the tasks that duplicate names have replaced or delayed.
    fn count(&self, graph: &Graph) {
        let coalesced = graph.entries.iter().filter(|entry| entry.holder.is_some()).count();
        guarded::count_duplicates("coalesced", coalesced);
        guarded::count_duplicates("queued", self.holders.len());
    }

    /// Edges of the stored entries. Repeats have theirs already.
    fn edges(&self, graph: &Graph, tasks: &[Task]) -> Vec<Edge> {
        let keys: HashMap<Uuid, i64> = tasks.iter().map(|task| (task.id.uuid(), task.seq)).collect();
        let mut edges = Vec::new();
        for &n in self.stored.keys() {
            let task = &graph.entries[n].task;
            let holders = self.holders.get(&n).map_or(&[][..], Vec::as_slice);
            let first = edges.len();
            edges.extend(self.required[n].iter().filter_map(|required| {
                let required_seq = required.seq.or_else(|| keys.get(&required.id).copied())?;
                Some(Edge {
                    required: required_seq,
                    dependent: task.id.uuid(),
                    any_end: task.requires == Requires::AllResolved,
                    satisfied: required.satisfied,
                    fixed: holders.contains(&required_seq),
                })
            }));
            for &required in holders {
                if edges[first..].iter().all(|edge: &Edge| edge.required != required) {
                    let dependent = task.id.uuid();
                    edges.push(Edge { required, dependent, any_end: true, satisfied: false, fixed: true });
                }
            }
        }
        edges
    }
}

/// Returns all tasks, new or repeated. The first task that is neither refuses the submission.
async fn answers(
    transaction: &mut PgConnection,
    graph: &Graph,
    queues: &HashMap<TaskQueueId, QueueKey>,
    plan: &Plan,
) -> Result<Option<Vec<Task>>, SubmitError> {
    let entries = || graph.entries.iter().enumerate();
    let holders: Vec<Uuid> = entries().filter_map(|(_, entry)| Some(entry.holder?.uuid())).collect();
    let mut holders = if holders.is_empty() { HashMap::new() } else { tasks::load(transaction, &holders).await? };
    let unstored: Vec<Unstored<'_>> = entries()
        .filter(|(n, entry)| !plan.stored.contains_key(n) && entry.holder.is_none())
        .filter_map(|(n, entry)| {
            let task = &entry.task;
            Some(Unstored { task, queue: queues.get(&task.queue)?.id, awaited: &plan.awaited[n] })
        })
        .collect();
    let mut others = diagnose(transaction, &unstored).await?.into_iter();
    let mut tasks = Vec::with_capacity(graph.entries.len());
    for (n, entry) in entries() {
        if let Some(holder) = entry.holder {
            let Some(loaded) = holders.remove(&holder.uuid()) else { return Ok(None) };
            tasks.push(loaded.task);
            continue;
        }
        let verdict = plan.stored.get(&n).map(|stored| Verdict::Done(stored.task(&entry.task)));
        match verdict.or_else(|| others.next()) {
            Some(Verdict::Done(task)) => tasks.push(task),
            Some(Verdict::Refused(error)) => return Err(SubmitError::Refused(error.at(&graph.place(n)))),
            Some(Verdict::Locked | Verdict::Again) | None => return Ok(None),
        }
    }
    Ok(Some(tasks))
}

/// Returns the tasks of a repeat in their present state.
async fn replay(
    transaction: &mut PgConnection,
    graph: &Graph,
    key: &Key,
    known: StoredSubmission,
) -> Result<Submitted, SubmitError> {
    let refuse = |error| SubmitError::Refused(error);
    if known.digest != key.digest {
        return Err(refuse(OpError::Conflict(
            "the header Idempotency-Key was sent with another body within the last 24 hours; choose another key".into(),
        )));
    }
    let gone = || {
        refuse(OpError::NotFound(
            "the header Idempotency-Key was used for tasks that were purged since; choose another key".into(),
        ))
    };
    let mut loaded = tasks::load(transaction, &known.tasks).await?;
    let group = TaskGroupId::from_uuid(known.group).ok_or_else(gone)?;
    let entries = known.tasks.iter().zip(&graph.entries);
    let tasks = entries.map(|(id, entry)| {
        let task = loaded.remove(id).map(|loaded| loaded.task).ok_or_else(gone)?;
        // An entry without an id may have been created with any.
        let is_duplicate = task.group != group || (entry.is_given && task.id != entry.task.id);
        Ok(SubmittedTask { task, is_duplicate })
    });
    let tasks = tasks.collect::<Result<Vec<_>, SubmitError>>()?;
    Ok(Submitted { group, tasks })
}
