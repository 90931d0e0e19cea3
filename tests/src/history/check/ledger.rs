//! The records sorted by what they are about.

use std::collections::{HashMap, HashSet};

use tenure_api::ids::SlugId;

use super::History;
use super::queues::Queues;
use crate::history::record::{Answer, Change, Event, Record, RunKey, Stamp, TaskSpec, Verdict};
use crate::history::sessions::Act;
use crate::history::snapshot::{Run, Status};
use crate::history::worker_id;

/// The session has ended.
pub(super) const GONE: u16 = 410;

/// From one time to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: Stamp,
    pub(super) end: Stamp,
}

/// An attempt to create a task.
#[derive(Debug)]
pub(super) struct Creation<'a> {
    pub(super) span: Span,
    pub(super) spec: &'a TaskSpec,
    pub(super) answer: &'a Answer<()>,
}

/// A run that a worker was given.
#[derive(Debug)]
pub(super) struct Handout {
    pub(super) span: Span,
    pub(super) worker: usize,
    pub(super) by_claim_work: bool,
}

/// An attempt to report a run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) span: Span,
    pub(super) verdict: Verdict,
    pub(super) answer: &'a Answer<()>,
}

/// An answer of claimWork that is not empty.
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
    /// Runs requested by claimTask whose caller hung up: what was begun for it may have been rolled back after it
    /// had locked the run for a short time.
    pub(super) asked_in_vain: HashSet<RunKey>,
    /// What was asked for about each task and not refused: when, what, and whether it was done for certain.
    pub(super) changes: HashMap<SlugId, Vec<(Span, Change, bool)>>,
    /// Tasks for which a command may have been stored: one ends the delay after a release.
    pub(super) commanded: HashSet<SlugId>,
    /// Workers that have begun sessions.
    pub(super) members: HashSet<String>,
    /// Times in which rows may have been locked by a claim that then came to nothing: foreign locks, killed
    /// sessions and servers in trouble. A caller of claimWork that hung up is none of these: what its claim has taken
    /// stays taken.
    pub(super) disturbances: Vec<Span>,
    /// Claims in the name of sessions that had ended, by queue: what their statement had selected stayed pending, for them and for
    /// those that it was to claim for beside them, and was locked until it was committed.
    pub(super) fruitless: HashMap<usize, Vec<Span>>,
    /// What was said about queues, delays and results.
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
            Event::Release { .. }
            | Event::Returned { .. }
            | Event::Policy { .. }
            | Event::Pause { .. }
            | Event::Resume { .. }
            | Event::Poll { .. }
            | Event::Clock(_) => {}
            Event::Report { run, verdict, answer } => {
                self.reports.entry(*run).or_default().push(Report { span, verdict: *verdict, answer });
            }
        }
    }

    /// What was asked for about a task and may have been done.
    pub(super) fn changes(&self, task: SlugId) -> &[(Span, Change, bool)] {
        self.changes.get(&task).map_or(&[], Vec::as_slice)
    }

    /// How many runs of a task may have been released: what a worker gives back with its session costs no retry.
    pub(super) fn releases(&self, status: &Status) -> usize {
        let of_member = |run: &&Run| run.worker_id.as_ref().is_some_and(|worker| self.members.contains(worker));
        let gone = |run: &&Run| run.reason_resolved.as_deref() == Some("worker-shutdown");
        status.runs.iter().filter(of_member).filter(gone).count()
    }

    /// How often a task may have been rerun.
    pub(super) fn reruns(&self, task: SlugId) -> usize {
        self.changes(task).iter().filter(|(_, change, _)| *change == Change::Rerun).count()
    }

    /// Whether a request may have changed the task's priority.
    pub(super) fn was_reprioritised(&self, task: SlugId) -> bool {
        self.changes(task).iter().any(|(_, change, _)| matches!(change, Change::Priority(_)))
    }

    /// When a task with this content came into being: from the first call that may have created it to the first that says so.
    pub(super) fn created(&self, task: SlugId) -> Option<Span> {
        let (spec, end) = self.acknowledged(task)?;
        let may = |creation: &&Creation<'_>| creation.answer.may_be_done() && creation.spec.content == spec.content;
        let start = self.creations.get(&task)?.iter().filter(may).map(|creation| creation.span.start).min()?;
        Some(Span { start, end })
    }

    /// The content that a task was acknowledged with, and when that was first acknowledged.
    pub(super) fn acknowledged(&self, task: SlugId) -> Option<(&'a TaskSpec, Stamp)> {
        let done = self.creations.get(&task)?.iter().filter(|creation| creation.answer.done().is_some());
        done.min_by_key(|creation| creation.span.end).map(|creation| (creation.spec, creation.span.end))
    }
}
