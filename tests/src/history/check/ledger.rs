//! The records, indexed by their subjects.

use std::collections::{HashMap, HashSet};

use tenure_api::ids::SlugId;

use super::History;
use super::queues::Queues;
use crate::history::record::{Answer, Change, Event, Record, RunKey, Stamp, TaskSpec, Verdict};
use crate::history::sessions::Act;
use crate::history::snapshot::{Run, Status};
use crate::history::worker_id;

pub(super) const GONE: u16 = 410;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Stamp,
    pub(super) end: Stamp,
}

#[derive(Debug)]
pub(super) struct Creation<'a> {
    pub(super) span: Span,
    pub(super) spec: &'a TaskSpec,
    pub(super) answer: &'a Answer<()>,
}

#[derive(Debug)]
pub(super) struct Handout {
    pub(super) span: Span,
    pub(super) worker: usize,
    pub(super) by_claim_work: bool,
}

#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) span: Span,
    pub(super) verdict: Verdict,
    pub(super) answer: &'a Answer<()>,
}

#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) span: Span,
    pub(super) queue: usize,
    pub(super) runs: &'a [RunKey],
}

#[derive(Debug, Default)]
pub(super) struct Ledger<'a> {
    pub(super) creations: HashMap<SlugId, Vec<Creation<'a>>>,
    pub(super) handouts: HashMap<RunKey, Vec<Handout>>,
    pub(super) reports: HashMap<RunKey, Vec<Report<'a>>>,
    pub(super) claims: Vec<Claim<'a>>,
    /// Runs requested by a claimTask whose caller hung up: its transaction may have locked the run
    /// briefly before a rollback.
    pub(super) asked_in_vain: HashSet<RunKey>,
    /// Changes requested for each task and not refused: the time, the change, and true if it was
    /// certainly done.
    pub(super) changes: HashMap<SlugId, Vec<(Span, Change, bool)>>,
    /// Number of redrives that certainly ran a task again. They are among its changes, too.
    redriven: HashMap<SlugId, usize>,
    /// Tasks that may have a stored command: a command ends the delay after a release.
    pub(super) commanded: HashSet<SlugId>,
    pub(super) members: HashSet<String>,
    /// Times in which rows may have been locked by a claim that was rolled back: foreign locks,
    /// killed sessions and failing servers. A claimWork whose caller hung up is not included: its
    /// claim stays.
    pub(super) disturbances: Vec<Span>,
    /// Claims for ended sessions, by queue. Runs selected by their statement stayed pending, but
    /// were locked until the commit. This includes runs selected for other requests of the same
    /// batch.
    pub(super) fruitless: HashMap<usize, Vec<Span>>,
    pub(super) queues: Queues<'a>,
}

impl<'a> Ledger<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let mut ledger = Self::default();
        for record in &history.records {
            ledger.enter(record);
        }
        ledger.queues = Queues::of(&history.records);
        ledger
    }

    fn enter(&mut self, record: &'a Record) {
        let span = Span { start: record.start, end: record.end };
        match &record.event {
            Event::Create { task, answer } => {
                self.creations.entry(task.task).or_default().push(Creation { span, spec: task, answer });
            }
            Event::ClaimWork { queue, worker, answer: Answer::Done(runs) } => {
                for run in runs {
                    let handout = Handout { span, worker: *worker, by_claim_work: true };
                    self.handouts.entry(*run).or_default().push(handout);
                }
                if !runs.is_empty() {
                    self.claims.push(Claim { span, queue: *queue, runs });
                }
            }
            Event::ClaimWork { queue, answer: Answer::Refused(GONE), .. } => {
                self.fruitless.entry(*queue).or_default().push(span);
            }
            Event::ClaimTask { run, worker, answer: Answer::Done(()) } => {
                let handout = Handout { span, worker: *worker, by_claim_work: false };
                self.handouts.entry(*run).or_default().push(handout);
            }
            Event::ClaimTask { run, answer: Answer::Unknown, .. } => {
                self.asked_in_vain.insert(*run);
            }
            Event::Change { task, change, answer } => {
                if answer.may_be_done() {
                    let certain = answer.done().is_some();
                    self.changes.entry(*task).or_default().push((span, *change, certain));
                }
            }
            Event::Redrive { task, answer } => {
                let certain = answer.done().is_some();
                if answer.may_be_done() {
                    self.changes.entry(*task).or_default().push((span, Change::Rerun, certain));
                }
                *self.redriven.entry(*task).or_default() += usize::from(certain);
            }
            Event::RowsLocked | Event::SessionsKilled | Event::DatabaseFault | Event::TailLost => {
                self.disturbances.push(span);
            }
            Event::Session(call) => {
                self.members.insert(worker_id(call.worker));
                match &call.act {
                    Act::Claim { answer: Answer::Unknown, .. } => {
                        self.fruitless.entry(call.queue).or_default().push(span);
                    }
                    Act::TaskCommand { run, answer, .. } if answer.may_be_done() => {
                        self.commanded.insert(run.0);
                    }
                    _ => {}
                }
            }
            Event::ClaimWork { .. } | Event::ClaimTask { .. } | Event::Reclaim { .. } => {}
            Event::Enqueue { .. }
            | Event::Release { .. }
            | Event::Returned { .. }
            | Event::Policy { .. }
            | Event::Pause { .. }
            | Event::Resume { .. }
            | Event::Poll { .. }
            | Event::Read { .. }
            | Event::Clock(_) => {}
            Event::Report { run, verdict, answer } => {
                self.reports.entry(*run).or_default().push(Report { span, verdict: *verdict, answer });
            }
        }
    }

    pub(super) fn changes(&self, task: SlugId) -> &[(Span, Change, bool)] {
        self.changes.get(&task).map_or(&[], Vec::as_slice)
    }

    /// Number of runs of a task that may have been released. Runs returned with a session cost no
    /// retry.
    pub(super) fn releases(&self, status: &Status) -> usize {
        let of_member = |run: &&Run| run.worker_id.as_ref().is_some_and(|worker| self.members.contains(worker));
        let gone = |run: &&Run| run.reason_resolved.as_deref() == Some("worker-shutdown");
        status.runs.iter().filter(of_member).filter(gone).count()
    }

    pub(super) fn redriven(&self, task: SlugId) -> usize {
        self.redriven.get(&task).copied().unwrap_or_default()
    }

    /// Number of calls that may have rerun or redriven a task.
    pub(super) fn reruns(&self, task: SlugId) -> usize {
        self.changes(task).iter().filter(|(_, change, _)| *change == Change::Rerun).count()
    }

    pub(super) fn was_reprioritised(&self, task: SlugId) -> bool {
        self.changes(task).iter().any(|(_, change, _)| matches!(change, Change::Priority(_)))
    }

    /// Period of a task's creation: from the first call that may have created it to the first
    /// acknowledgement.
    pub(super) fn created(&self, task: SlugId) -> Option<Span> {
        let (spec, end) = self.acknowledged(task)?;
        let may = |creation: &&Creation<'_>| creation.answer.may_be_done() && creation.spec.content == spec.content;
        let start = self.creations.get(&task)?.iter().filter(may).map(|creation| creation.span.start).min()?;
        Some(Span { start, end })
    }

    /// The acknowledged content of a task, and the time of the first acknowledgement.
    pub(super) fn acknowledged(&self, task: SlugId) -> Option<(&'a TaskSpec, Stamp)> {
        let done = self.creations.get(&task)?.iter().filter(|creation| creation.answer.done().is_some());
        done.min_by_key(|creation| creation.span.end).map(|creation| (creation.spec, creation.span.end))
    }
}
