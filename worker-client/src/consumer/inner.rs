//! State shared by the tasks of a consumer. Each part has its own writer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tenure_api::dates::Timestamp;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::given::{Given, GivenRuns};
use super::handler::Run;
use super::jobs::Jobs;
use super::membership::Membership;
use super::outbox::Outbox;
use super::settings::Settings;

pub(super) struct Inner {
    pub settings: Settings,
    pub handler: Arc<dyn Run>,
    pub orders: Orders,
    /// Written by claims, by the session and by jobs.
    pub jobs: Jobs,
    /// Written by jobs.
    pub outbox: Outbox,
    /// Written by the session.
    pub membership: watch::Sender<Membership>,
    /// Runs to claim by name. Written by the session, and by claims without an answer.
    pub given: GivenRuns,
    /// Runs per worker of the queue. Written by the balance pass.
    pub workers: Mutex<Option<Vec<usize>>>,
    /// Written once, at the start.
    pub started: OnceLock<Started>,
}

/// Requests of operators, of the handle and of the consumer's end.
#[derive(Default)]
pub(super) struct Orders {
    pub frozen: watch::Sender<bool>,
    pub balance: Notify,
    pub shutdown: CancellationToken,
    /// All jobs have ended.
    pub closing: CancellationToken,
}

pub(super) struct Started {
    pub at: Timestamp,
    pub debug_address: Option<SocketAddr>,
}

impl Orders {
    pub(super) fn freeze(&self, frozen: bool) {
        self.frozen.send_if_modified(|now| std::mem::replace(now, frozen) != frozen);
    }

    pub(super) fn takes_none(&self) -> bool {
        self.shutdown.is_cancelled() || *self.frozen.borrow()
    }
}

impl Inner {
    pub(super) fn new(settings: Settings, handler: Arc<dyn Run>) -> Self {
        let membership = if settings.session.is_some() { Membership::Waiting } else { Membership::Alone };
        Self {
            handler,
            orders: Orders::default(),
            jobs: Jobs::new(&settings.client, settings.capacity),
            outbox: Outbox::new(settings.has_source),
            membership: watch::Sender::new(membership),
            given: GivenRuns::default(),
            workers: Mutex::default(),
            started: OnceLock::new(),
            settings,
        }
    }

    /// Skips runs under way, whose claim would be the same one again.
    pub(super) fn take_given(&self) -> Option<Given> {
        loop {
            let given = self.given.take()?;
            if self.jobs.find(given.offer.task_id, given.offer.run_id).is_none() {
                return Some(given);
            }
        }
    }

    /// True if a run claimed under `claimed` may be started.
    pub(super) fn may_start(&self, claimed: Membership) -> bool {
        !self.orders.takes_none() && *self.membership.borrow() == claimed
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::balancer::Offer;
    use super::super::builder::ConsumerBuilder;
    use super::super::{Consumer, Job, Stop};
    use crate::Client;

    pub(in crate::consumer) fn builder() -> ConsumerBuilder {
        let client = Client::builder().root_url("http://127.0.0.1:1").build().unwrap();
        let builder = Consumer::builder(client, "acme/mail".parse().unwrap()).name("eu", "mail-1");
        builder.handler(|_job: Job, _stop: Stop| async {})
    }

    #[test]
    fn run_under_way_is_not_taken_again() {
        let inner = builder().build().unwrap().inner;
        let offer = |run: &str| {
            let task_id = "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap();
            Offer { task_id, run_id: run.parse().unwrap() }
        };
        inner.jobs.enter((offer("0").task_id, offer("0").run_id));
        for run in ["0", "1"] {
            inner.given.assign(offer(run), None);
        }
        assert_eq!(inner.take_given().map(|given| given.offer), Some(offer("1")));
        inner.given.assign(offer("2"), None);
        inner.given.forget();
        assert_eq!(inner.take_given(), None);
    }
}
