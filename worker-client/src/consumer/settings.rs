//! Settings of a consumer.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::ids::TaskQueueId;

use super::balancer::Balancer;
use super::outcome::OnPanic;
use crate::{Client, WorkerName};

/// Maximum concurrent jobs without a source, and maximum capacity of a session.
pub(super) const CAPACITY_MAX: usize = 1000;
/// How long a consumer that shuts down waits for the answer to a report.
pub(super) const LAST_REPORT: Duration = Duration::from_secs(10);

pub(super) struct Settings {
    pub client: Client,
    pub queue: TaskQueueId,
    pub name: WorkerName,
    pub capacity: usize,
    /// Time to live of its sessions; none without sessions.
    pub session: Option<Duration>,
    /// How long a call for work waits.
    pub wait: Duration,
    /// Time between a stop for lack of renewal and the end of the lease or session.
    pub grace: Duration,
    /// Share of a lease after which it is renewed.
    pub heartbeat: f64,
    pub on_panic: OnPanic,
    /// If set, runs are claimed by name.
    pub balancer: Option<Arc<dyn Balancer>>,
    pub balance_every: Duration,
    /// Interval of polls for commands without a session.
    pub commands_every: Duration,
    /// Port of the status page on the loopback address.
    pub debug_port: Option<u16>,
    /// Claims come from the program's own source.
    pub has_source: bool,
}
