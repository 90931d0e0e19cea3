//! One time of a schedule.

use chrono::{DateTime, Utc};
use sqlx::Connection;
use tenure_api::states::ScheduleOutcome;
use tenure_domain::events::note::Note;
use tenure_domain::schedule::definition::{Last, Occasion, Schedule};
use tenure_domain::schedule::due::{RETRY_AFTER, decide};
use tenure_store::failure::{Class, classify};
use tenure_store::{policies, schedules, session};

use super::{Made, OpError, Parts, TRIES_MAX, draft, guarded, prepare};
use crate::notifiers::Effects;

/// What became of a schedule that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fired {
    Made(ScheduleOutcome),
    /// The missed times get no task.
    Passed,
    /// Refused for now, to be tried again in a few seconds.
    PutOff,
    /// Another transaction has handled or changed it, or holds its lock.
    Lost,
}

/// How far a transaction came.
enum Step {
    Ended(Fired),
    /// A lock or another creator interfered.
    Again,
    Refused(OpError),
}

/// How the schedule moves on without a task.
#[derive(Clone, Copy)]
enum Change<'a> {
    Move(Option<&'a Last>, Option<&'a str>),
    PutOff(DateTime<Utc>, &'a str),
}

/// Handles a schedule that was read as due at `now`: makes one time, and moves on.
pub async fn fire(parts: Parts<'_>, schedule: &Schedule, now: DateTime<Utc>) -> Result<Fired, sqlx::Error> {
    let Some(first) = schedule.next else { return Ok(Fired::Lost) };
    let found = Found { parts, schedule, first };
    let pattern = match schedule.definition.pattern() {
        Ok(pattern) => pattern,
        // A release changed the rules or the time zones.
        Err(wrong) => return found.settle(None, Change::PutOff(first, &OpError::from(wrong).to_string())).await,
    };
    let due = decide(&pattern, schedule.definition.catch_up, first, schedule.attempt(), now);
    let Some(at) = due.fire else { return found.settle(due.next, Change::Move(None, None)).await };
    let mut refusal = OpError::Unavailable;
    for _ in 0..TRIES_MAX {
        match found.attempt(at, due.next).await? {
            Step::Ended(fired) => {
                if fired == Fired::Made(ScheduleOutcome::Created) {
                    metrics::histogram!("tenure_schedule_late_seconds").record((now - at).as_seconds_f64().max(0.0));
                }
                return Ok(fired);
            }
            Step::Again => {}
            Step::Refused(error) => {
                refusal = error;
                break;
            }
        }
    }
    found.refuse(at, due.next, &refusal).await
}

struct Found<'a> {
    parts: Parts<'a>,
    schedule: &'a Schedule,
    /// The time to be made next, as read.
    first: DateTime<Utc>,
}

impl Found<'_> {
    /// Creates the task of this time.
    async fn attempt(&self, at: DateTime<Utc>, next: Option<DateTime<Utc>>) -> Result<Step, sqlx::Error> {
        let Self { parts, schedule, first } = *self;
        let prepared = match prepare(parts, schedule, Occasion { name: &schedule.name, at }).await {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Step::Refused(error)),
        };
        let mut conn = parts.pool.acquire().await?;
        let mut transaction = conn.begin().await?;
        session::idle_briefly(&mut transaction).await?;
        if !schedules::lock_due(&mut transaction, &schedule.name, first, schedule.changed).await? {
            return Ok(Step::Ended(Fired::Lost));
        }
        let mut effects = Effects::default();
        let task = match prepared.create(parts, &mut transaction, &mut effects).await {
            Ok(Made::Created(task) | Made::Repeat(task)) => task.id,
            // At once, so that the row is free for what follows.
            Ok(Made::Refused(error)) => return transaction.rollback().await.map(|()| Step::Refused(error)),
            Ok(Made::Again) => return transaction.rollback().await.map(|()| Step::Again),
            Err(error) if classify(&error) == Class::Contention => {
                return transaction.rollback().await.map(|()| Step::Again);
            }
            Err(error) => return Err(error),
        };
        let last = Last { at, outcome: ScheduleOutcome::Created, task: Some(task) };
        schedules::advance(&mut transaction, &schedule.name, next, Some(&last), None).await?;
        parts.notifiers.commit(transaction, effects).await?;
        Ok(Step::Ended(Fired::Made(last.outcome)))
    }

    /// Records a refusal, which left nothing of the task.
    async fn refuse(
        &self,
        at: DateTime<Utc>,
        next: Option<DateTime<Utc>>,
        refusal: &OpError,
    ) -> Result<Fired, sqlx::Error> {
        let why = refusal.to_string();
        guarded::count_refusal(refusal);
        match refusal {
            OpError::Duplicate(duplicate) => {
                let last = Last { at, outcome: ScheduleOutcome::Skipped, task: Some(duplicate.holder) };
                self.settle(next, Change::Move(Some(&last), None)).await
            }
            OpError::BacklogFull(_) => {
                let fired = self.settle(next, Change::PutOff(at, &why)).await?;
                guarded::note_refusals(&mut *self.parts.pool.acquire().await?, &[refusal]).await?;
                Ok(fired)
            }
            OpError::Overloaded(_) | OpError::Unavailable | OpError::StaleQueue | OpError::Internal(_) => {
                self.settle(next, Change::PutOff(at, &why)).await
            }
            OpError::NotFound(_)
            | OpError::Expired(_)
            | OpError::Forbidden(_)
            | OpError::Conflict(_)
            | OpError::SessionExists(_)
            | OpError::PolicyMismatch(_)
            | OpError::StalePartition { .. }
            | OpError::SessionEnded(_)
            | OpError::Input(_) => {
                let last = Last { at, outcome: ScheduleOutcome::Failed, task: None };
                tracing::warn!(schedule.name = self.schedule.name.as_str(), error = %why, "a schedule could not create its task");
                self.settle(next, Change::Move(Some(&last), Some(&why))).await
            }
        }
    }

    /// Changes the schedule without a task, unless it was handled meanwhile.
    async fn settle(&self, next: Option<DateTime<Utc>>, change: Change<'_>) -> Result<Fired, sqlx::Error> {
        let Self { parts, schedule, first } = *self;
        let note = match change {
            Change::Move(Some(last), Some(why)) => self.note(last.at, why).await,
            Change::Move(..) | Change::PutOff(..) => None,
        };
        let name = schedule.name.as_str();
        let mut conn = parts.pool.acquire().await?;
        let mut transaction = conn.begin().await?;
        session::idle_briefly(&mut transaction).await?;
        if !schedules::lock_due(&mut transaction, name, first, schedule.changed).await? {
            return Ok(Fired::Lost);
        }
        let fired = match change {
            Change::PutOff(at, why) => {
                schedules::put_off(&mut transaction, name, at, RETRY_AFTER, why).await?;
                Fired::PutOff
            }
            Change::Move(last, why) => {
                schedules::advance(&mut transaction, name, next, last, why).await?;
                last.map_or(Fired::Passed, |last| Fired::Made(last.outcome))
            }
        };
        if let Some(note) = &note {
            policies::emit(&mut transaction, note).await?;
        }
        parts.notifiers.commit(transaction, Effects::default()).await?;
        Ok(fired)
    }

    /// The note of a failure. None if the task is no longer acceptable.
    async fn note(&self, at: DateTime<Utc>, why: &str) -> Option<Note> {
        let Self { parts, schedule, .. } = *self;
        let occasion = Occasion { name: &schedule.name, at };
        let task = draft(parts, &schedule.definition, &schedule.client_id, occasion).await.ok()?;
        let (name, client_id) = (schedule.name.clone(), schedule.client_id.clone());
        Some(Note::schedule_failed(task.queue, name, at, why.to_owned(), client_id))
    }
}
