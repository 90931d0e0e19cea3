//! claimTask: claims one named run. Not batched: message pollers claim one run at a time.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{SessionEnd, TaskState};
use tenure_api::why::Reason;

use super::why::{self, Parts};
use super::{OpError, refused};
use crate::decision::marks::AdmissionMarks;
use crate::decision::{self, Named, Reads};
use crate::notifiers::Effects;
use crate::statistics::Start;
use tenure_domain::create::shown_definition;
use tenure_domain::policy::life::{Event, apply};
use tenure_domain::policy::why::{self as policy, Names};
use tenure_domain::task::{Granted, Last, Tenancy};
use tenure_domain::worker::{Recent, Sight, WorkerKey};
use tenure_store::transitions::claim::Worker;
use tenure_store::transitions::claim_one;
use tenure_store::worker_sessions::{self, Liveness};
use tenure_store::{claims, holds, policies, tasks};

#[derive(Debug)]
pub struct ClaimTask {
    pub task: TaskId,
    pub run: RunId,
    pub worker_group: String,
    pub worker_id: String,
    /// Epoch of the session that the claim belongs to.
    pub session: Option<i64>,
}

/// A repeat by the holder returns the same claim until the deadline, lease unchanged, even in
/// quarantine. No other worker ever gets it (invariant I1).
pub async fn claim_task(
    parts: Parts<'_>,
    lease: Duration,
    request: &ClaimTask,
) -> Result<Result<Granted, OpError>, sqlx::Error> {
    let Parts { pool, workers, notifiers, .. } = parts;
    let (id, run) = (request.task.uuid(), request.run);
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    // Lock order: the session before the task, as when a session ends. The session cannot end
    // meanwhile.
    if let Some(epoch) = request.session
        && let Some(refused) = lock_session(&mut transaction, epoch).await?
    {
        return Ok(Err(refused));
    }
    let worker = tasks::lock_in_queue(&mut transaction, id).await?.map(|queue| request.worker(queue));
    let quarantined = worker.as_ref().is_some_and(|worker| workers.is_quarantined(worker));
    let number = run.number().cast_signed();
    let (mut claimed_of, mut paused, mut held) = (None, None, false);
    if let (false, Some(worker)) = (quarantined, &worker) {
        if try_claim(&mut transaction, parts, lease, request, worker.queue).await? {
            claimed_of = Some(worker.queue);
        } else {
            paused = policies::find_pause(&mut transaction, worker.queue).await?;
            held = holds::is_held(&mut transaction, id).await?;
        }
    }
    let loaded = tasks::load(&mut transaction, &[id]).await?.remove(&id);
    let details = claims::find_details(&mut transaction, id).await?;
    match claimed_of {
        // The scheduler of an assign queue must learn of the spent token.
        Some(queue) => notifiers.commit(transaction, Effects { admission: vec![queue], ..Effects::default() }).await?,
        // No change, but announcements may have been taken.
        None => transaction.rollback().await?,
    }
    notifiers.statistics().started(start_of(claimed_of, loaded.as_ref()));
    let holds = |loaded: &tasks::Loaded| match &loaded.task.last {
        Last::Running(open, tenancy) if open.run == run && same_worker(tenancy, request) => Some(tenancy.started),
        Last::Unscheduled | Last::Pending(_) | Last::Running(..) | Last::Ended => None,
    };
    if let Some(worker) = worker {
        // Any outcome is a sighting of the worker.
        let claim = loaded.as_ref().and_then(holds).map(|claimed| Recent { task: id, run: number, claimed });
        workers.claimed(worker, Sight::ClaimTask, claim);
    }
    let (Some(loaded), Some((scopes, definition))) = (loaded, details) else {
        return Ok(Err(OpError::NotFound(format!("task {} does not exist", request.task))));
    };
    if loaded.task.deadline <= loaded.now {
        return Ok(Err(OpError::Conflict(format!("the deadline of task {} has passed", request.task))));
    }
    if let Last::Running(open, tenancy) = &loaded.task.last
        && open.run == run
        && same_worker(tenancy, request)
    {
        let granted = Granted {
            run,
            tenancy: tenancy.clone(),
            now: loaded.now,
            scopes,
            definition: Some(shown_definition(definition, loaded.task.priority)),
            task: loaded.task,
        };
        return Ok(Ok(granted));
    }
    Ok(Err(match apply(loaded.task.life(), Event::Claim(run)) {
        Err(refusal) => refused(refusal, request.task, run),
        // Same code as for a run of another worker: every worker handles it.
        Ok(_) if quarantined => {
            let ClaimTask { worker_group, worker_id, .. } = request;
            OpError::Conflict(format!("worker {worker_group}/{worker_id} is quarantined and gets no work"))
        }
        Ok(_) if held => refuse_held(parts, request).await,
        Ok(_) if let Some(paused) = paused => OpError::Conflict(paused.refusal(&loaded.task.queue)),
        // The run became claimable between the statements.
        Ok(_) => OpError::Unavailable,
    }))
}

/// Returns the start of the run that was claimed of this queue, if any was.
fn start_of(claimed_of: Option<i32>, loaded: Option<&tasks::Loaded>) -> Option<Start> {
    let (queue, loaded) = (claimed_of?, loaded?);
    match &loaded.task.last {
        Last::Running(open, tenancy) => Some(Start { queue, scheduled: open.scheduled, at: tenancy.started }),
        Last::Unscheduled | Last::Pending(_) | Last::Ended => None,
    }
}

/// Claims the run if it is ready, assigned to the session, or allowed by its queue's limits. True
/// if it did.
async fn try_claim(
    transaction: &mut PgConnection,
    parts: Parts<'_>,
    lease: Duration,
    request: &ClaimTask,
    queue: i32,
) -> Result<bool, sqlx::Error> {
    let ClaimTask { worker_group: group, worker_id: name, session, .. } = request;
    let (task, run) = (request.task.uuid(), request.run.number().cast_signed());
    // Claims of chosen runs are rare and use no marks.
    let unmarked = AdmissionMarks::default();
    let mut reads = Reads::new(parts.sequenced, &unmarked);
    match claim_one::claim_one(transaction, task, run, group, name, lease, *session).await? {
        Some(claim_one::Claimed { key: None }) => Ok(true),
        Some(claim_one::Claimed { key: Some(key) }) => {
            decision::spend_held(transaction, queue, key, &mut reads).await?;
            Ok(true)
        }
        None => {
            let worker = Worker { group, id: name, session: *session };
            let named = Named { queue, task, run, worker, lease };
            decision::claim_named(transaction, &named, &mut reads).await
        }
    }
}

/// Refuses a held run with the first reason of `why`. The caller need not see names.
async fn refuse_held(parts: Parts<'_>, request: &ClaimTask) -> OpError {
    let known = match why::read(parts, request.task).await {
        Ok(known) => known,
        Err(error) => return error,
    };
    // The run may have become ready, or ended, since then.
    let answer = policy::why(&known.facts, Names::Hidden);
    // The assigned worker needs a reason other than the assignment, such as a pause.
    let other = answer.reasons.iter().find(|reason| !matches!(reason, Reason::Assigned { .. }));
    let reason = other.or(answer.reasons.first());
    let is_held = !answer.ready || matches!(reason, Some(Reason::Paused { .. }));
    let is_pending = matches!(answer.state, TaskState::Pending);
    let Some(reason) = reason.filter(|_| is_pending && is_held) else { return OpError::Unavailable };
    let (task, run) = (request.task, request.run);
    OpError::Conflict(format!("run {run} of task {task} cannot be claimed yet. {}", policy::sentence(reason)))
}

/// Keeps a session live until the transaction ends. Returns the error if that is impossible.
async fn lock_session(transaction: &mut PgConnection, epoch: i64) -> Result<Option<OpError>, sqlx::Error> {
    Ok(match worker_sessions::lock_against_end(transaction, epoch).await? {
        Liveness::Live => None,
        Liveness::Locked => Some(OpError::Unavailable),
        Liveness::Ended => {
            let ended = worker_sessions::list_ended(transaction, &[epoch]).await?;
            Some(OpError::SessionEnded(ended.first().map_or(SessionEnd::Expired, |(_, by)| *by)))
        }
    })
}

impl ClaimTask {
    fn worker(&self, queue: i32) -> WorkerKey {
        WorkerKey { queue, group: self.worker_group.clone(), id: self.worker_id.clone() }
    }
}

fn same_worker(tenancy: &Tenancy, request: &ClaimTask) -> bool {
    tenancy.worker_group == request.worker_group && tenancy.worker_id == request.worker_id
}
