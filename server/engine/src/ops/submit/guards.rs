//! Unique names and backlog limits of a submission, with the rules of createTask. A coalesced entry
//! is replaced by the task that has its name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::states::OnDuplicate;
use tenure_domain::policy::guard::{BacklogLock, Decision, Refusal};
use tenure_domain::submit::Graph;
use tenure_store::events::Sequenced;
use tenure_store::guarded as store;
use tenure_store::queues::Key;
use tenure_store::session;
use tenure_store::transitions::create::Guarded;

use super::Plan;
use crate::failure::OpError;
use crate::ops::guarded::{self, Locking, Look, Wanted};

/// The guards of all entries, read under their locks. None if no entry is guarded.
pub(super) struct Guards {
    look: Option<Look>,
    /// Keys of the entries' queues.
    queues: Vec<i32>,
    is_bounded: bool,
}

/// Locks the names of all entries, waiting.
pub(super) async fn lock_names(transaction: &mut PgConnection, graph: &Graph) -> Result<(), sqlx::Error> {
    let named = graph.entries.iter().filter(|entry| entry.task.unique().is_some());
    let names: Vec<store::Name<'_>> = named.map(|entry| guarded::name(&entry.task)).collect();
    if !names.is_empty() {
        session::idle_briefly(transaction).await?;
        store::lock_names(transaction, &names, Locking::Waits).await?;
    }
    Ok(())
}

/// Locks the backlogs of queues with a limit, and reads all guards.
pub(super) async fn look(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    graph: &Graph,
    queues: &HashMap<TaskQueueId, Key>,
) -> Result<Guards, sqlx::Error> {
    let bounded = queues.values().filter(|key| key.is_bounded).map(|key| (key.id, BacklogLock::Exclusive));
    let locks: BTreeMap<i32, BacklogLock> = bounded.collect();
    let keys: Vec<i32> =
        graph.entries.iter().filter_map(|entry| queues.get(&entry.task.queue).map(|key| key.id)).collect();
    let is_named = graph.entries.iter().any(|entry| entry.task.unique().is_some());
    let mut guards = Guards { look: None, queues: keys, is_bounded: !locks.is_empty() };
    if is_named || guards.is_bounded {
        session::idle_briefly(transaction).await?;
        store::lock_backlogs(transaction, &locks).await?;
        let look = guarded::look_with(transaction, sequenced, &guards.wanted(graph), &locks).await?;
        guards.look = Some(look);
    }
    Ok(guards)
}

impl Guards {
    fn wanted<'a>(&self, graph: &'a Graph) -> Vec<Wanted<'a>> {
        let entries = graph.entries.iter().zip(&self.queues);
        entries.map(|(entry, &queue)| Wanted { task: &entry.task, queue }).collect()
    }

    pub(super) fn guarded(&self) -> Guarded {
        if self.is_bounded { Guarded::Yes } else { Guarded::No }
    }

    /// Returns the submission with existing tasks in the place of coalesced entries.
    pub(super) fn coalesced<'a>(&self, graph: &'a Graph) -> Cow<'a, Graph> {
        let Some(look) = &self.look else { return Cow::Borrowed(graph) };
        let holder = |(n, wanted): (usize, Wanted<'_>)| {
            let coalesces = look.on_duplicate(n, wanted.task) == OnDuplicate::Coalesce && !look.exists(n);
            let holder = look.holders(n).first().copied().filter(|_| coalesces)?;
            Some((n, TaskId::from_uuid(holder)?))
        };
        let holders: BTreeMap<usize, TaskId> = self.wanted(graph).into_iter().enumerate().filter_map(holder).collect();
        if holders.is_empty() {
            return Cow::Borrowed(graph);
        }
        let mut coalesced = graph.clone();
        coalesced.coalesce(&holders);
        Cow::Owned(coalesced)
    }

    /// Decides for these entries. Without guards, for none.
    pub(super) fn decide(
        &self,
        graph: &Graph,
        entries: &[usize],
        waits: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Decision)> {
        let Some(look) = &self.look else { return Vec::new() };
        let wanted = self.wanted(graph);
        let decisions = look.decide(&wanted, entries, waits, |_| true);
        entries.iter().copied().zip(decisions).collect()
    }

    /// `tasks.seq` of the tasks that hold the name of an entry.
    pub(super) fn holders(&self, entry: usize) -> Vec<i64> {
        self.look.as_ref().map_or_else(Vec::new, |look| look.holder_seqs(entry))
    }

    pub(super) fn error(&self, graph: &Graph, entry: usize, refusal: Refusal) -> OpError {
        let Some(look) = &self.look else { return OpError::Unavailable };
        let wanted = Wanted { task: &graph.entries[entry].task, queue: self.queues[entry] };
        let mut error = look.error(refusal, wanted).at(&graph.place(entry));
        if let OpError::Duplicate(duplicate) = &mut error {
            duplicate.entry = Some(graph.label(entry));
        }
        error
    }

    /// Stores which tasks may be unresolved of the names of stored entries.
    pub(super) async fn hold_names(&self, transaction: &mut PgConnection, plan: &Plan) -> Result<(), sqlx::Error> {
        let Some(look) = &self.look else { return Ok(()) };
        let holders = plan.stored.iter().map(|(&n, row)| {
            let waits_for = plan.holders.get(&n).map_or(&[][..], Vec::as_slice);
            (n, waits_for, row.seq)
        });
        store::hold_names(transaction, &look.new_holders(holders)).await
    }
}
