//! Sessions: an ended session is never live again, its runs have left it, and its inbox keeps each
//! item until acknowledged.
//!
//! The time of an end is known within bounds: after the start of the last call that only a live
//! session answers, and before the end of the first call that only an ended session explains. Calls
//! that overlap the end may be answered either way. A claim that overlaps it may be committed after
//! it: its runs are returned, but in a later transaction.

mod ends;
mod inbox;

use std::collections::HashMap;

use tenure_api::ids::{SessionId, SlugId};
use tenure_api::states::SessionEnd;

use super::ledger::{GONE, Ledger, Span};
use super::{Findings, History, Rule};
use crate::history::record::{Answer, Event, Record, RunKey, Stamp};
use crate::history::sessions::{Act, SessionCall, Shown};

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    let calls = Calls::of(history);
    check_starts(&calls, findings);
    let reclaims = reclaims(history);
    let mut released: HashMap<SlugId, Vec<RunKey>> = HashMap::new();
    for life in calls.lives(history) {
        life.check_over(findings);
        life.check_time(findings);
        ends::check(history, ledger, &reclaims, &life, findings);
        inbox::check(history, ledger, &life, findings);
        for run in ends::released(history, ledger, &life) {
            released.entry(run.0).or_default().push(run);
        }
    }
    for (task, runs) in &released {
        ends::check_released(*task, runs, history, ledger, findings);
    }
}

type Reclaims = HashMap<RunKey, Vec<Span>>;

fn reclaims(history: &History) -> Reclaims {
    let mut reclaims = Reclaims::new();
    for record in &history.records {
        if let Event::Reclaim { run, answer: Answer::Done(()) } = &record.event {
            reclaims.entry(*run).or_default().push(span(record));
        }
    }
    reclaims
}

fn span(record: &Record) -> Span {
    Span { start: record.start, end: record.end }
}

#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    span: Span,
    call: &'a SessionCall,
}

impl Call<'_> {
    /// True if the answer proves that the session was live at some time of the call.
    fn proves_live(&self) -> bool {
        match &self.call.act {
            Act::Start { answer, .. } => answer.done().is_some(),
            Act::Renew { answer, .. } | Act::Command { answer, .. } => answer.done().is_some(),
            Act::Inbox { answer, .. } => answer.done().is_some(),
            // An empty queue gives the same answer for any session.
            Act::Claim { answer, .. } => answer.done().is_some_and(|runs| !runs.is_empty()),
            Act::TaskCommand { .. } | Act::Close { .. } => false,
        }
    }

    fn proves_ended(&self) -> bool {
        match &self.call.act {
            Act::Close { answer, .. } => answer.done().is_some(),
            act => act.refused() == Some(GONE),
        }
    }

    /// Latest time at which the server was done with the call, as far as known.
    fn done_by(&self) -> Stamp {
        let known = match &self.call.act {
            Act::Start { answer, .. } => *answer != Answer::Unknown,
            Act::Renew { answer, .. }
            | Act::Command { answer, .. }
            | Act::TaskCommand { answer, .. }
            | Act::Close { answer, .. } => *answer != Answer::Unknown,
            Act::Inbox { answer, .. } => *answer != Answer::Unknown,
            Act::Claim { answer, .. } => *answer != Answer::Unknown,
        };
        if known { self.span.end } else { Stamp::MAX }
    }
}

#[derive(Debug, Default)]
struct Calls<'a> {
    of_session: HashMap<SessionId, Vec<Call<'a>>>,
    starts: HashMap<(usize, usize), Vec<Call<'a>>>,
}

impl<'a> Calls<'a> {
    fn of(history: &'a History) -> Self {
        let mut calls = Self::default();
        for record in &history.records {
            let Event::Session(call) = &record.event else { continue };
            let one = Call { span: span(record), call };
            if let Some(session) = call.act.session() {
                calls.of_session.entry(session).or_default().push(one);
            }
            if matches!(call.act, Act::Start { .. }) {
                calls.starts.entry((call.queue, call.worker)).or_default().push(one);
            }
        }
        for calls in calls.of_session.values_mut().chain(calls.starts.values_mut()) {
            calls.sort_unstable_by_key(|call| call.span.start);
        }
        calls
    }

    fn lives(&self, history: &'a History) -> impl Iterator<Item = Life<'a>> {
        self.of_session.iter().map(move |(session, calls)| {
            let shown = history.drained.sessions.get(session).or_else(|| history.quiet.sessions.get(session));
            Life::of(*session, calls.clone(), self, shown)
        })
    }

    fn starts(&self, queue: usize, worker: usize) -> &[Call<'a>] {
        self.starts.get(&(queue, worker)).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug)]
struct Life<'a> {
    session: SessionId,
    calls: Vec<Call<'a>>,
    shown: Option<&'a Shown>,
    lived_until: Stamp,
    /// True if a call ended it: then the shown time of its end proves nothing, because the clock
    /// may have been set since.
    is_ended_by_call: bool,
    /// A time by which it had ended, and an upper bound of the server's clock at that time.
    ended_by: Option<(Stamp, i64)>,
}

impl<'a> Life<'a> {
    fn of(session: SessionId, calls: Vec<Call<'a>>, all: &Calls<'a>, shown: Option<&'a Shown>) -> Self {
        let starts = calls.first().map_or(&[][..], |first| all.starts(first.call.queue, first.call.worker));
        let begun = calls.iter().find(|call| matches!(call.call.act, Act::Start { .. })).copied();
        let mut ended_by: Vec<(Stamp, i64)> =
            calls.iter().filter(|call| call.proves_ended()).map(|call| (call.span.end, call.call.clock)).collect();
        // A worker has one session in a queue: a later one ends the earlier ones.
        if let Some(epoch) = begun.and_then(|call| epoch(call.call)) {
            let later = starts.iter().filter(|start| epoch_of(start).is_some_and(|other| other > epoch));
            ended_by.extend(later.map(|start| (start.span.end, start.call.clock)));
        }
        let proven = calls.iter().filter(|call| call.proves_live()).map(|call| call.span.start).max();
        let cause = match shown.and_then(|shown| shown.ended) {
            Some((_, SessionEnd::Closed)) => {
                let closes = calls.iter().filter(|call| matches!(call.call.act, Act::Close { .. }));
                closes.map(|close| close.span.start).min()
            }
            Some((_, SessionEnd::Takeover)) => {
                // A refused takeover may have ended this session before it met another.
                let after = begun.map_or(0, |call| call.span.start);
                let others = starts.iter().filter(|start| {
                    let takes_over = matches!(start.call.act, Act::Start { takeover: true, .. });
                    takes_over && start.call.act.session() != Some(session) && start.done_by() > after
                });
                others.map(|start| start.span.start).min()
            }
            _ => None,
        };
        let lived_until = proven.max(cause).unwrap_or_default();
        let is_ended_by_call = cause.is_some();
        Self { session, calls, shown, lived_until, is_ended_by_call, ended_by: ended_by.into_iter().min() }
    }

    fn may_have_ended_by(&self, call: &Call<'_>) -> bool {
        let Some((at, _)) = self.shown.and_then(|shown| shown.ended) else { return false };
        call.span.end > self.lived_until && (self.is_ended_by_call || call.call.clock >= at)
    }

    /// No call after the end is answered as if the session were live.
    fn check_over(&self, findings: &mut Findings) {
        let Some((ended, _)) = self.ended_by else { return };
        for call in self.calls.iter().filter(|call| call.proves_live() && call.span.start > ended) {
            let detail = format!("session {} had ended by {ended}, and {:?} was answered", self.session, call);
            findings.add(Rule::SessionOver, detail);
        }
    }

    /// The session does not expire before its announced expiry, unless it is ended. That expiry
    /// never goes back.
    fn check_time(&self, findings: &mut Findings) {
        let renewals: Vec<(&Call<'_>, i64)> =
            self.calls.iter().filter_map(|call| call.call.act.expires().map(|expires| (call, expires))).collect();
        if let Some(Shown { ended: Some((at, SessionEnd::Expired)), .. }) = self.shown
            && let Some((call, _)) = renewals.iter().find(|(_, expires)| expires > at)
        {
            let detail = format!("session {} expired at {at}, and was live for longer by {call:?}", self.session);
            findings.add(Rule::SessionOver, detail);
        }
        let mut latest = renewals.clone();
        latest.sort_unstable_by_key(|(call, _)| call.span.end);
        let mut most = Vec::with_capacity(latest.len());
        for (call, expires) in latest {
            most.push((call.span.end, most.last().map_or(expires, |(_, most): &(Stamp, i64)| expires.max(*most))));
        }
        for (call, expires) in &renewals {
            let before = most.partition_point(|(end, _)| *end < call.span.start);
            if before > 0 && most[before - 1].1 > *expires {
                let detail = format!("session {} was live for longer before {call:?}", self.session);
                findings.add(Rule::SessionOver, detail);
            }
        }
    }

    /// Runs of claims that were answered before the session can have ended. Other claims may have
    /// been committed after its end.
    fn held(&self) -> impl Iterator<Item = RunKey> {
        self.claims().filter(|(span, _)| span.end < self.lived_until).flat_map(|(_, runs)| runs.iter().copied())
    }

    fn claims(&self) -> impl Iterator<Item = (Span, &'a [RunKey])> {
        self.calls.iter().filter_map(|call| match &call.call.act {
            Act::Claim { answer: Answer::Done(runs), .. } => Some((call.span, runs.as_slice())),
            _ => None,
        })
    }

    /// True if a claim with unknown runs may have been committed for the session, or a claim may
    /// have been committed after its end.
    fn has_doubtful_claims(&self) -> bool {
        self.calls.iter().any(|call| match &call.call.act {
            Act::Claim { answer: Answer::Unknown, .. } => true,
            Act::Claim { answer: Answer::Done(runs), .. } => !runs.is_empty() && call.span.end >= self.lived_until,
            // A waiting request that gets this answer had its new claims requeued.
            Act::Claim { answer: Answer::Refused(_), .. } => {
                call.span.start < self.ended_by.map_or(Stamp::MAX, |(end, _)| end)
            }
            _ => false,
        })
    }
}

fn epoch(call: &SessionCall) -> Option<i64> {
    match &call.act {
        Act::Start { answer, .. } => answer.done().map(|begun| begun.epoch),
        _ => None,
    }
}

fn epoch_of(call: &Call<'_>) -> Option<i64> {
    epoch(call.call)
}

/// Epochs grow; and a start is refused only beside another session of the same worker.
fn check_starts(calls: &Calls<'_>, findings: &mut Findings) {
    let mut begun: Vec<(Span, i64)> =
        calls.starts.values().flatten().filter_map(|start| Some((start.span, epoch_of(start)?))).collect();
    begun.sort_unstable_by_key(|(span, _)| span.end);
    let mut greatest: Vec<(Stamp, i64)> = Vec::with_capacity(begun.len());
    for (span, epoch) in &begun {
        let before = greatest.last().map_or(*epoch, |(_, greatest)| *epoch.max(greatest));
        greatest.push((span.end, before));
    }
    for (span, epoch) in &begun {
        let before = greatest.partition_point(|(end, _)| *end < span.start);
        if before > 0 && greatest[before - 1].1 >= *epoch {
            findings.add(Rule::SessionOver, format!("epoch {epoch} of {span:?} is not greater than an earlier one"));
        }
    }
    for (key, starts) in &calls.starts {
        for refused in starts.iter().filter(|start| start.call.act.refused() == Some(409)) {
            if !starts.iter().any(|other| may_be_live_beside(other, refused, calls)) {
                let detail = format!("{refused:?} was refused, and {key:?} had no other session");
                findings.add(Rule::SessionOver, detail);
            }
        }
    }
}

/// True if the session of one start may have been live during the other start.
fn may_be_live_beside(other: &Call<'_>, refused: &Call<'_>, calls: &Calls<'_>) -> bool {
    let Some(session) = other.call.act.session() else {
        // The outcome of this start is unknown.
        return other.call.act.refused().is_none() && other.span.start < refused.span.end;
    };
    let own = calls.of_session.get(&session).map_or(&[][..], Vec::as_slice);
    let ended = own.iter().filter(|call| call.proves_ended()).map(|call| call.span.end).min();
    other.span.start < refused.span.end && ended.is_none_or(|ended| ended > refused.span.start)
}
