//! Workers that register: what they are called, what their credentials may do, and when they are let in.
//!
//! A worker pool is a task queue; it has no other properties. A worker is *running* from when a provisioner
//! creates it until it is removed, which is final: its name cannot be used again before its row
//! is purged. Its credentials are valid until then, as long as it is running.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::ids::{TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::worker_manager::STATIC;

/// How long the credentials of a worker hold. It registers again before that.
pub const CREDENTIALS_HOLD: Duration = Duration::from_secs(96 * 3600);
/// For how long a secret that was exchanged may be used once more: the worker may not have got the answer with the next
/// one. It may only as long as that next one was not used.
pub const EXCHANGE_REPEATABLE: Duration = Duration::from_secs(300);
/// How large a worker's configuration may be, in bytes.
pub const CONFIG_BYTES_MAX: usize = 64 << 10;

/// What a worker is known by.
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
    /// The client that the worker is with the credentials it gets.
    pub fn client_id(&self) -> String {
        format!("worker/{STATIC}/{self}")
    }

    /// The worker of such a client id.
    pub fn of_client(client_id: &str) -> Option<Self> {
        let name = client_id.strip_prefix("worker/")?.strip_prefix(STATIC)?.strip_prefix('/')?;
        let (rest, id) = name.rsplit_once('/')?;
        let (pool, group) = rest.rsplit_once('/')?;
        Some(Self { pool: pool.parse().ok()?, group: group.parse().ok()?, id: id.parse().ok()? })
    }

    /// The one thing that a worker may ask when it is no longer let in: whether it should stop.
    pub fn asking_scope(&self) -> String {
        format!("worker-manager:should-worker-terminate:{self}")
    }

    /// What the worker may do with the credentials it gets: what Taskcluster gives, so that roles made for workers there
    /// are of use here. It suffices for claiming tasks from its queue.
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

/// Whether a worker that was made known is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Running,
    Removed,
    Expired,
}

impl Standing {
    /// The current standing of a worker.
    pub fn at(now: DateTime<Utc>, removed: Option<DateTime<Utc>>, expires: DateTime<Utc>) -> Self {
        match removed {
            Some(_) => Self::Removed,
            None if expires <= now => Self::Expired,
            None => Self::Running,
        }
    }

    /// Whether a worker with this standing should stop, and why; None: there is no such worker.
    pub fn should_terminate(known: Option<Self>) -> (bool, &'static str) {
        match known {
            Some(Self::Running) => (false, "the worker is wanted"),
            Some(Self::Removed) => (true, "the worker was removed"),
            Some(Self::Expired) => (true, "the worker has expired"),
            None => (true, "the worker is not known"),
        }
    }
}

/// When credentials begin that are given out now. Those from before the worker was created are refused, as another worker
/// of its name may have got them; its own are not among them if the clock was set back since it was created.
pub fn credentials_start(now: DateTime<Utc>, worker_created: DateTime<Utc>) -> DateTime<Utc> {
    now.max(worker_created)
}

/// When credentials end that are given out now: they do not outlive the worker.
pub fn credentials_end(now: DateTime<Utc>, worker_expires: DateTime<Utc>) -> DateTime<Utc> {
    let hold = TimeDelta::from_std(CREDENTIALS_HOLD).unwrap_or(TimeDelta::MAX);
    now.checked_add_signed(hold).map_or(worker_expires, |end| end.min(worker_expires))
}

/// Which of the secrets a worker shows when it registers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The one of the last answer.
    Next,
    /// The one before, which was exchanged at this time.
    Used(Option<DateTime<Utc>>),
    Neither,
}

/// Whether a secret can be exchanged for new credentials and a new secret. A time that is still to come is that of a
/// clock which was set back since: the worker may not have got its answer all the same.
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
    fn a_client_id_names_its_worker_and_nothing_else_does() {
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
    fn the_credentials_are_for_this_worker_alone_and_enough_to_claim_with() {
        let scopes = name().scopes();
        for scope in ["queue:claim-work:acme/linux", "queue:worker-id:rack-1/w1"] {
            assert!(scopes.iter().any(|held| held == scope), "{scope}");
        }
        assert!(scopes.iter().all(|scope| !scope.ends_with('*') && !scope.contains("create-worker")), "{scopes:?}");
    }

    #[test]
    fn who_is_removed_expired_or_unknown_should_terminate() {
        assert_eq!(Standing::at(at(9), None, at(10)), Standing::Running);
        assert_eq!(Standing::at(at(10), None, at(10)), Standing::Expired);
        assert_eq!(Standing::at(at(9), Some(at(1)), at(10)), Standing::Removed);
        assert_eq!(Standing::at(at(11), Some(at(1)), at(10)), Standing::Removed);
        let terminate = |known| Standing::should_terminate(known).0;
        assert!(!terminate(Some(Standing::Running)));
        assert!([None, Some(Standing::Removed), Some(Standing::Expired)].into_iter().all(terminate));
    }

    #[test]
    fn credentials_hold_for_four_days_but_do_not_outlive_the_worker() {
        assert_eq!(credentials_end(at(0), at(96 * 3600 + 1)), at(96 * 3600));
        assert_eq!(credentials_end(at(0), at(60)), at(60));
        assert_eq!(credentials_end(DateTime::<Utc>::MAX_UTC, at(60)), at(60));
    }

    #[test]
    fn a_used_secret_is_good_for_a_while_only() {
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
