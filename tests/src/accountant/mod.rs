//! Accounts for every answer while the database fails: submitters and workers call several servers
//! without pause. Acknowledged calls are recorded and compared with the final state, by the rules
//! of the history test (`crate::history::check`).
//!
//! Unlike the actors of that test, these repeat a call answered with "try again" until it succeeds,
//! and make no call that should be refused. So every other answer is an error.

mod accounts;
mod audit;
mod calls;
mod submitter;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_api::credentials::Credentials;
use tokio::task::JoinSet;

use crate::history::record::{Event, Stamp};
use crate::server::Server;
pub use accounts::{Accounts, Kind};
pub use audit::Audit;

/// Time from the end of a fault to the first success, usually one or two seconds.
const RECOVERED_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub submitters: u64,
    pub workers: u64,
    pub backlog: i64,
    /// The servers' `--claim-timeout`: after it, a claim whose answer was lost is claimable again.
    pub claim_term: Duration,
    /// Time without a claim after which remaining work counts as stranded.
    pub stranded_after: Duration,
}

#[derive(Debug)]
pub struct Accountant {
    accounts: Arc<Accounts>,
    load: Load,
    submitters: JoinSet<()>,
    workers: JoinSet<()>,
    hired: u64,
}

/// Time from a fault to the first success of each kind of call.
#[derive(Debug, Clone, Copy)]
pub struct Recovery {
    pub create: Duration,
    pub claim: Duration,
    pub report: Duration,
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [create, claim, report] = [self.create, self.claim, self.report].map(|time| time.as_secs_f64());
        write!(f, "create {create:.1} s, claim {claim:.1} s, report {report:.1} s")
    }
}

impl Accountant {
    #[must_use]
    pub fn start(root: &Credentials, servers: &[Server], queues: &[&str], load: Load) -> Self {
        let root_urls = servers.iter().map(|server| server.root_url().to_owned()).collect();
        let queues = queues.iter().map(|&queue| queue.to_owned()).collect();
        let accounts = Arc::new(Accounts::new(root.clone(), root_urls, queues));
        let mut accountant = Self { accounts, load, submitters: JoinSet::new(), workers: JoinSet::new(), hired: 0 };
        accountant.resume();
        accountant
    }

    #[must_use]
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Stops all actors. Workers first finish their reports.
    pub async fn pause(&mut self) {
        self.accounts.submitting.stop();
        self.accounts.working.stop();
        join(&mut self.submitters).await;
        join(&mut self.workers).await;
    }

    pub fn resume(&mut self) {
        self.accounts.submitting.go();
        self.accounts.working.go();
        for _ in 0..self.load.submitters {
            self.hired += 1;
            self.submitters.spawn(submitter::submit(Arc::clone(&self.accounts), self.hired, self.load.backlog));
        }
        for _ in 0..self.load.workers {
            self.hired += 1;
            self.workers.spawn(worker::work(Arc::clone(&self.accounts), self.hired));
        }
    }

    pub async fn until_done(&self, tasks: usize) {
        let since = self.accounts.stamp();
        for kind in [Kind::Create, Kind::Report] {
            self.until(kind, since, tasks).await;
        }
    }

    async fn until(&self, kind: Kind, since: Stamp, times: usize) {
        let deadline = Instant::now() + RECOVERED_WITHIN;
        while self.accounts.successes_since(kind, since) < times {
            assert!(Instant::now() < deadline, "not {times} times {kind:?} within {RECOVERED_WITHIN:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until each kind of call has begun and succeeded since the fault, and returns the
    /// times.
    pub async fn recovered(&self, fault: Stamp) -> Recovery {
        let deadline = Instant::now() + RECOVERED_WITHIN;
        let mut times = [Duration::ZERO; 3];
        for (kind, time) in [Kind::Create, Kind::Claim, Kind::Report].into_iter().zip(&mut times) {
            *time = loop {
                if let Some(done) = self.accounts.first_success_since(kind, fault) {
                    break Duration::from_micros(done - fault);
                }
                assert!(Instant::now() < deadline, "no {kind:?} within {RECOVERED_WITHIN:?}");
                tokio::time::sleep(LOOK_EVERY).await;
            };
        }
        let [create, claim, report] = times;
        Recovery { create, claim, report }
    }

    /// Notes that the database lost the end of its log: calls answered since `since` may be undone.
    pub fn note_loss(&self, since: Stamp) {
        self.accounts.write(since, Event::TailLost);
    }

    pub async fn finish(mut self) -> Audit {
        self.accounts.submitting.stop();
        join(&mut self.submitters).await;
        let stranded = self.drain().await;
        self.accounts.working.stop();
        join(&mut self.workers).await;
        let drained = audit::take_snapshot(&self.accounts).await;
        Audit::of(&self.accounts, drained, &stranded, self.load.claim_term)
    }

    /// Waits until no run is pending or claimed, or until nothing was claimed for so long that the
    /// rest counts as stranded. Returns the remaining runs of each queue.
    async fn drain(&self) -> HashMap<String, u64> {
        let mut seen = Instant::now();
        let mut left_before = HashMap::new();
        loop {
            let counts = audit::read_counts(&self.accounts).await;
            let queues = self.accounts.queues.iter().cloned();
            let left = queues.zip(&counts).map(|(queue, counts)| (queue, counts.pending_tasks + counts.claimed_tasks));
            let left: HashMap<String, u64> = left.filter(|(_, left)| *left > 0).collect();
            if left.is_empty() {
                return left;
            }
            if left != left_before {
                seen = Instant::now();
                left_before = left.clone();
            }
            // A claim whose answer was lost expires first.
            if seen.elapsed() > self.load.claim_term + self.load.stranded_after {
                return left;
            }
            tokio::time::sleep(10 * LOOK_EVERY).await;
        }
    }
}

async fn join(actors: &mut JoinSet<()>) {
    while let Some(ended) = actors.join_next().await {
        ended.expect("an actor does its work without failing");
    }
}
