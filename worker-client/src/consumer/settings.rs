//! The settings of a consumer.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::ids::TaskQueueId;

use super::balancer::Balancer;
use super::outcome::OnPanic;
use crate::{Client, WorkerName};

/// Jobs that a consumer of Tenure's own calls does at the same time, and that a session may state.
pub(super) const CAPACITY_MAX: usize = 1000;
/// How long a consumer that shuts down waits for the answer to a report.
pub(super) const LAST_REPORT: Duration = Duration::from_secs(10);

/// The settings of a consumer.
pub(super) struct Settings {
    pub client: Client,
    pub queue: TaskQueueId,
    pub name: WorkerName,
    pub capacity: usize,
    /// Time to live of its sessions; none if it has no sessions.
    pub session: Option<Duration>,
    /// How long a call for work waits.
    pub wait: Duration,
    /// Between a stop for want of renewals and the end of the lease, or of the session.
    pub grace: Duration,
    /// After this share of a lease it is renewed.
    pub heartbeat: f64,
    pub on_panic: OnPanic,
    /// With one, runs are claimed by name.
    pub balancer: Option<Arc<dyn Balancer>>,
    pub balance_every: Duration,
    /// Interval of polls for commands without a session.
    pub commands_every: Duration,
    /// Where the status is served, on the loopback address.
    pub debug_port: Option<u16>,
    /// Claims come from a source of the program's own.
    pub has_source: bool,
}
