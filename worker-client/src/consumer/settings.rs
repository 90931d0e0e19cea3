//! Settings of a consumer.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::ids::TaskQueueId;

use super::balancer::Balancer;
use super::outcome::OnPanic;
use crate::{Client, WorkerName};

/// Limit of a session, and of jobs without a source.
pub(super) const CAPACITY_MAX: usize = 1000;
pub(super) const LAST_REPORT: Duration = Duration::from_secs(10);

pub(super) struct Settings {
    pub client: Client,
    pub queue: TaskQueueId,
    pub name: WorkerName,
    pub capacity: usize,
    /// Time to live; none without sessions.
    pub session: Option<Duration>,
    pub wait: Duration,
    /// Time between a stop for lack of renewal and the end of the lease or session.
    pub grace: Duration,
    /// Share of a lease after which it is renewed.
    pub heartbeat: f64,
    pub on_panic: OnPanic,
    /// If set, runs are claimed by name.
    pub balancer: Option<Arc<dyn Balancer>>,
    pub balance_every: Duration,
    /// Interval of polls without a session.
    pub commands_every: Duration,
    pub debug_port: Option<u16>,
    /// Handlers go on while their results may count late.
    pub keep_late: bool,
    pub has_source: bool,
}
