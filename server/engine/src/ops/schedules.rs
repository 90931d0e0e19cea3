//! Schedules: storing them, and creating their tasks.
//!
//! A task is created in the transaction that moves its schedule on, so each time gets one task, no
//! matter when a server is killed or how many servers find the schedule due. The schedule's owner
//! is checked each time. Task ids are random: nobody can take one first.

mod fire;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, PgPool};
use tenure_api::ids::TaskId;
use tenure_domain::audit::{Action, Entry};
use tenure_domain::create::NewTask;
use tenure_domain::schedule::SCHEDULES_MAX;
use tenure_domain::schedule::definition::{Definition, Occasion, Schedule};
use tenure_domain::submit::{Graph, Origin};
use tenure_store::events::Sequenced;
use tenure_store::queues::Queues;
use tenure_store::{clock, schedules, session};
use uuid::Uuid;

pub use self::fire::{Fired, fire};
use super::OpError;
use super::actor::{Actor, Recorded};
use super::guarded::{self, Locking, Made, Wanted};
use super::submit::{self, Key, read_defaults, submit};
use crate::authority::{Authority, Denied, Needed};
use crate::gate::Gate;
use crate::notifiers::{Effects, Notifiers};

/// Tries of a transaction that meets locks.
const TRIES_MAX: usize = 5;
/// Bytes of tasks per page of a list, beyond which it ends.
const PAGE_BYTES_MAX: i64 = 16 << 20;
/// Limit of the search for the first time of a new pattern.
const SEARCH_MAX: Duration = Duration::from_secs(1);

/// Parts of the engine for schedules.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub queues: &'a Queues,
    pub notifiers: &'a Notifiers,
    pub sequenced: Sequenced,
    pub gate: &'a Gate,
    pub authority: &'a dyn Authority,
    pub root_url: &'a str,
}

/// A schedule to store.
#[derive(Debug, Clone)]
pub struct Put {
    pub definition: Definition,
    /// As requested.
    pub paused: Option<bool>,
}

fn missing(name: &str) -> OpError {
    OpError::NotFound(format!("the schedule {name:?} does not exist"))
}

/// # Errors
/// If it does not exist.
pub async fn get(parts: Parts<'_>, name: &str) -> Result<Schedule, OpError> {
    schedules::find(parts.pool, name).await?.ok_or_else(|| missing(name))
}

/// Schedules by name.
#[derive(Debug)]
pub struct Listed {
    pub schedules: Vec<Schedule>,
    /// True if they end before the limit, since their tasks are large.
    pub is_cut: bool,
}

/// Lists schedules by name, after the name `after`.
pub async fn list(parts: Parts<'_>, after: Option<&str>, limit: i64) -> Result<Listed, OpError> {
    let schedules = schedules::list(parts.pool, after, limit, PAGE_BYTES_MAX).await?;
    let bytes: usize = schedules.iter().map(|schedule| schedule.definition.task.len()).sum();
    Ok(Listed { schedules, is_cut: bytes as i64 >= PAGE_BYTES_MAX })
}

/// Builds the task of a schedule as of now, with a new id.
///
/// # Errors
/// If the task is not acceptable.
pub async fn draft(
    parts: Parts<'_>,
    definition: &Definition,
    client_id: &str,
    occasion: Occasion<'_>,
) -> Result<NewTask, OpError> {
    let graph = draft_graph(parts, definition, client_id, occasion, None).await?;
    graph.entries.into_iter().next().map(|entry| entry.task).ok_or(OpError::Unavailable)
}

async fn draft_graph(
    parts: Parts<'_>,
    definition: &Definition,
    client_id: &str,
    occasion: Occasion<'_>,
    key: Option<&Key>,
) -> Result<Graph, OpError> {
    let query = definition.defaults_query()?;
    let (now, defaults) = read_defaults(&mut *parts.pool.acquire().await?, &query, key).await?;
    let origin = Origin { now, client_id, root_url: parts.root_url, defaults: &defaults };
    Ok(definition.submission(occasion, origin, || TaskId::from_random(Uuid::new_v4().into_bytes()))?)
}

/// Stores a schedule of this client. A changed pattern counts from now, and so does the first one
/// after a pause. Without `paused`, an existing schedule stays paused or not.
///
/// # Errors
/// If the pattern has no time soon, or too many schedules exist.
pub async fn put(parts: Parts<'_>, actor: &Actor, name: &str, put: Put) -> Result<(), OpError> {
    let Put { mut definition, paused } = put;
    parts.gate.open().await?;
    let now = clock::get_now(&mut *parts.pool.acquire().await?).await?;
    let pattern = definition.pattern()?;
    // A search without a result reads thousands of years.
    let search = tokio::task::spawn_blocking(move || pattern.first_after(now));
    let first = match tokio::time::timeout(SEARCH_MAX, search).await {
        Ok(Ok(first)) => first?,
        Ok(Err(_)) | Err(_) => {
            return Err(OpError::Input("`cron` has no time that can be found within a second".to_owned()));
        }
    };
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let old = schedules::lock(&mut transaction, name).await?;
    if old.is_none() && schedules::is_full(&mut transaction, SCHEDULES_MAX as i64).await? {
        return Err(OpError::Conflict(format!(
            "{SCHEDULES_MAX} schedules exist, which is the limit: delete unneeded ones"
        )));
    }
    definition.paused = paused.unwrap_or_else(|| old.as_ref().is_some_and(|old| old.definition.paused));
    let is_same = |old: &Schedule| old.definition == definition && old.client_id == actor.client_id;
    let mut recorded = None;
    if !old.as_ref().is_some_and(is_same) {
        let entry = Entry::new(Action::PutSchedule, name, detail(&definition));
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    let kept = old.filter(|old| continues(&old.definition, &definition)).map(|old| old.next);
    schedules::put(&mut transaction, name, &definition, &actor.client_id, kept.unwrap_or(Some(first))).await?;
    transaction.commit().await?;
    parts.notifiers.stay_active();
    recorded.into_iter().for_each(Recorded::log);
    Ok(())
}

/// Leaves out the task, whose payload may contain secrets.
fn detail(definition: &Definition) -> Value {
    let Definition { cron, timezone, catch_up, paused, .. } = definition;
    json!({"cron": cron, "timezone": timezone, "catchUp": catch_up, "paused": paused})
}

/// True if times that are due stay due.
fn continues(old: &Definition, new: &Definition) -> bool {
    (&old.cron, &old.timezone) == (&new.cron, &new.timezone) && !old.paused && !new.paused
}

/// # Errors
/// If it does not exist.
pub async fn delete(parts: Parts<'_>, actor: &Actor, name: &str) -> Result<(), OpError> {
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if !schedules::delete(&mut *transaction, name).await? {
        return Err(missing(name));
    }
    let recorded = actor.record(&mut transaction, Entry::new(Action::DeleteSchedule, name, json!({}))).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(())
}

/// Pauses or resumes a schedule. Times while it was paused are not made up.
///
/// # Errors
/// If it does not exist.
pub async fn set_paused(parts: Parts<'_>, actor: &Actor, name: &str, paused: bool) -> Result<Schedule, OpError> {
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let schedule = schedules::lock(&mut transaction, name).await?.ok_or_else(|| missing(name))?;
    let mut recorded = None;
    if schedule.definition.paused != paused {
        let now = clock::get_now(&mut transaction).await?;
        let next = schedule.definition.pattern()?.next_after(now);
        schedules::set_paused(&mut transaction, name, paused, next).await?;
        let action = if paused { Action::PauseSchedule } else { Action::ResumeSchedule };
        recorded = Some(actor.record(&mut transaction, Entry::new(action, name, json!({}))).await?);
    }
    transaction.commit().await?;
    parts.notifiers.stay_active();
    recorded.into_iter().for_each(Recorded::log);
    get(parts, name).await
}

/// Creates a task of the schedule now, also while it is paused, with the rights of its owner. If the
/// key was used before, returns that task.
///
/// # Errors
/// If the schedule does not exist, or its task is refused.
pub async fn trigger(parts: Parts<'_>, name: &str, key: Option<&Key>) -> Result<TaskId, OpError> {
    let Schedule { definition, client_id, .. } = get(parts, name).await?;
    let at = clock::get_now(&mut *parts.pool.acquire().await?).await?;
    let graph = Arc::new(draft_graph(parts, &definition, &client_id, Occasion { name, at }, key).await?);
    for entry in &graph.entries {
        match check_owner(parts, &client_id, &entry.task).await {
            // The caller has the scopes that it needs.
            Err(OpError::Forbidden(why)) => {
                return Err(OpError::Conflict(format!(
                    "the owner of the schedule {name:?} cannot create the task: {why}"
                )));
            }
            other => other?,
        }
    }
    let Parts { pool, queues, notifiers, sequenced, .. } = parts;
    let submitted = submit(submit::Parts { pool, queues, notifiers, ticks: None, sequenced }, &graph, key).await?;
    submitted.tasks.first().map(|submitted| submitted.task.id).ok_or(OpError::Unavailable)
}

/// # Errors
/// `Forbidden` if the owner lacks a right.
async fn check_owner(parts: Parts<'_>, client_id: &str, task: &NewTask) -> Result<(), OpError> {
    match parts.authority.check(client_id, Needed::CreateTask(task)).await {
        Ok(()) if task.needs_gate() => parts.gate.open().await,
        Ok(()) => Ok(()),
        Err(Denied::Refused(why)) => Err(OpError::Forbidden(why)),
        Err(Denied::Unavailable) => Err(OpError::Unavailable),
    }
}

/// A task that its owner may create.
struct Prepared {
    task: NewTask,
    queue: i32,
}

/// Builds the task of a schedule and checks its owner, before any transaction.
///
/// # Errors
/// `Forbidden` if the owner lacks a right.
async fn prepare(parts: Parts<'_>, schedule: &Schedule, occasion: Occasion<'_>) -> Result<Prepared, OpError> {
    let task = draft(parts, &schedule.definition, &schedule.client_id, occasion).await?;
    check_owner(parts, &schedule.client_id, &task).await?;
    let queue = parts.queues.get_or_create_key(parts.pool, &task.queue).await?;
    Ok(Prepared { task, queue })
}

impl Prepared {
    async fn create(
        &self,
        parts: Parts<'_>,
        transaction: &mut sqlx::PgConnection,
        effects: &mut Effects,
    ) -> Result<Made, sqlx::Error> {
        session::plan_as_hot(transaction).await?;
        let wanted = [Wanted { task: &self.task, queue: self.queue }];
        let made = guarded::create(transaction, parts.sequenced, &wanted, Locking::Waits, effects).await?;
        Ok(made.into_iter().next().unwrap_or(Made::Again))
    }
}
