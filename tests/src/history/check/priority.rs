//! A task of lower priority is not handed out while a task of higher priority has been waiting all
//! the time.
//!
//! A run counts as waiting from its acknowledgement until the request of the worker that got it.
//! Three cases are left out: runs without a worker, which may have been past their deadline; claims
//! while another transaction may have locked rows, which claims skip; and waiting runs of a queue
//! whose policy changed, which are locked while they are stamped again.

use std::collections::HashMap;

use super::ledger::{Claim, Handout, Ledger, Span};
use super::{Findings, History, Rule};
use crate::history::POLLED_QUEUE;
use crate::history::record::{PRIORITIES, RunKey, Stamp};

/// Time after its end in which a disturbance may still matter: the database rolls back cut-off
/// transactions.
const AFTERMATH: Stamp = 200_000;

pub(super) fn check(_history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    let waits = Waits::of(ledger);
    let disturbed = Disturbed::of(ledger.disturbances.clone(), AFTERMATH);
    let fruitless: HashMap<usize, Disturbed> =
        ledger.fruitless.iter().map(|(queue, claims)| (*queue, Disturbed::of(ends(claims), 0))).collect();
    let is_disturbed = |claim: &Claim<'_>| {
        disturbed.overlaps(claim.span) || fruitless.get(&claim.queue).is_some_and(|spans| spans.overlaps(claim.span))
    };
    for claim in ledger.claims.iter().filter(|claim| !is_disturbed(claim)) {
        if let Some((low, high)) = waits.overtaken(ledger, claim) {
            findings.add(
                Rule::Priority,
                format!(
                    "{low:?} was handed out in {:?} while run {} of {} with a higher priority was waiting in {:?}",
                    claim.span, high.run.1, high.run.0, high.waiting
                ),
            );
        }
    }
}

/// Times in which fruitless claims may have held locks: they are answered soon after the session's
/// end is noticed.
fn ends(claims: &[Span]) -> Vec<Span> {
    claims.iter().map(|claim| Span { start: claim.start.max(claim.end.saturating_sub(AFTERMATH)), ..*claim }).collect()
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    run: RunKey,
    waiting: Span,
}

/// For each queue and priority, the waits by start, each with the latest-ending wait so far. So one
/// lookup tells if any wait that began before one time ends after another.
struct Waits(HashMap<(usize, usize), Vec<(Stamp, Wait)>>);

impl Waits {
    fn of(ledger: &Ledger<'_>) -> Self {
        let mut sorted: HashMap<(usize, usize), Vec<(Stamp, Wait)>> = HashMap::new();
        for (run, handouts) in &ledger.handouts {
            let Some((spec, created)) = ledger.acknowledged(run.0) else { continue };
            if spec.queue == POLLED_QUEUE || ledger.asked_in_vain.contains(run) {
                continue;
            }
            // The time at which it became pending, or the time of its priority, is unknown.
            if !spec.dependencies.is_empty() || ledger.reruns(run.0) > 0 || ledger.was_reprioritised(run.0) {
                continue;
            }
            let Some(start) = waiting_since(*run, created, ledger) else { continue };
            let Some(end) = waiting_until(handouts) else { continue };
            let life = Span { start: ledger.created(run.0).map_or(start, |created| created.start), end };
            if ledger.queues.may_be_delayed(spec, life) || ledger.queues.may_be_stamped_again(spec, life) {
                continue;
            }
            let wait = Wait { run: *run, waiting: Span { start, end } };
            sorted.entry((spec.queue, spec.priority)).or_default().push((start, wait));
        }
        for waits in sorted.values_mut() {
            waits.sort_unstable_by_key(|(start, _)| *start);
            let mut longest = waits.first().map(|(_, wait)| *wait);
            for (_, wait) in waits {
                longest = longest.filter(|longest| longest.waiting.end >= wait.waiting.end).or(Some(*wait));
                *wait = longest.unwrap_or(*wait);
            }
        }
        Self(sorted)
    }

    /// A run of this claim, and a run of higher priority that waited from before the claim until
    /// after it.
    fn overtaken(&self, ledger: &Ledger<'_>, claim: &Claim<'_>) -> Option<(RunKey, Wait)> {
        let of_constant_priority = |run: &&RunKey| !ledger.was_reprioritised(run.0);
        let priority = |run: &RunKey| ledger.acknowledged(run.0).map(|(spec, _)| (spec.priority, *run));
        let (lowest, run) = claim.runs.iter().filter(of_constant_priority).filter_map(priority).min()?;
        (lowest + 1..PRIORITIES.len()).find_map(|higher| {
            let waits = self.0.get(&(claim.queue, higher))?;
            let begun = waits.partition_point(|(start, _)| *start < claim.span.start);
            let (_, longest) = waits[..begun].last()?;
            (longest.waiting.end > claim.span.end).then_some((run, *longest))
        })
    }
}

/// The first run waits from its creation, a later one from the report that caused it. A run that
/// the server made for another reason appeared at an unknown time.
fn waiting_since(run: RunKey, created: Stamp, ledger: &Ledger<'_>) -> Option<Stamp> {
    let (task, number) = run;
    let Some(before) = number.checked_sub(1) else { return Some(created) };
    let reports = ledger.reports.get(&(task, before))?;
    let retried = reports.iter().filter(|report| report.verdict.retries() && report.answer.done().is_some());
    retried.map(|report| report.span.end).min()
}

/// A run waits until a worker asks for work and gets it. claimTask proves no end of the wait: it
/// also succeeds for a worker that already holds the run from an unanswered claim.
fn waiting_until(handouts: &[Handout]) -> Option<Stamp> {
    let first = handouts.iter().min_by_key(|handout| handout.span.start)?;
    first.by_claim_work.then_some(first.span.start)
}

struct Disturbed(Vec<Span>);

impl Disturbed {
    /// Merges the spans, each extended by `aftermath`.
    fn of(mut spans: Vec<Span>, aftermath: Stamp) -> Self {
        spans.sort_unstable_by_key(|span| span.start);
        let mut merged: Vec<Span> = Vec::new();
        for span in spans {
            let end = span.end.saturating_add(aftermath);
            match merged.last_mut().filter(|last| last.end >= span.start) {
                Some(last) => last.end = last.end.max(end),
                None => merged.push(Span { start: span.start, end }),
            }
        }
        Self(merged)
    }

    fn overlaps(&self, span: Span) -> bool {
        let after = self.0.partition_point(|disturbed| disturbed.end < span.start);
        self.0.get(after).is_some_and(|disturbed| disturbed.start <= span.end)
    }
}
