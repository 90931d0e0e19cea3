//! Decides which creates go on in a batch that has locked their unique names and backlogs.
//!
//! A name has at most one unresolved task that does not wait for the others with the name. Creates
//! give a queue at most as many pending runs, with as many bytes, as its limits allow.

use std::collections::HashMap;

use tenure_api::policy::Backlog as Limit;
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
    /// Of its definition.
    pub bytes: i64,
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

/// Pending runs of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pending {
    pub tasks: i64,
    /// Of their definitions. Counted only in a queue with a limit of bytes.
    pub bytes: i64,
}

impl Pending {
    /// Returns the used part of the limit that is nearer: 1 if it is reached.
    #[must_use]
    pub fn part_of(self, limit: Limit) -> f64 {
        let part = |used: i64, limit: Option<i64>| limit.map_or(0.0, |limit| used as f64 / limit as f64);
        part(self.tasks, limit.tasks).max(part(self.bytes, limit.bytes))
    }

    fn and(self, bytes: i64) -> Self {
        Self { tasks: self.tasks + 1, bytes: self.bytes.saturating_add(bytes) }
    }
}

/// The backlog of a queue with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    pub limit: Limit,
    pub used: Pending,
    pub lock: BacklogLock,
}

impl Backlog {
    /// True if concurrent creators cannot reach the limit together. Never with a limit of bytes,
    /// since a few large tasks may have them all.
    #[must_use]
    pub fn is_far(&self) -> bool {
        self.limit.bytes.is_none() && self.limit.tasks.is_none_or(|limit| self.used.tasks + SHARED_MARGIN < limit)
    }

    fn refusal(&self, bytes: i64) -> Option<Refusal> {
        if let Some(limit) = self.limit.bytes.filter(|limit| bytes > *limit) {
            return Some(Refusal::TooLarge { bytes, limit });
        }
        let after = self.used.and(bytes);
        let exceeds = |used: i64, limit: Option<i64>| limit.is_some_and(|limit| used > limit);
        let is_full = exceeds(after.tasks, self.limit.tasks) || exceeds(after.bytes, self.limit.bytes);
        is_full.then_some(Refusal::Full(self.used))
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
    /// It does not fit beside these runs.
    Full(Pending),
    /// It does not fit into the empty queue.
    TooLarge { bytes: i64, limit: i64 },
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
    backlog.filter(|_| !waits).and_then(|backlog| backlog.refusal(member.bytes))
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
            backlog.used = backlog.used.and(member.bytes);
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
