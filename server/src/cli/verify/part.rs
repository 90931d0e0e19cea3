//! What is played: a cell, and what takes the run away from its worker.

use chrono::TimeDelta;
use serde_json::{Value, json};
use tenure_domain::policy::cells::{By, CELLS, Cell, Follows, Times};
use tenure_domain::policy::ending::Ending;

/// The lease of the queues that are played: the shortest that a policy may set.
pub const LEASE: TimeDelta = TimeDelta::seconds(10);
/// How long a session goes on after a renewal: the shortest that one may.
pub const TTL: TimeDelta = TimeDelta::seconds(15);
/// The lease where something else is to end first.
const LEASE_LONG: TimeDelta = TimeDelta::minutes(2);
/// How long a session goes on where it is not to end.
const TTL_LONG: TimeDelta = TimeDelta::minutes(2);
/// The completeTime, where the cell has one.
pub const COMPLETE_TIME: TimeDelta = TimeDelta::seconds(3);
/// The same where the scheduler is replaced in between: it is not to be over by then, by the claim.
const COMPLETE_TIME_REPLACED: TimeDelta = TimeDelta::seconds(6);
/// The acceptTime, where a run is not accepted.
pub const ACCEPT_TIME: TimeDelta = TimeDelta::seconds(1);

/// A cell that is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The cell.
    pub cell: Cell,
    /// What takes the run away from its worker, or would.
    pub by: By,
}

impl Part {
    /// Everything that there is to play, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        CELLS.into_iter().flat_map(|cell| cell.ways().iter().map(move |&by| Self { cell, by }))
    }

    /// For people: the cell's name, and what of it is played if that is not all.
    #[must_use]
    pub fn name(&self) -> String {
        match self.by {
            By::Lease | By::AcceptTime | By::Scheduler => self.cell.name(),
            By::Session => format!("{} by session", self.cell.name()),
            By::SchedulerUnaccepted => format!("{} unaccepted", self.cell.name()),
        }
    }

    /// What becomes of the run.
    #[must_use]
    pub fn follows(&self) -> Follows {
        self.cell.follows(self.by)
    }

    /// Whether the queue assigns its runs to the sessions of workers.
    #[must_use]
    pub fn assigns(&self) -> bool {
        match self.by {
            By::Lease | By::Session => false,
            By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => true,
        }
    }

    /// Whether the first worker gets a claim at the beginning; otherwise it does not accept what it is assigned.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        match self.by {
            By::Lease | By::Session | By::Scheduler => true,
            By::AcceptTime | By::SchedulerUnaccepted => false,
        }
    }

    /// Whether the scheduler of the queue is replaced.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        match self.by {
            By::Lease | By::Session | By::AcceptTime => false,
            By::Scheduler | By::SchedulerUnaccepted => true,
        }
    }

    /// The lease of its queue.
    #[must_use]
    pub fn lease(&self) -> TimeDelta {
        match self.by {
            By::Lease => LEASE,
            By::Session | By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => LEASE_LONG,
        }
    }

    /// How long the sessions of its workers go on after a renewal.
    #[must_use]
    pub fn ttl(&self) -> TimeDelta {
        match self.by {
            By::Lease | By::Session => TTL,
            By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => TTL_LONG,
        }
    }

    /// The completeTime, if its queue has one.
    #[must_use]
    pub fn complete_time(&self) -> TimeDelta {
        match self.by {
            By::Lease | By::Session | By::AcceptTime => COMPLETE_TIME,
            By::Scheduler | By::SchedulerUnaccepted => COMPLETE_TIME_REPLACED,
        }
    }

    /// The policy of its queue.
    #[must_use]
    pub fn policy(&self) -> Value {
        let complete_time = if self.cell.has_complete_time { self.complete_time() } else { TimeDelta::zero() };
        let mut policy = json!({
            "delivery": self.cell.delivery,
            "completeTime": complete_time.num_seconds(),
            "claimTimeout": self.lease().num_seconds(),
        });
        if self.assigns() {
            policy["dispatch"] = json!("assign");
        }
        match self.by {
            By::Lease | By::Session => {}
            By::AcceptTime => policy["acceptTime"] = json!(ACCEPT_TIME.num_seconds()),
            By::Scheduler | By::SchedulerUnaccepted => policy["onSchedulerLoss"] = json!("reassign"),
        }
        policy
    }

    /// When the first worker is to lose the run, and as what.
    #[must_use]
    pub fn end(&self) -> Option<(TimeDelta, Ending)> {
        let silence = match self.by {
            By::Session => TTL,
            By::Lease | By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => self.lease(),
        };
        self.cell.end(self.by, &Times { silence, accept: ACCEPT_TIME, complete: self.complete_time() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy_of(name: &str) -> Value {
        Part::all().find(|part| part.name() == name).unwrap().policy()
    }

    #[test]
    fn the_policy_of_each_cell_is_that_of_its_column_and_of_what_happens() {
        let pull = json!({"delivery": "at-least-once", "completeTime": 3, "claimTimeout": 10});
        assert_eq!(policy_of("exit/at-least/n"), pull);
        assert_eq!(policy_of("slow/at-least/n"), pull);
        let accept = json!({"delivery": "at-most-once", "completeTime": 0, "claimTimeout": 120, "dispatch": "assign",
            "acceptTime": 1});
        assert_eq!(policy_of("accept/at-most/0"), accept);
        let replaced = json!({"delivery": "at-least-once", "completeTime": 6, "claimTimeout": 120, "dispatch": "assign",
            "onSchedulerLoss": "reassign"});
        assert_eq!(policy_of("scheduler/at-least/n"), replaced);
        assert_eq!(policy_of("scheduler/at-least/n unaccepted"), replaced);
    }

    #[test]
    fn each_part_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> = Part::all().map(|part| part.name()).collect();
        assert_eq!((names.len(), Part::all().count()), (24, 24));
    }
}
