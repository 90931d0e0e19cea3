//! Inbox of a session: item ids grow, and each item returns until it is acknowledged, never after.
//! Items concern runs that something other than their worker ended, and commands for tasks whose
//! runs the session holds.

use std::collections::{BTreeMap, HashSet};

use super::{Act, Answer, Findings, History, Ledger, Life, Rule, RunKey};
use crate::history::check::late::SUPERSEDED;
use crate::history::check::ledger::Span;
use crate::history::record::{Change, Stamp};
use crate::history::sessions::Item;

const SHOWN_MAX: usize = 1_000;
/// Reasons that do not come from the run's worker.
const BY_OTHERS: [&str; 4] = ["canceled", "deadline-exceeded", "claim-expired", SUPERSEDED];
const CANCELED: &str = "canceled";
/// Reasons that need a report.
const BY_REPORT: [&str; 2] = ["completed", "failed"];

pub(super) fn check(history: &History, ledger: &Ledger<'_>, life: &Life<'_>, findings: &mut Findings) {
    let inbox = Inbox::of(life);
    let mut broken = inbox.acknowledged_again();
    broken.extend(inbox.left_out());
    broken.extend(inbox.changed());
    broken.extend(wrong_runs(history, life, &inbox));
    broken.extend(unannounced(history, ledger, life, &inbox));
    broken.extend(unheard(history, ledger, life, &inbox));
    for what in broken {
        findings.add(Rule::SessionInbox, format!("the inbox of session {} {what}", life.session));
    }
}

#[derive(Debug)]
struct Read<'a> {
    span: Span,
    after: i64,
    items: &'a [(i64, Item)],
    /// True if the session may have ended between its renewal by this call and the read of its
    /// items: its end deletes them.
    may_lack: bool,
}

#[derive(Debug, Default)]
struct Inbox<'a> {
    reads: Vec<Read<'a>>,
    /// Possible acknowledgements: time, last item, and true if certain.
    acknowledged: Vec<(Span, i64, bool)>,
    commands: Vec<(Span, i64)>,
}

impl<'a> Inbox<'a> {
    fn of(life: &Life<'a>) -> Self {
        let mut inbox = Self::default();
        for call in &life.calls {
            match &call.call.act {
                Act::Inbox { after, answer, .. } => {
                    if answer.may_be_done() {
                        inbox.acknowledged.push((call.span, *after, answer.done().is_some()));
                    }
                    if let Answer::Done(read) = answer {
                        let may_lack = life.may_have_ended_by(call);
                        inbox.reads.push(Read { span: call.span, after: *after, items: &read.items, may_lack });
                    }
                }
                Act::Command { answer: Answer::Done(id), .. } => inbox.commands.push((call.span, *id)),
                _ => {}
            }
        }
        inbox
    }

    /// Items that return after their acknowledgement, or out of order.
    fn acknowledged_again(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for read in &self.reads {
            let before = self.acknowledged.iter().filter(|(span, _, certain)| *certain && span.end < read.span.start);
            let done = before.map(|(_, after, _)| *after).max().unwrap_or_default().max(read.after);
            let ids: Vec<i64> = read.items.iter().map(|(id, _)| *id).collect();
            if ids.iter().any(|id| *id <= done) || !ids.is_sorted_by(|one, next| one < next) {
                broken.push(format!("answered {ids:?} in {:?}, and {done} was acknowledged", read.span));
            }
        }
        broken
    }

    /// Items that do not return and cannot have been acknowledged.
    fn left_out(&self) -> Vec<String> {
        let mut broken = Vec::new();
        // A command for a task goes when it is carried out or replaced.
        let lasts = |item: &Item| !matches!(item, Item::TaskCommand(_));
        let shown = self
            .reads
            .iter()
            .flat_map(|read| read.items.iter().filter(move |(_, item)| lasts(item)).map(|(id, _)| (read.span, *id)));
        let there: Vec<(Span, i64)> = shown.chain(self.commands.iter().copied()).collect();
        for read in self.reads.iter().filter(|read| read.items.len() < SHOWN_MAX && !read.may_lack) {
            let begun = self.acknowledged.iter().filter(|(span, ..)| span.start < read.span.end);
            let done = begun.map(|(_, after, _)| *after).max().unwrap_or_default();
            let ids: HashSet<i64> = read.items.iter().map(|(id, _)| *id).collect();
            let expected = there.iter().filter(|(span, id)| span.end < read.span.start && *id > done);
            let missing: Vec<i64> = expected.map(|(_, id)| *id).filter(|id| !ids.contains(id)).collect();
            if !missing.is_empty() {
                broken.push(format!("left out {missing:?} in {:?}, and {done} was acknowledged at most", read.span));
            }
        }
        broken
    }

    fn changed(&self) -> Vec<String> {
        let mut first: BTreeMap<i64, &Item> = BTreeMap::new();
        let mut broken = Vec::new();
        for (id, item) in self.reads.iter().flat_map(|read| read.items) {
            let known = first.entry(*id).or_insert(item);
            if *known != item {
                broken.push(format!("answered item {id} as {known:?} and as {item:?}"));
            }
        }
        for (_, id) in &self.commands {
            if let Some(item) = first.get(id).filter(|item| ***item != Item::Command) {
                broken.push(format!("answered item {id}, a command, as {item:?}"));
            }
        }
        broken
    }

    fn runs(&self, until: Stamp) -> impl Iterator<Item = (RunKey, &'a str, &'a str)> {
        let reads = self.reads.iter().filter(move |read| read.span.end <= until);
        reads.flat_map(|read| read.items).filter_map(|(_, item)| match item {
            Item::RunEnded(run, state, reason) => Some((*run, state.as_str(), reason.as_str())),
            Item::Command | Item::TaskCommand(_) => None,
        })
    }

    fn commanded(&self) -> impl Iterator<Item = RunKey> {
        self.reads.iter().flat_map(|read| read.items).filter_map(|(_, item)| match item {
            Item::TaskCommand(run) => Some(*run),
            Item::Command | Item::RunEnded(..) => None,
        })
    }
}

/// Runs that are not the session's, that its worker ended, or that ended in another way.
fn wrong_runs(history: &History, life: &Life<'_>, inbox: &Inbox<'_>) -> Vec<String> {
    let claimed: HashSet<RunKey> = life.claims().flat_map(|(_, runs)| runs.iter().copied()).collect();
    let unknown = life.has_doubtful_claims();
    let mut broken = Vec::new();
    for run in inbox.commanded().filter(|run| !unknown && !claimed.contains(run)) {
        broken.push(format!("has a command for {run:?}, which it did not claim"));
    }
    for (run, state, reason) in inbox.runs(Stamp::MAX) {
        if !unknown && !claimed.contains(&run) {
            broken.push(format!("has {run:?}, which it did not claim"));
        }
        if !BY_OTHERS.contains(&reason) {
            broken.push(format!("has {run:?} as {reason}, which its worker knows"));
        }
        let ended = history.drained.tasks.get(&run.0).and_then(|status| status.runs.get(usize::from(run.1)));
        if ended.is_some_and(|ended| ended.state != state || ended.reason_resolved.as_deref() != Some(reason)) {
            broken.push(format!("has {run:?} as {state}, {reason}, and it is {ended:?}"));
        }
    }
    broken
}

/// Cancelled runs that the inbox does not report afterwards.
fn unannounced(history: &History, ledger: &Ledger<'_>, life: &Life<'_>, inbox: &Inbox<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    for run in life.held() {
        let ended = history.drained.tasks.get(&run.0).and_then(|status| status.runs.get(usize::from(run.1)));
        if ended.and_then(|ended| ended.reason_resolved.as_deref()) != Some(CANCELED) {
            continue;
        }
        let cancels = ledger.changes(run.0).iter().filter(|(_, change, _)| *change == Change::Cancel);
        let cancelled = cancels.map(|(span, _, certain)| if *certain { span.end } else { Stamp::MAX }).max();
        let Some(cancelled) = cancelled else { continue };
        let asked = inbox.reads.iter().filter(|read| read.span.start > cancelled && !read.may_lack);
        let asked = asked.map(|read| read.span.end).min();
        if let Some(asked) = asked
            && !inbox.runs(asked).any(|(named, ..)| named == run)
        {
            broken.push(format!("did not name {run:?} by {asked}, which was cancelled by {cancelled}"));
        }
    }
    broken
}

/// Commands for continuously held tasks that the next read lacks. Calls for a session are
/// sequential, so no earlier read can have acknowledged the item.
fn unheard(history: &History, ledger: &Ledger<'_>, life: &Life<'_>, inbox: &Inbox<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    for call in &life.calls {
        let Act::TaskCommand { run, answer: Answer::Done(_), .. } = &call.call.act else { continue };
        let read = inbox.reads.iter().filter(|read| read.span.start > call.span.end && !read.may_lack);
        let Some(read) = read.min_by_key(|read| read.span.start) else { continue };
        let is_named = read.items.iter().any(|(_, item)| *item == Item::TaskCommand(*run));
        if !is_named && is_held_during(*run, call.span, history, ledger, life) {
            broken.push(format!("did not name the command for {run:?} of {:?} in {:?}", call.span, read.span));
        }
    }
    broken
}

/// True if the session certainly held the run during `span` and the task was not rerun: its worker
/// claimed it before, and reported it after.
fn is_held_during(run: RunKey, span: Span, history: &History, ledger: &Ledger<'_>, life: &Life<'_>) -> bool {
    let claimed = life.claims().any(|(claim, runs)| claim.end < span.start && runs.contains(&run));
    let ended = history.drained.tasks.get(&run.0).and_then(|status| status.runs.get(usize::from(run.1)));
    let by_report =
        ended.and_then(|ended| ended.reason_resolved.as_deref()).is_some_and(|reason| BY_REPORT.contains(&reason));
    let mut reports = ledger.reports.get(&run).into_iter().flatten().filter(|report| report.answer.may_be_done());
    claimed && by_report && ledger.reruns(run.0) == 0 && reports.all(|report| report.span.start > span.end)
}
