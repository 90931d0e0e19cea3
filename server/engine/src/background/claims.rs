//! Expired claims. A claim has expired when its lease has ended by `tenure_now()` without a renewal; its run ends as
//! claim-expired and the next one is pending while retries are left. A task past its deadline is left to the deadline pass.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{PassReport, SLICE};
use crate::endings;
use crate::engine::Engine;
use crate::notifiers::Effects;
use tenure_domain::policy::ending::Ending;
use tenure_store::claims;
use tenure_store::transitions::end::{self, Member};

/// Ends a slice of the claims that have expired.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let due = claims::list_due(&mut conn, engine.due_marks.get().claims, SLICE).await?;
    if due.is_empty() {
        return Ok(PassReport::default());
    }
    end_all(engine, &mut conn, &due, Ending::LeaseExpired).await
}

/// Ends these claims so. The statement looks at the clock again: a claim that was renewed meanwhile stays.
pub(super) async fn end_all(
    engine: &Engine,
    conn: &mut PgConnection,
    due: &[(Uuid, i16)],
    ending: Ending,
) -> Result<PassReport, sqlx::Error> {
    let members: Vec<Member<'_>> = due.iter().map(|&(id, run)| Member::new(id, run, ending)).collect();
    let resolved = end::end(conn, &members).await?;
    let mut effects = Effects::default();
    for row in &resolved {
        effects.run_ended(row);
        effects.inboxes.extend(row.session);
    }
    let report = PassReport {
        found: due.len(),
        done: resolved.len(),
        retried: effects.claimable.len(),
        exhausted: effects.resolved.len(),
        lost_race: due.len() - resolved.len(),
        ..PassReport::default()
    };
    engine.notifiers.apply(effects);
    endings::count(ending, resolved.len());
    Ok(report)
}
