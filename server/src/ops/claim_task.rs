//! claimTask: claim one named run. An ordinary transaction: it is what a poller of messages does, one at a time.

use std::time::Duration;

use sqlx::{Connection, PgPool};
use tenure_api::ids::{RunId, TaskId};

use super::claim_work::Granted;
use super::{OpError, refused};
use crate::domain::lifecycle::{Event, apply};
use crate::domain::task::{Last, Tenancy};
use crate::store::{claims, tasks};

/// Who asks for which run.
#[derive(Debug)]
pub struct Request {
    /// The task.
    pub task: TaskId,
    /// The run.
    pub run: RunId,
    /// The worker's group.
    pub worker_group: String,
    /// The worker.
    pub worker_id: String,
}

/// Claims the run. The worker that holds it already gets the same claim again, with its term unchanged; no other
/// worker ever does (invariant I1). The second part says whether the claim was made now.
pub async fn claim_task(
    pool: &PgPool,
    term: Duration,
    request: &Request,
) -> Result<Result<(Granted, bool), OpError>, sqlx::Error> {
    let (id, run) = (request.task.uuid(), request.run);
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, id).await?;
    let made = claims::claim_one(
        &mut transaction,
        id,
        run.number().cast_signed(),
        &request.worker_group,
        &request.worker_id,
        term,
    )
    .await?;
    let known = tasks::load(&mut transaction, &[id]).await?.remove(&id);
    let details = claims::find_details(&mut transaction, id).await?;
    transaction.commit().await?;
    let (Some(known), Some((scopes, definition))) = (known, details) else {
        return Ok(Err(OpError::NotFound(format!("task {} does not exist", request.task))));
    };
    if let Last::Running(open, tenancy) = &known.task.last
        && open.run == run
        && same_worker(tenancy, request)
    {
        let granted = Granted {
            run,
            tenancy: tenancy.clone(),
            now: known.now,
            scopes,
            definition: Some(definition),
            task: known.task,
        };
        return Ok(Ok((granted, made)));
    }
    if known.task.deadline <= known.now {
        return Ok(Err(OpError::Conflict(format!("the deadline of task {} has passed", request.task))));
    }
    Ok(Err(match apply(known.task.life(), Event::Claim(run)) {
        Err(refusal) => refused(refusal, request.task, run),
        // The run became claimable between the statements.
        Ok(_) => OpError::Unavailable,
    }))
}

fn same_worker(tenancy: &Tenancy, request: &Request) -> bool {
    tenancy.worker_group == request.worker_group && tenancy.worker_id == request.worker_id
}
