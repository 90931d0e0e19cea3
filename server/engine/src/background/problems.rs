//! Reads the facts about queues, servers, subscriptions and the database, and publishes what needs
//! somebody ([`tenure_domain::problems`]).

mod facts;
mod oldest;
mod seen;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tenure_api::problems::{Problem, ProblemKind};

use self::oldest::OldestRuns;
use self::seen::FirstSeen;
use super::PassReport;
use crate::engine::Engine;
use tenure_domain::problems::find;

/// The store may be a paid service, so it is checked rarely while it works.
const STORE_CHECKED_EVERY: Duration = Duration::from_secs(60);
/// A store that does not answer must not delay the other facts.
const STORE_WITHIN: Duration = Duration::from_secs(2);

/// Returns the free part of a disk, from 0 to 1; none if it cannot be read.
pub type FreeDisk = Box<dyn Fn() -> Option<f64> + Send + Sync>;

/// Facts about this machine that the engine cannot read itself.
pub struct Machine {
    /// For the disk of an embedded database.
    pub free_disk: Option<FreeDisk>,
}

#[derive(Debug, Default)]
struct Store {
    checked: Option<Instant>,
    fails: bool,
}

#[derive(Default)]
pub struct ProblemsPass {
    /// Set once by a server that serves requests. Without it, the artifact store is not checked.
    machine: OnceLock<Machine>,
    seen: Mutex<FirstSeen>,
    /// Passes that fail, with the time of the first failure in a row.
    failing: Mutex<BTreeMap<&'static str, Instant>>,
    store: Mutex<Store>,
    pub oldest: OldestRuns,
    /// `--subscription-hold`.
    hold: Duration,
}

impl ProblemsPass {
    #[must_use]
    pub fn new(hold: Duration) -> Self {
        Self { hold, ..Self::default() }
    }

    pub fn watch(&self, machine: Machine) {
        drop(self.machine.set(machine));
    }

    pub(super) fn pass_failed(&self, pass: &'static str) {
        lock(&self.failing).entry(pass).or_insert_with(Instant::now);
    }

    pub(super) fn pass_ran(&self, pass: &'static str) {
        lock(&self.failing).remove(pass);
    }

    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let since = engine.problems.epoch();
        self.check_store(engine).await;
        match self.read(engine).await {
            Ok(facts) => {
                let problems = find(&facts);
                publish(&problems);
                let found = problems.len();
                engine.problems.replace(since, problems, facts.now);
                Ok(PassReport { found, ..PassReport::default() })
            }
            Err(error) => {
                if engine.problems.get().is_none() {
                    gauge(ProblemKind::Database).set(1.0);
                }
                Err(error)
            }
        }
    }

    async fn check_store(&self, engine: &Engine) {
        let is_due = {
            let store = lock(&self.store);
            store.fails || store.checked.is_none_or(|checked| checked.elapsed() >= STORE_CHECKED_EVERY)
        };
        if self.machine.get().is_none() || !is_due {
            return;
        }
        let checked = tokio::time::timeout(STORE_WITHIN, engine.blobs.check()).await;
        let mut store = lock(&self.store);
        let fails = !matches!(checked, Ok(Ok(())));
        if fails && !store.fails {
            let error = match checked {
                Ok(Err(error)) => error.to_string(),
                Ok(Ok(())) | Err(_) => "it did not answer".to_owned(),
            };
            tracing::warn!(error = %error, "the artifact store cannot be used");
        } else if store.fails && !fails {
            tracing::info!("the artifact store can be used again");
        }
        engine.reports.store_checked(!fails);
        *store = Store { checked: Some(Instant::now()), fails };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gauge(kind: ProblemKind) -> metrics::Gauge {
    metrics::gauge!("tenure_problems", "kind" => kind.as_str())
}

fn publish(problems: &[Problem]) {
    for kind in ProblemKind::ALL {
        gauge(kind).set(problems.iter().filter(|problem| problem.kind == kind).count() as f64);
    }
}

/// All kinds exist from the start.
pub fn begin_at_zero() {
    publish(&[]);
}
