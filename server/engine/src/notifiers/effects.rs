//! What follows from a commit.

use tenure_api::states::ReasonResolved;
use tenure_store::transitions::end::Resolved;
use tenure_store::transitions::end_open::Ended;
use uuid::Uuid;

/// What a transaction changed that others wait for. An operation collects it while it runs; it is applied once, after
/// the commit, by [`super::Notifiers::apply`], so that nothing is looked for before it can be seen. Readers of the event log
/// are notified in any case: every transaction that has effects writes events.
#[derive(Debug, Default)]
#[must_use = "what waits for these changes is notified only when they are applied"]
pub struct Effects {
    /// Queues in which a run became claimable, or a message visible.
    pub claimable: Vec<i32>,
    /// Tasks that were resolved.
    pub resolved: Vec<Uuid>,
    /// The queue of each task that was resolved, and for what reason; for the metrics.
    pub resolutions: Vec<(i32, ReasonResolved)>,
    /// Whether tasks were resolved that are not named.
    pub resolved_unnamed: bool,
    /// Whether a task was created that waits for others.
    pub dependents: bool,
    /// Sessions with a new item in their inbox, and sessions that have ended.
    pub inboxes: Vec<i64>,
    /// Queues in which a run waits for admission or was claimed, or one has ended. Those without admission are passed over.
    pub admission: Vec<i32>,
}

impl Effects {
    /// Runs became claimable in these queues.
    pub fn claimable(queues: impl IntoIterator<Item = i32>) -> Self {
        Self { claimable: queues.into_iter().collect(), ..Self::default() }
    }

    /// A run ended: its task was resolved, or the next run is pending in its queue.
    pub fn run_ended(&mut self, run: &Resolved) {
        self.admission.push(run.queue);
        if run.next_reason.is_some() {
            self.claimable.push(run.queue);
        } else {
            self.resolved.push(run.id);
            self.resolutions.extend(run.reason().map(|reason| (run.queue, reason)));
        }
    }

    /// Tasks were resolved without a report, for this reason.
    pub fn tasks_ended(&mut self, ended: Ended, reason: ReasonResolved) {
        let Ended { tasks, queues, sessions } = ended;
        self.admission.extend(&queues);
        self.resolved.extend(tasks);
        self.resolutions.extend(queues.into_iter().map(|queue| (queue, reason)));
        self.inboxes.extend(sessions);
    }
}
