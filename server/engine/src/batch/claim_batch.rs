//! One claim statement, and what happens when its answer is lost.
//!
//! Claiming and describing are apart: the statement is run again only if it did nothing, and a claim that was made is in a
//! guard before anything else can fail.

use std::collections::HashMap;
use std::time::Instant;

use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::claimer::{Claimer, Guarded, QueueClaims};
use super::failure::Failure;
use super::figures::Figures;
use super::low_water_marks::LowWaterMarks;
use super::tick::{APART, NotDone, Permit, Turn};
use super::wait_list::{ClaimWork, WaitListParts};
use crate::ops::OpError;
use tenure_domain::worker::WorkerKey;
use tenure_store::transitions::claim::{self, Want, Worker};

/// A request in a batch.
pub(super) struct WaitingRequest<'a> {
    pub(super) queue: i32,
    pub(super) request: &'a ClaimWork,
}

/// Runs claim statements.
pub(super) struct ClaimBatch {
    claimer: Claimer,
    low_water_marks: LowWaterMarks,
    permit: Permit,
    /// Until then its statements are not parts of ticks.
    apart_until: Option<Instant>,
    figures: Option<Figures>,
}

impl ClaimBatch {
    /// That of one loop.
    pub(super) fn new(parts: &WaitListParts<'_>, permit: Permit, tracker: TaskTracker) -> Self {
        let (low_water_marks, claimer) = (parts.low_water_marks.clone(), Claimer::new(parts, tracker));
        Self { claimer, low_water_marks, permit, apart_until: None, figures: None }
    }

    pub(super) async fn close(self) {
        self.claimer.session.close().await;
    }

    /// Whether its statements are not parts of ticks now, because one has undone a tick.
    pub(super) fn is_apart(&self) -> bool {
        self.apart_until.is_some_and(|until| Instant::now() < until)
    }

    /// Claims for all of these requests, as a part of this tick if there is one; the claims by queue. A failure after the
    /// claims were made requeues them.
    pub(super) async fn run(
        &mut self,
        requests: &[WaitingRequest<'_>],
        turn: Option<Turn>,
    ) -> Result<HashMap<i32, QueueClaims>, OpError> {
        self.figures().members.record(requests.len() as f64);
        let started = Instant::now();
        let (wants, workers) = self.wants(requests);
        let claimed = match turn {
            Some(turn) => self.claim_in_tick(turn, &wants, &workers).await,
            None => self.claim_alone(&wants, &workers).await,
        };
        let result = match claimed {
            Ok(claimed) => Ok(self.claimer.describe(claimed, &workers).await),
            Err(failure) => Err(failure.report("claim")),
        };
        self.figures().seconds.record(started.elapsed());
        result
    }

    fn figures(&mut self) -> &Figures {
        self.figures.get_or_insert_with(|| Figures::of("claim"))
    }

    fn wants<'a>(&self, requests: &[WaitingRequest<'a>]) -> (Vec<Want<'a>>, Vec<Worker<'a>>) {
        let mut wants: Vec<Want<'a>> = Vec::new();
        let mut workers = Vec::with_capacity(requests.len());
        for request in requests {
            let ClaimWork { worker: WorkerKey { group, id, .. }, session, .. } = request.request;
            workers.push(Worker { group, id, session: *session });
            let position = i32::try_from(workers.len()).unwrap_or(i32::MAX);
            // Members of one queue are adjacent, as the wait list orders them.
            if wants.last().is_none_or(|want| want.queue != request.queue) {
                let low_water_marks = self.low_water_marks.get(request.queue);
                wants.push(Want {
                    queue: request.queue,
                    name: request.request.queue.as_str(),
                    epoch: low_water_marks.epoch,
                    marks: low_water_marks.marks,
                    slots: Vec::new(),
                });
            }
            if let Some(want) = wants.last_mut() {
                want.slots.extend(std::iter::repeat_n(position, usize::from(request.request.tasks)));
            }
        }
        (wants, workers)
    }

    /// Claims as a part of a tick, or alone if the tick was undone.
    async fn claim_in_tick(
        &mut self,
        turn: Turn,
        wants: &[Want<'_>],
        workers: &[Worker<'_>],
    ) -> Result<Guarded, Failure> {
        let batch = Uuid::new_v4();
        let is_for_creates = turn.is_for_creates();
        match turn.run(claim::statement(wants, workers, self.claimer.lease, batch)).await {
            Ok(rows) => match claim::decode(&rows) {
                Ok(rows) => Ok(self.claimer.guard(rows)),
                Err(error) => {
                    self.claimer.recover(batch, None);
                    Err(Failure::new(error))
                }
            },
            // The session for creates cannot be used, and nothing was run. What waits is tried every second, by its own session.
            Err(NotDone::Unknown(Failure::NotRun(_), _)) if is_for_creates => Ok(self.claimer.guard(Vec::new())),
            Err(NotDone::Unknown(failure, backend)) => {
                if !matches!(failure, Failure::NotRun(_)) {
                    self.claimer.recover(batch, backend);
                }
                Err(failure)
            }
            Err(why @ (NotDone::Undone | NotDone::Spoiled)) => {
                if matches!(why, NotDone::Spoiled) {
                    self.apart_until = Some(Instant::now() + APART);
                }
                self.claim_alone(wants, workers).await
            }
        }
    }

    async fn claim_alone(&mut self, wants: &[Want<'_>], workers: &[Worker<'_>]) -> Result<Guarded, Failure> {
        let permit = self.permit.clone();
        let held = permit.take().await;
        let mut claimed = self.claim(wants, workers).await;
        if let Err(Failure::Again(_)) = claimed {
            claimed = self.claim(wants, workers).await;
        }
        drop(held);
        claimed
    }

    /// Runs the statement by itself.
    async fn claim(&mut self, wants: &[Want<'_>], workers: &[Worker<'_>]) -> Result<Guarded, Failure> {
        let batch = Uuid::new_v4();
        let lease = self.claimer.lease;
        let result =
            self.claimer.session.run(async |conn| claim::claim(conn, wants, workers, lease, batch).await).await;
        if let Err(Failure::Lost(_) | Failure::Fault(_)) = &result {
            self.claimer.recover(batch, self.claimer.session.backend());
        }
        Ok(self.claimer.guard(result?))
    }
}
