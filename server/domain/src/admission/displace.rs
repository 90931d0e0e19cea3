//! What has to wait again: a ready run that no worker has claimed, for the sake of a more urgent one that may not start because
//! the limit of the queue is reached.
//!
//! The same for the limit of a key needs no rule: the least urgent ready run of the key gives its slot to the most urgent
//! one that waits, one at each look.

use super::PRIORITIES;

/// How many ready runs wait again after one look at a queue at most; what is left follows in the next one.
pub const DISPLACED_MAX: u32 = 100;

/// How many ready runs of each priority wait again. `ready` has how many there are, `waiting` how many heads of each priority
/// may start a run but for the limit of the queue, of which `total_free` is left. The least urgent ones go first, and each only for
/// a run of a higher priority.
#[must_use]
pub fn displaced(ready: &[u32; PRIORITIES], waiting: &[u32; PRIORITIES], total_free: Option<u64>) -> [u32; PRIORITIES] {
    let mut taken = [0; PRIORITIES];
    if total_free != Some(0) {
        return taken;
    }
    let mut left = DISPLACED_MAX;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            assert_eq!(displaced(&ready, &waiting, free), expected, "{ready:?} {waiting:?} {free:?}");
        }
    }

    proptest! {
        #[test]
        fn no_more_wait_again_than_are_ready_or_more_urgent_ones_want(
            ready in prop::array::uniform7(0_u32..60), waiting in prop::array::uniform7(0_u32..60)
        ) {
            let taken = displaced(&ready, &waiting, Some(0));
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
