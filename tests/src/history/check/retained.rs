//! A resolved task is not purged before its date.
//!
//! A task may be resolved by its report or cancellation, or without one at any time after its
//! creation, but then not as completed. Two readings of the server's clock prove an early purge:
//! one precedes the request that may have resolved the task, the other follows the answer by which
//! it does not exist.

use std::collections::HashMap;

use tenure_api::ids::SlugId;

use super::ledger::Ledger;
use super::{Findings, History, Rule};
use crate::history::record::{Answer, Change, Event, Stamp, Verdict};
use crate::history::{RETAIN_COMPLETED, RETAIN_FAILED, RETAINED_QUEUE};

const NOT_FOUND: u16 = 404;

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    let purges = earliest_purges(ledger);
    for record in &history.records {
        let Event::Read { task, answer: Answer::Refused(NOT_FOUND) } = &record.event else { continue };
        let Some(purge) = purges.get(task).filter(|purge| purge.created < record.start) else { continue };
        if let Some(now) = ledger.queues.clock_at_most(record.end).filter(|now| *now < purge.earliest) {
            let early = purge.earliest - now;
            findings.add(Rule::Retained, format!("{task} was purged {early} ms early, by {}", record.end));
        }
    }
}

struct Purge {
    /// Time at which the task's creation was acknowledged.
    created: Stamp,
    /// Milliseconds since 1970 of the server's clock.
    earliest: i64,
}

fn earliest_purges(ledger: &Ledger<'_>) -> HashMap<SlugId, Purge> {
    let after = |asked: Stamp, seconds: i64| {
        ledger.queues.clock_at_least(asked).map_or(i64::MIN, |now| now.saturating_add(seconds * 1000))
    };
    let mut purges = HashMap::new();
    for task in ledger.creations.keys() {
        let acknowledged = ledger.acknowledged(*task).filter(|(spec, _)| spec.queue == RETAINED_QUEUE);
        let (Some((_, created)), Some(span)) = (acknowledged, ledger.created(*task)) else { continue };
        let cancels = ledger.changes(*task).iter().filter(|(_, change, _)| *change == Change::Cancel);
        let ends = cancels.map(|(span, ..)| span.start).chain([span.start]);
        let earliest = ends.map(|asked| after(asked, RETAIN_FAILED)).min().unwrap_or(i64::MIN);
        purges.insert(*task, Purge { created, earliest });
    }
    for (run, reports) in &ledger.reports {
        let Some(purge) = purges.get_mut(&run.0) else { continue };
        for report in reports.iter().filter(|report| report.answer.may_be_done()) {
            let seconds = if report.verdict == Verdict::Completed { RETAIN_COMPLETED } else { RETAIN_FAILED };
            purge.earliest = purge.earliest.min(after(report.span.start, seconds));
        }
    }
    purges
}
