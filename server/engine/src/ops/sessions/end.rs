//! End of a session: one transaction gives back all its runs, up to a slice, or nothing.
//!
//! Lock order: the session's row, the tasks of its runs, their claims, then the queues of runs that
//! keep their positions. Each lock waits, so that no run under renewal or report is left out. A
//! transaction that cannot get all locks is undone and retried later. The caller or the pass gives
//! back further slices, and claims of the session committed after its end.

use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure_api::states::{EndedBy, ReasonResolved, SessionEnd};
use uuid::Uuid;

use super::worker_of;
use crate::end_counters;
use crate::notifiers::{Effects, Notifiers};
use crate::ops::actor::{Actor, Recorded};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::events::note::Note;
use tenure_domain::policy::ending::{Ending, TakenBack};
use tenure_domain::session::{SLICE, assigned_run_ends, run_ends};
use tenure_store::admission::{self, AssignedRun};
use tenure_store::failure::{Class, classify};
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::end_open;
use tenure_store::{policies, queues, session, worker_sessions};

/// Runs given back by a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    pub runs: usize,
    /// Runs that are retried.
    pub retried: usize,
    /// True if the session may hold further runs.
    pub more: bool,
}

impl Left {
    fn join(&mut self, other: Self) {
        self.runs += other.runs;
        self.retried += other.retried;
        self.more = other.more;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    Ended(Left),
    /// Not live, or renewed in time.
    NotLive,
    /// Some of its runs could not be locked. Nothing was changed.
    Held,
}

/// Ends a session and gives back its first slice. An expired session ends only if it was not
/// renewed meanwhile. Records the end if there is an actor.
pub async fn end(
    conn: &mut PgConnection,
    notifiers: &Notifiers,
    actor: Option<&Actor>,
    epoch: i64,
    by: SessionEnd,
) -> Result<Attempt, sqlx::Error> {
    match end_now(conn, notifiers, actor, epoch, by).await {
        // Another transaction holds the session or one of its runs.
        Err(error) if classify(&error) == Class::Contention => Ok(Attempt::Held),
        attempt => attempt,
    }
}

async fn end_now(
    conn: &mut PgConnection,
    notifiers: &Notifiers,
    actor: Option<&Actor>,
    epoch: i64,
    by: SessionEnd,
) -> Result<Attempt, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let overdue = by == SessionEnd::Expired;
    let Some(identity) = worker_sessions::end(&mut transaction, epoch, by, overdue).await? else {
        return Ok(Attempt::NotLive);
    };
    let Some(slice) = give_back(&mut transaction, epoch, by).await? else {
        return Ok(Attempt::Held);
    };
    let Slice { left, held, endings, effects } = slice;
    // One event covers all slices.
    let runs = count(left.runs) + held;
    policies::emit(&mut transaction, &Note::session_ended(&identity, by, runs)).await?;
    let mut recorded = None;
    if let Some(actor) = actor {
        let detail = json!({"sessionId": identity.id, "runs": runs});
        let entry = Entry::new(Action::EndSession, worker_of(&identity), detail);
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    notifiers.commit(transaction, effects).await?;
    recorded.into_iter().for_each(Recorded::log);
    end_counters::count_session(by);
    count_endings(&endings);
    tracing::info!(
        session.id = %identity.id,
        worker.group = %identity.worker_group,
        worker.id = %identity.worker_id,
        queue.id = %identity.queue,
        by = %by,
        runs = left.runs,
        retried = left.retried,
        "the session of a worker has ended"
    );
    Ok(Attempt::Ended(left))
}

/// Ends a session and gives back all its runs.
///
/// # Errors
/// As [`end()`]. The session may have ended; the pass then gives back the rest.
pub async fn end_whole(
    conn: &mut PgConnection,
    notifiers: &Notifiers,
    actor: Option<&Actor>,
    epoch: i64,
    by: SessionEnd,
) -> Result<Attempt, sqlx::Error> {
    let mut attempt = end(conn, notifiers, actor, epoch, by).await?;
    if let Attempt::Ended(left) = &mut attempt {
        while left.more {
            left.join(give_back_more(conn, notifiers, epoch, by).await?);
        }
    }
    Ok(attempt)
}

/// Gives back a slice of an ended session's runs.
///
/// # Errors
/// As [`end()`].
pub async fn give_back_more(
    conn: &mut PgConnection,
    notifiers: &Notifiers,
    epoch: i64,
    by: SessionEnd,
) -> Result<Left, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    // As in the transaction that ends a session.
    session::idle_briefly(&mut transaction).await?;
    match give_back(&mut transaction, epoch, by).await {
        Ok(Some(Slice { left, endings, effects, .. })) => {
            notifiers.commit(transaction, effects).await?;
            count_endings(&endings);
            Ok(left)
        }
        Ok(None) => Ok(Left::default()),
        Err(error) if classify(&error) == Class::Contention => Ok(Left::default()),
        Err(error) => Err(error),
    }
}

struct Slice {
    left: Left,
    held: i64,
    endings: Vec<Ending>,
    effects: Effects,
}

/// Ends a slice of the session's runs according to `by`. `None` if some could not be ended: undo
/// the transaction.
async fn give_back(transaction: &mut PgConnection, epoch: i64, by: SessionEnd) -> Result<Option<Slice>, sqlx::Error> {
    let mut effects = Effects { inboxes: vec![epoch], ..Effects::default() };
    let tasks = worker_sessions::lock_tasks(transaction, epoch, SLICE).await?;
    let assigned = give_back_assigned(transaction, epoch, &tasks, by, &mut effects).await?;
    let held = worker_sessions::lock_held(transaction, epoch, &tasks).await?;
    let endings: Vec<Ending> = held.iter().map(|held| run_ends(by, held.delivery, held.free_runs)).collect();
    let members: Vec<Member<'_>> =
        held.iter().zip(&endings).map(|(held, &ending)| Member::new(held.id, held.run, ending)).collect();
    let released: Vec<Uuid> =
        members.iter().filter(|member| member.ending == Ending::Released).map(|member| member.id).collect();
    if !released.is_empty() {
        queues::lock_of_tasks(transaction, &released).await?;
    }
    let resolved = if members.is_empty() { Vec::new() } else { end::end(transaction, &members).await? };
    if resolved.len() < held.len() {
        return Ok(None);
    }
    for row in &resolved {
        effects.run_ended(row);
    }
    let runs = resolved.len() + assigned;
    let held = worker_sessions::close(transaction, epoch, count(runs)).await?;
    let left = Left { runs, retried: effects.claimable.len(), more: held > 0 && runs > 0 };
    Ok(Some(Slice { left, held, endings, effects }))
}

/// Returns assigned but unaccepted runs of locked tasks to waiting. If the session is lost,
/// at-most-once runs end: the worker may have been about to start them. Returns the number of all
/// these runs.
async fn give_back_assigned(
    transaction: &mut PgConnection,
    epoch: i64,
    tasks: &[Uuid],
    by: SessionEnd,
    effects: &mut Effects,
) -> Result<usize, sqlx::Error> {
    let assigned = admission::list_assigned(transaction, epoch, tasks).await?;
    let (end, back): (Vec<&AssignedRun>, Vec<&AssignedRun>) =
        assigned.iter().partition(|run| assigned_run_ends(by, run.delivery) == TakenBack::Ends);
    if !end.is_empty() {
        let ids: Vec<_> = end.iter().map(|run| run.id).collect();
        let removed = by == SessionEnd::WorkerRemoved;
        let ended_by = if removed { EndedBy::WorkerRemoved } else { EndedBy::SessionEnded };
        let (reason, by) = (ReasonResolved::WorkerShutdown, Some(ended_by));
        let ended = end_open::end_open_by(transaction, &ids, reason, by).await?;
        effects.tasks_ended(ended, reason);
    }
    if !back.is_empty() {
        let seqs: Vec<_> = back.iter().map(|run| run.seq).collect();
        effects.admission.extend(admission::take_back(transaction, &seqs, false).await?.queues);
    }
    Ok(assigned.len())
}

fn count(runs: usize) -> i64 {
    i64::try_from(runs).unwrap_or(i64::MAX)
}

fn count_endings(endings: &[Ending]) {
    for &ending in endings {
        end_counters::count(ending, 1);
    }
}
