//! A case: a cell, and the cause that takes the run from its worker.

use chrono::TimeDelta;
use serde_json::{Value, json};
use tenure_domain::policy::cells::{By, CELLS, Cell, Follows, Times};
use tenure_domain::policy::ending::Ending;

/// The shortest lease of a policy.
pub const LEASE: TimeDelta = TimeDelta::seconds(10);
/// The shortest lifetime of a session after a renewal.
pub const TTL: TimeDelta = TimeDelta::seconds(15);
/// Where another cause should end the run first.
const LEASE_LONG: TimeDelta = TimeDelta::minutes(2);
/// Where the session should not end.
const TTL_LONG: TimeDelta = TimeDelta::minutes(2);
pub const COMPLETE_TIME: TimeDelta = TimeDelta::seconds(3);
/// Longer than [`COMPLETE_TIME`]: counted from the claim, it must not expire before the scheduler
/// is replaced.
const COMPLETE_TIME_REPLACED: TimeDelta = TimeDelta::seconds(6);
pub const ACCEPT_TIME: TimeDelta = TimeDelta::seconds(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub cell: Cell,
    pub by: By,
}

impl Part {
    /// In the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        CELLS.into_iter().flat_map(|cell| cell.ways().iter().map(move |&by| Self { cell, by }))
    }

    /// The cell's name, and the cause if the cell has several.
    #[must_use]
    pub fn name(&self) -> String {
        match self.by {
            By::Lease | By::AcceptTime | By::Scheduler => self.cell.name(),
            By::Session => format!("{} by session", self.cell.name()),
            By::SchedulerUnaccepted => format!("{} unaccepted", self.cell.name()),
        }
    }

    #[must_use]
    pub fn follows(&self) -> Follows {
        self.cell.follows(self.by)
    }

    #[must_use]
    pub fn assigns(&self) -> bool {
        match self.by {
            By::Lease | By::Session => false,
            By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => true,
        }
    }

    /// False if the first worker ignores its assignment.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        match self.by {
            By::Lease | By::Session | By::Scheduler => true,
            By::AcceptTime | By::SchedulerUnaccepted => false,
        }
    }

    #[must_use]
    pub fn is_replaced(&self) -> bool {
        match self.by {
            By::Lease | By::Session | By::AcceptTime => false,
            By::Scheduler | By::SchedulerUnaccepted => true,
        }
    }

    #[must_use]
    pub fn lease(&self) -> TimeDelta {
        match self.by {
            By::Lease => LEASE,
            By::Session | By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => LEASE_LONG,
        }
    }

    #[must_use]
    pub fn ttl(&self) -> TimeDelta {
        match self.by {
            By::Lease | By::Session => TTL,
            By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => TTL_LONG,
        }
    }

    #[must_use]
    pub fn complete_time(&self) -> TimeDelta {
        match self.by {
            By::Lease | By::Session | By::AcceptTime => COMPLETE_TIME,
            By::Scheduler | By::SchedulerUnaccepted => COMPLETE_TIME_REPLACED,
        }
    }

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

    /// When the first worker should lose the run, and how.
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
    fn policy_of_each_case_fits_column_and_cause() {
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
    fn names_of_parts_are_unique() {
        let names: std::collections::BTreeSet<String> = Part::all().map(|part| part.name()).collect();
        assert_eq!((names.len(), Part::all().count()), (24, 24));
    }
}
