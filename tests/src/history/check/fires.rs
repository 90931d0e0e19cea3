//! Each time of a schedule has one task.

use std::collections::BTreeMap;

use super::{Findings, History, Rule};
use crate::history::schedules::{Fires, PERIOD_MILLIS};

pub(super) fn check(history: &History, findings: &mut Findings) {
    for Fires { from, until, times } in &history.fires {
        let mut tasks: BTreeMap<i64, usize> = BTreeMap::new();
        for time in times {
            *tasks.entry(*time).or_default() += 1;
        }
        let first = (from.div_euclid(PERIOD_MILLIS) + 1) * PERIOD_MILLIS;
        let mut due = first;
        while due < *until {
            let count = tasks.remove(&due).unwrap_or(0);
            if count != 1 {
                findings.add(Rule::Schedules, format!("the time {due} of a schedule has {count} tasks"));
            }
            due += PERIOD_MILLIS;
        }
        for (time, count) in tasks {
            if count > 1 || time < first || time % PERIOD_MILLIS != 0 {
                findings.add(Rule::Schedules, format!("a schedule since {from} has {count} tasks of the time {time}"));
            }
        }
    }
}
