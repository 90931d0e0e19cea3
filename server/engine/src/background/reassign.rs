//! Takes back the runs of a lost scheduler, in queues whose policy says so; part of the pass
//! `admission`. Each slice is its own fenced transaction, and resumes after a crash.

use sqlx::{Connection, PgConnection};
use tenure_domain::policy::ending::Ending;
use tenure_store::admission::{self, GivenOut, Leader};
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::limit;

use super::PassReport;
use crate::end_counters;
use crate::engine::Engine;
use crate::notifiers::Effects;

const REASSIGN_SLICE: i64 = 2_000;

/// Returns unaccepted runs to pending, and ends accepted runs unless their time continues.
pub(super) async fn reassign(
    engine: &Engine,
    conn: &mut PgConnection,
    queue: i32,
    leader: Leader,
) -> Result<PassReport, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let Some(of) = admission::lock_reassigning(&mut transaction, queue, leader).await? else {
        return Ok(PassReport::default());
    };
    let given_out = admission::list_given_out(&mut transaction, of, REASSIGN_SLICE).await?;
    if given_out.is_empty() {
        admission::end_reassigning(&mut transaction, queue).await?;
        transaction.commit().await?;
        return Ok(PassReport::default());
    }
    let mut effects = Effects::default();
    let back = take_back(&mut transaction, &given_out, &mut effects).await?;
    let ended = end_at_once(&mut transaction, &given_out, &mut effects).await?;
    let goes_on: Vec<_> = given_out
        .iter()
        .filter(|run| run.accepted)
        .filter_map(|run| run.until.map(|until| (run.seq, run.run, until)))
        .collect();
    let limited = limit::set_complete_by(&mut transaction, &goes_on).await?;
    let exhausted = effects.resolved.len();
    effects.admission.push(queue);
    engine.notifiers.commit(transaction, effects).await?;
    end_counters::count(Ending::SchedulerReplaced, ended);
    let done = back + ended + limited;
    Ok(PassReport {
        found: given_out.len(),
        done,
        retried: ended - exhausted,
        exhausted,
        lost_race: given_out.len().saturating_sub(done),
        ..PassReport::default()
    })
}

async fn take_back(
    transaction: &mut PgConnection,
    given_out: &[GivenOut],
    effects: &mut Effects,
) -> Result<usize, sqlx::Error> {
    let assigned: Vec<_> = given_out.iter().filter(|run| !run.accepted).map(|run| run.id).collect();
    if assigned.is_empty() {
        return Ok(0);
    }
    let seqs = admission::lock_still_assigned(transaction, &assigned).await?;
    let taken = admission::take_back(transaction, &seqs, false).await?;
    effects.admission.extend(taken.queues);
    Ok(taken.runs)
}

async fn end_at_once(
    transaction: &mut PgConnection,
    given_out: &[GivenOut],
    effects: &mut Effects,
) -> Result<usize, sqlx::Error> {
    let members: Vec<Member<'_>> = given_out
        .iter()
        .filter(|run| run.accepted && run.until.is_none())
        .map(|run| Member::new(run.id, run.run, Ending::SchedulerReplaced))
        .collect();
    if members.is_empty() {
        return Ok(0);
    }
    let resolved = end::end(transaction, &members).await?;
    for row in &resolved {
        effects.run_ended(row);
        effects.inboxes.extend(row.session);
    }
    Ok(resolved.len())
}
