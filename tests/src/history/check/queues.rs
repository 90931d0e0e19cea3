//! Requests about queues, delays and results, and their effect at a given time.

use std::collections::HashMap;

use tenure_api::states::Delivery;

use super::ledger::Span;
use crate::history::policy::{Policy, Start};
use crate::history::record::{Answer, Event, Record, RunKey, Stamp, TaskSpec};
use crate::history::snapshot::Status;

/// Time after its end in which an unanswered request may still act.
const ACTS_WITHIN: Stamp = 10 * 1_000_000;

#[derive(Debug, Clone, Copy)]
struct Reading {
    span: Span,
    millis: i64,
}

#[derive(Debug)]
pub(super) struct Request<T> {
    /// From its start to the last time at which it may have acted.
    pub(super) acts: Span,
    pub(super) what: T,
    pub(super) certain: bool,
}

impl<T> Request<T> {
    fn new(span: Span, what: T, answer: &Answer<()>) -> Option<Self> {
        let certain = answer.done().is_some();
        let end = if certain { span.end } else { span.end.saturating_add(ACTS_WITHIN) };
        answer.may_be_done().then_some(Self { acts: Span { start: span.start, end }, what, certain })
    }

    fn is_done_before(&self, time: Stamp) -> bool {
        self.certain && self.acts.end < time
    }
}

#[derive(Debug, Default)]
pub(super) struct Queues<'a> {
    clock: Vec<Reading>,
    policies: HashMap<usize, Vec<Request<&'a Policy>>>,
    pauses: HashMap<usize, Vec<Request<Option<i64>>>>,
    resumes: HashMap<usize, Vec<Request<()>>>,
    pub(super) releases: HashMap<RunKey, Vec<Request<Option<Start>>>>,
    pub(super) results: HashMap<RunKey, Vec<Request<u64>>>,
    /// Responses to pollers: time, queue, and at least one run.
    pub(super) polls: Vec<(Span, usize, &'a [RunKey])>,
    pub(super) polled: HashMap<RunKey, Vec<Span>>,
}

impl<'a> Queues<'a> {
    pub(super) fn of(records: &'a [Record]) -> Self {
        let mut ordered: Vec<&Record> = records.iter().collect();
        ordered.sort_by_key(|record| record.start);
        let mut queues = Self::default();
        for record in ordered {
            queues.enter(record);
        }
        queues
    }

    fn enter(&mut self, record: &'a Record) {
        let span = Span { start: record.start, end: record.end };
        match &record.event {
            Event::Clock(millis) => self.clock.push(Reading { span, millis: *millis }),
            Event::Policy { queue, policy, answer } => {
                self.policies.entry(*queue).or_default().extend(Request::new(span, policy, answer));
            }
            Event::Pause { queue, until, answer } => {
                self.pauses.entry(*queue).or_default().extend(Request::new(span, *until, answer));
            }
            Event::Resume { queue, answer } => {
                self.resumes.entry(*queue).or_default().extend(Request::new(span, (), answer));
            }
            Event::Release { run, start, answer } => {
                self.releases.entry(*run).or_default().extend(Request::new(span, *start, answer));
            }
            Event::Returned { run, result, answer } => {
                self.results.entry(*run).or_default().extend(Request::new(span, *result, answer));
            }
            Event::Poll { queue, runs } if !runs.is_empty() => {
                self.polls.push((span, *queue, runs));
                for run in runs {
                    self.polled.entry(*run).or_default().push(span);
                }
            }
            _ => {}
        }
    }

    /// Lower bound of the server's clock at `time`; `None` without an earlier reading.
    pub(super) fn clock_at_least(&self, time: Stamp) -> Option<i64> {
        let before = self.clock.partition_point(|reading| reading.span.start <= time);
        let read = |reading: &&Reading| reading.span.end <= time;
        self.clock[..before].iter().rev().find(read).map(|reading| reading.millis)
    }

    /// Upper bound of the server's clock at `time`; `None` without a later reading.
    pub(super) fn clock_at_most(&self, time: Stamp) -> Option<i64> {
        let after = self.clock.partition_point(|reading| reading.span.start < time);
        self.clock.get(after).map(|reading| reading.millis)
    }

    /// Policies that may have been in force at some time in `times`; at least one.
    pub(super) fn policies(&self, queue: usize, times: Span) -> Vec<Policy> {
        let changes = self.policies.get(&queue).map_or(&[][..], Vec::as_slice);
        let changes = &changes[..changes.partition_point(|change| change.acts.start <= times.end)];
        // The last change that was certainly done before; it replaces all changes that ended before
        // it.
        let last = changes.iter().rev().find(|change| change.is_done_before(times.start));
        let Some(last) = last else {
            return changes.iter().map(|change| change.what.clone()).chain([Policy::default()]).collect();
        };
        let lasting = changes.iter().filter(|change| change.acts.end >= last.acts.start);
        lasting.map(|change| change.what.clone()).collect()
    }

    /// The pause that prevents the queue from giving anything in answer to a request in `asked`.
    pub(super) fn pause_during(&self, queue: usize, asked: Span) -> Option<Span> {
        let pauses = self.pauses.get(&queue)?;
        let last = pauses.iter().rev().find(|pause| pause.is_done_before(asked.start))?;
        let may_matter = |acts: Span| acts.start <= asked.end && acts.end >= last.acts.start;
        let resumed = self.resumes.get(&queue).is_some_and(|all| all.iter().any(|resume| may_matter(resume.acts)));
        let over = pauses.iter().filter(|pause| may_matter(pause.acts)).any(|pause| {
            let now = self.clock_at_most(asked.end);
            pause.what.is_some_and(|until| now.is_none_or(|now| now >= until))
        });
        (!resumed && !over).then_some(last.acts)
    }

    /// Deliveries that a task may have had at some time in `times`.
    pub(super) fn deliveries(&self, spec: &TaskSpec, times: Span) -> Vec<Delivery> {
        match spec.options.delivery {
            Some(delivery) => vec![delivery],
            None => self.policies(spec.queue, times).iter().map(Policy::delivery).collect(),
        }
    }

    /// Values of `retryFailed` that a task may have had at some time in `times`.
    pub(super) fn retry_failed(&self, spec: &TaskSpec, times: Span) -> Vec<bool> {
        match spec.options.retry_failed {
            Some(retry_failed) => vec![retry_failed],
            None => self.policies(spec.queue, times).iter().map(|policy| policy.retry_failed).collect(),
        }
    }

    /// True if stamps on the runs of a task may have changed in `life` because its queue's policy
    /// did. Delayed retries are stamped too: see [`Queues::may_be_delayed`].
    pub(super) fn may_be_stamped_again(&self, spec: &TaskSpec, life: Span) -> bool {
        let (deliveries, retry_failed) = (self.deliveries(spec, life), self.retry_failed(spec, life));
        deliveries.iter().any(|delivery| *delivery != deliveries[0])
            || retry_failed.iter().any(|value| *value != retry_failed[0])
    }

    /// True if a run of a task that existed in `life` may have been delayed.
    pub(super) fn may_be_delayed(&self, spec: &TaskSpec, life: Span) -> bool {
        let options = &spec.options;
        let by_policy = |policy: Policy| {
            (policy.delay > 0 && options.start.is_none())
                || (policy.retry_delay.is_some() && options.retry_delay.is_none())
        };
        options.start.is_some()
            || options.retry_delay.is_some()
            // Successive losses of workers delay a run even if they cost no retry.
            || self.deliveries(spec, life).contains(&Delivery::AtLeastOnce)
            || self.policies(spec.queue, life).into_iter().any(by_policy)
    }

    /// Number of runs of a task that may have ended without using up a retry.
    pub(super) fn free_runs(&self, spec: &TaskSpec, status: &Status) -> u32 {
        let all_times = Span { start: 0, end: Stamp::MAX };
        let lost_for_free = self.deliveries(spec, all_times).contains(&Delivery::AtLeastOnce);
        let free = status.runs.iter().filter(|run| match run.reason_resolved.as_deref() {
            Some("claim-expired") => lost_for_free,
            Some("worker-shutdown") => lost_for_free || self.releases.contains_key(&(spec.task, run.run_id)),
            _ => false,
        });
        u32::try_from(free.count()).unwrap_or(u32::MAX)
    }
}
