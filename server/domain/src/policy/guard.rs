//! Decides which creates go on in a batch that has locked their unique names and backlogs.
//!
//! A name has at most one unresolved task that does not wait for the others with the name. A queue
//! has at most as many pending runs as its limit, as far as creates are concerned.

use std::collections::HashMap;

use tenure_api::states::OnDuplicate;
use uuid::Uuid;

/// Unresolved tasks of one name.
pub const HOLDERS_MAX: usize = 100;
/// Runs that concurrent creators with shared locks may add without seeing each other: 200 members
/// on each of 100 connections.
pub const SHARED_MARGIN: i64 = 20_000;

/// Facts about a task to create.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// True if a task with the id exists: the request is a repeat or a conflict.
    pub exists: bool,
    pub name: Option<Name<'a>>,
    /// The key of its queue.
    pub queue: i32,
    /// True if it has unsatisfied dependencies, and so no pending run.
    pub waits: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    /// `unique_names.id`.
    pub id: i64,
    pub on_duplicate: OnDuplicate,
    /// Unresolved tasks with the name, the oldest first.
    pub holders: &'a [Uuid],
    /// True if this transaction has locked the name.
    pub locked: bool,
}

/// The backlog of a queue with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    pub limit: i64,
    /// Pending runs.
    pub used: i64,
    pub lock: BacklogLock,
}

impl Backlog {
    /// True if concurrent creators cannot reach the limit together.
    #[must_use]
    pub fn is_far(&self) -> bool {
        self.used + SHARED_MARGIN < self.limit
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BacklogLock {
    None,
    /// Others may create in the queue meanwhile.
    Shared,
    Exclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Create,
    /// Create it without a run, until all holders of its name have ended.
    Wait,
    Refuse(Refusal),
    /// Its name is that of this earlier member, from 0.
    Behind(usize),
    /// Try again with the locks that are missing.
    Locked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The oldest holder of the name.
    Duplicate(Uuid),
    /// The name has [`HOLDERS_MAX`] unresolved tasks.
    Crowded,
    Full,
}

/// Returns why a member is refused whatever is locked, so that neither a popular name nor a full
/// queue makes creators wait.
#[must_use]
pub fn refusal(member: &Member<'_>, backlog: Option<&Backlog>) -> Option<Refusal> {
    if member.exists {
        return None;
    }
    let mut waits = member.waits;
    if let Some(Name { on_duplicate, holders: [oldest, ..], .. }) = member.name {
        match on_duplicate {
            OnDuplicate::Reject | OnDuplicate::Coalesce => return Some(Refusal::Duplicate(*oldest)),
            OnDuplicate::Queue => waits = true,
        }
    }
    if member.name.is_some_and(|name| name.holders.len() >= HOLDERS_MAX) {
        return Some(Refusal::Crowded);
    }
    let is_full = backlog.is_some_and(|backlog| backlog.used >= backlog.limit);
    (is_full && !waits).then_some(Refusal::Full)
}

/// Decides for each member, in order. `backlogs` has the queues with a limit.
#[must_use]
pub fn decide(members: &[Member<'_>], backlogs: &HashMap<i32, Backlog>) -> Vec<Decision> {
    let mut names: HashMap<i64, usize> = HashMap::new();
    let mut backlogs = backlogs.clone();
    let mut decisions = Vec::with_capacity(members.len());
    for (position, member) in members.iter().enumerate() {
        let decision = decide_one(member, &names, backlogs.get(&member.queue));
        let is_new = !member.exists && matches!(decision, Decision::Create | Decision::Wait);
        if is_new && let Some(name) = member.name {
            names.insert(name.id, position);
        }
        if is_new
            && decision == Decision::Create
            && !member.waits
            && let Some(backlog) = backlogs.get_mut(&member.queue)
        {
            backlog.used += 1;
        }
        decisions.push(decision);
    }
    decisions
}

fn decide_one(member: &Member<'_>, names: &HashMap<i64, usize>, backlog: Option<&Backlog>) -> Decision {
    if member.exists {
        return Decision::Create;
    }
    if let Some(refusal) = refusal(member, backlog) {
        return Decision::Refuse(refusal);
    }
    let mut waits_for_name = false;
    if let Some(name) = member.name {
        if !name.locked {
            return Decision::Locked;
        }
        if let Some(&earlier) = names.get(&name.id) {
            return Decision::Behind(earlier);
        }
        waits_for_name = !name.holders.is_empty();
    }
    if waits_for_name {
        return Decision::Wait;
    }
    match backlog {
        Some(backlog) if !member.waits && !may_add(backlog) => Decision::Locked,
        Some(_) | None => Decision::Create,
    }
}

/// True if the lock suffices to add a run below the limit.
fn may_add(backlog: &Backlog) -> bool {
    match backlog.lock {
        BacklogLock::None => false,
        BacklogLock::Shared => backlog.is_far(),
        BacklogLock::Exclusive => true,
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
