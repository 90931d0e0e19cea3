//! Changes the locked tasks of a slice.

use std::collections::{BTreeSet, HashMap};

use sqlx::PgConnection;
use tenure_api::errors::ErrorCode;
use tenure_api::jobs::RefusedTask;
use tenure_api::states::{Priority, ReasonResolved};
use uuid::Uuid;

use crate::notifiers::Effects;
use crate::ops::change_task::life;
use crate::ops::rerun::{rerun_locked, retries};
use crate::ops::{OpError, refused};
use tenure_domain::bulk_job::{Order, RunningJob, Verdict, Which, judge, still_matches, why_unmoved};
use tenure_domain::policy::life::Event;
use tenure_store::guarded::Held;
use tenure_store::tasks::{self, Loaded};
use tenure_store::transitions::{end_open, reprioritise};

/// Tries of a cancel whose run is being claimed.
const TRIES_MAX: usize = 5;

/// Tasks with their ids, in the order of their locks.
type Locked<'a> = [(Uuid, &'a Loaded)];

/// The changes of a slice until its commit.
pub(super) struct Changes {
    /// The job after the slice.
    pub(super) job: RunningJob,
    pub(super) changed: Vec<Uuid>,
    pub(super) effects: Effects,
}

impl Changes {
    pub(super) fn of(job: &RunningJob) -> Self {
        Self { job: job.clone(), changed: Vec::new(), effects: Effects::default() }
    }

    pub(super) async fn carry_out(
        &mut self,
        transaction: &mut PgConnection,
        loaded: &HashMap<Uuid, Loaded>,
        names: &HashMap<Uuid, Held>,
    ) -> Result<(), sqlx::Error> {
        let mut matching: Vec<(Uuid, &Loaded)> = Vec::new();
        for (id, one) in loaded {
            let fits = match &self.job.which {
                Which::Filter(filter) => still_matches(filter, &one.task, self.job.started),
                Which::Tasks(_) => true,
            };
            if fits {
                matching.push((*id, one));
            } else {
                self.job.progress.unchanged += 1;
            }
        }
        matching.sort_unstable_by_key(|(id, _)| *id);
        match self.job.order {
            Order::Cancel => self.cancel(transaction, &matching).await,
            Order::Rerun => self.rerun(transaction, &matching, names).await,
            Order::Priority(priority) => self.reprioritise(transaction, &matching, priority).await,
        }
    }

    async fn cancel(&mut self, transaction: &mut PgConnection, tasks: &Locked<'_>) -> Result<(), sqlx::Error> {
        let mut left: Vec<Uuid> = Vec::new();
        for (id, one) in tasks {
            match judge(life(one), Event::Cancel, is_overdue(one)) {
                Verdict::Change { .. } => left.push(*id),
                other => self.note(one, other),
            }
        }
        // A run that is claimed just now is found among the claims next time.
        for _ in 0..TRIES_MAX {
            if left.is_empty() {
                return Ok(());
            }
            let ended = end_open::end_open(transaction, &left, ReasonResolved::Canceled).await?;
            left.retain(|id| !ended.tasks.contains(id));
            self.changed.extend(&ended.tasks);
            self.effects.tasks_ended(ended, ReasonResolved::Canceled);
        }
        for (_, one) in tasks.iter().filter(|(id, _)| left.contains(id)) {
            self.refuse(one, &OpError::Unavailable);
        }
        Ok(())
    }

    async fn rerun(
        &mut self,
        transaction: &mut PgConnection,
        tasks: &Locked<'_>,
        names: &HashMap<Uuid, Held>,
    ) -> Result<(), sqlx::Error> {
        for (id, one) in tasks {
            let definition = tasks::find_definition(transaction, *id).await?.unwrap_or_default();
            let verdict = match retries(one, &definition) {
                Ok(retries) => judge(life(one), Event::Rerun { retries, hold: None }, is_overdue(one)),
                Err(refusal) => {
                    self.refuse(one, &refusal);
                    continue;
                }
            };
            let Verdict::Change { .. } = verdict else {
                self.note(one, verdict);
                continue;
            };
            match rerun_locked(transaction, one, &definition, names.get(id), &mut self.effects).await? {
                Ok(()) => self.changed.push(*id),
                Err(refusal) => self.refuse(one, &refusal),
            }
        }
        Ok(())
    }

    async fn reprioritise(
        &mut self,
        transaction: &mut PgConnection,
        tasks: &Locked<'_>,
        priority: Priority,
    ) -> Result<(), sqlx::Error> {
        let ids: Vec<Uuid> = tasks.iter().map(|(id, _)| *id).collect();
        let moved = reprioritise::reprioritise(transaction, &ids, priority.code()).await?;
        let queues: BTreeSet<i32> = moved.iter().map(|(_, queue)| *queue).collect();
        let changed: Vec<Uuid> = moved.into_iter().map(|(id, _)| id).collect();
        for (_, one) in tasks.iter().filter(|(id, _)| !changed.contains(id)) {
            self.note(one, why_unmoved(&one.task, priority, is_overdue(one)));
        }
        self.effects = Effects::claimable(queues);
        self.changed = changed;
        Ok(())
    }

    fn note(&mut self, one: &Loaded, verdict: Verdict) {
        let id = one.task.id;
        match verdict {
            Verdict::Change { .. } => {}
            Verdict::Unchanged => self.job.progress.unchanged += 1,
            Verdict::Overdue => {
                self.refuse(one, &OpError::Conflict(format!("the deadline of task {id} has passed")));
            }
            Verdict::Refused(refusal) => {
                let run = one.task.ended.last().map_or(0, |ended| ended.run.run.number());
                self.refuse(one, &refused(refusal, id, run));
            }
        }
    }

    fn refuse(&mut self, one: &Loaded, refusal: &OpError) {
        let code = match refusal {
            OpError::Duplicate(_) => ErrorCode::DuplicateTask,
            OpError::Unavailable => ErrorCode::ServiceUnavailable,
            _ => ErrorCode::RequestConflict,
        };
        self.job.progress.refuse(RefusedTask { task_id: one.task.id, code, message: refusal.to_string() });
    }
}

fn is_overdue(loaded: &Loaded) -> bool {
    loaded.task.deadline <= loaded.now
}
