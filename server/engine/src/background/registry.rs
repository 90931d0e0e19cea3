//! The table of passes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::{self, AdmissionPass};
use super::bulk_jobs::{self, BulkJobsPass};
use super::counters::CountersPass;
use super::dead_letters::DeadLettersPass;
use super::enqueued::EnqueuedPass;
use super::expiry::ExpiryPass;
use super::groups::GroupsPass;
use super::low_water_marks::LowWaterMarksPass;
use super::partitions::PartitionsPass;
use super::problems::ProblemsPass;
use super::refile::RefilePass;
use super::replication::ReplicationPass;
use super::schedules::SchedulesPass;
use super::subscriptions::SubscriptionsPass;
use super::workers::{self, WorkerCountsPass};
use super::{
    PassReport, accept, artifacts, audit, blobs, claims, clocks, deadlines, dependencies, enqueued, events, facts,
    failures, holds, idempotency, idle_queues, live_logs, messages, pauses, purge_cache, quarantines, registrations,
    removals, servers, sessions, slow, statistics, task_commands, vitals,
};
use crate::authority::Authority;
use crate::engine::Engine;
use crate::events::deliveries::Deliveries;
use tenure_store::connector::Connector;
use tenure_store::{deadlines as deadlines_store, holds as holds_store, messages as messages_store};

/// How long [`Passes::run_all_due`] waits for locked rows.
const HELD_WAIT: Duration = Duration::from_secs(3);
const HELD_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// When work may be due.
    Due,
    /// When work may be due and worker sessions exist.
    Sessions,
    /// Tasks were resolved or wait for others; with a minimum interval, and a longer one after a
    /// run that settled nothing.
    Dependencies {
        least: Duration,
        quiet: Duration,
    },
    /// Tasks were resolved; with a minimum interval.
    Groups(Duration),
    /// A run waits for admission or an admitted run ended; with a minimum interval.
    Admission(Duration),
    /// At an interval, and when a fact changes.
    Facts(Duration),
    Every(Duration),
    /// At an interval, or at once after a full slice.
    InSlices(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// The request returns once nothing is due.
    Waits,
    /// Own pace: the pass depends on no stored time.
    GoesOn,
}

type Running<'a> = Pin<Box<dyn Future<Output = Result<PassReport, sqlx::Error>> + Send + 'a>>;

pub struct Pass {
    /// Name in logs, metrics and documents.
    pub name: &'static str,
    pub pace: Pace,
    pub advance: Advance,
    run: for<'a> fn(&'a Passes) -> Running<'a>,
}

impl Pass {
    pub async fn run(&self, passes: &Passes) -> Result<PassReport, sqlx::Error> {
        (self.run)(passes).await
    }
}

/// Passes with state, or with parts beside the engine, are fields.
pub struct Passes {
    pub engine: Arc<Engine>,
    pub counters: CountersPass,
    pub dead_letters: DeadLettersPass,
    pub worker_counts: WorkerCountsPass,
    pub low_water_marks: LowWaterMarksPass,
    /// Also run at startup.
    pub replication: ReplicationPass,
    admission: AdmissionPass,
    bulk_jobs: BulkJobsPass,
    enqueued: EnqueuedPass,
    expiry: ExpiryPass,
    groups: GroupsPass,
    partitions: PartitionsPass,
    pub problems: ProblemsPass,
    refile: RefilePass,
    schedules: SchedulesPass,
    subscriptions: SubscriptionsPass,
}

impl Passes {
    #[must_use]
    pub fn new(
        engine: &Arc<Engine>,
        connector: &Connector,
        authority: &Arc<dyn Authority>,
        deliveries: &Deliveries,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            counters: CountersPass::default(),
            dead_letters: DeadLettersPass::default(),
            worker_counts: WorkerCountsPass::default(),
            low_water_marks: LowWaterMarksPass::new(connector),
            replication: ReplicationPass::default(),
            admission: AdmissionPass::default(),
            bulk_jobs: BulkJobsPass::new(authority),
            enqueued: EnqueuedPass::new(engine, Arc::clone(authority)),
            expiry: ExpiryPass::new(engine),
            groups: GroupsPass::new(engine),
            partitions: PartitionsPass::default(),
            problems: ProblemsPass::new(deliveries.hold()),
            refile: RefilePass::default(),
            schedules: SchedulesPass::new(authority),
            subscriptions: SubscriptionsPass::new(deliveries),
        })
    }

    /// Runs the passes with [`Advance::Waits`] until nothing is due, except rows that stay locked.
    pub async fn run_all_due(&self) -> Result<(), sqlx::Error> {
        let mut progress = Instant::now();
        loop {
            let (mut found, mut done) = (false, false);
            for pass in PASSES.iter().filter(|pass| pass.advance == Advance::Waits) {
                let report = pass.run(self).await?;
                found |= report.found + report.lost_race > 0;
                done |= report.done > 0;
            }
            // Passes skip locked rows, and do not know whether the other transaction has committed.
            if !found && !self.is_anything_held().await? {
                return Ok(());
            }
            if done {
                progress = Instant::now();
            } else if progress.elapsed() > HELD_WAIT {
                return Ok(());
            } else {
                tokio::time::sleep(HELD_PAUSE).await;
            }
        }
    }

    /// True if skipped rows are due.
    async fn is_anything_held(&self) -> Result<bool, sqlx::Error> {
        let mut conn = self.engine.background_pool.acquire().await?;
        Ok(deadlines_store::is_due(&mut conn).await?
            || holds_store::is_due(&mut conn).await?
            || messages_store::is_due(&mut conn).await?)
    }
}

const HOUSEKEEPING: Pace = Pace::Every(Duration::from_millis(500));
const PURGING: Pace = Pace::InSlices(Duration::from_secs(5));
/// Delays a dependent that ticks leave to the pass, for larger batches under load.
const DEPENDENCIES: Pace = Pace::Dependencies { least: Duration::from_millis(20), quiet: Duration::from_millis(100) };
const ADMISSION: Pace = Pace::Admission(Duration::from_millis(5));
/// No request waits for these events.
const GROUPS: Pace = Pace::Groups(Duration::from_millis(250));
/// No request waits for lists of failures.
const FAILURES: Pace = Pace::Every(Duration::from_secs(1));
const FORGETTING: Pace = Pace::InSlices(Duration::from_secs(60));
/// How long a task that was enqueued from SQL may wait for its creation.
const ENQUEUED: Pace = Pace::InSlices(Duration::from_millis(100));
const REFILING: Pace = Pace::InSlices(Duration::from_millis(500));
/// How long a job may wait for its first slice.
const JOBS: Pace = Pace::InSlices(Duration::from_millis(500));
/// Slower if the search takes long.
const REPAIRING: Pace = Pace::Every(Duration::from_secs(2));
const LIFTING: Pace = Pace::InSlices(Duration::from_secs(2));
const COMPARING: Pace = Pace::Every(Duration::from_secs(60));
/// How long the deliveries of a stopped server may wait.
const DELIVERIES: Pace = Pace::Every(Duration::from_secs(1));
/// Checks a few settings and the connected standbys, or reads a bounded number of rows.
const WATCHING: Pace = Pace::Every(Duration::from_secs(5));
/// A killed server loses its observations and numbers since the last write.
const WRITING: Pace = Pace::Every(Duration::from_secs(10));
const FOLDING: Pace = Pace::InSlices(Duration::from_secs(60));
const COUNTING: Pace = Pace::Every(Duration::from_secs(30));
/// Length of a generation of cached queues.
const IDLE_QUEUES: Pace = Pace::Every(Duration::from_secs(60));
/// Maximum delay of a change on servers without notification.
const FACTS: Pace = Pace::Facts(Duration::from_millis(500));

/// Columns: name, pace, effect of the manual clock, function, and its field of [`Passes`] if any.
macro_rules! passes {
    ($($name:literal, $pace:expr, $advance:ident, $function:path $(, $state:ident)?;)+) => {
        &[$(Pass {
            name: $name,
            pace: $pace,
            advance: Advance::$advance,
            run: |passes| Box::pin($function($(&passes.$state,)? &passes.engine)),
        }),+]
    };
}

/// Moving the manual clock runs those with [`Advance::Waits`] in this order.
pub static PASSES: &[Pass] = passes! {
    "claims", Pace::Due, Waits, claims::pass;
    "slow", Pace::Due, Waits, slow::pass;
    "sessions", Pace::Sessions, Waits, sessions::pass;
    "deadlines", Pace::Due, Waits, deadlines::pass;
    // After the deadlines, so that no run of an overdue task becomes ready.
    "holds", Pace::Due, Waits, holds::pass;
    "enqueued", ENQUEUED, Waits, EnqueuedPass::run, enqueued;
    "accept", Pace::Due, Waits, accept::pass;
    "messages", Pace::Due, Waits, messages::pass;
    "schedules", Pace::Due, Waits, SchedulesPass::run, schedules;
    // After the passes that end claims and delays.
    "admission", ADMISSION, Waits, AdmissionPass::run, admission;
    "dependencies", DEPENDENCIES, Waits, dependencies::pass;
    "groups", GROUPS, Waits, GroupsPass::run, groups;
    // After the passes that give events their positions.
    "failures", FAILURES, Waits, failures::pass;
    "live_logs", PURGING, Waits, live_logs::pass;
    // Before the expiry: tasks are retained until their artifacts are gone.
    "artifacts", PURGING, Waits, artifacts::pass;
    "expiry", PURGING, Waits, ExpiryPass::run, expiry;
    "refused", PURGING, Waits, enqueued::purge;
    "idempotency", PURGING, Waits, idempotency::pass;
    "audit", PURGING, Waits, audit::pass;
    "task_commands", PURGING, Waits, task_commands::pass;
    "purge_cache", PURGING, Waits, purge_cache::pass;
    "workers", PURGING, Waits, workers::purge;
    "removals", Pace::Due, Waits, removals::pass;
    "registrations", PURGING, Waits, registrations::pass;
    "blobs", PURGING, Waits, blobs::pass;
    "pauses", Pace::Due, Waits, pauses::pass;
    "quarantines", LIFTING, Waits, quarantines::pass;
    "idle_keys", PURGING, Waits, admission::purge;
    "ended_sessions", PURGING, Waits, sessions::purge;
    "servers", PURGING, Waits, servers::pass;
    "fold_statistics", FOLDING, Waits, statistics::fold;
    "old_failures", FORGETTING, Waits, failures::purge;
    "old_jobs", FORGETTING, Waits, bulk_jobs::purge;
    "bulk_jobs", JOBS, GoesOn, BulkJobsPass::run, bulk_jobs;
    "refile", REFILING, GoesOn, RefilePass::run, refile;
    "purge_events", PURGING, GoesOn, events::purge;
    "counters", HOUSEKEEPING, GoesOn, CountersPass::run, counters;
    "sequence", HOUSEKEEPING, GoesOn, events::sequence;
    "low_water_marks", HOUSEKEEPING, GoesOn, LowWaterMarksPass::run, low_water_marks;
    "stranded_runs", REPAIRING, GoesOn, LowWaterMarksPass::repair, low_water_marks;
    "clock", COMPARING, GoesOn, clocks::pass;
    "problems", WATCHING, GoesOn, ProblemsPass::run, problems;
    "replication", WATCHING, GoesOn, ReplicationPass::run, replication;
    "event_log", WATCHING, GoesOn, vitals::log;
    "pool", WATCHING, GoesOn, vitals::pool;
    "database_size", COMPARING, GoesOn, vitals::size;
    "subscriptions", DELIVERIES, GoesOn, SubscriptionsPass::run, subscriptions;
    "subscription_ages", WATCHING, GoesOn, SubscriptionsPass::check_ages, subscriptions;
    "partitions", WATCHING, GoesOn, PartitionsPass::run, partitions;
    "workers_seen", WRITING, GoesOn, workers::write_down;
    "statistics", WRITING, GoesOn, statistics::write_down;
    "facts", FACTS, GoesOn, facts::pass;
    "dead_letters", COUNTING, GoesOn, DeadLettersPass::run, dead_letters;
    "worker_counts", COUNTING, GoesOn, WorkerCountsPass::run, worker_counts;
    "idle_queues", IDLE_QUEUES, GoesOn, idle_queues::pass;
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pass_names_are_unique() {
        let names: BTreeSet<&str> = PASSES.iter().map(|pass| pass.name).collect();
        assert_eq!(names.len(), PASSES.len());
    }

    /// The table in the document must list the same passes and paces.
    #[test]
    fn documented_table_lists_every_pass_and_pace() {
        let document = include_str!("../../../../docs/metrics.md");
        let (_, section) = document.split_once("## Background passes").expect("the section");
        let rows = section.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
        let cell = |row: &str, n: usize| row.split('|').nth(n).unwrap_or_default().trim().to_owned();
        let documented: BTreeSet<(String, String)> = rows.map(|row| (cell(row, 1), cell(row, 2))).collect();
        let registered: BTreeSet<(String, String)> =
            PASSES.iter().map(|pass| (format!("`{}`", pass.name), in_words(pass.pace))).collect();
        assert_eq!(documented, registered);
    }

    fn in_words(pace: Pace) -> String {
        let time = |duration: Duration| match duration.as_millis() {
            millis if millis % 1000 == 0 => format!("{} s", millis / 1000),
            millis => format!("{millis} ms"),
        };
        match pace {
            Pace::Due => "when due".to_owned(),
            Pace::Sessions => "when due, if there are sessions".to_owned(),
            Pace::Dependencies { least, quiet } => {
                format!("when notified, at most every {}, or {} while it settles nothing", time(least), time(quiet))
            }
            Pace::Groups(least) | Pace::Admission(least) => {
                format!("when notified, at most every {}", time(least))
            }
            Pace::Facts(interval) => format!("when notified, at least every {}", time(interval)),
            Pace::Every(interval) | Pace::InSlices(interval) => format!("every {}", time(interval)),
        }
    }
}
