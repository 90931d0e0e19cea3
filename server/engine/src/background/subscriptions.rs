//! Subscriptions: starts deliveries that no server has, and suspends subscriptions that hold back
//! events for too long. Any number of servers may run the passes: a lease has one owner, and a
//! suspension names the position that it was decided for. The messages themselves are sent by
//! [`crate::events::deliveries`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use tenure_api::states::{SubscriptionState, SuspendedBy};
use tenure_domain::delivery::{Lag, Subscription, gives_up};
use tenure_store::subscriptions::{self, Age};

use super::PassReport;
use crate::engine::Engine;
use crate::events::deliveries::{Deliveries, suspend};

/// How often in a row a subscription must be over its limit. If no server ran for longer than the
/// limit, the first server has this many passes to deliver the remaining events.
const OVER_LIMIT_PASSES: u32 = 3;

pub struct SubscriptionsPass {
    deliveries: Deliveries,
    /// Number of passes in a row that found these subscriptions over their limit.
    over_limit: Mutex<BTreeMap<String, u32>>,
    /// Names with gauges.
    shown: Mutex<BTreeSet<String>>,
}

impl SubscriptionsPass {
    pub fn new(deliveries: &Deliveries) -> Self {
        Self { deliveries: deliveries.clone(), over_limit: Mutex::default(), shown: Mutex::default() }
    }

    /// Starts deliveries that no server has.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        if engine.facts.subscriptions.get().is_empty() {
            return Ok(PassReport::default());
        }
        let started = self.deliveries.start_free().await?;
        Ok(PassReport { found: started, done: started, ..PassReport::default() })
    }

    /// Measures how far subscriptions are behind, and suspends subscriptions over their limit.
    pub async fn check_ages(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        if engine.facts.subscriptions.get().is_empty() {
            self.show(&[]);
            return Ok(PassReport::default());
        }
        let ages = {
            let mut conn = engine.background_pool.acquire().await?;
            subscriptions::list_ages(&mut conn).await?
        };
        let mut report = PassReport::default();
        for subscription in self.note_over_limit(&ages) {
            report.found += 1;
            let (name, position) = (&subscription.name, subscription.position);
            if suspend(&engine.background_pool, name, position, SuspendedBy::Age).await? {
                report.done += 1;
            } else {
                report.lost_race += 1;
            }
        }
        let subscriptions: Vec<&Subscription> = ages.iter().map(|age| &age.subscription).collect();
        self.show(&subscriptions);
        Ok(report)
    }

    /// Counts subscriptions over their limit, and returns the ones to suspend.
    fn note_over_limit<'a>(&self, ages: &'a [Age]) -> Vec<&'a Subscription> {
        let hold = self.deliveries.hold();
        let mut counts = self.over_limit.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *counts);
        let mut due = Vec::new();
        for age in ages {
            let subscription = &age.subscription;
            let is_over = gives_up(age.counting(), subscription.definition.give_up_after, hold);
            if subscription.suspended.is_some() || !is_over {
                continue;
            }
            let passes = before.get(&subscription.name).map_or(1, |passes| passes.saturating_add(1));
            counts.insert(subscription.name.clone(), passes);
            if passes >= OVER_LIMIT_PASSES {
                due.push(subscription);
            }
        }
        due
    }

    /// Publishes the gauges. A deleted subscription keeps zeros.
    fn show(&self, subscriptions: &[&Subscription]) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let found: BTreeSet<String> = subscriptions.iter().map(|subscription| subscription.name.clone()).collect();
        for gone in shown.difference(&found) {
            set_lag(gone, Lag::default());
        }
        for subscription in subscriptions {
            set_lag(&subscription.name, subscription.lag);
        }
        *shown = found;
        let suspended =
            subscriptions.iter().filter(|subscription| subscription.state() == SubscriptionState::Suspended);
        metrics::gauge!("tenure_subscriptions_suspended").set(suspended.count() as f64);
    }
}

fn set_lag(name: &str, lag: Lag) {
    metrics::gauge!("tenure_subscription_lag_seconds", "name" => name.to_owned()).set(lag.age.as_seconds_f64());
    metrics::gauge!("tenure_subscription_lag_events", "name" => name.to_owned()).set(lag.events as f64);
}

/// Makes the gauge visible before the first subscription.
pub fn begin_at_zero() {
    metrics::gauge!("tenure_subscriptions_suspended").set(0.0);
}
