//! A slice of a job.
//!
//! The tasks are listed and the rights of the client are checked before the transaction, which
//! locks the job first. If another server has moved the job meanwhile, nothing is changed. The
//! locked tasks are read again, because others change them at the same time.

use std::collections::{BTreeSet, HashMap};

use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskId;
use tenure_api::jobs::RefusedTask;
use uuid::Uuid;

use super::changes::Changes;
use crate::authority::{Authority, Denied, Needed};
use crate::engine::Engine;
use crate::ops::OpError;
use crate::ops::bulk_jobs::detail_of;
use crate::ops::task_list;
use tenure_domain::audit::Action;
use tenure_domain::bulk_job::{Order, RunningJob, SLICE, TASKS_MAX, Which};
use tenure_domain::scopes::Expression;
use tenure_store::bulk_jobs::{self, Next};
use tenure_store::failure::{Class, classify};
use tenure_store::guarded::{self, Held};
use tenure_store::tasks::{self, Loaded};
use tenure_store::{audit, session};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sliced {
    Done,
    /// Another server has moved, locked or stopped the job.
    Lost,
}

/// The tasks of a slice.
struct Listed {
    ids: Vec<TaskId>,
    /// Position after them; none at the end.
    next: Option<String>,
}

/// A slice whose tasks are listed, and whose client is checked.
struct Slice<'a> {
    engine: &'a Engine,
    job: &'a RunningJob,
    listed: &'a Listed,
    /// Tasks that the client may change.
    permitted: &'a [Uuid],
    /// Tasks that it may not change, and named tasks that do not exist.
    refused: &'a [RefusedTask],
}

/// Does the next slice of a job, if it meets no lock for long: another job may be next meanwhile.
pub(super) async fn take(engine: &Engine, authority: &dyn Authority, job: &RunningJob) -> Result<Sliced, OpError> {
    let exists = Expression::AllOf(Vec::new());
    match authority.check(&job.client_id, Needed::Scopes(&exists)).await {
        Ok(()) => {}
        Err(Denied::Refused(why)) => return fail(engine, job, &why).await,
        Err(Denied::Unavailable) => return Err(OpError::Unavailable),
    }
    let listed = match list(engine, job).await {
        // Another release may have other conditions and positions.
        Err(OpError::Input(why)) => return fail(engine, job, &why).await,
        listed => listed?,
    };
    if job.progress.seen >= TASKS_MAX && !listed.ids.is_empty() {
        let why = format!("the limit of {TASKS_MAX} tasks is reached: start another job for the rest");
        return fail(engine, job, &why).await;
    }
    let (permitted, refused) = check_rights(engine, authority, job, &listed.ids).await?;
    let slice = Slice { engine, job, listed: &listed, permitted: &permitted, refused: &refused };
    slice.attempt().await.map_err(|error| match classify(&error) {
        Class::Contention => OpError::Unavailable,
        Class::BadData | Class::Unavailable | Class::Fault => error.into(),
    })
}

async fn list(engine: &Engine, job: &RunningJob) -> Result<Listed, OpError> {
    let cursor = job.progress.cursor.as_deref();
    match &job.which {
        Which::Filter(filter) => {
            let page = task_list::list(engine.task_list_parts(), filter, cursor, SLICE).await?;
            Ok(Listed { ids: page.tasks.into_iter().map(|task| task.task_id).collect(), next: page.next })
        }
        Which::Tasks(all) => {
            let begin = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0_usize).min(all.len());
            let end = (begin + SLICE).min(all.len());
            Ok(Listed { ids: all[begin..end].to_vec(), next: (end < all.len()).then(|| end.to_string()) })
        }
    }
}

/// Splits tasks into permitted and refused ones, by the client's current scopes.
async fn check_rights(
    engine: &Engine,
    authority: &dyn Authority,
    job: &RunningJob,
    ids: &[TaskId],
) -> Result<(Vec<Uuid>, Vec<RefusedTask>), OpError> {
    let uuids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
    let loaded = {
        let mut conn = engine.background_pool.acquire().await?;
        tasks::load(&mut conn, &uuids).await?
    };
    let (mut permitted, mut refused) = (Vec::new(), Vec::new());
    for &task_id in ids {
        let Some(Loaded { task, .. }) = loaded.get(&task_id.uuid()) else {
            if let Which::Tasks(_) = job.which {
                let message = format!("task {task_id} does not exist");
                refused.push(RefusedTask { task_id, code: ErrorCode::ResourceNotFound, message });
            }
            continue;
        };
        if !job.covers(task) {
            continue;
        }
        match authority.check(&job.client_id, Needed::ChangeTask(job.order, task)).await {
            Ok(()) => permitted.push(task_id.uuid()),
            Err(Denied::Refused(message)) => {
                refused.push(RefusedTask { task_id, code: ErrorCode::InsufficientScopes, message });
            }
            Err(Denied::Unavailable) => return Err(OpError::Unavailable),
        }
    }
    Ok((permitted, refused))
}

/// Ends a job before all tasks were tried.
pub(super) async fn fail(engine: &Engine, job: &RunningJob, why: &str) -> Result<Sliced, OpError> {
    let mut conn = engine.background_pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if !bulk_jobs::lock_slice(&mut transaction, job.id, job.progress.slices).await? {
        return Ok(Sliced::Lost);
    }
    bulk_jobs::advance(&mut transaction, job.id, &job.progress, Next::Fails(why)).await?;
    transaction.commit().await?;
    log_end(job, Some(why));
    Ok(Sliced::Done)
}

fn log_end(job: &RunningJob, error: Option<&str>) {
    tracing::info!(
        job.id = %job.id,
        client.id = job.client_id.as_str(),
        done = job.progress.done,
        unchanged = job.progress.unchanged,
        refused = job.progress.refused,
        error,
        "a job ended"
    );
}

impl Slice<'_> {
    async fn attempt(&self) -> Result<Sliced, sqlx::Error> {
        let Self { engine, job, listed, permitted, refused } = *self;
        let mut conn = engine.background_pool.acquire().await?;
        let mut transaction = conn.begin().await?;
        session::idle_briefly(&mut transaction).await?;
        session::plan_as_hot(&mut transaction).await?;
        if !bulk_jobs::lock_slice(&mut transaction, job.id, job.progress.slices).await? {
            return Ok(Sliced::Lost);
        }
        let names = self.lock(&mut transaction).await?;
        let loaded = tasks::load(&mut transaction, permitted).await?;
        let mut changes = Changes::of(job);
        refused.iter().cloned().for_each(|refusal| changes.job.progress.refuse(refusal));
        changes.carry_out(&mut transaction, &loaded, &names).await?;
        let Changes { mut job, changed, effects } = changes;
        job.progress.done += u32::try_from(changed.len()).unwrap_or(u32::MAX);
        job.progress.seen += u32::try_from(listed.ids.len()).unwrap_or(u32::MAX);
        job.progress.cursor.clone_from(&listed.next);
        let has_ended = listed.next.is_none();
        let next = if has_ended { Next::Ends } else { Next::Continues };
        record(&mut transaction, &job, &changed).await?;
        bulk_jobs::advance(&mut transaction, job.id, &job.progress, next).await?;
        engine.notifiers.commit(transaction, effects).await?;
        if has_ended {
            log_end(&job, None);
        }
        Ok(Sliced::Done)
    }

    /// Locks in the order of all creators. Returns the unique names.
    async fn lock(&self, transaction: &mut PgConnection) -> Result<HashMap<Uuid, Held>, sqlx::Error> {
        let names = match self.job.order {
            Order::Rerun => guarded::list_names(transaction, self.permitted).await?,
            Order::Cancel | Order::Priority(_) => HashMap::new(),
        };
        for name in names.values().map(|name| name.id).collect::<BTreeSet<i64>>() {
            guarded::lock_name(transaction, name).await?;
        }
        tasks::lock_all(transaction, self.permitted).await?;
        Ok(names)
    }
}

/// Records each changed task, and the progress of the job.
async fn record(transaction: &mut PgConnection, job: &RunningJob, changed: &[Uuid]) -> Result<(), sqlx::Error> {
    let action = match job.order {
        Order::Cancel => Action::CancelTask,
        Order::Rerun => Action::RerunTask,
        Order::Priority(_) => Action::ChangeTaskPriority,
    };
    let mut detail = json!({"jobId": job.id});
    if let Order::Priority(priority) = job.order {
        detail["newPriority"] = json!(priority);
    }
    if !changed.is_empty() {
        let objects: Vec<String> =
            changed.iter().filter_map(|id| TaskId::from_uuid(*id)).map(|id| id.to_string()).collect();
        let (client_id, trace_id) = (job.client_id.as_str(), job.trace_id.as_deref());
        audit::record_each(transaction, client_id, trace_id, action, &objects, &detail.to_string()).await?;
    }
    audit::amend(transaction, job.audit, &detail_of(job).to_string()).await
}
