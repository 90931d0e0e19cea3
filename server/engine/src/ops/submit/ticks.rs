//! Plain submissions in ticks, each by a statement of its own, which stores all tasks or none.

use std::sync::Arc;

use sqlx::PgConnection;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::Submitted;
use super::plain::{self, Plain};
use crate::batch::tick::Kind;
use crate::batch::{Batcher, Operation, Verdict};
use crate::failure::OpError;
use crate::notifiers::Effects;
use crate::route::Route;
use tenure_domain::submit::Graph;
use tenure_store::failure::{Class, classify};
use tenure_store::hot::statement::{Rows, Statement};
use tenure_store::transitions::create::Created;

/// Bytes of a submission in a tick, whose other members wait for it.
const SUBMISSION_BYTES_MAX: usize = 256 << 10;
/// Bytes of the submissions in a tick.
const TICK_BYTES_MAX: usize = 512 << 10;
/// Bytes of the submissions that wait for ticks. A loop is one session: more submissions use several,
/// those of the pool.
const WAITING_BYTES_MAX: usize = 2 << 20;

pub struct SubmitTasks;

/// A plain submission.
pub struct Submission {
    graph: Arc<Graph>,
    plain: Plain,
    bytes: usize,
}

impl Submission {
    async fn store(&self, conn: &mut PgConnection, effects: &mut Effects) -> Result<Option<Vec<Created>>, sqlx::Error> {
        match self.plain.store(conn, &self.graph).await {
            Ok(stored) => Ok(self.note(stored, effects)),
            // The general steps wait for the lock, or report the error.
            Err(error) if matches!(classify(&error), Class::Contention | Class::BadData) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn note(&self, stored: Option<Vec<Created>>, effects: &mut Effects) -> Option<Vec<Created>> {
        if let Some(stored) = &stored {
            self.plain.add_effects(&self.graph, stored, effects);
        }
        stored
    }
}

impl Operation for SubmitTasks {
    type Member = Submission;
    /// None if no task was stored.
    type Answer = Option<Vec<Created>>;
    const NAME: &'static str = "submit";
    const WAITING_MAX: usize = 4_000;
    const BYTES_MAX: usize = TICK_BYTES_MAX;
    const DIVIDED: bool = true;
    const KIND: Option<Kind> = Some(Kind::Submit);
    type Decoded = Option<Vec<Created>>;

    fn weight(member: &Submission) -> usize {
        member.bytes
    }

    /// A later statement of a tick sees the tasks of an earlier one.
    fn task(_: &Submission) -> Option<Uuid> {
        None
    }

    fn route(member: &Submission) -> Route {
        Route::of_task(member.graph.group.uuid())
    }

    fn statement(&self, members: &[&Submission]) -> Option<Statement> {
        let [member] = members else { return None };
        member.plain.statement(&member.graph)
    }

    fn claimable(member: &Submission) -> Option<i32> {
        member.plain.queue()
    }

    fn decode(
        &self,
        members: &[&Submission],
        rows: &Rows,
        effects: &mut Effects,
    ) -> Result<Option<Vec<Created>>, sqlx::Error> {
        let [member] = members else { return Ok(None) };
        Ok(member.note(plain::decode(rows, &member.graph)?, effects))
    }

    async fn judge(
        &self,
        _: &mut PgConnection,
        members: &[&Submission],
        found: Option<Vec<Created>>,
    ) -> Result<Vec<Verdict<Self::Answer>>, sqlx::Error> {
        debug_assert_eq!(members.len(), 1, "each has its own statement");
        Ok(vec![Verdict::Done(found)])
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Submission],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Self::Answer>>, sqlx::Error> {
        let mut verdicts = Vec::with_capacity(members.len());
        for member in members {
            verdicts.push(Verdict::Done(member.store(conn, effects).await?));
        }
        Ok(verdicts)
    }
}

/// Admits plain submissions to ticks.
pub struct SubmissionTicks {
    batcher: Batcher<SubmitTasks>,
    bytes: Semaphore,
}

impl SubmissionTicks {
    pub fn new(batcher: Batcher<SubmitTasks>) -> Self {
        Self { batcher, bytes: Semaphore::new(WAITING_BYTES_MAX) }
    }

    /// None if the submission is large, or many wait.
    pub(super) fn reserve(&self, graph: &Graph) -> Option<Reserved<'_>> {
        let bytes: usize = graph.entries.iter().map(|entry| entry.task.bytes()).sum();
        if bytes > SUBMISSION_BYTES_MAX {
            return None;
        }
        let permit = self.bytes.try_acquire_many(u32::try_from(bytes).ok()?).ok()?;
        Some(Reserved { batcher: &self.batcher, bytes, _permit: permit })
    }
}

/// Bytes of one submission.
pub(super) struct Reserved<'a> {
    batcher: &'a Batcher<SubmitTasks>,
    bytes: usize,
    _permit: SemaphorePermit<'a>,
}

impl Reserved<'_> {
    /// None if no task was stored.
    pub(super) async fn submit(self, graph: &Arc<Graph>, plain: Plain) -> Result<Option<Submitted>, OpError> {
        let submission = Submission { graph: Arc::clone(graph), plain, bytes: self.bytes };
        let stored = self.batcher.submit(submission).await?;
        Ok(stored.map(|stored| plain::submitted(graph, &stored)))
    }
}
