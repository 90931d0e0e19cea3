//! A worker is gone: its runs need not wait for their claims to expire.
//!
//! Its claims end as exception/worker-shutdown, as if it had reported so itself: by the same statement, with a retry while
//! some are left, each with its event, and in slices. A claim is ended once; a report that comes later finds its run ended
//! and changes nothing. The removal is stored first, in a transaction that commits before any claim is looked up, so that
//! the pass `background/removals.rs` ends the session and the remaining claims if this server dies.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::states::SessionEnd;
use uuid::Uuid;

use super::OpError;
use super::sessions::{self, Attempt};
use crate::endings;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::policy::ending::Ending;
use tenure_domain::registration::WorkerName;
use tenure_store::queues::Queues;
use tenure_store::transitions::end::{self, Member};
use tenure_store::worker_removals::{self, Gone};
use tenure_store::{clock, worker_manager, worker_sessions};

/// Claims that one transaction ends.
const SLICE: i64 = 200;
/// How long it tries to end claims that another transaction has locked; then it leaves them to the pass.
const HELD_WAIT: Duration = Duration::from_secs(3);
/// How often it tries again.
const HELD_LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Whether the worker was known to the worker manager.
    pub known: bool,
    /// How many claims this removal has ended itself.
    pub ended: usize,
}

/// Runs that were ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    pub runs: usize,
    /// How many of them are retried.
    pub retried: usize,
}

/// Stores that a worker was removed and ends its claims. May be repeated.
pub async fn remove(
    pool: &PgPool,
    queues: &Queues,
    notifiers: &Notifiers,
    name: &WorkerName,
) -> Result<Removed, OpError> {
    let queue = queues.find_key(pool, &name.pool).await?;
    let gone = queue.map(|queue| Gone { queue, worker_group: name.group.to_string(), worker_id: name.id.to_string() });
    // First the wait list, so that no claim for the worker begins here after the removal is stored.
    if let Some(gone) = &gone {
        notifiers.send_away(gone.clone()).await;
    }
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let known = worker_manager::note_removed(&mut transaction, name).await?;
    if let Some(gone) = &gone {
        worker_removals::note(&mut transaction, gone, known).await?;
    }
    transaction.commit().await?;
    let mut ended = 0;
    if let Some(gone) = &gone {
        notifiers.stay_active();
        ended = end_session(&mut conn, notifiers, gone).await? + end_all(&mut conn, notifiers, gone).await?;
    }
    tracing::info!(worker.group = %name.group, worker.id = %name.id, registered = known, claims = ended, "a worker was removed");
    Ok(Removed { known, ended })
}

/// Ends the live session of the worker, if it has one, with all that it holds. If it cannot be ended now, its claims are ended one by
/// one, and the pass ends it.
async fn end_session(conn: &mut PgConnection, notifiers: &Notifiers, gone: &Gone) -> Result<usize, sqlx::Error> {
    let Gone { queue, worker_group, worker_id } = gone;
    let Some(epoch) = worker_sessions::find_live(conn, *queue, worker_group, worker_id).await? else { return Ok(0) };
    match sessions::end_whole(conn, notifiers, epoch, SessionEnd::WorkerRemoved).await? {
        Attempt::Ended(left) => Ok(left.runs),
        Attempt::NotLive | Attempt::Held => Ok(0),
    }
}

/// Slice by slice, until all remaining claims are locked by others for too long.
async fn end_all(conn: &mut PgConnection, notifiers: &Notifiers, gone: &Gone) -> Result<usize, sqlx::Error> {
    let mut ended = 0;
    let mut progress = Instant::now();
    loop {
        let now = clock::get_now(conn).await?;
        let found = worker_removals::list_claims(conn, Some(gone), now, SLICE).await?;
        if found.is_empty() {
            return Ok(ended);
        }
        let slice = end(conn, notifiers, &found, Ending::WorkerRemoved).await?;
        ended += slice.runs;
        if slice.runs > 0 {
            progress = Instant::now();
        } else if progress.elapsed() > HELD_WAIT {
            return Ok(ended);
        } else {
            tokio::time::sleep(HELD_LOOK_EVERY).await;
        }
    }
}

/// Ends these claims in one transaction, except those that ended meanwhile or are locked. The statement looks at the clock again: a claim
/// that was renewed since it was found to have expired stays.
pub async fn end(
    conn: &mut PgConnection,
    notifiers: &Notifiers,
    claims: &[(Uuid, i16)],
    ending: Ending,
) -> Result<Ended, sqlx::Error> {
    let members: Vec<Member<'_>> = claims.iter().map(|&(id, run)| Member::new(id, run, ending)).collect();
    let resolved = end::end(conn, &members).await?;
    let mut effects = Effects::default();
    for row in &resolved {
        effects.run_ended(row);
        effects.inboxes.extend(row.session);
    }
    let ended = Ended { runs: resolved.len(), retried: effects.claimable.len() };
    notifiers.apply(effects);
    endings::count(ending, ended.runs);
    Ok(ended)
}
