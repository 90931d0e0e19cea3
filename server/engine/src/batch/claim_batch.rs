//! One claim statement, and what happens when its answer is lost.
//!
//! Claiming and describing are apart: the statement is run again only if it did nothing, and a claim that was made is in a
//! guard before anything else can fail.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::delivery::{Delivery, Requeue, UndeliveredClaim};
use super::failure::Failure;
use super::low_water_marks::LowWaterMarks;
use super::session::Session;
use super::wait_list::{ClaimWork, WaitListParts};
use crate::ops::OpError;
use tenure_domain::task::{EndedRun, Granted};
use tenure_domain::worker::WorkerKey;
use tenure_store::queues::Queues;
use tenure_store::transitions::claim::{self, Claimed, Want, Worker};
use tenure_store::{claims, session, tasks};

/// How often recovery looks again while the database is away or the lost session lives on.
const RECOVERY_EVERY: Duration = Duration::from_millis(200);
/// How long one look may take.
const RECOVERY_TRY_MAX: Duration = Duration::from_secs(10);
/// After that the claims of a lost batch are left to expire.
const RECOVERY_MAX: Duration = Duration::from_secs(600);

/// Somebody's part in a batch.
pub(super) struct WaitingRequest<'a> {
    pub(super) queue: i32,
    pub(super) request: &'a ClaimWork,
}

/// Claims that were made, before anything else is known of them.
struct Guarded {
    /// In the order in which they are handed out.
    made: Vec<Claimed>,
    /// Of these claims, in the same order.
    guard: Delivery,
    /// Queues of which runs were left for want of room.
    no_room: Vec<i32>,
}

/// What was found for a queue.
pub(super) struct QueueClaims {
    /// In the order in which they are handed out, each with the place of its worker among those who asked, from 1.
    claims: VecDeque<(usize, Granted)>,
    /// Of these claims, in the same order: whatever is left here is requeued.
    guard: Delivery,
    /// Places of workers with a claim that could not be described.
    failed: HashSet<usize>,
    /// Whether runs were left for want of room in the answers: the next statement gets them.
    pub(super) more: bool,
}

impl QueueClaims {
    fn none(back: &Requeue) -> Self {
        Self { claims: VecDeque::new(), guard: back.guard(Vec::new()), failed: HashSet::new(), more: false }
    }

    /// The claims of the worker at this place. An error if there were some and all of them had to be requeued.
    pub(super) fn take(&mut self, place: usize) -> Result<(Vec<Granted>, Delivery), OpError> {
        let mut claims = Vec::new();
        while let Some((_, granted)) = self.claims.pop_front_if(|(of, _)| *of == place) {
            claims.push(granted);
        }
        if claims.is_empty() && self.failed.contains(&place) {
            return Err(OpError::Unavailable);
        }
        let delivery = self.guard.split_first(claims.len());
        Ok((claims, delivery))
    }
}

/// Runs claim statements on a session of its own.
pub(super) struct ClaimBatch {
    session: Session,
    pool: PgPool,
    queues: Queues,
    low_water_marks: LowWaterMarks,
    requeue: Requeue,
    lease: Duration,
    tracker: TaskTracker,
}

/// The claim that a guard must be able to give back.
pub(super) fn undelivered(claim: &Granted) -> UndeliveredClaim {
    UndeliveredClaim { id: claim.task.id.uuid(), run: claim.run.number().cast_signed() }
}

impl ClaimBatch {
    pub(super) fn new(parts: WaitListParts, tracker: TaskTracker) -> Self {
        Self {
            session: Session::new(parts.database),
            pool: parts.pool,
            queues: parts.queues,
            low_water_marks: parts.low_water_marks,
            requeue: parts.requeue,
            lease: parts.lease,
            tracker,
        }
    }

    pub(super) async fn close(self) {
        self.session.close().await;
    }

    /// Claims for all of these; what was found, by queue. What goes wrong after the claims were made requeues them.
    pub(super) async fn run(&mut self, asked: &[WaitingRequest<'_>]) -> Result<HashMap<i32, QueueClaims>, OpError> {
        metrics::histogram!("tenure_batch_members", "operation" => "claim").record(asked.len() as f64);
        let started = Instant::now();
        let (wants, workers) = self.wants(asked);
        let mut claimed = self.claim(&wants, &workers).await;
        if let Err(Failure::Again(_)) = claimed {
            claimed = self.claim(&wants, &workers).await;
        }
        let result = match claimed {
            Ok(claimed) => Ok(self.describe(claimed, &workers).await),
            Err(failure) => Err(failure.report("claim")),
        };
        metrics::histogram!("tenure_batch_seconds", "operation" => "claim").record(started.elapsed());
        result
    }

    fn wants<'a>(&self, asked: &[WaitingRequest<'a>]) -> (Vec<Want>, Vec<Worker<'a>>) {
        let mut wants: Vec<Want> = Vec::new();
        let mut workers = Vec::with_capacity(asked.len());
        for part in asked {
            let WorkerKey { group, id, .. } = &part.request.worker;
            workers.push(Worker { group, id });
            let place = i32::try_from(workers.len()).unwrap_or(i32::MAX);
            // Members of one queue stand together, as the line lists them.
            if wants.last().is_none_or(|want| want.queue != part.queue) {
                let known = self.low_water_marks.get(part.queue);
                wants.push(Want {
                    queue: part.queue,
                    generation: known.generation,
                    marks: known.marks,
                    slots: Vec::new(),
                });
            }
            if let Some(want) = wants.last_mut() {
                want.slots.extend(std::iter::repeat_n(place, usize::from(part.request.tasks)));
            }
        }
        (wants, workers)
    }

    /// Runs the statement. From here on the claims are in a guard, and the statement is never run again for them.
    async fn claim(&mut self, wants: &[Want], workers: &[Worker<'_>]) -> Result<Guarded, Failure> {
        let batch = super::wait_list::new_batch();
        let lease = self.lease;
        let result = self.session.run(async |conn| claim::claim(conn, wants, workers, lease, batch).await).await;
        if let Err(Failure::Lost(_) | Failure::Fault(_)) = &result {
            self.recover(batch, self.session.backend());
        }
        let (mut made, left): (Vec<Claimed>, Vec<Claimed>) = result?.into_iter().partition(Claimed::is_made);
        made.sort_by_key(|row| (row.queue, row.priority, row.ord));
        let guard = self.requeue.guard(made.iter().map(|row| UndeliveredClaim { id: row.id, run: row.run }).collect());
        Ok(Guarded { made, guard, no_room: left.into_iter().map(|row| row.queue).collect() })
    }

    /// What the workers are told of their claims. A claim that cannot be described is requeued, and its worker is asked to
    /// try again; the others go out.
    async fn describe(&mut self, claimed: Guarded, workers: &[Worker<'_>]) -> HashMap<i32, QueueClaims> {
        let Guarded { made, mut guard, no_room } = claimed;
        let history = self.history(&made).await;
        let mut found: HashMap<i32, QueueClaims> = HashMap::new();
        for queue in no_room {
            found.entry(queue).or_insert_with(|| QueueClaims::none(&self.requeue)).more = true;
        }
        let mut history = history.unwrap_or_else(|failure| {
            // Reported once; the claims of first runs need no history.
            drop(failure.report("describe_claims"));
            None
        });
        for row in made {
            let own = guard.split_first(1);
            let (queue, place) = (row.queue, usize::try_from(row.worker).unwrap_or_default());
            let found = found.entry(queue).or_insert_with(|| QueueClaims::none(&self.requeue));
            match self.describe_one(row, &mut history, workers).await {
                Ok(granted) => {
                    found.claims.push_back((place, granted));
                    found.guard.join(own);
                }
                Err(error) => {
                    if let Some(error) = error {
                        tracing::error!(error = %error, "a claim cannot be described; it is requeued");
                    }
                    found.failed.insert(place);
                }
            }
        }
        found
    }

    /// The runs that ended before these claims, by task; none if nothing of it is needed.
    async fn history(&mut self, made: &[Claimed]) -> Result<Option<HashMap<i64, Vec<EndedRun>>>, Failure> {
        let retried: Vec<i64> = made.iter().filter(|row| row.run > 0).map(|row| row.seq).collect();
        if retried.is_empty() {
            return Ok(None);
        }
        let mut history = self.session.run(async |conn| tasks::load_history(conn, &retried).await).await;
        if let Err(Failure::Again(_) | Failure::Lost(_)) = history {
            // A read may be repeated whatever happened to it.
            history = self.session.run(async |conn| tasks::load_history(conn, &retried).await).await;
        }
        history.map(Some)
    }

    /// An error without a text was reported already.
    async fn describe_one(
        &self,
        row: Claimed,
        history: &mut Option<HashMap<i64, Vec<EndedRun>>>,
        workers: &[Worker<'_>],
    ) -> Result<Granted, Option<sqlx::Error>> {
        let ended = match history {
            _ if row.run == 0 => Vec::new(),
            Some(history) => history.remove(&row.seq).unwrap_or_default(),
            None => return Err(None),
        };
        let name = self.queues.get_name(&self.pool, row.queue).await?;
        let worker = usize::try_from(row.worker - 1).ok().and_then(|place| workers.get(place));
        let worker = worker.ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.describe(name, ended, *worker).map_err(sqlx::Error::from)?)
    }

    /// The statement may have committed although its answer was lost: what it claimed is requeued, once the lost
    /// session cannot commit any more.
    fn recover(&self, batch: Uuid, backend: Option<i32>) {
        let (pool, back) = (self.pool.clone(), self.requeue.clone());
        self.tracker.spawn(async move {
            let until = Instant::now() + RECOVERY_MAX;
            while Instant::now() < until {
                // A database that went silent must not keep this try forever.
                match tokio::time::timeout(RECOVERY_TRY_MAX, find_lost(&pool, batch, backend)).await {
                    Ok(Ok(Some(lost))) => {
                        tracing::warn!(batch = %batch, claims = lost.len(), "recovered a batch whose answer was lost");
                        back.take(lost);
                        return;
                    }
                    Ok(Ok(None) | Err(_)) | Err(_) => tokio::time::sleep(RECOVERY_EVERY).await,
                }
            }
            tracing::error!(batch = %batch, "gave up on a batch whose answer was lost: its claims will expire");
        });
    }
}

/// The claims of a lost batch; none while its session may still commit.
async fn find_lost(
    pool: &PgPool,
    batch: Uuid,
    backend: Option<i32>,
) -> Result<Option<Vec<UndeliveredClaim>>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    if let Some(backend) = backend
        && session::end_backend(&mut conn, backend).await?
    {
        return Ok(None);
    }
    let lost = claims::list_batch(&mut conn, batch).await?;
    Ok(Some(lost.into_iter().map(|(id, run)| UndeliveredClaim { id, run }).collect()))
}
