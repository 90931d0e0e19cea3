//! Balance passes, at an interval and on command: the balancer sees how many runs each worker has,
//! and names tasks to give away.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::timeout;

use super::balancer::{Balancer, Cluster, OwnTask};
use super::inner::Inner;
use super::settings::Settings;
use crate::error::chain;
use crate::{QueueWorkers, RetryPolicy, retry};

pub(super) const BALANCE_EVERY: Duration = Duration::from_secs(900);
/// Maximum random delay; spreads workers started together.
const SPREAD: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(inner: &Inner) {
    let Some(balancer) = &inner.settings.balancer else { return std::future::pending().await };
    loop {
        let commanded = tokio::select! {
            () = inner.orders.balance.notified() => true,
            () = tokio::time::sleep(interval(inner.settings.balance_every, retry::jitter())) => false,
        };
        if commanded || !*inner.orders.frozen.borrow() {
            balance(inner, balancer.as_ref()).await;
        }
    }
}

fn interval(every: Duration, jitter: f64) -> Duration {
    every.saturating_add(SPREAD.min(every).mul_f64(jitter))
}

async fn balance(inner: &Inner, balancer: &dyn Balancer) {
    let Settings { client, queue, .. } = &inner.settings;
    let client = client.with_retry_policy(RetryPolicy::never());
    let workers = match timeout(ANSWER_WITHIN, client.list_workers(queue)).await {
        Ok(Ok(QueueWorkers { workers })) => Some(workers),
        Ok(Err(error)) => {
            warning!(error = chain(&error), "the load of the queue's workers could not be read");
            None
        }
        Err(_elapsed) => {
            warning!("the load of the queue's workers could not be read in time");
            None
        }
    };
    let held = |workers: Vec<crate::QueueWorker>| {
        workers.iter().map(|worker| usize::try_from(worker.running).unwrap_or_default()).collect()
    };
    *inner.workers.lock().unwrap_or_else(PoisonError::into_inner) = workers.map(held);
    let released = balancer.balance(&inner.cluster());
    tracing::info!(released = released.len(), "balanced");
    for task_id in released {
        inner.jobs.stop_task(task_id);
    }
}

impl Inner {
    pub(super) fn cluster(&self) -> Cluster {
        let mut jobs = self.jobs.all();
        jobs.sort_by_key(|job| (job.started, job.task_id));
        let own = jobs.iter().map(|job| OwnTask { task_id: job.task_id, stopping: job.is_ending() });
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Cluster { now: tokio::time::Instant::now(), own: own.collect(), workers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m12_balance_runs_every_quarter_hour_with_jitter() {
        let seconds = Duration::from_secs;
        assert_eq!(interval(BALANCE_EVERY, 0.0), seconds(900));
        assert_eq!(interval(BALANCE_EVERY, 0.5), seconds(905));
        assert_eq!(interval(BALANCE_EVERY, 1.0), seconds(910));
        assert_eq!(interval(seconds(2), 1.0), seconds(4), "never more than twice as long");
        assert_eq!(interval(Duration::MAX, 1.0), Duration::MAX);
    }
}
