//! Every pass, once: its name in logs and metrics, when it runs, whether moving the manual clock waits for it, and what
//! it runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::{self, AdmissionPass};
use super::counters::CountersPass;
use super::expiry::ExpiryPass;
use super::groups::GroupsPass;
use super::low_water_marks::LowWaterMarksPass;
use super::refile::RefilePass;
use super::replication::ReplicationPass;
use super::workers::{self, WorkerCountsPass};
use super::{
    PassReport, accept, artifacts, blobs, claims, clocks, deadlines, dependencies, events, facts, holds, idempotency,
    idle_queues, live_logs, messages, pauses, purge_cache, quarantines, registrations, removals, servers, sessions,
    slow, task_commands,
};
use crate::engine::Engine;
use tenure_store::connector::Connector;
use tenure_store::{deadlines as deadlines_store, holds as holds_store, messages as messages_store};

/// How long [`Passes::run_all_due`] waits for rows that another transaction holds.
const HELD_WAIT: Duration = Duration::from_secs(3);
/// Its pause between two tries.
const HELD_PAUSE: Duration = Duration::from_millis(5);

/// When a pass runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// When something may be due.
    Due,
    /// When something may be due, if there are sessions of workers.
    Sessions,
    /// When tasks were resolved or wait for others, but not more often than this.
    Dependencies(Duration),
    /// When tasks were resolved, but not more often than this.
    Groups(Duration),
    /// When a run waits for admission or an admitted one has ended, but not more often than this.
    Admission(Duration),
    /// At a steady pace, and when a fact was changed.
    Facts(Duration),
    /// At a steady pace.
    Every(Duration),
    /// At a steady pace, and again at once while there is more than a slice to do.
    InSlices(Duration),
}

/// Whether moving the manual clock waits for a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// It answers only when the pass finds nothing due.
    Waits,
    /// The pass runs at its own pace: it depends on no stored time.
    GoesOn,
}

/// A running pass.
type Running<'a> = Pin<Box<dyn Future<Output = Result<PassReport, sqlx::Error>> + Send + 'a>>;

pub struct Pass {
    /// Its name in logs, metrics and documents.
    pub name: &'static str,
    /// When it runs.
    pub pace: Pace,
    /// Whether moving the manual clock waits for it.
    pub advance: Advance,
    run: for<'a> fn(&'a Passes) -> Running<'a>,
}

impl Pass {
    pub async fn run(&self, passes: &Passes) -> Result<PassReport, sqlx::Error> {
        (self.run)(passes).await
    }
}

/// The passes of one engine. Those with state are fields.
pub struct Passes {
    /// What they work on.
    pub engine: Arc<Engine>,
    /// Has the gauges of runs.
    pub counters: CountersPass,
    /// Has the gauges of workers.
    pub worker_counts: WorkerCountsPass,
    /// Has the session that watches the database.
    pub low_water_marks: LowWaterMarksPass,
    /// Also run at the start.
    pub replication: ReplicationPass,
    admission: AdmissionPass,
    expiry: ExpiryPass,
    groups: GroupsPass,
    refile: RefilePass,
}

impl Passes {
    /// Makes the passes of an engine, whose database has this connector. None runs yet.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, connector: &Connector) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            counters: CountersPass::default(),
            worker_counts: WorkerCountsPass::default(),
            low_water_marks: LowWaterMarksPass::new(connector),
            replication: ReplicationPass::default(),
            admission: AdmissionPass::default(),
            expiry: ExpiryPass::new(engine),
            groups: GroupsPass::new(engine),
            refile: RefilePass::default(),
        })
    }

    /// Runs every pass that moving the clock waits for, until nothing is due. Rows that another transaction holds for
    /// long are left.
    pub async fn run_all_due(&self) -> Result<(), sqlx::Error> {
        let mut progress = Instant::now();
        loop {
            let (mut found, mut done) = (false, false);
            for pass in PASSES.iter().filter(|pass| pass.advance == Advance::Waits) {
                let report = pass.run(self).await?;
                found |= report.found + report.lost_race > 0;
                done |= report.done > 0;
            }
            // The passes skip rows that another transaction holds, which may be a pass of this very server that is about
            // to commit; and a pass that found another server at work has not seen whether that has finished.
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

    /// True if rows are due that the passes skipped.
    async fn is_anything_held(&self) -> Result<bool, sqlx::Error> {
        let mut conn = self.engine.background_pool.acquire().await?;
        Ok(deadlines_store::is_due(&mut conn).await?
            || holds_store::is_due(&mut conn).await?
            || messages_store::is_due(&mut conn).await?)
    }
}

/// How often counts are folded, events sequenced and low-water marks moved.
const HOUSEKEEPING: Pace = Pace::Every(Duration::from_millis(500));
/// How often expired rows are purged.
const PURGING: Pace = Pace::InSlices(Duration::from_secs(5));
/// The least time from one start of the dependency pass to the next: it delays a dependent by that much at most, and makes
/// larger batches under load.
const DEPENDENCIES: Pace = Pace::Dependencies(Duration::from_millis(20));
/// The same for admission.
const ADMISSION: Pace = Pace::Admission(Duration::from_millis(5));
/// The same for the groups pass, whose events no request waits for.
const GROUPS: Pace = Pace::Groups(Duration::from_millis(250));
/// How often queues are looked for whose policy was changed.
const REFILING: Pace = Pace::InSlices(Duration::from_millis(500));
/// How often runs are looked for that low-water marks hide; less often where looking takes long.
const REPAIRING: Pace = Pace::Every(Duration::from_secs(2));
/// How often quarantines are looked for that have ended.
const LIFTING: Pace = Pace::InSlices(Duration::from_secs(2));
/// How often the clock of this machine is compared with the database's.
const COMPARING: Pace = Pace::Every(Duration::from_secs(60));
/// How often replication is looked at: a few settings, and which standbys are connected.
const WATCHING: Pace = Pace::Every(Duration::from_secs(5));
/// How often the workers that were seen are written to the database: a server that is killed loses what it saw since.
const WRITING: Pace = Pace::Every(Duration::from_secs(10));
/// How often workers are counted, for the metrics.
const COUNTING: Pace = Pace::Every(Duration::from_secs(30));
/// How long a turn of what is remembered of queues in use lasts.
const IDLE_QUEUES: Pace = Pace::Every(Duration::from_secs(60));
/// How often facts are refreshed: changes take effect within this time on servers that were not notified.
const FACTS: Pace = Pace::Facts(Duration::from_millis(500));

/// Lines of the table: name, pace, what the manual clock does, function, and its field of [`Passes`] if it has state.
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

/// Every pass. Moving the manual clock runs those it waits for in this order.
pub static PASSES: &[Pass] = passes! {
    "claims", Pace::Due, Waits, claims::pass;
    "slow", Pace::Due, Waits, slow::pass;
    "sessions", Pace::Sessions, Waits, sessions::pass;
    "deadlines", Pace::Due, Waits, deadlines::pass;
    // After the deadlines, so that no run is ready whose task ends.
    "holds", Pace::Due, Waits, holds::pass;
    "accept", Pace::Due, Waits, accept::pass;
    "messages", Pace::Due, Waits, messages::pass;
    // After what ends claims and delays.
    "admission", ADMISSION, Waits, AdmissionPass::run, admission;
    "dependencies", DEPENDENCIES, Waits, dependencies::pass;
    "groups", GROUPS, Waits, GroupsPass::run, groups;
    "live_logs", PURGING, Waits, live_logs::pass;
    // Tasks are retained until their artifacts are gone.
    "artifacts", PURGING, Waits, artifacts::pass;
    "expiry", PURGING, Waits, ExpiryPass::run, expiry;
    "idempotency", PURGING, Waits, idempotency::pass;
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
    "refile", REFILING, GoesOn, RefilePass::run, refile;
    "purge_events", PURGING, GoesOn, events::purge;
    "counters", HOUSEKEEPING, GoesOn, CountersPass::run, counters;
    "sequence", HOUSEKEEPING, GoesOn, events::sequence;
    "low_water_marks", HOUSEKEEPING, GoesOn, LowWaterMarksPass::run, low_water_marks;
    "stranded_runs", REPAIRING, GoesOn, LowWaterMarksPass::repair, low_water_marks;
    "clock", COMPARING, GoesOn, clocks::pass;
    "replication", WATCHING, GoesOn, ReplicationPass::run, replication;
    "workers_seen", WRITING, GoesOn, workers::write_down;
    "facts", FACTS, GoesOn, facts::pass;
    "worker_counts", COUNTING, GoesOn, WorkerCountsPass::run, worker_counts;
    "idle_queues", IDLE_QUEUES, GoesOn, idle_queues::pass;
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pass_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = PASSES.iter().map(|pass| pass.name).collect();
        assert_eq!(names.len(), PASSES.len());
    }

    /// A pass that is added, removed or changed here must be added, removed or changed in the table.
    #[test]
    fn the_table_for_operators_has_every_pass_at_its_pace() {
        let document = include_str!("../../../../docs/operating.md");
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
            Pace::Dependencies(least) | Pace::Groups(least) | Pace::Admission(least) => {
                format!("when notified, at most every {}", time(least))
            }
            Pace::Facts(interval) => format!("when notified, at least every {}", time(interval)),
            Pace::Every(interval) | Pace::InSlices(interval) => format!("every {}", time(interval)),
        }
    }
}
