//! Spans of tasks: *submit* when a task is created; *wait*, *run* and *report* when a run ends.

use chrono::{DateTime, Utc};
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::states::{EndedBy, ReasonResolved};
use tenure_domain::traces::TaskSpan;
use tenure_store::transitions::end::Resolved;
use tenure_store::transitions::end_open;
use uuid::Uuid;

use super::otlp::Span;
use super::{is_on, samples, send};
use crate::statistics::{Creation, Statistics};

/// An ended run of a task whose trace is recorded.
#[derive(Debug, Clone)]
pub struct TracedRun {
    task: Uuid,
    run: u16,
    queue: i32,
    scheduled: DateTime<Utc>,
    /// Start of the claim; none if no worker held the run.
    started: Option<DateTime<Utc>>,
    at: DateTime<Utc>,
    /// Group and id.
    worker: Option<[String; 2]>,
    reason: ReasonResolved,
    by: Option<EndedBy>,
}

impl TracedRun {
    /// Returns none if the trace is not recorded.
    pub fn of_run(run: &Resolved) -> Option<Self> {
        if !samples(run.id) {
            return None;
        }
        Some(Self {
            task: run.id,
            run: run.run.cast_unsigned(),
            queue: run.queue,
            scheduled: run.scheduled,
            started: Some(run.started),
            at: run.now,
            worker: Some([run.worker_group.clone(), run.worker_id.clone()]),
            reason: run.reason()?,
            by: run.ended_by(),
        })
    }

    /// Lists the runs of ended tasks whose traces are recorded.
    pub fn of_tasks(ended: &end_open::Ended, reason: ReasonResolved) -> impl Iterator<Item = Self> {
        let times = ended.scheduled.iter().zip(&ended.starts);
        let runs = ended.tasks.iter().zip(&ended.queues).zip(&ended.runs).zip(times);
        runs.filter_map(move |(((&task, &queue), &run), (&scheduled, &started))| {
            let (run, at, by) = (run.cast_unsigned(), ended.now, ended.by);
            samples(task).then_some(Self { task, run, queue, scheduled, started, at, worker: None, reason, by })
        })
    }

    fn span(&self, kind: TaskSpan, name: impl Into<String>, (start, end): (DateTime<Utc>, DateTime<Utc>)) -> Span {
        let span = Span::new(kind.of(self.task), name, start, end).with("run.id", i64::from(self.run));
        match TaskId::from_uuid(self.task) {
            Some(task) => span.with("task.id", task.to_string()),
            None => span,
        }
    }

    fn record(self, queue: Option<&str>) {
        let Self { task, run, scheduled, started, at, .. } = self;
        let root = TaskSpan::Submit.of(task);
        let in_queue = |span: Span| match queue {
            Some(queue) => span.with("queue.id", queue),
            None => span,
        };
        // The run that counts a late result is pending for no time.
        let waited_until = started.unwrap_or(at);
        if scheduled < waited_until {
            send(in_queue(self.span(TaskSpan::Wait(run), "wait", (scheduled, waited_until)).child_of(root)));
        }
        let parent = if started.is_some() { TaskSpan::Run(run).of(task) } else { root };
        let mut report = self.span(TaskSpan::Report(run), "report", (at, at)).child_of(parent);
        report = report.with("reason", self.reason.to_string());
        if let Some(by) = self.by {
            report = report.with("ended_by", by.to_string());
        }
        send(in_queue(report));
        let Some(started) = started else { return };
        let mut ran = self.span(TaskSpan::Run(run), format!("run {run}"), (started, at)).child_of(root);
        if let Some([group, id]) = self.worker {
            ran = ran.with("worker.group", group).with("worker.id", id);
        }
        if self.reason != ReasonResolved::Completed {
            ran = ran.failed(self.reason.to_string());
        }
        send(in_queue(ran));
    }
}

/// Records new tasks.
pub(crate) fn record_created(created: &[Creation], statistics: &Statistics) {
    if !is_on() {
        return;
    }
    for creation in created.iter().filter(|creation| samples(creation.task)) {
        let &Creation { queue, task, at, link } = creation;
        let mut span = Span::new(TaskSpan::Submit.of(task), "submit", at, at).linked(link);
        if let Some(task) = TaskId::from_uuid(task) {
            span = span.with("task.id", task.to_string());
        }
        if let Some(queue) = statistics.name_of(queue) {
            span = span.with("queue.id", queue.as_str());
        }
        send(span);
    }
}

/// Records ended runs.
pub(crate) fn record_ended(ended: Vec<TracedRun>, statistics: &Statistics) {
    for run in ended {
        let queue = statistics.name_of(run.queue);
        run.record(queue.as_ref().map(TaskQueueId::as_str));
    }
}
