//! Creates the tasks of rows that were enqueued from SQL. Each row is judged alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use tenure_api::states::OnDuplicate;
use tenure_api::submit::SubmittedTask;
use tenure_domain::create::NewTask;
use tenure_domain::enqueue::{Attempt, Fate, complete, fate, parse};
use tenure_domain::submit::{Defaults, DefaultsQuery, Origin};
use tenure_store::enqueued::{self, Enqueued};
use tenure_store::events::Sequenced;
use tenure_store::{queues, settings, submission_defaults};
use uuid::Uuid;

use super::OpError;
use super::guarded::{self, Locking, Made, Wanted};
use crate::authority::{Authority, Denied, Needed};
use crate::gate::Gate;
use crate::notifiers::Effects;
use crate::remembered::Facts;

/// Before any server has stored its URL.
const ROOT_URL: &str = "http://localhost";

#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub facts: &'a Facts,
    pub gate: &'a Gate,
    pub authority: &'a dyn Authority,
    pub sequenced: Sequenced,
}

/// Locked rows to create.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    pub rows: &'a [Enqueued],
    pub now: DateTime<Utc>,
}

/// Result of [`create`].
#[derive(Debug)]
pub struct Settled {
    /// What becomes of each row, in order.
    pub fates: Vec<(i64, Fate)>,
    pub effects: Effects,
    /// Of tasks that were not created, for [`guarded::note_refusals`].
    pub refusals: Vec<OpError>,
    /// Tasks for which the unresolved task of their name stands.
    pub coalesced: usize,
}

impl Settled {
    /// Counts duplicates and tasks of full queues. Call it after the commit.
    pub fn count(&self) {
        self.refusals.iter().for_each(guarded::count_refusal);
        guarded::count_duplicates("coalesced", self.coalesced);
    }
}

/// Creates the tasks in this transaction.
pub async fn create(
    parts: Parts<'_>,
    transaction: &mut PgConnection,
    slice: Slice<'_>,
) -> Result<Settled, sqlx::Error> {
    let mut attempts: BTreeMap<usize, Attempt> = BTreeMap::new();
    let mut tasks = read(parts, transaction, slice, &mut attempts).await?;
    judge(parts, slice, &mut tasks, &mut attempts).await?;
    await_enqueued(transaction, &mut tasks, &mut attempts).await?;
    let (mut effects, mut refusals, mut coalesced) = (Effects::default(), Vec::new(), 0);
    for (row, made, on_duplicate) in store(parts.sequenced, transaction, &tasks, &mut effects).await? {
        let attempt = attempt(&made, on_duplicate);
        match made {
            Made::Refused(_) if attempt == Attempt::Done => coalesced += 1,
            Made::Refused(error) => refusals.push(error),
            Made::Created(_) | Made::Repeat(_) | Made::Again => {}
        }
        attempts.insert(row, attempt);
    }
    let fate_of = |(n, row): (usize, &Enqueued)| {
        // A row without an attempt has a queue whose key another server took.
        let attempt = attempts.remove(&n).unwrap_or(Attempt::Locked);
        (row.id, fate(attempt, row.tries, slice.now))
    };
    let fates = slice.rows.iter().enumerate().map(fate_of).collect();
    Ok(Settled { fates, effects, refusals, coalesced })
}

/// Tasks to create, by the index of their rows.
type Tasks = BTreeMap<usize, NewTask>;

/// Completes the tasks of the rows.
async fn read(
    parts: Parts<'_>,
    transaction: &mut PgConnection,
    slice: Slice<'_>,
    attempts: &mut BTreeMap<usize, Attempt>,
) -> Result<Tasks, sqlx::Error> {
    let (mut rows, mut sent): (Vec<usize>, Vec<SubmittedTask<'_>>) = (Vec::new(), Vec::new());
    for (n, row) in slice.rows.iter().enumerate() {
        match parse(&row.body) {
            Ok(task) => {
                rows.push(n);
                sent.push(task);
            }
            Err(reason) => drop(attempts.insert(n, Attempt::Refused(reason))),
        }
    }
    let defaults = read_defaults(transaction, &sent).await?;
    let root_url = settings::find(&mut *transaction, settings::ROOT_URL).await?;
    let root_url = root_url.unwrap_or_else(|| ROOT_URL.to_owned());
    let roles = parts.facts.enqueue_roles.get();
    let mut tasks = Tasks::new();
    for (n, task) in rows.into_iter().zip(sent) {
        let row = &slice.rows[n];
        let client_id = roles.get(&row.role).and_then(Option::as_deref).unwrap_or_default();
        let origin = Origin { now: slice.now, client_id, root_url: &root_url, defaults: &defaults };
        // The function has generated the id.
        match complete(task, row.deadline_after, origin, || TaskId::from_random(row.task.into_bytes())) {
            Ok(task) => drop(tasks.insert(n, task)),
            Err(reason) => drop(attempts.insert(n, Attempt::Refused(reason))),
        }
    }
    Ok(tasks)
}

/// A dependency of one row may be the task of another, so each is asked for alone.
async fn read_defaults(transaction: &mut PgConnection, sent: &[SubmittedTask<'_>]) -> Result<Defaults, sqlx::Error> {
    let mut query = DefaultsQuery::default();
    for task in sent {
        let DefaultsQuery { queues, dependencies } = DefaultsQuery::of(std::slice::from_ref(task));
        query.queues.extend(queues);
        query.dependencies.extend(dependencies);
    }
    if query.is_empty() {
        return Ok(Defaults::default());
    }
    Ok(submission_defaults::get(transaction, &query).await?.1)
}

/// Takes out the tasks that their roles and clients may not create, and those that an older server
/// could not carry out.
async fn judge(
    parts: Parts<'_>,
    slice: Slice<'_>,
    tasks: &mut Tasks,
    attempts: &mut BTreeMap<usize, Attempt>,
) -> Result<(), sqlx::Error> {
    let roles = parts.facts.enqueue_roles.get();
    let mut out: BTreeMap<usize, Attempt> = BTreeMap::new();
    for (&n, task) in &*tasks {
        let role = &slice.rows[n].role;
        let Some(Some(client_id)) = roles.get(role) else {
            out.insert(n, Attempt::Refused(format!("the database role {role:?} may not enqueue tasks")));
            continue;
        };
        match parts.authority.check(client_id, Needed::CreateTask(task)).await {
            Ok(()) => {}
            Err(Denied::Refused(reason)) => drop(out.insert(n, Attempt::Refused(reason))),
            Err(Denied::Unavailable) => drop(out.insert(n, Attempt::Locked)),
        }
    }
    let gated: Vec<usize> =
        tasks.iter().filter(|(n, task)| task.needs_gate() && !out.contains_key(n)).map(|(&n, _)| n).collect();
    if !gated.is_empty() && !is_open(parts.gate).await? {
        out.extend(gated.into_iter().map(|n| (n, Attempt::Full)));
    }
    tasks.retain(|n, _| !out.contains_key(n));
    attempts.extend(out);
    Ok(())
}

/// False while an older server is connected.
async fn is_open(gate: &Gate) -> Result<bool, sqlx::Error> {
    Ok(gate.admit(Some(())).await.map_err(|error| unavailable(&error))?.is_some())
}

/// The pass tries again.
fn unavailable(error: &OpError) -> sqlx::Error {
    sqlx::Error::Protocol(error.to_string())
}

/// Takes out the tasks that depend on enqueued tasks without a task yet. Read before the creates, so
/// that a row that was deleted meanwhile has its task.
async fn await_enqueued(
    transaction: &mut PgConnection,
    tasks: &mut Tasks,
    attempts: &mut BTreeMap<usize, Attempt>,
) -> Result<(), sqlx::Error> {
    let others = |task: &NewTask| {
        let own = task.id.uuid();
        task.dependencies.iter().copied().filter(|&id| id != own).collect::<Vec<Uuid>>()
    };
    let wanted: BTreeSet<Uuid> = tasks.values().flat_map(others).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let wanted: Vec<Uuid> = wanted.into_iter().collect();
    let open: HashMap<Uuid, bool> = enqueued::find_open(transaction, &wanted).await?;
    let waiting: Vec<usize> = tasks
        .iter()
        .filter(|(_, task)| others(task).iter().any(|id| open.get(id) == Some(&true)))
        .map(|(&n, _)| n)
        .collect();
    for n in waiting {
        tasks.remove(&n);
        attempts.insert(n, Attempt::Waits);
    }
    Ok(())
}

/// Creates the tasks. Returns the result of each, with its treatment of duplicates.
async fn store(
    sequenced: Sequenced,
    transaction: &mut PgConnection,
    tasks: &Tasks,
    effects: &mut Effects,
) -> Result<Vec<(usize, Made, OnDuplicate)>, sqlx::Error> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let names: BTreeSet<_> = tasks.values().map(|task| &task.queue).collect();
    let keys = queues::get_or_create_keys(transaction, &names).await?;
    let known = tasks.iter().filter_map(|(&n, task)| Some((n, Wanted { task, queue: keys.get(&task.queue)?.id })));
    let (rows, wanted): (Vec<usize>, Vec<Wanted<'_>>) = known.unzip();
    let first = guarded::look(transaction, sequenced, &wanted).await?;
    let treatments: Vec<OnDuplicate> =
        wanted.iter().enumerate().map(|(position, wanted)| first.on_duplicate(position, wanted.task)).collect();
    let made = guarded::create_after(transaction, sequenced, &wanted, first, Locking::Tries, effects).await?;
    Ok(rows.into_iter().zip(made).zip(treatments).map(|((row, made), treatment)| (row, made, treatment)).collect())
}

fn attempt(made: &Made, on_duplicate: OnDuplicate) -> Attempt {
    match made {
        Made::Created(_) | Made::Repeat(_) => Attempt::Done,
        Made::Again => Attempt::Locked,
        Made::Refused(error) => match error {
            // The other task stands for this one.
            OpError::Duplicate(_) if on_duplicate == OnDuplicate::Coalesce => Attempt::Done,
            OpError::BacklogFull(_) => Attempt::Full,
            OpError::Unavailable | OpError::StaleQueue | OpError::Overloaded(_) => Attempt::Locked,
            refused => Attempt::Refused(refused.to_string()),
        },
    }
}
