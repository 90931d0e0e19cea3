//! Runs each pass again and again: when it is rung for, and at a fallback in case nobody rings.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{
    Context, PassReport, SLICE, artifacts, blobs, claims, clocks, counters, deadlines, dependencies, events, expiry,
    groups, idempotency, marks, messages, purge_cache, registrations, removals, workers,
};
use crate::batch::marks::MarkTable;

/// How soon what is due is acted on while anything is unresolved.
const AWAKE: Duration = Duration::from_millis(200);
/// How often passes look while nothing is.
const RESTING: Duration = Duration::from_secs(5);
/// How often counts are folded and events sequenced.
const HOUSEKEEPING: Duration = Duration::from_millis(500);
/// How often old events, and what has expired, are looked for.
const FORGETTING: Duration = Duration::from_secs(5);
/// The least time from one start of the dependency pass to the next: a dependent waits that much longer at most, and
/// under load a pass has more to do at once.
const DEPENDENCIES_EVERY: Duration = Duration::from_millis(20);
/// The same for the groups pass, whose events nobody waits for.
const GROUPS_EVERY: Duration = Duration::from_millis(250);
/// How often the clock of this machine is compared with the database's.
const COMPARING: Duration = Duration::from_secs(60);
/// How often it is written down which workers were seen: a server that is killed loses so much of it.
const WRITING: Duration = Duration::from_secs(10);
/// How often workers are counted, for the metrics.
const COUNTING: Duration = Duration::from_secs(30);
/// How often changes of quarantines are looked for: so much later they hold on other servers.
const QUARANTINES: Duration = Duration::from_millis(500);
/// A pass that takes longer is given up and tried again: its database has gone silent. Longer than the statement timeout.
const PASS_MAX: Duration = Duration::from_secs(60);
/// A pass that is full runs again at once, one that fails after this.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// When a pass runs.
#[derive(Clone, Copy)]
enum Pace {
    /// When something may be due.
    Due,
    /// When tasks were resolved or wait for others, but not more often than this.
    Dependencies(Duration),
    /// When tasks were resolved, but not more often than this.
    Groups(Duration),
    /// At a steady pace.
    Every(Duration),
    /// At a steady pace, and again at once while there is more than a slice to do.
    InSlices(Duration),
}

/// Starts all passes; they end after the pass in hand when they are stopped.
pub fn start(context: &Context, table: &MarkTable, tasks: &TaskTracker, stop: &CancellationToken) {
    let drive = |name, pace| Driver { name, pace, context: context.clone(), stop: stop.clone() };
    tasks.spawn(drive("claims", Pace::Due).run(async |context: &Context| claims::pass(context).await));
    tasks.spawn(drive("deadlines", Pace::Due).run(async |context: &Context| deadlines::pass(context).await));
    tasks.spawn(drive("messages", Pace::Due).run(async |context: &Context| messages::pass(context).await));
    tasks.spawn(drive("removals", Pace::Due).run(async |context: &Context| removals::pass(context).await));
    let pace = Pace::Dependencies(DEPENDENCIES_EVERY);
    tasks.spawn(drive("dependencies", pace).run(async |context: &Context| dependencies::pass(context).await));
    let pace = Pace::Groups(GROUPS_EVERY);
    tasks.spawn(drive("groups", pace).run(async |context: &Context| groups::pass(context).await));
    let steady = Pace::Every(HOUSEKEEPING);
    tasks.spawn(drive("counters", steady).run(async |context: &Context| counters::pass(context).await));
    tasks.spawn(drive("sequence", steady).run(async |context: &Context| events::sequence(context).await));
    let table = table.clone();
    tasks.spawn(drive("marks", steady).run(async move |context: &Context| marks::pass(context, &table).await));
    tasks.spawn(drive("clock", Pace::Every(COMPARING)).run(async |context: &Context| clocks::pass(context).await));
    let forgetting = Pace::InSlices(FORGETTING);
    tasks.spawn(drive("forget", forgetting).run(async |context: &Context| events::forget(context).await));
    tasks.spawn(drive("artifacts", forgetting).run(async |context: &Context| artifacts::pass(context).await));
    tasks.spawn(drive("expiry", forgetting).run(async |context: &Context| expiry::pass(context).await));
    tasks.spawn(drive("registrations", forgetting).run(async |context: &Context| registrations::pass(context).await));
    tasks.spawn(drive("blobs", forgetting).run(async |context: &Context| blobs::pass(context).await));
    tasks.spawn(drive("idempotency", forgetting).run(async |context: &Context| idempotency::pass(context).await));
    tasks.spawn(drive("purge_cache", forgetting).run(async |context: &Context| purge_cache::pass(context).await));
    let (writing, quarantines) = (Pace::Every(WRITING), Pace::Every(QUARANTINES));
    tasks.spawn(drive("workers_seen", writing).run(async |context: &Context| workers::write_down(context).await));
    tasks.spawn(drive("quarantines", quarantines).run(async |context: &Context| workers::learn(context).await));
    let known = Mutex::default();
    let counting = drive("worker_counts", Pace::Every(COUNTING));
    tasks.spawn(counting.run(async move |context: &Context| workers::count(context, &known).await));
    tasks.spawn(drive("workers", forgetting).run(async |context: &Context| workers::forget(context).await));
}

struct Driver {
    name: &'static str,
    pace: Pace,
    context: Context,
    stop: CancellationToken,
}

impl Driver {
    async fn run<P>(self, pass: P)
    where
        P: AsyncFn(&Context) -> Result<PassReport, sqlx::Error>,
    {
        let failures = metrics::counter!("tenure_pass_failures_total", "pass" => self.name);
        // So that the first failure is seen as an increment.
        failures.absolute(0);
        let mut failing = false;
        while !self.stop.is_cancelled() {
            let started = Instant::now();
            let result = tokio::time::timeout(PASS_MAX, pass(&self.context)).await;
            let pause = match result.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
                Ok(report) => {
                    if failing {
                        tracing::info!(pass = self.name, "a pass that had failed works again");
                    }
                    failing = false;
                    self.publish(report, started);
                    self.pause_after(report)
                }
                Err(error) => {
                    // Said once, not at every try while the database is away.
                    if !failing {
                        tracing::error!(pass = self.name, error = %error, "a pass failed and will be tried again");
                    }
                    failing = true;
                    failures.increment(1);
                    AFTER_FAILURE
                }
            };
            self.wait(pause).await;
        }
    }

    fn pause_after(&self, report: PassReport) -> Duration {
        match self.pace {
            Pace::Due if report.done > 0 => Duration::ZERO,
            Pace::Dependencies(least) | Pace::Groups(least) if report.done + report.lost_race > 0 => least,
            Pace::InSlices(_) if report.done as i64 >= SLICE => Duration::ZERO,
            Pace::Every(interval) | Pace::InSlices(interval) => interval,
            Pace::Due | Pace::Dependencies(_) | Pace::Groups(_) if self.context.bells.awake() => AWAKE,
            Pace::Due | Pace::Dependencies(_) | Pace::Groups(_) => RESTING,
        }
    }

    async fn wait(&self, pause: Duration) {
        let rung = async {
            match self.pace {
                Pace::Due => self.context.bells.passes().await,
                Pace::Dependencies(least) => {
                    tokio::time::sleep(least).await;
                    self.context.bells.dependencies().await;
                }
                Pace::Groups(least) => {
                    tokio::time::sleep(least).await;
                    self.context.bells.groups().await;
                }
                Pace::Every(_) | Pace::InSlices(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = rung => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn publish(&self, report: PassReport, started: Instant) {
        let count = |what: &'static str, number: usize| {
            metrics::counter!("tenure_pass_total", "pass" => self.name, "what" => what).increment(number as u64);
        };
        count("found", report.found);
        count("done", report.done);
        count("retried", report.retried);
        count("exhausted", report.exhausted);
        count("lost_race", report.lost_race);
        metrics::histogram!("tenure_pass_seconds", "pass" => self.name).record(started.elapsed());
        if report.retried + report.exhausted > 0 {
            tracing::info!(
                pass = self.name,
                found = report.found,
                retried = report.retried,
                exhausted = report.exhausted,
                lost_race = report.lost_race,
                "a pass ended runs"
            );
        }
    }
}
