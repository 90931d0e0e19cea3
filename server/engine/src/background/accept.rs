//! Takes back runs that a session did not accept within the queue's `acceptTime`. They become
//! pending again; a run that may not start twice ends, because it may have started.
//!
//! The time stops in a paused queue, but not while the worker is quarantined: another worker can
//! then get the run under every delivery, because the quarantined one was refused it. After a
//! quarantine, remaining runs get a whole `acceptTime` again.

use sqlx::Connection;

use super::{PassReport, SLICE};
use crate::end_counters;
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_api::states::{EndedBy, ReasonResolved};
use tenure_domain::policy::ending::{Ending, TakenBack, not_accepted};
use tenure_store::admission::{self, AssignedRun};
use tenure_store::transitions::end_open;

pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let due = admission::lock_not_accepted(&mut transaction, engine.due_marks.get().holds, SLICE).await?;
    if due.is_empty() {
        return Ok(PassReport::default());
    }
    let (end, back): (Vec<&AssignedRun>, Vec<&AssignedRun>) =
        due.iter().partition(|run| not_accepted(run.delivery, run.acceptance) == TakenBack::Ends);
    let mut effects = Effects::default();
    if !end.is_empty() {
        let ids: Vec<_> = end.iter().map(|run| run.id).collect();
        let (reason, by) = (ReasonResolved::ClaimExpired, Some(EndedBy::NotAccepted));
        let ended = end_open::end_open_by(&mut transaction, &ids, reason, by).await?;
        effects.tasks_ended(ended, reason);
    }
    let seqs: Vec<_> = back.iter().map(|run| run.seq).collect();
    let taken = admission::take_back(&mut transaction, &seqs, true).await?;
    effects.admission.extend(taken.queues);
    let exhausted = effects.resolved.len();
    engine.notifiers.commit(transaction, effects).await?;
    end_counters::count(Ending::NotAccepted, exhausted + taken.runs);
    let done = taken.runs + exhausted;
    Ok(PassReport {
        found: due.len(),
        done,
        retried: taken.runs,
        exhausted,
        lost_race: due.len() - done,
        ..PassReport::default()
    })
}
