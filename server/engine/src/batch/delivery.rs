//! Requeues undelivered claims.
//!
//! A claim leaves the wait list inside a [`Delivery`]. If that guard is dropped before the response
//! is flushed, the run ends as worker-shutdown. The next run is pending at the old position, and no
//! retry is used up. A response lost after the flush leaves its claims to expire.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{BATCH_MEMBERS_MAX, Failure, Session};
use crate::end_counters;
use crate::essential;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::policy::ending::Ending;
use tenure_store::claims;
use tenure_store::connector::Connector;
use tenure_store::transitions::end::{self, Member};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndeliveredClaim {
    pub id: Uuid,
    pub run: i16,
}

#[derive(Debug)]
pub struct Delivery {
    claims: Vec<UndeliveredClaim>,
    requeue: Requeue,
}

impl Delivery {
    #[must_use]
    pub fn split_first(&mut self, count: usize) -> Self {
        let count = count.min(self.claims.len());
        Self { claims: self.claims.drain(..count).collect(), requeue: self.requeue.clone() }
    }

    pub fn join(&mut self, mut other: Self) {
        self.claims.append(&mut other.claims);
    }

    /// Releases the claims once the response is flushed to the worker.
    pub fn delivered(mut self) {
        self.claims.clear();
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.requeue.take(std::mem::take(&mut self.claims));
    }
}

#[derive(Debug, Clone)]
pub struct Requeue {
    queue: mpsc::UnboundedSender<Vec<UndeliveredClaim>>,
}

const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Tries per claim; then it is left to expire.
const TRIES_MAX: u32 = 60;
/// Time limit per claim. Attempts without a session use up no tries.
const TRIED_FOR: Duration = Duration::from_secs(600);

impl Requeue {
    /// Starts a task that ends when all senders are dropped, or when it is stopped while the
    /// database is unavailable.
    #[must_use]
    pub fn start(connector: &Connector, notifiers: Notifiers, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        // Unbounded: waiting requests bound the claims.
        let (queue, inbox) = mpsc::unbounded_channel();
        essential::spawn(tasks, work(Session::brief(connector.clone()), inbox, notifiers, stop));
        Self { queue }
    }

    #[must_use]
    pub fn guard(&self, claims: Vec<UndeliveredClaim>) -> Delivery {
        Delivery { claims, requeue: self.clone() }
    }

    pub fn take(&self, claims: Vec<UndeliveredClaim>) {
        if !claims.is_empty() {
            drop(self.queue.send(claims));
        }
    }
}

#[derive(Debug)]
struct Undelivered {
    claim: UndeliveredClaim,
    tries: u32,
    until: Instant,
}

async fn work(
    session: Session,
    mut inbox: mpsc::UnboundedReceiver<Vec<UndeliveredClaim>>,
    notifiers: Notifiers,
    stop: CancellationToken,
) {
    let mut requeuer = Requeuer { session, notifiers, stop, left: Vec::new(), again_at: Instant::now() };
    let mut is_open = true;
    while is_open || !requeuer.left.is_empty() {
        tokio::select! {
            () = tokio::time::sleep_until(requeuer.again_at.into()), if !requeuer.left.is_empty() => {
                let left = std::mem::take(&mut requeuer.left);
                requeuer.attempt(left).await;
            }
            received = inbox.recv(), if is_open => {
                let Some(mut claims) = received else {
                    is_open = false;
                    continue;
                };
                while claims.len() < BATCH_MEMBERS_MAX
                    && let Ok(more) = inbox.try_recv()
                {
                    claims.extend(more);
                }
                metrics::counter!("tenure_claims_undelivered_total").increment(claims.len() as u64);
                let until = Instant::now() + TRIED_FOR;
                requeuer.attempt(claims.into_iter().map(|claim| Undelivered { claim, tries: 0, until }).collect()).await;
            }
        }
    }
    requeuer.session.close().await;
}

struct Requeuer {
    session: Session,
    notifiers: Notifiers,
    stop: CancellationToken,
    /// Claims to retry. New claims do not wait for them.
    left: Vec<Undelivered>,
    /// Next retry of `left`.
    again_at: Instant,
}

impl Requeuer {
    /// Requeues claims. The statement skips claims that are locked, in locked queues, ended, or
    /// requeued too often. A skipped claim is retried while it exists and may be requeued.
    async fn attempt(&mut self, mut claims: Vec<Undelivered>) {
        let mut left = Vec::new();
        while !claims.is_empty() {
            let rest = claims.split_off(claims.len().min(BATCH_MEMBERS_MAX));
            let mut part = std::mem::replace(&mut claims, rest);
            if let Err(failure) = self.attempt_part(&mut part).await {
                match failure {
                    // The remaining parts would only time out on the connection.
                    Failure::NotRun(_) => part.append(&mut claims),
                    Failure::BadData(_) | Failure::Fault(_) if part.len() > 1 => part = self.attempt_each(part).await,
                    _ => {}
                }
                drop(failure.report("requeue"));
            }
            left.append(&mut part);
        }
        let now = Instant::now();
        let tried = left.len();
        left.retain(|one| one.tries < TRIES_MAX && now < one.until && !self.stop.is_cancelled());
        if left.len() < tried {
            tracing::warn!(claims = tried - left.len(), "undelivered claims were not requeued; they will expire");
        }
        if self.left.is_empty() {
            self.again_at = now + RETRY_AFTER;
        }
        self.left.append(&mut left);
    }

    /// Requeues claims one by one and returns the rest.
    async fn attempt_each(&mut self, claims: Vec<Undelivered>) -> Vec<Undelivered> {
        let mut left = Vec::new();
        for one in claims {
            let mut alone = vec![one];
            if let Err(failure) = self.attempt_part(&mut alone).await {
                drop(failure.report("requeue"));
            }
            left.append(&mut alone);
        }
        left
    }

    /// Requeues up to [`BATCH_MEMBERS_MAX`] claims in one statement and keeps the rest in `claims`.
    async fn attempt_part(&mut self, claims: &mut Vec<Undelivered>) -> Result<(), Failure> {
        let members: Vec<Member<'_>> =
            claims.iter().map(|one| Member::new(one.claim.id, one.claim.run, Ending::Undelivered)).collect();
        let notifiers = &self.notifiers;
        let attempt = self
            .session
            .run(async |conn| {
                let resolved = end::end(conn, &members).await?;
                let mut effects = Effects::default();
                for row in &resolved {
                    effects.run_ended(row);
                }
                notifiers.apply(effects);
                end_counters::count(Ending::Undelivered, resolved.len());
                let ids: Vec<Uuid> = members.iter().map(|member| member.id).collect();
                claims::list_returnable(conn, &ids).await
            })
            .await;
        if !matches!(attempt, Err(Failure::NotRun(_))) {
            claims.iter_mut().for_each(|one| one.tries += 1);
        }
        let returnable = attempt?;
        claims.retain(|one| returnable.contains(&(one.claim.id, one.claim.run)));
        Ok(())
    }
}
