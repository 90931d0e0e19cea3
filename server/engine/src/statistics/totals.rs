//! Numbers of queues since the start of this server, and their metrics. Every series of a queue
//! begins at 0, so that its first increment is visible, except `queue_exception_tasks`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tenure_api::states::{EndedBy, ReasonResolved, RunState};
use tenure_domain::statistics::{BOUNDS, BUCKETS, REASONS, bucket, is_lost, place, state_of};

use crate::gauges::Metric;

/// Metrics that Taskcluster has, too. The last one has a label for the reason.
pub const OF_TASKCLUSTER: [Metric; 3] = [
    ("queue_completed_tasks", "Tasks of a task queue that were completed"),
    ("queue_failed_tasks", "Tasks of a task queue that failed"),
    ("queue_exception_tasks", "Tasks of a task queue that ended as exceptions"),
];

/// States of ended runs, in the order of [`Totals::runs`].
const STATES: [RunState; 3] = [RunState::Completed, RunState::Failed, RunState::Exception];

const CREATED: Metric = ("tenure_tasks_created_total", "Tasks of a task queue that were created");
const RESOLVED: Metric = ("tenure_tasks_resolved_total", "Tasks of a task queue that were resolved");
const LOST: Metric = ("tenure_runs_lost_total", "Runs of a task queue whose worker was lost");
const WAITS: Metric = ("tenure_run_wait_seconds", "How long claimed runs of a task queue were pending");
const RUNS: Metric = ("tenure_run_seconds", "How long workers held runs of a task queue that ended");

/// Counted durations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Durations {
    counts: [u64; BUCKETS],
    seconds: f64,
}

impl Durations {
    /// A negative duration counts as none: the database's clock was set back.
    pub fn add(&mut self, seconds: f64) {
        self.counts[bucket(seconds)] += 1;
        self.seconds += seconds.max(0.0);
    }

    fn join(&mut self, other: &Self) {
        sum(&mut self.counts, &other.counts);
        self.seconds += other.seconds;
    }

    /// `labels` are the labels of the series, without `le`.
    fn render(&self, name: &str, labels: &str, text: &mut String) {
        let mut so_far = 0;
        for (count, bound) in self.counts.iter().zip(BOUNDS) {
            so_far += count;
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {so_far}");
        }
        let all: u64 = self.counts.iter().sum();
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {all}");
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {all}", self.seconds);
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    pub created: u64,
    /// Resolved tasks by the code of their reason.
    resolved: [u64; REASONS],
    lost: BTreeMap<EndedBy, u64>,
    pub waits: Durations,
    runs: [Durations; STATES.len()],
}

impl Totals {
    /// Counts an ended run. `lost` is the cause if its worker was lost, `ran` its seconds if a
    /// worker held it.
    pub fn end(&mut self, reason: ReasonResolved, lost: Option<EndedBy>, resolves: bool, ran: Option<f64>) {
        self.resolved[place(reason)] += u64::from(resolves);
        if let Some(by) = lost {
            *self.lost.entry(by).or_default() += 1;
        }
        let runs = STATES.iter().position(|state| *state == state_of(reason));
        if let (Some(ran), Some(runs)) = (ran, runs.and_then(|n| self.runs.get_mut(n))) {
            runs.add(ran);
        }
    }

    pub fn join(&mut self, other: &Self) {
        let Self { created, resolved, lost, waits, runs } = other;
        self.created += created;
        sum(&mut self.resolved, resolved);
        for (by, count) in lost {
            *self.lost.entry(*by).or_default() += count;
        }
        self.waits.join(waits);
        self.runs.iter_mut().zip(runs).for_each(|(to, from)| to.join(from));
    }
}

fn sum<const N: usize>(to: &mut [u64; N], from: &[u64; N]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// Appends the metrics of these queues in the Prometheus text format. Names need no escaping.
pub(super) fn render(queues: &BTreeMap<String, Totals>, text: &mut String) {
    if queues.is_empty() {
        return;
    }
    begin(text, CREATED, "counter");
    for (queue, totals) in queues {
        let _ = writeln!(text, "{}{{task_queue=\"{queue}\"}} {}", CREATED.0, totals.created);
    }
    begin(text, RESOLVED, "counter");
    for (queue, totals) in queues {
        for &reason in ReasonResolved::ALL {
            let (name, state, count) = (RESOLVED.0, state_of(reason), totals.resolved[place(reason)]);
            let _ = writeln!(text, "{name}{{task_queue=\"{queue}\",state=\"{state}\",reason=\"{reason}\"}} {count}");
        }
    }
    render_for_taskcluster(queues, text);
    begin(text, LOST, "counter");
    for (queue, totals) in queues {
        for by in EndedBy::ALL.iter().filter(|by| is_lost(**by)) {
            let count = totals.lost.get(by).copied().unwrap_or_default();
            let _ = writeln!(text, "{}{{task_queue=\"{queue}\",ended_by=\"{by}\"}} {count}", LOST.0);
        }
    }
    begin(text, WAITS, "histogram");
    for (queue, totals) in queues {
        totals.waits.render(WAITS.0, &format!("task_queue=\"{queue}\""), text);
    }
    begin(text, RUNS, "histogram");
    for (queue, totals) in queues {
        for (state, runs) in STATES.iter().zip(&totals.runs) {
            runs.render(RUNS.0, &format!("task_queue=\"{queue}\",state=\"{state}\""), text);
        }
    }
    text.push('\n');
}

fn render_for_taskcluster(queues: &BTreeMap<String, Totals>, text: &mut String) {
    let rows: Vec<(String, &Totals)> = queues.iter().map(|(queue, totals)| (labels(queue), totals)).collect();
    let [completed, failed, exceptions] = OF_TASKCLUSTER;
    for (metric, reason) in [(completed, ReasonResolved::Completed), (failed, ReasonResolved::Failed)] {
        begin(text, metric, "counter");
        for (labels, totals) in &rows {
            let _ = writeln!(text, "{}{{{labels}}} {}", metric.0, totals.resolved[place(reason)]);
        }
    }
    begin(text, exceptions, "counter");
    for (labels, totals) in &rows {
        for &reason in ReasonResolved::ALL {
            let count = totals.resolved[place(reason)];
            if state_of(reason) == RunState::Exception && count > 0 {
                let _ = writeln!(text, "{}{{{labels},reasonResolved=\"{reason}\"}} {count}", exceptions.0);
            }
        }
    }
}

/// Labels of Taskcluster's metrics. The name of the queues that are not named has one part.
fn labels(queue: &str) -> String {
    let (provisioner, worker_type) = queue.split_once('/').unwrap_or((queue, queue));
    format!("taskQueueId=\"{queue}\",provisionerId=\"{provisioner}\",workerType=\"{worker_type}\"")
}

/// Begins a metric.
fn begin(text: &mut String, (name, about): Metric, kind: &str) {
    let _ = writeln!(text, "\n# HELP {name} {about}\n# TYPE {name} {kind}");
}
