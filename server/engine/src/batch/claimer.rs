//! Guards new claims, describes them, and recovers them if the statement's answer is lost.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use sqlx::postgres::PgPool;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::delivery::{Delivery, Requeue, UndeliveredClaim};
use super::session::Session;
use super::wait_list::WaitListParts;
use crate::failure::{Failure, OpError};
use crate::statistics::{Start, Statistics};
use tenure_api::states::SessionEnd;
use tenure_domain::task::{EndedRun, Granted};
use tenure_domain::worker::Recent;
use tenure_store::claims::{self, LostClaim};
use tenure_store::queues::Queues;
use tenure_store::session::{self, Backend, LostBackend};
use tenure_store::transitions::claim::{self, Claimed, Worker};
use tenure_store::{tasks, worker_sessions};

/// Recovery interval while the database is unavailable or the lost session lives.
const RECOVERY_EVERY: Duration = Duration::from_millis(200);
/// Recovery interval while the lost session waits for a synchronous standby.
const STANDBY_EVERY: Duration = Duration::from_secs(1);
/// Timeout of one recovery attempt.
const RECOVERY_TRY_MAX: Duration = Duration::from_secs(10);
/// After this, the claims of a lost batch are left to expire.
const RECOVERY_MAX: Duration = Duration::from_secs(600);

/// Claims not described yet, with their guard.
pub(super) struct Guarded {
    /// In delivery order.
    pub(super) made: Vec<Claimed>,
    /// In the order of `made`.
    guard: Delivery,
    /// Queues with runs left unclaimed: the answers were full or the worker's session had ended.
    left: Vec<i32>,
    /// Requests whose session has ended, as (queue, position in the batch).
    gone: HashSet<(i32, usize)>,
}

pub(super) struct QueueClaims {
    /// In delivery order, each with its request's position in the batch, from 1.
    claims: VecDeque<(usize, Granted)>,
    /// In the order of `claims`. Dropping it requeues the remaining ones.
    guard: Delivery,
    /// Errors by request position.
    failed: HashMap<usize, OpError>,
    /// True if the next statement will claim further runs.
    pub(super) more: bool,
}

impl QueueClaims {
    fn none(requeue: &Requeue) -> Self {
        Self { claims: VecDeque::new(), guard: requeue.guard(Vec::new()), failed: HashMap::new(), more: false }
    }

    /// Takes the claims of one request. Fails if all were requeued or its session has
    /// ended.
    pub(super) fn take(&mut self, position: usize) -> Result<(Vec<Granted>, Delivery), OpError> {
        let mut claims = Vec::new();
        while let Some((_, granted)) = self.claims.pop_front_if(|(of, _)| *of == position) {
            claims.push(granted);
        }
        if claims.is_empty()
            && let Some(error) = self.failed.remove(&position)
        {
            return Err(error);
        }
        let delivery = self.guard.split_first(claims.len());
        Ok((claims, delivery))
    }
}

pub(super) struct Claimer {
    pub(super) session: Session,
    pool: PgPool,
    queues: Queues,
    requeue: Requeue,
    statistics: Statistics,
    pub(super) lease: Duration,
    tracker: TaskTracker,
}

fn position(row: &Claimed) -> usize {
    usize::try_from(row.worker).unwrap_or_default()
}

/// Counts and returns the error of a shed claim.
pub(super) fn shed() -> OpError {
    metrics::counter!("tenure_batch_shed_total", "operation" => "claim").increment(1);
    OpError::Overloaded("claimWork")
}

pub(super) fn recent_claim(claim: &Granted) -> Recent {
    Recent { task: claim.task.id.uuid(), run: claim.run.number().cast_signed(), claimed: claim.tenancy.started }
}

impl Claimer {
    pub(super) fn new(parts: &WaitListParts<'_>, tracker: TaskTracker) -> Self {
        Self {
            session: Session::new(parts.connector.clone()),
            pool: parts.pool.clone(),
            queues: parts.queues.clone(),
            requeue: parts.requeue.clone(),
            statistics: parts.notifiers.statistics().clone(),
            lease: parts.lease,
            tracker,
        }
    }

    /// Guards claims. From here on the statement is never repeated for them.
    pub(super) fn guard(&self, rows: Vec<Claimed>) -> Guarded {
        let (mut made, rows): (Vec<Claimed>, Vec<Claimed>) = rows.into_iter().partition(|row| row.made);
        made.sort_by_key(|row| (row.queue, row.priority, row.ord));
        self.guard_in_order(made, rows)
    }

    pub(super) fn guard_in_order(&self, made: Vec<Claimed>, left: Vec<Claimed>) -> Guarded {
        let guard = self.requeue.guard(made.iter().map(|row| UndeliveredClaim { id: row.id, run: row.run }).collect());
        if !made.is_empty() {
            let start = |row: &Claimed| Start { queue: row.queue, scheduled: row.scheduled, at: row.started };
            self.statistics.started(made.iter().map(start));
        }
        let gone = left.iter().filter(|row| row.session_ended).map(|row| (row.queue, position(row))).collect();
        Guarded { made, guard, left: left.into_iter().map(|row| row.queue).collect(), gone }
    }

    /// Describes claims for their workers. A claim that cannot be described is requeued.
    pub(super) async fn describe(&mut self, claimed: Guarded, workers: &[Worker<'_>]) -> HashMap<i32, QueueClaims> {
        let Guarded { mut made, mut guard, left, gone } = claimed;
        if let Err(failure) = self.add_definitions(&mut made).await {
            drop(failure.report("describe_claims"));
        }
        let history = self.history(&made).await;
        let mut found: HashMap<i32, QueueClaims> = HashMap::new();
        for queue in left {
            found.entry(queue).or_insert_with(|| QueueClaims::none(&self.requeue)).more = true;
        }
        let ended = self.ended(&gone, workers).await;
        for ((queue, position), by) in gone.into_iter().zip(ended) {
            if let Some(found) = found.get_mut(&queue) {
                found.failed.insert(position, OpError::SessionEnded(by));
            }
        }
        let mut history = history.unwrap_or_else(|failure| {
            // Reported once. Claims of first runs need no history.
            drop(failure.report("describe_claims"));
            None
        });
        for row in made {
            let own = guard.split_first(1);
            let (queue, position) = (row.queue, position(&row));
            let found = found.entry(queue).or_insert_with(|| QueueClaims::none(&self.requeue));
            match self.describe_one(row, &mut history, workers).await {
                Ok(granted) => {
                    found.claims.push_back((position, granted));
                    found.guard.join(own);
                }
                Err(error) => {
                    if let Some(error) = error {
                        tracing::error!(
                            error = %error,
                            "the answer for a claim could not be built; the claim is requeued"
                        );
                    }
                    found.failed.insert(position, OpError::Unavailable);
                }
            }
        }
        found
    }

    /// Returns why these requests' sessions ended, in the order of `gone`.
    async fn ended(&mut self, gone: &HashSet<(i32, usize)>, workers: &[Worker<'_>]) -> Vec<SessionEnd> {
        if gone.is_empty() {
            return Vec::new();
        }
        let session = |&(_, position): &(i32, usize)| workers.get(position.checked_sub(1)?)?.session;
        let epochs: Vec<i64> = gone.iter().map(|request| session(request).unwrap_or_default()).collect();
        let read = async |conn: &mut PgConnection| worker_sessions::list_ended(conn, &epochs).await;
        let ended = self.session.run(read).await.unwrap_or_else(|failure| {
            drop(failure.report("describe_claims"));
            Vec::new()
        });
        let ended: HashMap<i64, SessionEnd> = ended.into_iter().collect();
        // All have ended, most by expiry.
        epochs.iter().map(|epoch| ended.get(epoch).copied().unwrap_or(SessionEnd::Expired)).collect()
    }

    /// Reads definitions left out of the statement's answer.
    async fn add_definitions(&mut self, made: &mut [Claimed]) -> Result<(), Failure> {
        loop {
            let left: Vec<Uuid> = made.iter().filter(|row| row.lacks_definition()).map(|row| row.id).collect();
            if left.is_empty() {
                return Ok(());
            }
            let read =
                async |conn: &mut PgConnection| tasks::list_definitions(conn, &left, claim::ANSWER_BYTES_MAX).await;
            let found = self.session.run(read).await?;
            if found.is_empty() {
                return Ok(());
            }
            let mut found: HashMap<Uuid, String> = found.into_iter().collect();
            for row in made.iter_mut().filter(|row| row.lacks_definition()) {
                if let Some(definition) = found.remove(&row.id) {
                    row.add_definition(definition);
                }
            }
        }
    }

    /// Returns earlier runs by task, or `None` if all claims are of first runs.
    async fn history(&mut self, made: &[Claimed]) -> Result<Option<HashMap<i64, Vec<EndedRun>>>, Failure> {
        let retried: Vec<i64> = made.iter().filter(|row| row.run > 0).map(|row| row.seq).collect();
        if retried.is_empty() {
            return Ok(None);
        }
        let mut history = self.session.run(async |conn| tasks::load_history(conn, &retried).await).await;
        if let Err(Failure::Again(_) | Failure::Lost(_)) = history {
            history = self.session.run(async |conn| tasks::load_history(conn, &retried).await).await;
        }
        history.map(Some)
    }

    /// Fails with `None` if the error was reported already.
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
        let worker = usize::try_from(row.worker - 1).ok().and_then(|position| workers.get(position));
        let worker = worker.ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.describe(name, ended, *worker).map_err(sqlx::Error::from)?)
    }

    /// Requeues claims that may have committed although the answer was lost, once the lost session
    /// can no longer commit.
    pub(super) fn recover(&self, batch: Uuid, backend: Option<Backend>) {
        let (pool, requeue, statistics) = (self.pool.clone(), self.requeue.clone(), self.statistics.clone());
        self.tracker.spawn(async move {
            let until = Instant::now() + RECOVERY_MAX;
            while Instant::now() < until {
                // A silent database must not block this attempt forever.
                match tokio::time::timeout(RECOVERY_TRY_MAX, find_lost(&pool, batch, backend)).await {
                    Ok(Ok(LostBatch::Claims(lost))) => {
                        tracing::warn!(batch = %batch, claims = lost.len(), "recovered a batch whose answer was lost");
                        let start = |claim: &LostClaim| Start {
                            queue: claim.queue,
                            scheduled: claim.scheduled,
                            at: claim.started,
                        };
                        statistics.started(lost.iter().map(start));
                        let undelivered = |claim: LostClaim| UndeliveredClaim { id: claim.id, run: claim.run };
                        requeue.take(lost.into_iter().map(undelivered).collect());
                        return;
                    }
                    Ok(Ok(LostBatch::AwaitsStandby)) => tokio::time::sleep(STANDBY_EVERY).await,
                    Ok(Ok(LostBatch::MayCommit) | Err(_)) | Err(_) => tokio::time::sleep(RECOVERY_EVERY).await,
                }
            }
            tracing::error!(batch = %batch, "could not recover a batch whose result was lost; its claims will expire");
        });
    }
}

enum LostBatch {
    /// All its claims; none can follow.
    Claims(Vec<LostClaim>),
    MayCommit,
    /// Committed, but invisible to other sessions until a synchronous standby has the commit.
    AwaitsStandby,
}

async fn find_lost(pool: &PgPool, batch: Uuid, backend: Option<Backend>) -> Result<LostBatch, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    if let Some(backend) = backend {
        match session::end_backend(&mut conn, backend).await? {
            LostBackend::Gone => {}
            LostBackend::Busy => return Ok(LostBatch::MayCommit),
            LostBackend::AwaitsStandby => return Ok(LostBatch::AwaitsStandby),
        }
    }
    Ok(LostBatch::Claims(claims::list_batch(&mut conn, batch).await?))
}
