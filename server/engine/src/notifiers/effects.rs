//! Effects of a commit on waiting requests and passes.

use tenure_api::states::ReasonResolved;
use tenure_domain::create::NewTask;
use tenure_store::transitions::end::Resolved;
use tenure_store::transitions::end_open::Ended;
use tenure_store::transitions::schedule::Scheduled;
use uuid::Uuid;

use super::dependent_hints::DEPENDENCIES_MAX;
use crate::statistics::{Creation, End};
use crate::traces::TracedRun;

/// Changes by a transaction that others wait for. An operation collects them;
/// [`super::Notifiers::apply`] applies them once, after the commit, when the changes are visible.
/// Readers of the event log are notified in any case: every transaction with effects writes events.
#[derive(Debug, Default)]
#[must_use = "what waits for these changes is notified only when they are applied"]
pub struct Effects {
    /// Queues in which a run became claimable, or a message visible.
    pub claimable: Vec<i32>,
    pub resolved: Vec<Uuid>,
    /// New tasks, for the statistics and traces.
    pub created: Vec<Creation>,
    /// Ended runs, for the statistics.
    pub ended: Vec<End>,
    /// Ended runs whose traces are recorded.
    pub traced: Vec<TracedRun>,
    /// True if unlisted tasks were resolved.
    pub resolved_unnamed: bool,
    /// True if a task with dependencies was created.
    pub dependents: bool,
    /// Tasks that a new task waits for, with the queue of that task.
    pub awaited: Vec<(Uuid, i32)>,
    /// Sessions with a new inbox item, and ended sessions.
    pub inboxes: Vec<i64>,
    /// Queues in which a run waits for admission, was claimed, or ended. Queues without admission
    /// are ignored.
    pub admission: Vec<i32>,
}

impl Effects {
    pub fn claimable(queues: impl IntoIterator<Item = i32>) -> Self {
        Self { claimable: queues.into_iter().collect(), ..Self::default() }
    }

    /// Adds a new task without a run, in the queue with this key.
    pub fn task_waits(&mut self, task: &NewTask, queue: i32) {
        self.dependents = true;
        if task.dependencies.len() <= DEPENDENCIES_MAX {
            self.awaited.extend(task.dependencies.iter().map(|&required| (required, queue)));
        }
    }

    /// Adds tasks that waited for others and became pending.
    pub fn tasks_scheduled(&mut self, scheduled: &[Scheduled]) {
        self.admission.extend(scheduled.iter().map(|one| one.queue));
        self.claimable.extend(scheduled.iter().filter_map(|one| one.claimable()));
    }

    /// Adds an ended run: its task is resolved, or the next run is pending.
    pub fn run_ended(&mut self, run: &Resolved) {
        self.admission.push(run.queue);
        self.ended.extend(End::of_run(run));
        self.traced.extend(TracedRun::of_run(run));
        if run.next_reason.is_some() {
            self.claimable.push(run.queue);
        } else {
            self.resolved.push(run.id);
        }
    }

    /// Adds tasks that were resolved otherwise than by the end of their claim.
    pub fn tasks_ended(&mut self, ended: Ended, reason: ReasonResolved) {
        self.ended.extend(End::of_tasks(&ended, reason));
        self.traced.extend(TracedRun::of_tasks(&ended, reason));
        self.admission.extend(ended.queues);
        self.resolved.extend(ended.tasks);
        self.inboxes.extend(ended.sessions);
    }
}
