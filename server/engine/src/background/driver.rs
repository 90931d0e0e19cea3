//! Runs each pass on notification, and at an interval in case a notification is lost.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::registry::{PASSES, Pace, Pass, Passes};
use super::{AFTER_FAILURE, PassReport, SLICE, election, other_servers};
use crate::engine::Lifetime;
use crate::essential;
use crate::reports::Run;
use crate::traces;
use tenure_store::connector::Connector;
use tenure_store::outage;

/// Poll interval while anything is unresolved.
const ACTIVE: Duration = Duration::from_millis(200);
/// Poll interval while nothing is unresolved.
const IDLE: Duration = Duration::from_secs(5);
const FACTS_PAUSE: Duration = Duration::from_millis(20);
/// A longer pass has a dead connection; it is cancelled and retried. Longer than the statement
/// timeout.
const PASS_MAX: Duration = Duration::from_secs(60);

/// Also starts the exchange of notifications with other servers.
pub fn run_passes(passes: &Arc<Passes>, connector: &Connector, lifetime: &Lifetime) {
    let Lifetime { tasks, stop, .. } = lifetime;
    let engine = &passes.engine;
    let (pool, notifiers, me) = (&engine.background_pool, &engine.notifiers, engine.schedulers.member().id);
    start(passes, tasks, stop);
    essential::spawn(tasks, election::run(Arc::clone(engine), connector.clone(), stop.clone()));
    essential::spawn(tasks, other_servers::listen(connector.clone(), notifiers.clone(), me, stop.clone()));
    essential::spawn(tasks, other_servers::notify(pool.clone(), notifiers.clone(), me, stop.clone()));
}

/// After `stop`, each pass ends with its current run.
pub fn start(passes: &Arc<Passes>, tasks: &TaskTracker, stop: &CancellationToken) {
    for pass in PASSES {
        let driver = Driver { pass, passes: Arc::clone(passes), stop: stop.clone() };
        essential::spawn(tasks, driver.run());
    }
}

struct Driver {
    pass: &'static Pass,
    passes: Arc<Passes>,
    stop: CancellationToken,
}

impl Driver {
    async fn run(self) {
        let (name, engine) = (self.pass.name, &self.passes.engine);
        let failures = metrics::counter!("tenure_pass_failures_total", "pass" => name);
        // Makes the first failure visible as an increment.
        failures.absolute(0);
        self.count(PassReport::default());
        let mut failing = false;
        while !self.stop.is_cancelled() {
            let started = Instant::now();
            let result = run_once(self.pass.run(&self.passes)).await;
            // Before the pause is chosen, so that new activity ends it.
            let (active, begun) = (engine.notifiers.passes(), engine.sessions.activity.begun());
            let pause = match result {
                Ok(report) => {
                    if report.failing == 0 {
                        self.passes.problems.pass_ran(name);
                    }
                    if failing && report.failing == 0 {
                        tracing::info!(pass = name, "background pass recovered");
                        failing = false;
                    }
                    self.publish(report, started);
                    traces::record_pass(name, started, report.found, report.done);
                    let any_session = engine.sessions.activity.any();
                    pause_after(self.pass.pace, report, engine.notifiers.is_active(), any_session)
                }
                Err(error) => {
                    self.passes.problems.pass_failed(name);
                    engine.reports.pass_failed(name, Instant::now());
                    // Logged once per outage.
                    if !failing && !outage::is_known(&error) {
                        tracing::error!(pass = name, error = %error, "background pass failed; it will be retried");
                        failing = true;
                    }
                    failures.increment(1);
                    AFTER_FAILURE
                }
            };
            self.wait(pause, active, begun).await;
        }
    }

    /// New activity also ends the pause of a notified pass: other servers' work sends it no
    /// notification, and those servers may not process it.
    async fn wait(&self, pause: Duration, active: Notified<'_>, begun: Notified<'_>) {
        let notifiers = &self.passes.engine.notifiers;
        let notified = async {
            match self.pass.pace {
                Pace::Due => active.await,
                Pace::Sessions => tokio::select! {
                    () = active => {}
                    () = begun => {}
                },
                Pace::Dependencies { least, quiet } => {
                    until_either(pause.clamp(least, quiet), active, notifiers.dependencies()).await;
                }
                Pace::Admission(least) => until_either(least, active, notifiers.admission()).await,
                Pace::Groups(least) => until_either(least, active, notifiers.groups()).await,
                Pace::Facts(_) => {
                    tokio::time::sleep(FACTS_PAUSE).await;
                    notifiers.facts().await;
                }
                Pace::Every(_) | Pace::InSlices(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = notified => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn publish(&self, report: PassReport, started: Instant) {
        self.count(report);
        let name = self.pass.name;
        let run = Run { ended: Instant::now(), took: started.elapsed(), found: report.found, done: report.done };
        self.passes.engine.reports.pass_ran(name, run, report.failing == 0);
        metrics::histogram!("tenure_pass_seconds", "pass" => name).record(started.elapsed());
        if report.retried + report.exhausted > 0 {
            tracing::info!(
                pass = name,
                found = report.found,
                retried = report.retried,
                exhausted = report.exhausted,
                lost_race = report.lost_race,
                "a background pass ended runs"
            );
        }
    }

    fn count(&self, report: PassReport) {
        let PassReport { found, done, retried, exhausted, lost_race, next_in: _, failing: _ } = report;
        let numbers = [
            ("found", found),
            ("done", done),
            ("retried", retried),
            ("exhausted", exhausted),
            ("lost_race", lost_race),
        ];
        for (what, number) in numbers {
            metrics::counter!("tenure_pass_total", "pass" => self.pass.name, "what" => what).increment(number as u64);
        }
    }
}

/// Converts a panic to an error: otherwise the pass would never run again on a server that looks
/// healthy.
async fn run_once(running: impl Future<Output = Result<PassReport, sqlx::Error>>) -> Result<PassReport, sqlx::Error> {
    match tokio::time::timeout(PASS_MAX, AssertUnwindSafe(running).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(sqlx::Error::Protocol("the pass panicked".to_owned())),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

fn pause_after(pace: Pace, report: PassReport, is_active: bool, any_session: bool) -> Duration {
    let usual = if is_active { ACTIVE } else { IDLE };
    match pace {
        Pace::Due | Pace::Sessions if report.done > 0 => Duration::ZERO,
        Pace::InSlices(_) if report.done as i64 >= SLICE => Duration::ZERO,
        Pace::InSlices(interval) => sooner(interval, report.next_in, Duration::ZERO),
        Pace::Every(interval) | Pace::Facts(interval) => interval,
        Pace::Dependencies { least, .. } if report.next_in.is_some() || report.lost_race > 0 => least,
        Pace::Dependencies { quiet, .. } if report.done > 0 => quiet,
        Pace::Groups(least) if report.done + report.lost_race > 0 => least,
        Pace::Admission(least) => {
            let pause = if report.done + report.lost_race > 0 { least } else { usual };
            sooner(pause, report.next_in, least)
        }
        Pace::Sessions if any_session => ACTIVE,
        Pace::Sessions => IDLE,
        Pace::Due | Pace::Dependencies { .. } | Pace::Groups(_) => usual,
    }
}

async fn until_either(least: Duration, active: Notified<'_>, notified: Notified<'_>) {
    tokio::time::sleep(least).await;
    tokio::select! {
        () = active => {}
        () = notified => {}
    }
}

/// Returns the shorter of `pause` and `next_in`, but never less than `least`.
fn sooner(pause: Duration, next_in: Option<Duration>, least: Duration) -> Duration {
    next_in.map_or(pause, |next_in| next_in.max(least).min(pause))
}

#[cfg(test)]
mod tests {
    use tenure_store::testing::TestDatabase;

    use super::*;
    use crate::testing::Queue;

    async fn panics() -> Result<PassReport, sqlx::Error> {
        panic!("on purpose")
    }

    #[tokio::test]
    async fn panicking_pass_fails_and_can_run_again() {
        assert!(matches!(run_once(panics()).await, Err(sqlx::Error::Protocol(_))));
        let report = PassReport { done: 1, ..PassReport::default() };
        assert_eq!(run_once(async { Ok(report) }).await.unwrap(), report);
    }

    /// A scheduler gets no notification of runs created at other servers.
    #[tokio::test]
    async fn activity_ends_idle_pause_of_notified_pass() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        for name in ["claims", "admission", "dependencies", "groups"] {
            let pass = PASSES.iter().find(|pass| pass.name == name).expect("the pass");
            let driver = Driver { pass, passes: Arc::clone(&queue.passes), stop: CancellationToken::new() };
            let notifiers = &queue.engine.notifiers;
            let waiting = driver.wait(IDLE * 12, notifiers.passes(), queue.engine.sessions.activity.begun());
            notifiers.set_idle(notifiers.notifications());
            notifiers.stay_active();
            assert!(tokio::time::timeout(IDLE, waiting).await.is_ok(), "{name}");
        }
        queue.stop().await;
        database.finish().await;
    }

    #[test]
    fn pause_ends_when_more_is_due_but_not_before_minimum() {
        let [least, ms] = [5, 1].map(Duration::from_millis);
        for (pause, next_in, expected) in [
            (ACTIVE, None, ACTIVE),
            (ACTIVE, Some(40 * ms), 40 * ms),
            (ACTIVE, Some(IDLE), ACTIVE),
            (ACTIVE, Some(Duration::from_nanos(1)), least),
            (least, Some(Duration::from_nanos(1)), least),
        ] {
            assert_eq!(sooner(pause, next_in, least), expected, "{pause:?} {next_in:?}");
        }
    }

    #[test]
    fn sliced_pass_runs_again_until_done() {
        let pause = |report| pause_after(Pace::InSlices(IDLE), report, true, false);
        let cut_short = PassReport { found: 200, done: 20, next_in: Some(Duration::ZERO), ..PassReport::default() };
        assert_eq!(pause(cut_short), Duration::ZERO);
        let whole = PassReport { found: 200, done: 200, ..PassReport::default() };
        assert_eq!(pause(whole), Duration::ZERO);
        assert_eq!(pause(PassReport { found: 20, done: 20, ..PassReport::default() }), IDLE);
    }

    #[test]
    fn dependencies_pause_longer_while_nothing_is_settled() {
        let [least, quiet] = [20, 100].map(Duration::from_millis);
        let pause = |report| pause_after(Pace::Dependencies { least, quiet }, report, true, false);
        let read = PassReport { found: 3, done: 3, ..PassReport::default() };
        assert_eq!(pause(read), quiet);
        assert_eq!(pause(PassReport { next_in: Some(Duration::ZERO), ..read }), least);
        assert_eq!(pause(PassReport { lost_race: 1, ..PassReport::default() }), least);
        assert_eq!(pause(PassReport::default()), ACTIVE);
    }

    #[test]
    fn admission_pauses_until_next_run_may_start() {
        let [least, ms] = [5, 1].map(Duration::from_millis);
        let pause = |report, is_active| pause_after(Pace::Admission(least), report, is_active, false);
        let nothing = PassReport::default();
        let next_in = PassReport { next_in: Some(40 * ms), ..nothing };
        assert_eq!([true, false].map(|is_active| pause(nothing, is_active)), [ACTIVE, IDLE]);
        assert_eq!([true, false].map(|is_active| pause(next_in, is_active)), [40 * ms; 2]);
        assert_eq!(pause(PassReport { done: 1, ..next_in }, true), least);
    }
}
