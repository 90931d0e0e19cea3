//! One claim statement, and what happens when its answer is lost.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use sqlx::postgres::PgPool;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::claim_line::{Parts, Request};
use super::delivery::{HandBack, Held};
use super::failure::Failure;
use super::marks::MarkTable;
use super::session::Session;
use crate::domain::worker::WorkerKey;
use crate::ops::OpError;
use crate::ops::claim_work::{Granted, granted};
use crate::store::hot::claim::{self, Want, Worker};
use crate::store::queues::Queues;
use crate::store::{claims, session, tasks};

/// How often recovery looks again while the database is away or the lost session lives on.
const RECOVERY_EVERY: Duration = Duration::from_millis(200);
/// How long one look may take.
const RECOVERY_TRY_MAX: Duration = Duration::from_secs(10);
/// After that the claims of a lost batch are left to expire.
const RECOVERY_MAX: Duration = Duration::from_secs(600);

/// Somebody's part in a batch.
pub(super) struct Asked<'a> {
    pub(super) queue: i32,
    pub(super) request: &'a Request,
}

/// Runs claim statements on a session of its own.
pub(super) struct ClaimBatch {
    session: Session,
    pool: PgPool,
    queues: Queues,
    marks: MarkTable,
    back: HandBack,
    term: Duration,
    tracker: TaskTracker,
}

/// The claim that a guard must be able to give back.
pub(super) fn held(claim: &Granted) -> Held {
    Held { id: claim.task.id.uuid(), run: claim.run.number().cast_signed() }
}

impl ClaimBatch {
    pub(super) fn new(parts: Parts, tracker: TaskTracker) -> Self {
        Self {
            session: Session::new(parts.database),
            pool: parts.pool,
            queues: parts.queues,
            marks: parts.marks,
            back: parts.back,
            term: parts.term,
            tracker,
        }
    }

    pub(super) async fn close(self) {
        self.session.close().await;
    }

    /// Claims for everybody; what was found, by queue, in the order in which it is to be handed out.
    pub(super) async fn run(&mut self, asked: &[Asked<'_>]) -> Result<HashMap<i32, VecDeque<Granted>>, OpError> {
        metrics::histogram!("tenure_batch_members", "operation" => "claim").record(asked.len() as f64);
        let started = Instant::now();
        let (wants, workers) = self.wants(asked);
        let mut result = self.attempt(&wants, &workers).await;
        if let Err(Failure::Again(_)) = result {
            result = self.attempt(&wants, &workers).await;
        }
        metrics::histogram!("tenure_batch_seconds", "operation" => "claim").record(started.elapsed());
        result.map_err(|failure| failure.report("claim"))
    }

    fn wants<'a>(&self, asked: &[Asked<'a>]) -> (Vec<Want>, Vec<Worker<'a>>) {
        let mut wants: Vec<Want> = Vec::new();
        let mut workers = Vec::with_capacity(asked.len());
        for part in asked {
            let WorkerKey { group, id, .. } = &part.request.worker;
            workers.push(Worker { group, id });
            let place = i32::try_from(workers.len()).unwrap_or(i32::MAX);
            // Members of one queue stand together, as the line lists them.
            if wants.last().is_none_or(|want| want.queue != part.queue) {
                let known = self.marks.get(part.queue);
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

    async fn attempt(
        &mut self,
        wants: &[Want],
        workers: &[Worker<'_>],
    ) -> Result<HashMap<i32, VecDeque<Granted>>, Failure> {
        let batch = super::claim_line::new_batch();
        let (pool, queues, term) = (&self.pool, &self.queues, self.term);
        let result = self
            .session
            .run(async |conn| {
                let mut rows = claim::claim(conn, wants, workers, term, batch).await?;
                rows.sort_by_key(|row| (row.queue, row.priority, row.ord));
                let retried: Vec<i64> = rows.iter().filter(|row| row.run > 0).map(|row| row.seq).collect();
                let mut history = tasks::load_history(conn, &retried).await?;
                let mut found: HashMap<i32, VecDeque<Granted>> = HashMap::new();
                for row in rows {
                    let queue = row.queue;
                    let name = queues.get_name(pool, queue).await?;
                    let worker = usize::try_from(row.worker - 1).ok().and_then(|place| workers.get(place));
                    let worker = worker.ok_or(sqlx::Error::RowNotFound)?;
                    let ended = history.remove(&row.seq).unwrap_or_default();
                    found.entry(queue).or_default().push_back(granted(row, name, ended, worker.group, worker.id)?);
                }
                Ok(found)
            })
            .await;
        if let Err(Failure::Lost(_) | Failure::Fault(_)) = &result {
            self.recover(batch, self.session.backend());
        }
        result
    }

    /// The statement may have committed although its answer was lost: what it claimed is handed back, once the lost
    /// session cannot commit any more.
    fn recover(&self, batch: Uuid, backend: Option<i32>) {
        let (pool, back) = (self.pool.clone(), self.back.clone());
        self.tracker.spawn(async move {
            let until = Instant::now() + RECOVERY_MAX;
            while Instant::now() < until {
                // A database that went silent must not keep this try for ever.
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
async fn find_lost(pool: &PgPool, batch: Uuid, backend: Option<i32>) -> Result<Option<Vec<Held>>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    if let Some(backend) = backend
        && session::end_backend(&mut conn, backend).await?
    {
        return Ok(None);
    }
    let lost = claims::list_batch(&mut conn, batch).await?;
    Ok(Some(lost.into_iter().map(|(id, run)| Held { id, run }).collect()))
}
