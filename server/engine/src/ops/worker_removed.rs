//! Removal of a worker: ends its runs before their claims expire.
//!
//! The claims end as exception/worker-shutdown, by the statement of that report: with events, and a
//! retry while some are left. Each claim ends once; a later report changes nothing. The removal
//! commits before any claim is looked up: if this server dies, `background/removals.rs` ends the
//! session and the remaining claims.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::states::SessionEnd;
use uuid::Uuid;

use super::OpError;
use super::actor::{Actor, Recorded};
use super::sessions::{self, Attempt};
use crate::end_counters;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::policy::ending::Ending;
use tenure_domain::registration::WorkerName;
use tenure_store::queues::Queues;
use tenure_store::transitions::end::{self, Member, Resolved};
use tenure_store::worker_removals::{self, Gone};
use tenure_store::{clock, worker_manager, worker_sessions};

/// Claims ended per transaction.
const SLICE: i64 = 200;
/// Time limit for locked claims, which are then left to the pass.
const HELD_WAIT: Duration = Duration::from_secs(3);
/// Retry interval for locked claims.
const HELD_LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// True if the worker manager knew the worker.
    pub known: bool,
    /// Claims ended by this call.
    pub ended: usize,
}

#[derive(Debug, Default)]
pub struct Ended {
    pub runs: Vec<Resolved>,
    /// Number of runs that are retried.
    pub retried: usize,
}

/// Records the removal of a worker and ends its claims. Repeatable. `action` is the operation for
/// the audit.
pub async fn remove(
    pool: &PgPool,
    queues: &Queues,
    notifiers: &Notifiers,
    actor: &Actor,
    name: &WorkerName,
    action: Action,
) -> Result<Removed, OpError> {
    let queue = queues.find_key(pool, &name.pool).await?;
    let gone = queue.map(|queue| Gone { queue, worker_group: name.group.to_string(), worker_id: name.id.to_string() });
    // The wait list first: then no claim begins here after the removal is stored.
    if let Some(gone) = &gone {
        notifiers.send_away(gone.clone()).await;
    }
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    worker_manager::lock(&mut transaction, name).await?;
    let registered = worker_manager::find(&mut *transaction, name).await?;
    let is_repeat = registered.is_some_and(|registered| registered.removed.is_some());
    let known = worker_manager::note_removed(&mut transaction, name).await?;
    let mut recorded = None;
    if !is_repeat && (known || gone.is_some()) {
        let entry = Entry::new(action, name, json!({"registered": known}));
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    if let Some(gone) = &gone {
        worker_removals::note(&mut transaction, gone, known).await?;
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    let mut ended = 0;
    if let Some(gone) = &gone {
        notifiers.stay_active();
        ended = end_session(&mut conn, notifiers, gone).await? + end_all(&mut conn, notifiers, gone).await?;
    }
    tracing::info!(worker.group = %name.group, worker.id = %name.id, registered = known, claims = ended, "a worker was removed");
    Ok(Removed { known, ended })
}

/// Ends the worker's live session with all its runs. If that fails now, the claims are ended one by
/// one, and the session by the pass.
async fn end_session(conn: &mut PgConnection, notifiers: &Notifiers, gone: &Gone) -> Result<usize, sqlx::Error> {
    let Gone { queue, worker_group, worker_id } = gone;
    let Some(epoch) = worker_sessions::find_live(conn, *queue, worker_group, worker_id).await? else { return Ok(0) };
    match sessions::end_whole(conn, notifiers, None, epoch, SessionEnd::WorkerRemoved).await? {
        Attempt::Ended(left) => Ok(left.runs),
        Attempt::NotLive | Attempt::Held => Ok(0),
    }
}

/// Ends claims in slices, until none is left or others lock the rest for too long.
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
        ended += slice.runs.len();
        if !slice.runs.is_empty() {
            progress = Instant::now();
        } else if progress.elapsed() > HELD_WAIT {
            return Ok(ended);
        } else {
            tokio::time::sleep(HELD_LOOK_EVERY).await;
        }
    }
}

/// Ends claims in one transaction, except ended or locked ones. The statement checks the clock
/// again: a claim renewed meanwhile stays.
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
    let ended = Ended { retried: effects.claimable.len(), runs: resolved };
    notifiers.apply(effects);
    end_counters::count(ending, ended.runs.len());
    Ok(ended)
}
