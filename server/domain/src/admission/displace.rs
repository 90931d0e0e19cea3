//! What has to wait again: a ready run that no worker has claimed, for the sake of a more urgent one that may not start because
//! the limit of the queue is reached, or because the limit was lowered.
//!
//! For the limit of a key only how many may needs a rule: the least urgent ready run of the key gives its slot to the most
//! urgent one that waits, one at each look.

use super::{PRIORITIES, Queue, Rate, queue_allows};

/// How many ready runs wait again after one look at a queue at most; what is left follows in the next one.
pub const DISPLACED_MAX: u32 = 100;

/// How many ready runs of each priority wait again. `waiting` has how many heads of each priority may start a run but for the limit of
/// the queue. The least urgent ones go first, each only for a run of a higher priority, and no more of them than the rate of the queue
/// lets start in their place: the slots of the others would be empty until it lets more start.
#[must_use]
pub fn displaced(queue: &Queue, waiting: &[u32; PRIORITIES]) -> [u32; PRIORITIES] {
    if queue.total_free != Some(0) {
        return [0; PRIORITIES];
    }
    let wanted = make_way(&queue.ready, waiting, DISPLACED_MAX);
    // What waits again keeps no token. While more runs have one than the burst, as some from before the rate, none starts.
    let starts = |runs: u32| {
        let unclaimed = queue.unclaimed.saturating_sub(runs);
        queue_allows(None, queue.rate, queue.tat, unclaimed, queue.now).unwrap_or(u64::MAX)
    };
    let all: u32 = wanted.iter().sum();
    let most = (0..=all).rev().find(|runs| starts(*runs) >= u64::from(*runs)).unwrap_or_default();
    make_way(&queue.ready, waiting, most)
}

/// How many ready runs may make way for more urgent ones of their keys: as many as the rate of the queue lets start in their place, and
/// none while more runs have a token than the burst, as some from before the rate. None if it may be any number.
#[must_use]
pub fn replaceable(rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<u64> {
    let most = queue_allows(None, rate, tat, 0, now)?;
    // What waits again keeps no token.
    let left = unclaimed.saturating_sub(u32::try_from(most).unwrap_or(u32::MAX));
    Some(if queue_allows(None, rate, tat, left, now) >= Some(most) { most } else { 0 })
}

/// What makes way in a queue whatever its rate, for up to `most` runs.
fn make_way(ready: &[u32; PRIORITIES], waiting: &[u32; PRIORITIES], most: u32) -> [u32; PRIORITIES] {
    let mut taken = [0; PRIORITIES];
    let mut left = most;
    let mut lowest = PRIORITIES - 1;
    for (urgent, &heads) in waiting.iter().enumerate() {
        let mut wanted = heads.min(left);
        while wanted > 0 && lowest > urgent {
            let runs = wanted.min(ready[lowest] - taken[lowest]);
            taken[lowest] += runs;
            wanted -= runs;
            left -= runs;
            if wanted > 0 {
                lowest -= 1;
            }
        }
    }
    taken
}

/// How many ready runs of each priority wait again because a limit was lowered, by which `over` runs too many are admitted: the least
/// urgent ones first. Runs that workers have go on, so that it may be fewer.
#[must_use]
pub fn withdrawn(ready: &[u32; PRIORITIES], over: u64) -> [u32; PRIORITIES] {
    let mut taken = [0; PRIORITIES];
    let mut left = u32::try_from(over).unwrap_or(u32::MAX);
    for (taken, ready) in taken.iter_mut().zip(ready).rev() {
        *taken = left.min(*ready);
        left -= *taken;
    }
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: f64 = 1_800_000_000.0;

    /// A queue whose limit is reached by ready runs.
    fn full(ready: [u32; PRIORITIES]) -> Queue {
        Queue {
            now: NOW,
            fair: false,
            total_free: Some(0),
            ready,
            rate: None,
            tat: 0.0,
            unclaimed: ready.iter().sum(),
            least: [0.0; PRIORITIES],
            sessions: None,
            more_heads: false,
        }
    }

    #[test]
    fn the_least_urgent_ready_runs_make_room_for_more_urgent_ones_and_for_no_others() {
        for (ready, waiting, free, expected) in [
            ([0, 0, 0, 0, 0, 0, 3], [1, 0, 0, 0, 0, 0, 0], Some(0), [0, 0, 0, 0, 0, 0, 1]),
            ([0, 0, 0, 0, 0, 1, 1], [3, 0, 0, 0, 0, 0, 0], Some(0), [0, 0, 0, 0, 0, 1, 1]),
            ([0, 0, 0, 0, 2, 0, 1], [0, 1, 0, 0, 0, 1, 0], Some(0), [0, 0, 0, 0, 0, 0, 1]),
            ([0, 0, 0, 0, 2, 0, 1], [0, 2, 0, 1, 0, 0, 0], Some(0), [0, 0, 0, 0, 2, 0, 1]),
            // Nothing is less urgent, or there is room.
            ([3, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], Some(0), [0; 7]),
            ([0, 0, 0, 3, 0, 0, 0], [0, 0, 0, 1, 0, 1, 0], Some(0), [0; 7]),
            ([0, 0, 0, 0, 0, 0, 3], [1, 0, 0, 0, 0, 0, 0], Some(1), [0; 7]),
            ([0, 0, 0, 0, 0, 0, 3], [1, 0, 0, 0, 0, 0, 0], None, [0; 7]),
            ([0, 0, 0, 0, 0, 0, 400], [300, 0, 0, 0, 0, 0, 0], Some(0), [0, 0, 0, 0, 0, 0, DISPLACED_MAX]),
        ] {
            let queue = Queue { total_free: free, ..full(ready) };
            assert_eq!(displaced(&queue, &waiting), expected, "{ready:?} {waiting:?} {free:?}");
        }
    }

    #[test]
    fn no_more_wait_again_than_the_rate_lets_start_in_their_place() {
        let rate = Some(Rate { count: 5, seconds: 3_600, burst: 5 });
        for (ahead, expected) in [(1.0, 0), (0.0, 1), (-720.0, 2), (-9_000.0, 4)] {
            let queue = Queue { rate, tat: NOW + ahead, ..full([0, 0, 0, 0, 0, 0, 4]) };
            let waiting = [4, 0, 0, 0, 0, 0, 0];
            assert_eq!(displaced(&queue, &waiting), [0, 0, 0, 0, 0, 0, expected], "{ahead}");
            let unlimited = Queue { rate: None, ..queue };
            assert_eq!(displaced(&unlimited, &waiting), [0, 0, 0, 0, 0, 0, 4]);
        }
        // They have all tokens of the burst, or more of them are ready, from before the rate.
        for (ready, expected) in [(5, 5), (6, 0), (10, 0)] {
            let queue = Queue { rate, tat: NOW - 9_000.0, ..full([0, 0, 0, 0, 0, 0, ready]) };
            assert_eq!(displaced(&queue, &[10, 0, 0, 0, 0, 0, 0]), [0, 0, 0, 0, 0, 0, expected], "{ready}");
        }
    }

    #[test]
    fn in_keys_as_many_make_way_as_the_rate_lets_start_and_none_while_more_have_tokens_than_the_burst() {
        let rate = Some(Rate { count: 5, seconds: 3_600, burst: 5 });
        let cases = [(1.0, 4, 0), (0.0, 4, 1), (-720.0, 5, 2), (-9_000.0, 5, 5), (-9_000.0, 6, 0), (0.0, 10, 0)];
        for (ahead, unclaimed, expected) in cases {
            assert_eq!(replaceable(rate, NOW + ahead, unclaimed, NOW), Some(expected), "{ahead} {unclaimed}");
        }
        assert_eq!(replaceable(None, NOW, 10, NOW), None);
    }

    #[test]
    fn a_lowered_limit_has_the_least_urgent_ready_runs_wait_again() {
        for (ready, over, expected) in [
            ([1, 0, 0, 2, 0, 0, 3], 0, [0; 7]),
            ([1, 0, 0, 2, 0, 0, 3], 2, [0, 0, 0, 0, 0, 0, 2]),
            ([1, 0, 0, 2, 0, 0, 3], 4, [0, 0, 0, 1, 0, 0, 3]),
            // The others are claimed.
            ([1, 0, 0, 2, 0, 0, 3], 9, [1, 0, 0, 2, 0, 0, 3]),
            ([0; 7], u64::MAX, [0; 7]),
        ] {
            assert_eq!(withdrawn(&ready, over), expected, "{ready:?} {over}");
        }
    }

    proptest! {
        #[test]
        fn as_many_wait_again_as_are_too_many_and_none_while_a_less_urgent_one_is_ready(
            ready in prop::array::uniform7(0_u32..60), over in 0_u64..500
        ) {
            let taken = withdrawn(&ready, over);
            let sum = |runs: &[u32]| runs.iter().map(|runs| u64::from(*runs)).sum::<u64>();
            prop_assert_eq!(sum(&taken), over.min(sum(&ready)));
            for priority in 0..PRIORITIES {
                prop_assert!(taken[priority] <= ready[priority]);
                prop_assert!(taken[priority] == 0 || taken[priority + 1..] == ready[priority + 1..]);
            }
        }

        #[test]
        fn no_more_wait_again_than_are_ready_or_more_urgent_ones_want(
            ready in prop::array::uniform7(0_u32..60), waiting in prop::array::uniform7(0_u32..60)
        ) {
            let taken = displaced(&full(ready), &waiting);
            prop_assert!(taken.iter().sum::<u32>() <= DISPLACED_MAX);
            for priority in 0..PRIORITIES {
                prop_assert!(taken[priority] <= ready[priority]);
                let from_here: u32 = taken[..=priority].iter().sum();
                let more_urgent: u32 = waiting[..priority].iter().sum();
                prop_assert!(from_here <= more_urgent, "{taken:?}");
                // One that stays ready while less is urgent went first.
                if taken[priority] > 0 {
                    prop_assert!(taken[priority + 1..] == ready[priority + 1..]);
                }
            }
        }
    }
}
