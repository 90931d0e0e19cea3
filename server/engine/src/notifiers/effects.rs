//! What follows from a commit.

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
    /// Whether tasks were resolved that are not named.
    pub resolved_unnamed: bool,
    /// Whether a task was created that waits for others.
    pub dependents: bool,
    /// Sessions with a new item in their inbox, and sessions that have ended.
    pub inboxes: Vec<i64>,
    /// Queues in which a run waits for admission or was claimed, or one has ended. Those without admission are passed over.
    pub admission: Vec<i32>,
    /// Tasks of which a run that a worker held was ended by something else than its report.
    pub taken_away: Vec<Uuid>,
}

impl Effects {
    /// Runs became claimable in these queues.
    pub fn claimable(queues: impl IntoIterator<Item = i32>) -> Self {
        Self { claimable: queues.into_iter().collect(), ..Self::default() }
    }

    /// These tasks were resolved.
    pub fn resolved(tasks: impl IntoIterator<Item = Uuid>) -> Self {
        Self { resolved: tasks.into_iter().collect(), ..Self::default() }
    }

    /// A run ended: its task was resolved, or the next run is pending in this queue.
    pub fn run_ended(&mut self, task: Uuid, queue: i32, retried: bool) {
        self.admission.push(queue);
        if retried {
            self.claimable.push(queue);
        } else {
            self.resolved.push(task);
        }
    }

    /// The same of a run that was ended otherwise than by its worker.
    pub fn run_taken_away(&mut self, task: Uuid, queue: i32, retried: bool) {
        self.run_ended(task, queue, retried);
        self.taken_away.push(task);
    }
}
