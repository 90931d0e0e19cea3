//! Registration of workers: names, scopes of their credentials, and lifetimes.
//!
//! A worker pool is a task queue without further properties. A worker is *running* from its
//! creation by a provisioner until its removal. Removal is final: the name cannot be reused before
//! the row is purged. Credentials are valid only while the worker is running.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::ids::{TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::worker_manager::STATIC;

/// Lifetime of a worker's credentials. The worker reregisters before they expire.
pub const CREDENTIALS_HOLD: Duration = Duration::from_secs(96 * 3600);
/// How long an exchanged secret may be reused, because the worker may not have received the next
/// one. Ends once the next one is used.
pub const EXCHANGE_REPEATABLE: Duration = Duration::from_secs(300);
pub const CONFIG_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkerName {
    pub pool: TaskQueueId,
    pub group: WorkerGroup,
    pub id: WorkerId,
}

/// `pool/group/id`, as in scopes.
impl std::fmt::Display for WorkerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.pool, self.group, self.id)
    }
}

impl WorkerName {
    pub fn client_id(&self) -> String {
        format!("worker/{STATIC}/{self}")
    }

    pub fn of_client(client_id: &str) -> Option<Self> {
        let name = client_id.strip_prefix("worker/")?.strip_prefix(STATIC)?.strip_prefix('/')?;
        let (rest, id) = name.rsplit_once('/')?;
        let (pool, group) = rest.rsplit_once('/')?;
        let pool = TaskQueueId::read_full(pool).ok()?;
        Some(Self { pool, group: group.parse().ok()?, id: id.parse().ok()? })
    }

    /// Scope of shouldWorkerTerminate, the only request that a removed or expired worker may make.
    pub fn asking_scope(&self) -> String {
        format!("worker-manager:should-worker-terminate:{self}")
    }

    /// Scopes of the worker's credentials. They equal Taskcluster's, so that its roles for workers
    /// apply here, and also allow claims from the worker's queue.
    pub fn scopes(&self) -> Vec<String> {
        let Self { pool, group, id } = self;
        vec![
            format!("assume:worker-type:{pool}"),
            format!("assume:worker-pool:{pool}"),
            format!("assume:worker-id:{group}/{id}"),
            format!("queue:worker-id:{group}/{id}"),
            format!("secrets:get:worker-type:{pool}"),
            format!("secrets:get:worker-pool:{pool}"),
            format!("queue:claim-work:{pool}"),
            format!("worker-manager:remove-worker:{self}"),
            format!("worker-manager:reregister-worker:{self}"),
            self.asking_scope(),
        ]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Running,
    Removed,
    Expired,
}

impl Standing {
    pub fn at(now: DateTime<Utc>, removed: Option<DateTime<Utc>>, expires: DateTime<Utc>) -> Self {
        match removed {
            Some(_) => Self::Removed,
            None if expires <= now => Self::Expired,
            None => Self::Running,
        }
    }

    /// Returns the answer and its reason. `None` means an unknown worker.
    pub fn should_terminate(known: Option<Self>) -> (bool, &'static str) {
        match known {
            Some(Self::Running) => (false, "the worker is wanted"),
            Some(Self::Removed) => (true, "the worker was removed"),
            Some(Self::Expired) => (true, "the worker has expired"),
            None => (true, "the worker is not known"),
        }
    }
}

/// Returns the start of new credentials. Credentials that start before the worker's creation are
/// refused, because they may belong to an earlier worker of the same name. The maximum keeps new
/// ones valid if the clock was set back since the creation.
pub fn credentials_start(now: DateTime<Utc>, worker_created: DateTime<Utc>) -> DateTime<Utc> {
    now.max(worker_created)
}

/// Returns the end of new credentials, which do not outlive the worker.
pub fn credentials_end(now: DateTime<Utc>, worker_expires: DateTime<Utc>) -> DateTime<Utc> {
    let hold = TimeDelta::from_std(CREDENTIALS_HOLD).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(hold).map_or(worker_expires, |end| end.min(worker_expires))
}

/// The secret that a worker presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Next,
    /// The previous secret, with the time of its exchange.
    Used(Option<DateTime<Utc>>),
    Neither,
}

/// True if the presented secret may be exchanged for the next one. A used secret is valid for
/// [`EXCHANGE_REPEATABLE`], before or after its exchange: the clock may have been set back since.
#[must_use]
pub fn may_exchange(shown: Shown, now: DateTime<Utc>) -> bool {
    match shown {
        Shown::Next => true,
        Shown::Used(at) => {
            at.is_some_and(|at| (now - at).abs().to_std().is_ok_and(|apart| apart < EXCHANGE_REPEATABLE))
        }
        Shown::Neither => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> WorkerName {
        WorkerName { pool: "acme/linux".parse().unwrap(), group: "rack-1".parse().unwrap(), id: "w1".parse().unwrap() }
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn client_id_round_trips_to_worker() {
        assert_eq!(name().client_id(), "worker/static/acme/linux/rack-1/w1");
        assert_eq!(WorkerName::of_client(&name().client_id()), Some(name()));
        for other in [
            "worker/static/acme/linux/rack-1",
            "worker/static/acme/linux/rack-1/w1/x",
            "worker/other/acme/linux/rack-1/w1",
            "worker/static/acme/Linux/rack-1/w1",
            "worker/static//acme/linux/rack-1/w1",
            "static/acme/linux/rack-1/w1",
            "",
        ] {
            assert_eq!(WorkerName::of_client(other), None, "{other}");
        }
    }

    #[test]
    fn credentials_suffice_to_claim_as_this_worker_only() {
        let scopes = name().scopes();
        for scope in ["queue:claim-work:acme/linux", "queue:worker-id:rack-1/w1"] {
            assert!(scopes.iter().any(|held| held == scope), "{scope}");
        }
        assert!(scopes.iter().all(|scope| !scope.ends_with('*') && !scope.contains("create-worker")), "{scopes:?}");
    }

    #[test]
    fn removed_expired_or_unknown_worker_should_terminate() {
        assert_eq!(Standing::at(at(9), None, at(10)), Standing::Running);
        assert_eq!(Standing::at(at(10), None, at(10)), Standing::Expired);
        assert_eq!(Standing::at(at(9), Some(at(1)), at(10)), Standing::Removed);
        assert_eq!(Standing::at(at(11), Some(at(1)), at(10)), Standing::Removed);
        let terminate = |known| Standing::should_terminate(known).0;
        assert!(!terminate(Some(Standing::Running)));
        assert!([None, Some(Standing::Removed), Some(Standing::Expired)].into_iter().all(terminate));
    }

    #[test]
    fn credentials_last_four_days_within_worker_lifetime() {
        assert_eq!(credentials_end(at(0), at(96 * 3600 + 1)), at(96 * 3600));
        assert_eq!(credentials_end(at(0), at(60)), at(60));
        assert_eq!(credentials_end(DateTime::<Utc>::MAX_UTC, at(60)), at(60));
    }

    #[test]
    fn used_secret_is_valid_for_limited_time() {
        assert!(may_exchange(Shown::Next, at(0)));
        assert!(may_exchange(Shown::Used(Some(at(0))), at(299)));
        assert!(!may_exchange(Shown::Used(Some(at(0))), at(300)));
        // The clock was set back since the secret was used.
        assert!(may_exchange(Shown::Used(Some(at(299))), at(0)));
        assert!(!may_exchange(Shown::Used(Some(at(300))), at(0)));
        assert!(!may_exchange(Shown::Used(None), at(0)));
        assert!(!may_exchange(Shown::Neither, at(0)));
    }
}
