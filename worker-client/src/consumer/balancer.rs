//! Balancers decide which tasks a consumer takes and which it gives away.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_api::ids::{RunId, TaskId};
use tokio::time::Instant;

use crate::retry::jitter;

/// Tenths of the average that a worker may keep.
const SHARE_TENTHS: usize = 12;
/// A worker with fewer tasks keeps all.
const KEEPS_AT_LEAST: usize = 2;
/// How long a busy worker hides a task.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// Decides which tasks a consumer takes and gives away. Set by [`ConsumerBuilder::balancer`].
///
/// ```
/// use std::time::Duration;
/// use tenure_client::TaskId;
/// use tenure_client::consumer::balancer::{Balancer, CanClaim, Cluster, Offer};
///
/// /// Takes nothing while three tasks run, and gives nothing away.
/// struct AtMostThree;
///
/// impl Balancer for AtMostThree {
///     fn can_claim(&self, _offer: &Offer, cluster: &Cluster) -> CanClaim {
///         if cluster.own.len() < 3 { CanClaim::Yes } else { CanClaim::No(Some(cluster.now + Duration::from_secs(10))) }
///     }
///
///     fn balance(&self, _cluster: &Cluster) -> Vec<TaskId> {
///         Vec::new()
///     }
/// }
/// ```
///
/// [`ConsumerBuilder::balancer`]: super::ConsumerBuilder::balancer
pub trait Balancer: Send + Sync + 'static {
    fn can_claim(&self, offer: &Offer, cluster: &Cluster) -> CanClaim;

    /// Returns own tasks to give away, which are asked to stop. Called at an interval and on
    /// command.
    fn balance(&self, cluster: &Cluster) -> Vec<TaskId>;

    /// Pause before a claim, so that workers with fewer tasks are first.
    fn pause(&self, cluster: &Cluster) -> Duration {
        let _ = cluster;
        Duration::ZERO
    }
}

/// A run that may be claimed.
///
/// ```
/// use tenure_client::consumer::balancer::Offer;
///
/// fn is_first_run(offer: &Offer) -> bool {
///     offer.run_id.number() == 0
/// }
///
/// let offer = Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse()?, run_id: "2".parse()? };
/// assert!(!is_first_run(&offer));
/// # Ok::<(), tenure_client::InvalidId>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offer {
    pub task_id: TaskId,
    pub run_id: RunId,
}

/// The state on which a balancer decides.
///
/// ```
/// use tenure_client::consumer::balancer::Cluster;
///
/// fn average(cluster: &Cluster) -> Option<usize> {
///     let workers = cluster.workers.as_ref()?;
///     workers.iter().sum::<usize>().checked_div(workers.len())
/// }
///
/// let cluster = Cluster { now: tokio::time::Instant::now(), own: Vec::new(), workers: Some(vec![3, 5]) };
/// assert_eq!(average(&cluster), Some(4));
/// ```
#[derive(Debug, Clone)]
pub struct Cluster {
    pub now: Instant,
    /// Oldest first.
    pub own: Vec<OwnTask>,
    /// Runs per worker with a session in the queue, this one included. None if the server did not
    /// answer.
    pub workers: Option<Vec<usize>>,
}

/// A task of this consumer.
///
/// ```
/// use tenure_client::consumer::balancer::{Cluster, OwnTask};
///
/// fn oldest(cluster: &Cluster) -> Option<&OwnTask> {
///     cluster.own.iter().find(|task| !task.stopping)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnTask {
    pub task_id: TaskId,
    /// True if its handler was asked to stop or has ended.
    pub stopping: bool,
}

/// Decision about a run.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::consumer::balancer::{CanClaim, Cluster};
///
/// fn one_at_a_time(cluster: &Cluster) -> CanClaim {
///     let later = cluster.now + Duration::from_secs(1);
///     if cluster.own.is_empty() { CanClaim::Yes } else { CanClaim::No(Some(later)) }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanClaim {
    Yes,
    /// Not before this time, but other workers may. Without a time: not before the next list. If
    /// the queue assigns its runs, no other worker may claim it; the balancer is asked again,
    /// without a time after five seconds.
    No(Option<Instant>),
}

impl Cluster {
    fn movable(&self) -> Vec<TaskId> {
        self.own.iter().filter(|own| !own.stopping).map(|own| own.task_id).collect()
    }
}

/// Gives away tasks beyond 1.2 times the average, and then claims none for as many seconds as it
/// gave tasks. Needs sessions to know of other workers.
///
/// ```
/// # use std::time::Duration;
/// # use tenure_client::consumer::ConsumerBuilder;
/// use tenure_client::consumer::balancer::Fair;
///
/// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
/// builder.balancer(Fair::default()).balance_every(Duration::from_secs(300))
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Fair {
    refuses_until: Mutex<Option<Instant>>,
}

fn excess(own: usize, total: usize, workers: usize) -> usize {
    if own < KEEPS_AT_LEAST || workers == 0 {
        return 0;
    }
    own.saturating_sub((total / workers * SHARE_TENTHS).div_ceil(10))
}

impl Balancer for Fair {
    fn can_claim(&self, _offer: &Offer, cluster: &Cluster) -> CanClaim {
        let until = *self.refuses_until.lock().unwrap_or_else(PoisonError::into_inner);
        match until {
            Some(until) if cluster.now < until => CanClaim::No(Some(until)),
            _ => CanClaim::Yes,
        }
    }

    fn balance(&self, cluster: &Cluster) -> Vec<TaskId> {
        let mut released = Vec::new();
        if let Some(workers) = &cluster.workers {
            let mut movable = cluster.movable();
            let excess = excess(movable.len(), workers.iter().sum(), workers.len());
            while released.len() < excess {
                released.push(movable.swap_remove(any_of(movable.len())));
            }
        }
        let seconds = u64::try_from(released.len()).unwrap_or(u64::MAX);
        let until = (seconds > 0).then(|| cluster.now + Duration::from_secs(seconds));
        *self.refuses_until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        released
    }

    fn pause(&self, cluster: &Cluster) -> Duration {
        Duration::from_millis(u64::try_from(cluster.own.len() / 4).unwrap_or_default())
    }
}

fn any_of(count: usize) -> usize {
    // The jitter may be 1.
    ((jitter() * count as f64) as usize).min(count.saturating_sub(1))
}

/// Pauses longer with more tasks. Gives none away.
///
/// ```
/// # use std::time::Duration;
/// # use tenure_client::consumer::ConsumerBuilder;
/// use tenure_client::consumer::balancer::Sleep;
///
/// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
/// builder.balancer(Sleep { per_task: Duration::from_millis(50) })
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Sleep {
    pub per_task: Duration,
}

impl Default for Sleep {
    fn default() -> Self {
        Self { per_task: Duration::from_millis(30) }
    }
}

impl Balancer for Sleep {
    fn can_claim(&self, _offer: &Offer, _cluster: &Cluster) -> CanClaim {
        CanClaim::Yes
    }

    fn balance(&self, _cluster: &Cluster) -> Vec<TaskId> {
        Vec::new()
    }

    fn pause(&self, cluster: &Cluster) -> Duration {
        self.per_task.saturating_mul(u32::try_from(cluster.own.len()).unwrap_or(u32::MAX))
    }
}

/// Claims tasks while the usage of a resource is below a limit. Above another limit, gives away the
/// oldest task in each pass.
///
/// ```
/// # use tenure_client::consumer::ConsumerBuilder;
/// use tenure_client::consumer::balancer::{BadLimits, Resource};
///
/// # fn used_memory() -> f64 { 40.0 }
/// # fn example(builder: ConsumerBuilder) -> Result<ConsumerBuilder, BadLimits> {
/// let memory = Resource::new(70, 90, used_memory)?;
/// # Ok(
/// builder.balancer(memory)
/// # ) }
/// ```
pub struct Resource<Used> {
    claim_limit: u8,
    release_limit: u8,
    used: Used,
}

/// Refusal of [`Resource::new`].
///
/// ```
/// use tenure_client::consumer::balancer::{BadLimits, Resource};
///
/// assert_eq!(Resource::new(90, 70, || 0.0).err(), Some(BadLimits));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the limits must be from 1 to 100 %, and claiming must end before releasing begins")]
pub struct BadLimits;

impl<Used: Fn() -> f64 + Send + Sync + 'static> Resource<Used> {
    /// Limits and `used` are in per cent.
    ///
    /// # Errors
    /// A limit is not from 1 to 100, or the limit for claims is not the lower one.
    ///
    /// ```
    /// # use tenure_client::consumer::balancer::Resource;
    /// // Claims below 70 %, and gives tasks away above 90 %.
    /// assert!(Resource::new(70, 90, || 40.0).is_ok());
    /// ```
    pub fn new(claim_limit: u8, release_limit: u8, used: Used) -> Result<Self, BadLimits> {
        let fit = (1..=100).contains(&claim_limit) && release_limit <= 100 && claim_limit < release_limit;
        if fit { Ok(Self { claim_limit, release_limit, used }) } else { Err(BadLimits) }
    }
}

impl<Used: Fn() -> f64 + Send + Sync + 'static> Balancer for Resource<Used> {
    fn can_claim(&self, _offer: &Offer, cluster: &Cluster) -> CanClaim {
        if (self.used)() < f64::from(self.claim_limit) {
            CanClaim::Yes
        } else {
            CanClaim::No(Some(cluster.now + BUSY_FOR))
        }
    }

    fn balance(&self, cluster: &Cluster) -> Vec<TaskId> {
        let too_much = (self.used)() > f64::from(self.release_limit);
        cluster.movable().into_iter().take(usize::from(too_much)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(number: u128) -> TaskId {
        let bits = number | 0x4000_0000_0000_0000_0000 | 0x8000_0000_0000_0000;
        TaskId::from_uuid(uuid::Uuid::from_u128(bits)).unwrap()
    }

    fn cluster(now: Instant, own: &[TaskId], workers: Option<Vec<usize>>) -> Cluster {
        let own = own.iter().map(|&task_id| OwnTask { task_id, stopping: false }).collect();
        Cluster { now, own, workers }
    }

    fn tasks(count: u128) -> Vec<TaskId> {
        (0..count).map(task).collect()
    }

    fn any_offer() -> Offer {
        Offer { task_id: task(0), run_id: "0".parse().unwrap() }
    }

    #[test]
    fn m10_fair_releases_excess_and_refuses_as_many_seconds() {
        for (own, total, workers, released) in
            [(30, 30, 3, 18), (0, 30, 3, 0), (1, 1, 5, 0), (2, 2, 5, 2), (12, 30, 3, 0), (13, 30, 3, 1), (5, 5, 0, 0)]
        {
            assert_eq!(excess(own, total, workers), released, "{own} of {total} in {workers}");
        }
        let (fair, now) = (Fair::default(), Instant::now());
        let own = tasks(30);
        let released = fair.balance(&cluster(now, &own, Some(vec![30, 0, 0])));
        let distinct: std::collections::HashSet<_> = released.iter().collect();
        assert_eq!((released.len(), distinct.len()), (18, 18));
        assert!(released.iter().all(|task| own.contains(task)));
        let until = now + Duration::from_secs(18);
        assert_eq!(fair.can_claim(&any_offer(), &cluster(now, &own, None)), CanClaim::No(Some(until)));
        assert_eq!(fair.can_claim(&any_offer(), &cluster(until, &own, None)), CanClaim::Yes);
        // A pass with nothing to give away ends the refusal.
        assert!(fair.balance(&cluster(now, &own[..12], Some(vec![12, 9, 9]))).is_empty());
        assert_eq!(fair.can_claim(&any_offer(), &cluster(now, &own, None)), CanClaim::Yes);
        // Without a list nothing is given away; stopping tasks do not count.
        assert!(fair.balance(&cluster(now, &own, None)).is_empty());
        let mut stopping = cluster(now, &own, Some(vec![30, 0, 0]));
        stopping.own.iter_mut().take(18).for_each(|own| own.stopping = true);
        assert!(fair.balance(&stopping).is_empty());
    }

    #[test]
    fn m10_fair_converges_and_never_oscillates() {
        for workers in 1..=12_usize {
            for round in 0..20_usize {
                let mut held: Vec<usize> = (0..workers).map(|_| any_of(60)).collect();
                held[round % workers] += 100;
                let total: usize = held.iter().sum();
                let most = (total / workers * SHARE_TENTHS).div_ceil(10);
                for turn in 0..3 * workers {
                    let own = turn % workers;
                    let gone = excess(held[own], total, workers);
                    held[own] -= gone;
                    for _ in 0..gone {
                        // The releasing worker refuses; the least loaded of the others claims
                        // first.
                        let least = (0..workers).filter(|&other| other != own).min_by_key(|&other| held[other]);
                        held[least.unwrap_or(own)] += 1;
                    }
                }
                let greatest = held.iter().max().copied().unwrap();
                assert!(greatest <= most.max(1) || workers == 1, "{greatest} > {most} of {held:?}");
                let moved: usize = held.iter().map(|&own| excess(own, total, workers)).sum();
                assert!(moved == 0 || total / workers == 0 || workers == 1, "{held:?} is not at rest");
            }
        }
    }

    #[test]
    fn m11_sleep_pauses_30_ms_per_task() {
        let cluster = cluster(Instant::now(), &tasks(7), Some(vec![7, 0]));
        let sleep = Sleep::default();
        assert_eq!(sleep.pause(&cluster), Duration::from_millis(210));
        assert_eq!(sleep.can_claim(&any_offer(), &cluster), CanClaim::Yes);
        assert!(sleep.balance(&cluster).is_empty());
    }

    #[test]
    fn m11_resource_claims_and_releases_by_limits() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU8, Ordering};
        for (claim, release) in [(0, 50), (50, 50), (60, 50), (1, 101)] {
            assert!(Resource::new(claim, release, || 0.0).is_err(), "{claim} {release}");
        }
        let used = Arc::new(AtomicU8::new(0));
        let reading = Arc::clone(&used);
        let resource = Resource::new(70, 90, move || f64::from(reading.load(Ordering::SeqCst))).unwrap();
        let now = Instant::now();
        let own = tasks(3);
        let mut cluster = cluster(now, &own, None);
        for (percent, claims, releases) in
            [(0, true, false), (69, true, false), (70, false, false), (90, false, false), (91, false, true)]
        {
            used.store(percent, Ordering::SeqCst);
            assert_eq!(resource.can_claim(&any_offer(), &cluster) == CanClaim::Yes, claims, "{percent}");
            let expected: &[TaskId] = if releases { &own[..1] } else { &[] };
            assert_eq!(resource.balance(&cluster), expected, "{percent}");
        }
        cluster.own[0].stopping = true;
        assert_eq!(resource.balance(&cluster), [own[1]], "the oldest that does not stop yet");
    }
}
