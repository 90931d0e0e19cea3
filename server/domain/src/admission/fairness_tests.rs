//! Tests that [`decide`] is fair. While two keys both have waiting runs of a priority, their
//! weighted starts differ by at most one turn of each.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const NOW: f64 = 1_800_000_000.0;
/// Maximum runs read per head.
const RUNS_READ: usize = 5;
const WEIGHTS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 3.0];

#[derive(Debug, Clone)]
enum Step {
    /// New runs of a key.
    Come { key: usize, priority: usize, runs: usize },
    /// A decision for this many requests.
    Decide { requests: usize },
}

fn a_step() -> impl Strategy<Value = Step> {
    let priority = prop::sample::select(vec![0, 4]);
    prop_oneof![
        (0..WEIGHTS.len(), priority, 1_usize..12).prop_map(|(key, priority, runs)| Step::Come { key, priority, runs }),
        (1_usize..9).prop_map(|requests| Step::Decide { requests }),
    ]
}

/// The stored heads of a queue.
struct Rows {
    least: [f64; PRIORITIES],
    /// For each priority and key: the virtual time and the number of waiting runs.
    heads: BTreeMap<(usize, usize), (f64, usize)>,
    next_ord: i64,
}

impl Rows {
    fn come(&mut self, key: usize, priority: usize, runs: usize) {
        let (vtime, waiting) = self.heads.entry((priority, key)).or_insert((0.0, 0));
        *vtime = vtime.max(self.least[priority]);
        *waiting += runs;
    }

    fn waiting(&self, priority: usize, key: usize) -> bool {
        self.heads.get(&(priority, key)).is_some_and(|(_, waiting)| *waiting > 0)
    }

    /// Decides, and returns the priority and key of each start, in order.
    fn decide_for(&mut self, requests: usize) -> Vec<(usize, usize)> {
        let mut heads = Vec::new();
        for (&(priority, key), &(vtime, waiting)) in self.heads.iter().filter(|(_, (_, waiting))| *waiting > 0) {
            let runs = (0..waiting.min(RUNS_READ)).map(|_| {
                self.next_ord += 1;
                Run { seq: self.next_ord, run: 0, ord: self.next_ord, bytes: 1, open: true, avoid: None, prefer: None }
            });
            let runs: Vec<Run> = runs.collect();
            heads.push(Head { key: key as i64, priority, vtime, more: waiting > runs.len(), runs });
        }
        heads.sort_by(|one, other| {
            one.priority.cmp(&other.priority).then(one.vtime.total_cmp(&other.vtime)).then(one.key.cmp(&other.key))
        });
        let keys: Vec<Key> = (0..)
            .zip(WEIGHTS)
            .map(|(id, weight)| Key { id, free: None, rate: None, tat: 0.0, unclaimed: 0, weight })
            .collect();
        let queue = Queue {
            now: NOW,
            fair: true,
            total_free: None,
            demand: Demand::Requests(vec![1; requests]),
            rate: None,
            tat: 0.0,
            unclaimed: 0,
            least: self.least,
            more_heads: false,
        };
        let decided = decide(&queue, &keys, &heads);
        for after in &decided.heads {
            let (vtime, _) = self.heads.get_mut(&(after.priority, after.key as usize)).unwrap();
            *vtime = after.vtime;
        }
        self.least = decided.least;
        decided.starts.iter().map(|start| (start.priority, start.key as usize)).collect()
    }
}

/// Difference of two keys since both have waiting runs.
#[derive(Clone, Copy, Default)]
struct Stretch {
    now: f64,
    least: f64,
    greatest: f64,
}

impl Stretch {
    fn moved(&mut self, by: f64) -> f64 {
        self.now += by;
        self.least = self.least.min(self.now);
        self.greatest = self.greatest.max(self.now);
        self.greatest - self.least
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn waiting_keys_differ_by_at_most_one_turn_each(steps in prop::collection::vec(a_step(), 1..60)) {
        let mut rows = Rows { least: [0.0; PRIORITIES], heads: BTreeMap::new(), next_ord: 0 };
        let mut stretches: BTreeMap<(usize, usize, usize), Stretch> = BTreeMap::new();
        for step in steps {
            let requests = match step {
                Step::Come { key, priority, runs } => {
                    rows.come(key, priority, runs);
                    continue;
                }
                Step::Decide { requests } => requests,
            };
            for (priority, key) in rows.decide_for(requests) {
                for other in (0..WEIGHTS.len()).filter(|other| *other != key) {
                    let pair = (priority, key.min(other), key.max(other));
                    if !rows.waiting(priority, other) {
                        stretches.remove(&pair);
                        continue;
                    }
                    let by = 1.0 / WEIGHTS[key] * if key < other { 1.0 } else { -1.0 };
                    let apart = stretches.entry(pair).or_default().moved(by);
                    let bound = 1.0 / WEIGHTS[key] + 1.0 / WEIGHTS[other];
                    prop_assert!(apart <= bound + 1e-6, "{key} and {other} of priority {priority}: {apart} > {bound}");
                }
                let (_, waiting) = rows.heads.get_mut(&(priority, key)).unwrap();
                *waiting -= 1;
                if *waiting == 0 {
                    stretches.retain(|(of, one, other), _| *of != priority || (*one != key && *other != key));
                }
            }
        }
    }
}
