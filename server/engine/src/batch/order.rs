//! In which order the wait list tries its queues: those first that have waited longest since a statement had no room for them, so
//! that none is starved by others that fill each statement.

use std::collections::{HashMap, HashSet};

/// What a statement had no room for, in the order in which queues of the same age are tried.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    /// Any request or run of the queue.
    All,
    /// Some of its runs.
    Some,
}

#[derive(Default)]
pub(super) struct Order {
    /// Number of attempts so far.
    attempts: u64,
    /// Queues with what was left of them, and since which attempt.
    left: HashMap<i32, (u64, Left)>,
}

impl Order {
    /// Begins an attempt: these queues, in the order in which they are tried.
    pub(super) fn begin(&mut self, ready: &HashSet<i32>) -> Vec<i32> {
        self.attempts += 1;
        self.left.retain(|queue, _| ready.contains(queue));
        let mut ready: Vec<i32> = ready.iter().copied().collect();
        ready.sort_by_key(|queue| self.left.get(queue).copied().unwrap_or((u64::MAX, Left::Some)));
        ready
    }

    /// There was no room for anything of this queue.
    pub(super) fn pass_over(&mut self, queue: i32) {
        self.left.entry(queue).or_insert((self.attempts, Left::All));
    }

    /// Some of this queue was served; whether there was no room for more.
    pub(super) fn serve(&mut self, queue: i32, more: bool) {
        self.left.remove(&queue);
        if more {
            self.left.insert(queue, (self.attempts, Left::Some));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_served_however_many_others_fill_each_statement() {
        let ready: HashSet<i32> = (1..=5).collect();
        for serves_all in [true, false] {
            let (mut order, mut served) = (Order::default(), HashMap::<i32, u32>::new());
            for _ in 0..100 {
                let queues = order.begin(&ready);
                assert_eq!(queues.len(), 5);
                order.serve(queues[0], !serves_all);
                *served.entry(queues[0]).or_default() += 1;
                queues[1..].iter().for_each(|&queue| order.pass_over(queue));
            }
            assert!(ready.iter().all(|queue| served[queue] >= 19), "{served:?}");
        }
    }

    #[test]
    fn of_two_that_wait_equally_long_the_one_that_got_nothing_is_first() {
        let mut order = Order::default();
        let ready: HashSet<i32> = (1..=3).collect();
        order.begin(&ready);
        order.serve(1, true);
        order.serve(2, false);
        order.pass_over(3);
        assert_eq!(order.begin(&ready), [3, 1, 2]);
        // What is not ready any more has no claim to be first when it is again.
        order.begin(&HashSet::from([1, 2]));
        order.serve(1, true);
        assert_eq!(order.begin(&ready)[0], 1);
    }
}
