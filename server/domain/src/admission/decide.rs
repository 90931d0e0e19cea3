//! The decision: serves heads in order until the queue is at a limit or the next run was not read.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::bucket::Bucket;
use super::takers::{Choice, Takers};
use super::{
    Decided, Demand, Head, HeadAfter, HeadState, Key, LOCKED_AGAIN, PREFERRED_AGAIN, PRIORITIES, Queue, Start, Stop,
    Taker,
};

pub fn decide(queue: &Queue, keys: &[Key], heads: &[Head]) -> Decided {
    let by_id: HashMap<i64, usize> = keys.iter().enumerate().map(|(index, key)| (key.id, index)).collect();
    let mut keys: Vec<KeyNow> = keys.iter().map(|key| KeyNow::new(key, queue.now)).collect();
    let mut heads: Vec<HeadNow<'_>> =
        heads.iter().map(|head| HeadNow::new(queue, head, by_id.get(&head.key).copied())).collect();
    let mut capacity = Capacity::new(queue);
    let mut turns = first_turns(queue, &heads);
    let (mut starts, mut passed_over) = (Vec::new(), false);
    let stop = loop {
        let Some(Reverse(turn)) = turns.pop() else {
            break if passed_over { Stop::PassedOver } else { Stop::Keys };
        };
        if let Some(stop) = capacity.stop() {
            break stop;
        }
        let Some(index) = turn.head else { break Stop::Unread };
        let head = &mut heads[index];
        let Some(key) = head.key.map(|key| &mut keys[key]).filter(|key| key.is_open()) else { continue };
        let Some(run) = head.given.runs.get(head.next) else { break Stop::Unread };
        let choice = if run.open { capacity.takers.choose(run) } else { Choice::Waits(queue.now + LOCKED_AGAIN) };
        let taker = match choice {
            Choice::Nobody => {
                // At the maximum of bytes: the next decision continues.
                let is_cut = matches!(queue.demand, Demand::Requests(_));
                break if is_cut { Stop::Unread } else { Stop::Demand };
            }
            Choice::Waits(until) => {
                passed_over = true;
                head.pass_over(until);
                turns.extend(head.has_turn().then(|| Reverse(head.turn(index))));
                continue;
            }
            Choice::Taken(taker) => taker,
        };
        capacity.start(&turn, taker, run.bytes);
        key.start(taker);
        let Head { key: id, priority, .. } = *head.given;
        starts.push(Start { seq: run.seq, run: run.run, key: id, priority, taker });
        head.start(turn.vtime + 1.0 / key.weight);
        turns.extend(head.has_turn().then(|| Reverse(head.turn(index))));
    };
    let after = |head: &HeadNow<'_>| head.after(queue, head.key.map(|key| &keys[key]), capacity.least[head.priority]);
    Decided {
        heads: heads.iter().map(after).collect(),
        keys: keys.iter().filter_map(|key| key.bucket.changed().map(|tat| (key.id, tat))).collect(),
        tat: capacity.bucket.tat(),
        least: capacity.least,
        starts,
        unread: stop == Stop::Unread,
        stop,
    }
}

/// Orders the heads with runs. One further entry stands for all unread heads; the decision ends
/// there.
fn first_turns(queue: &Queue, heads: &[HeadNow<'_>]) -> BinaryHeap<Reverse<Turn>> {
    let given = heads.iter().enumerate().filter(|(_, head)| head.key.is_some() && !head.given.runs.is_empty());
    let mut turns: BinaryHeap<Reverse<Turn>> = given.map(|(index, head)| Reverse(head.turn(index))).collect();
    // The query orders heads by stored virtual times; the first run read may have a later position.
    let stored = heads.iter().map(|HeadNow { given, priority, .. }| Turn {
        priority: *priority,
        vtime: given.vtime.max(queue.least[*priority]),
        key: given.key,
        head: None,
    });
    turns.extend(stored.max().filter(|_| queue.more_heads).map(Reverse));
    turns
}

/// An entry of the queue of heads; the least is next.
#[derive(Clone, Copy)]
struct Turn {
    priority: usize,
    vtime: f64,
    key: i64,
    /// None for the unread heads, which follow the last head that was read.
    head: Option<usize>,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let vtime = self.vtime.total_cmp(&other.vtime);
        let order = self.priority.cmp(&other.priority).then(vtime).then(self.key.cmp(&other.key));
        order.then(self.head.is_none().cmp(&other.head.is_none()))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

struct Capacity {
    total_free: Option<u64>,
    bucket: Bucket,
    takers: Takers,
    least: [f64; PRIORITIES],
}

impl Capacity {
    fn new(queue: &Queue) -> Self {
        Self {
            total_free: queue.total_free,
            bucket: Bucket::new(queue.rate, queue.tat, queue.unclaimed, queue.now),
            takers: Takers::new(&queue.demand, queue.now),
            least: queue.least,
        }
    }

    fn stop(&self) -> Option<Stop> {
        if !self.takers.are_left() {
            Some(Stop::Demand)
        } else if self.total_free == Some(0) {
            Some(Stop::Total)
        } else if !self.bucket.is_open() {
            Some(Stop::Rate)
        } else {
            None
        }
    }

    fn start(&mut self, turn: &Turn, taker: Taker, bytes: u64) {
        self.total_free = self.total_free.map(|free| free.saturating_sub(1));
        spend(&mut self.bucket, taker);
        self.least[turn.priority] = self.least[turn.priority].max(turn.vtime);
        self.takers.start(taker, bytes);
    }
}

/// A claim spends a token; an assigned run holds one.
fn spend(bucket: &mut Bucket, taker: Taker) {
    match taker {
        Taker::Request(_) => bucket.start(),
        Taker::Session(_) => bucket.hold(),
    }
}

struct KeyNow {
    id: i64,
    free: Option<u32>,
    bucket: Bucket,
    weight: f64,
}

impl KeyNow {
    fn new(key: &Key, now: f64) -> Self {
        let weight = if key.weight.is_normal() && key.weight > 0.0 { key.weight } else { 1.0 };
        Self { id: key.id, free: key.free, bucket: Bucket::new(key.rate, key.tat, key.unclaimed, now), weight }
    }

    fn is_open(&self) -> bool {
        self.free != Some(0) && self.bucket.is_open()
    }

    fn start(&mut self, taker: Taker) {
        self.free = self.free.map(|free| free.saturating_sub(1));
        spend(&mut self.bucket, taker);
    }
}

struct HeadNow<'a> {
    given: &'a Head,
    priority: usize,
    key: Option<usize>,
    fair: bool,
    vtime: f64,
    next: usize,
    started: usize,
    /// Index of the first run passed over, and the earliest time when any passed-over run may go to
    /// any session.
    passed_over: Option<(usize, f64)>,
}

impl<'a> HeadNow<'a> {
    fn new(queue: &Queue, given: &'a Head, key: Option<usize>) -> Self {
        let priority = given.priority.min(PRIORITIES - 1);
        let least = queue.least[priority];
        let place = given.runs.first().filter(|_| !queue.fair).map_or(given.vtime, |run| place(run.ord));
        let vtime = place.max(least);
        Self { given, priority, key, fair: queue.fair, vtime, next: 0, started: 0, passed_over: None }
    }

    fn turn(&self, index: usize) -> Turn {
        Turn { priority: self.priority, vtime: self.vtime, key: self.given.key, head: Some(index) }
    }

    /// True if it has another run. Unread runs do not count if the head started nothing: the read
    /// runs then wait for preferred workers and must not stop other heads.
    fn has_turn(&self) -> bool {
        self.next < self.given.runs.len() || (self.given.more && self.started > 0)
    }

    /// Starts the next run. With `fair`, `vtime` is the virtual time after the start.
    fn start(&mut self, vtime: f64) {
        self.started += 1;
        if self.fair {
            self.vtime = vtime;
        }
        self.follow();
    }

    fn pass_over(&mut self, until: f64) {
        let (first, earliest) = self.passed_over.unwrap_or((self.next, until));
        self.passed_over = Some((first, earliest.min(until)));
        self.follow();
    }

    /// Advances to the next run. Without `fair` its position becomes the virtual time; if it was
    /// not read, the last position remains.
    fn follow(&mut self) {
        self.next += 1;
        if let Some(next) = self.given.runs.get(self.next).filter(|_| !self.fair) {
            self.vtime = self.vtime.max(place(next.ord));
        }
    }

    fn after(&self, queue: &Queue, key: Option<&KeyNow>, least: f64) -> HeadAfter {
        let state = self.state(queue, key);
        let first = self.passed_over.map_or(self.next, |(first, _)| first);
        let next = self.given.runs.get(first).map(|run| run.ord);
        // Heads are read from `least` on, so none is stored below it.
        let vtime = next.filter(|_| !self.fair).map_or(self.vtime, place).max(least);
        let from_ord = next.or_else(|| self.given.runs.last().map(|run| run.ord + 1));
        HeadAfter { key: self.given.key, priority: self.given.priority, vtime, from_ord, state }
    }

    fn state(&self, queue: &Queue, key: Option<&KeyNow>) -> HeadState {
        let Some(key) = key else { return HeadState::Ready };
        let is_read = self.next >= self.given.runs.len();
        if is_read && self.passed_over.is_none() && !self.given.more {
            return HeadState::Empty;
        }
        if key.free == Some(0) {
            return HeadState::Full;
        }
        let only_passed_over = self.passed_over.filter(|_| is_read && !self.has_turn());
        let preferred = only_passed_over.map(|(_, until)| until.min(queue.now + PREFERRED_AGAIN));
        match (key.bucket.look_again_at(), preferred) {
            (None, None) => HeadState::Ready,
            (Some(time), None) | (None, Some(time)) => HeadState::At(time),
            (Some(opens), Some(until)) => HeadState::At(opens.max(until)),
        }
    }
}

/// Returns the position of a run as a virtual time. Positions start at 1 and are exact below 2⁵³.
fn place(ord: i64) -> f64 {
    ord as f64
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
