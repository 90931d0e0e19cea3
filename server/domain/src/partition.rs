//! The rule of partition groups: which member has which share of the work, without a coordinator.
//!
//! Time is divided into intervals, which have numbers. Members call `tick` once per interval or more
//! often; only these calls move a group. A map gives each of its `replicas` shares to one member.
//!
//! - The members of an interval have called in it or in the interval before, and joined
//!   before that. If nobody could call for a while, the intervals in between do not exist, and all
//!   members have until the end of the next interval.
//! - If they differ from the members of the active map, another map is *proposed*. Members keep
//!   their index where possible.
//! - The proposal becomes active once every member of the active map that loses slots has
//!   acknowledged it, or has not called for so long that it has stopped by itself. Until then a
//!   member works on slots that it has in both maps.
//! - Every proposal has a number of its own: an acknowledgement of an earlier one means nothing.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::partitions::{PartitionRequest, SLOTS};
use tenure_api::states::PartitionState;

use crate::policy::seconds;
use crate::unacceptable::Unacceptable;

/// Maximum groups of a database, each with series of metrics.
pub const GROUPS_MAX: usize = 100;
/// Maximum members of a group.
pub const MEMBERS_MAX: usize = 1_000;
/// Shares of a map; further members wait. Half the slots, so that shares differ by one slot.
pub const REPLICAS_MAX: usize = SLOTS as usize / 2;
const NAME_CHARS_MAX: usize = 64;
const MEMBER_CHARS_MAX: usize = 128;
const INTERVAL_DEFAULT: i64 = 10;
const INTERVAL_MOST: i64 = 3_600;
const DRAIN_TIMEOUT_MOST: i64 = 86_400;
/// Intervals from the beginning of the last one in which a member called until its share is free.
const VALID: i64 = 2;

/// A partition group without its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// In seconds.
    pub interval: i64,
    /// In seconds; 0: members have any time to acknowledge a proposal.
    pub drain_timeout: i64,
    /// Number of the active map; 0 before the first one.
    pub epoch: i64,
    /// Shares of the active map.
    pub replicas: u16,
    /// Number of the last proposal, active or not.
    pub proposed: i64,
    pub next: Option<Proposal>,
    /// The last interval in which anybody called.
    pub number: i64,
    /// Members have called in this interval or later.
    pub since: i64,
    /// The interval of the first call after a pause of all.
    pub resumed: i64,
}

/// A map that is not active yet; its number is `Group::proposed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    pub replicas: u16,
    pub since: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The interval of the first call.
    pub joined: i64,
    /// The interval of the last call.
    pub ticked: i64,
    /// Share in the active map.
    pub index: Option<u16>,
    /// Share in the proposal.
    pub next_index: Option<u16>,
    /// True if the proposal takes slots from it, and it has acknowledged that.
    pub acked: bool,
}

/// A group with its members by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub group: Group,
    pub members: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Tick { member: String, acked: Option<i64> },
    Leave { member: String },
}

/// The share of a member. Times and limits are in [`Group`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub state: PartitionState,
    pub index: Option<u16>,
    pub next: Option<NextShare>,
    /// None while it waits.
    pub valid_until: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextShare {
    pub index: Option<u16>,
    pub replicas: u16,
    pub epoch: i64,
}

/// Applies calls that arrived at about the same time. `now` is the time of the latest.
///
/// Members that would exceed [`MEMBERS_MAX`] are not admitted: they have no [`State::share`].
pub fn step(state: &mut State, events: &[Event], now: DateTime<Utc>) {
    state.group.advance(now);
    for event in events {
        state.apply(event);
    }
    state.expel_slow(now);
    state.propose(now);
    if state.may_flip(now) {
        state.flip();
    }
    state.forget();
}

impl Group {
    /// A group that nobody has joined.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let Settings { interval, drain_timeout } = settings;
        Self {
            interval: interval.unwrap_or(INTERVAL_DEFAULT),
            drain_timeout,
            epoch: 0,
            replicas: 0,
            proposed: 0,
            next: None,
            number: 0,
            since: 0,
            resumed: 0,
        }
    }

    /// Intervals never go back, even if the clock does.
    fn advance(&mut self, now: DateTime<Utc>) {
        let number = now.timestamp().div_euclid(self.interval).max(self.number);
        if number > self.number + 1 {
            self.resumed = number;
        } else if number > self.number && self.number != self.resumed {
            self.since = self.number;
        }
        self.number = number;
    }

    /// Returns when the share of this member may be given to others, unless it calls again.
    #[must_use]
    pub fn valid_until(&self, member: &Member) -> DateTime<Utc> {
        self.start_of(member.ticked.saturating_add(VALID))
    }

    /// Returns the start of the interval of the member's last call.
    #[must_use]
    pub fn last_tick(&self, member: &Member) -> DateTime<Utc> {
        self.start_of(member.ticked)
    }

    fn start_of(&self, number: i64) -> DateTime<Utc> {
        let seconds = number.saturating_mul(self.interval);
        DateTime::from_timestamp(seconds, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Returns the number of the last map that the member has acknowledged, if it has a share. A
    /// map that takes nothing from it needs no acknowledgement and counts once it is active.
    #[must_use]
    pub fn acknowledged(&self, member: &Member) -> Option<i64> {
        member.index.map(|_| if self.next.is_some() && member.acked { self.proposed } else { self.epoch })
    }

    /// True if the proposal takes slots from this member. With another number of shares every
    /// member loses some.
    fn takes_from(&self, member: &Member) -> bool {
        let Some(next) = self.next else { return false };
        member.index.is_some() && (next.replicas != self.replicas || member.next_index != member.index)
    }

    /// True if the proposal waits for this member to acknowledge it or to fall silent.
    #[must_use]
    pub fn waits_for(&self, member: &Member, now: DateTime<Utc>) -> bool {
        self.takes_from(member) && !member.acked && self.valid_until(member) > now
    }
}

impl State {
    /// Returns the share of a member, unless it has not joined.
    #[must_use]
    pub fn share(&self, member: &str) -> Option<Share> {
        let group = &self.group;
        let member = self.members.get(member)?;
        let is_named = member.index.is_some() || member.next_index.is_some();
        let next = group.next.filter(|_| is_named).map(|next| NextShare {
            index: member.next_index,
            replicas: next.replicas,
            epoch: group.proposed,
        });
        let state = match (member.index, group.next) {
            (None, _) => PartitionState::Waiting,
            (Some(_), None) => PartitionState::Active,
            (Some(_), Some(_)) => PartitionState::Draining,
        };
        let valid_until = member.index.map(|_| group.valid_until(member));
        Some(Share { state, index: member.index, next, valid_until })
    }

    /// Lists the members by share, those without one last, and then by name.
    #[must_use]
    pub fn by_share(&self) -> Vec<(&str, &Member)> {
        let mut members: Vec<(&str, &Member)> =
            self.members.iter().map(|(name, member)| (name.as_str(), member)).collect();
        members.sort_by_key(|(_, member)| (member.index.is_none(), member.index));
        members
    }

    #[must_use]
    pub fn overall(&self) -> PartitionState {
        match (self.members.values().any(|member| member.index.is_some()), self.group.next) {
            (false, _) => PartitionState::Waiting,
            (true, None) => PartitionState::Active,
            (true, Some(_)) => PartitionState::Draining,
        }
    }

    fn apply(&mut self, event: &Event) {
        let number = self.group.number;
        match event {
            Event::Leave { member } => drop(self.members.remove(member)),
            Event::Tick { member, acked } => {
                if let Some(known) = self.members.get_mut(member) {
                    known.ticked = number;
                    known.acked |= self.group.takes_from(known) && *acked == Some(self.group.proposed);
                } else if self.members.len() < MEMBERS_MAX {
                    let joined = Member { joined: number, ticked: number, index: None, next_index: None, acked: false };
                    self.members.insert(member.clone(), joined);
                }
            }
        }
    }

    /// Removes members that call but have not acknowledged the proposal in time. They join anew.
    fn expel_slow(&mut self, now: DateTime<Utc>) {
        let group = &self.group;
        let Some(next) = group.next else { return };
        if group.drain_timeout == 0 || now < next.since + TimeDelta::seconds(group.drain_timeout) {
            return;
        }
        for member in self.members.values_mut().filter(|member| group.waits_for(member, now)) {
            *member =
                Member { joined: group.number, ticked: member.ticked, index: None, next_index: None, acked: false };
        }
    }

    /// Proposes a map of the current members, unless the active one or the proposal is the same.
    fn propose(&mut self, now: DateTime<Utc>) {
        let desired = self.desired();
        // At most `REPLICAS_MAX`.
        let replicas = desired.len() as u16;
        let is_same = |of: fn(&Member) -> Option<u16>| {
            let mut shares = self.members.iter().filter_map(|(name, member)| Some((name, of(member)?)));
            let count = self.members.values().filter(|member| of(member).is_some()).count();
            count == desired.len() && shares.all(|(name, index)| desired.get(name) == Some(&index))
        };
        let is_active = replicas == self.group.replicas && is_same(|member| member.index);
        // Without any member the active map stays: nobody could take over a share.
        if is_active || desired.is_empty() {
            self.group.next = None;
        } else if self.group.next.is_some_and(|next| next.replicas == replicas) && is_same(|member| member.next_index) {
            return;
        } else {
            self.group.proposed += 1;
            self.group.next = Some(Proposal { replicas, since: now });
        }
        let is_proposed = self.group.next.is_some();
        for (name, member) in &mut self.members {
            member.next_index = desired.get(name).copied().filter(|_| is_proposed);
            member.acked = false;
        }
    }

    /// Returns the map of the current members. Who has an index below the number of shares keeps
    /// it; the others get the remaining ones in the order in which they joined.
    fn desired(&self) -> BTreeMap<String, u16> {
        let since = self.group.since;
        let is_current = |member: &Member| member.ticked >= since && member.joined < since;
        let current: Vec<(&String, &Member)> = self.members.iter().filter(|(_, member)| is_current(member)).collect();
        let replicas = current.len().min(REPLICAS_MAX) as u16;
        let keeps = |member: &Member| member.index.filter(|index| *index < replicas);
        let mut map: BTreeMap<String, u16> =
            current.iter().filter_map(|(name, member)| Some(((*name).clone(), keeps(member)?))).collect();
        let mut others: Vec<(i64, &String)> = current
            .iter()
            .filter(|(_, member)| keeps(member).is_none())
            .map(|(name, member)| (member.joined, *name))
            .collect();
        others.sort_unstable();
        let mut is_free = vec![true; usize::from(replicas)];
        for index in map.values() {
            is_free[usize::from(*index)] = false;
        }
        let free = (0..replicas).filter(|index| is_free[usize::from(*index)]);
        map.extend(others.into_iter().map(|(_, name)| name.clone()).zip(free));
        map
    }

    /// True if the proposal need not wait for anybody.
    #[must_use]
    pub fn may_flip(&self, now: DateTime<Utc>) -> bool {
        self.group.next.is_some() && !self.members.values().any(|member| self.group.waits_for(member, now))
    }

    fn flip(&mut self) {
        let Some(next) = self.group.next.take() else { return };
        self.group.epoch = self.group.proposed;
        self.group.replicas = next.replicas;
        for member in self.members.values_mut() {
            member.index = member.next_index.take();
            member.acked = false;
        }
    }

    /// Removes silent members without a share.
    fn forget(&mut self) {
        let since = self.group.since;
        self.members
            .retain(|_, member| member.index.is_some() || member.next_index.is_some() || member.ticked >= since);
    }
}

/// The settings of a group, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// None keeps the interval of an existing group.
    pub interval: Option<i64>,
    pub drain_timeout: i64,
}

impl Settings {
    pub fn from_request(sent: &PartitionRequest) -> Result<Self, Unacceptable> {
        let drain_timeout = sent.drain_timeout.unwrap_or(0);
        if let Some(interval) = sent.interval {
            seconds("interval", interval, 1, INTERVAL_MOST)?;
        }
        seconds("drainTimeout", drain_timeout, 0, DRAIN_TIMEOUT_MOST)?;
        Ok(Self { interval: sent.interval, drain_timeout })
    }
}

/// Checks the name of a group.
pub fn named(name: &str) -> Result<String, Unacceptable> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(valid) {
        return Ok(name.to_owned());
    }
    Err(Unacceptable::Rule(format!(
        "the name of a partition group must have from 1 to {NAME_CHARS_MAX} letters, digits, hyphens or underscores"
    )))
}

/// Checks the name of a member.
pub fn member_named(name: &str) -> Result<String, Unacceptable> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= MEMBER_CHARS_MAX && name.bytes().all(valid) {
        return Ok(name.to_owned());
    }
    Err(Unacceptable::Rule(format!(
        "`memberId` must have from 1 to {MEMBER_CHARS_MAX} letters, digits, hyphens, underscores or dots, and begin \
         with a letter or digit"
    )))
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "partition_simulation.rs"]
mod simulation;
