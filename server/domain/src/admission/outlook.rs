//! Reports what limits would allow, without starting runs.

use super::bucket::Bucket;
use super::{Key, Rate};

/// Returns when the next start conforms, in seconds since 1970; none if now.
#[must_use]
pub fn starts_at(rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<f64> {
    Bucket::new(rate, tat, unclaimed, now).opens_at()
}

/// Returns the seconds until the next useful check of a rate; none if a start conforms now.
pub fn look_again_in(rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<f64> {
    Bucket::new(rate, tat, unclaimed, now).look_again_at().map(|at| at - now)
}

/// Returns the time to store after a start now, conforming or not; none without a rate. For a run
/// that held a token.
pub fn stamp(rate: Option<Rate>, tat: f64, now: f64) -> Option<f64> {
    let mut bucket = Bucket::new(rate, tat, 0, now);
    bucket.start();
    bucket.changed()
}

/// True if a rate has its whole burst. Its time then carries no information and may be deleted.
pub fn has_whole_burst(rate: Option<Rate>, tat: f64, now: f64) -> bool {
    Bucket::new(rate, tat, 0, now).is_full()
}

/// Returns the starts that the limits of a queue allow now, given enough demand; none if unlimited.
/// `free` is its limit less its assigned and claimed runs.
pub fn queue_allows(free: Option<u64>, rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<u64> {
    least(free, Bucket::new(rate, tat, unclaimed, now).open_starts())
}

/// Returns the starts that the limits of a key allow now; none if unlimited.
pub fn key_allows(key: &Key, now: f64) -> Option<u64> {
    queue_allows(key.free.map(u64::from), key.rate, key.tat, key.unclaimed, now)
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Demand, Head, PRIORITIES, Queue, Run, decide};
    use super::*;
    use proptest::prelude::*;

    const NOW: f64 = 1_800_000_000.0;

    #[test]
    fn no_limit_allows_any_number() {
        let key = Key { id: 1, free: None, rate: None, tat: NOW + 9.0, unclaimed: 7, weight: 1.0 };
        assert_eq!((key_allows(&key, NOW), starts_at(None, NOW + 9.0, 7, NOW)), (None, None));
        assert_eq!(queue_allows(Some(3), None, 0.0, 0, NOW), Some(3));
    }

    #[test]
    fn faster_rate_overrides_time_of_slower_rate() {
        let rate = Some(Rate { count: 1, seconds: 10, burst: 1 });
        let a_day_ahead = NOW + 86_400.0;
        assert_eq!(starts_at(rate, a_day_ahead, 0, NOW), Some(NOW + 10.0));
        let run = Run { seq: 1, run: 0, ord: 1, bytes: 1, open: true, avoid: None, prefer: None };
        let head = Head { key: 1, priority: 3, vtime: 1.0, runs: vec![run], more: false };
        let queue = Queue {
            now: NOW,
            fair: false,
            total_free: None,
            demand: Demand::Requests(vec![10]),
            rate,
            tat: a_day_ahead,
            unclaimed: 0,
            least: [0.0; PRIORITIES],
            more_heads: false,
        };
        let key = Key { id: 1, free: None, rate: None, tat: 0.0, unclaimed: 0, weight: 1.0 };
        let first = decide(&queue, &[key], std::slice::from_ref(&head));
        assert_eq!((first.starts.len(), first.tat), (0, NOW + 10.0), "the shorter time is stored");
        let later = Queue { now: NOW + 10.0, tat: first.tat, ..queue };
        assert_eq!(decide(&later, &[key], &[head]).starts.len(), 1);
    }

    #[test]
    fn acceptance_spends_the_token_that_a_run_held() {
        let rate = Some(Rate { count: 2, seconds: 600, burst: 2 });
        let long_ago = NOW - 3_600.0;
        let after = |tat, starts| (0..starts).fold(tat, |tat, _| stamp(rate, tat, NOW).unwrap());
        assert_eq!(after(long_ago, 1), NOW, "one token is left");
        assert_eq!(after(long_ago, 2), NOW + 300.0);
        assert_eq!(after(NOW + 300.0, 1), NOW + 600.0, "even if the start does not conform");
        assert_eq!(after(NOW + 86_400.0, 1), NOW + 600.0, "a slower rate's time is cut to one interval");
        assert_eq!(stamp(None, long_ago, NOW), None);
        for (held, allowed) in [(0, 2), (1, 1), (2, 0), (400, 0)] {
            assert_eq!(queue_allows(None, rate, long_ago, held, NOW), Some(allowed));
            assert_eq!(queue_allows(None, rate, NOW, held, NOW), Some(u64::from(held == 0)));
        }
    }

    #[test]
    fn held_tokens_delay_next_check_of_rate() {
        let rate = Some(Rate { count: 100, seconds: 1, burst: 1 });
        let ahead = look_again_in(rate, NOW + 0.01, 0, NOW).unwrap();
        assert!((ahead - 0.01).abs() < 1e-6, "{ahead}");
        let kept = look_again_in(rate, NOW - 1.0, 1, NOW).unwrap();
        assert!((kept - 0.2).abs() < 1e-6, "{kept}");
        assert_eq!(look_again_in(rate, NOW, 0, NOW), None);
        assert_eq!(look_again_in(None, NOW + 5.0, 3, NOW), None);
    }

    #[test]
    fn burst_is_whole_one_interval_per_start_later() {
        let rate = |burst| Some(Rate { count: 24, seconds: 86_400, burst });
        for (burst, ahead, is_whole) in [
            (1, 1.0, false),
            (1, 0.0, true),
            (2, 0.0, false),
            (2, -3_599.0, false),
            (2, -3_600.0, true),
            (24, -600.0, false),
            (24, -82_799.0, false),
            (24, -82_800.0, true),
        ] {
            assert_eq!(has_whole_burst(rate(burst), NOW + ahead, NOW), is_whole, "{burst} {ahead}");
            assert!(has_whole_burst(None, NOW + ahead, NOW) && has_whole_burst(rate(burst), 0.0, NOW));
        }
    }

    proptest! {
        /// Deleting the time of a rate loses nothing exactly if the burst is whole.
        #[test]
        fn whole_burst_allows_as_much_as_new_rate(
            count in 1_u32..9, burst in 1_u32..9, seconds in 1_u32..90, behind in -100_i32..1_000
        ) {
            let rate = Some(Rate { count: count.max(burst), seconds, burst });
            let tat = NOW - f64::from(behind);
            if has_whole_burst(rate, tat, NOW) {
                prop_assert_eq!(queue_allows(None, rate, tat, 0, NOW), queue_allows(None, rate, 0.0, 0, NOW));
            } else {
                prop_assert!(queue_allows(None, rate, tat, 0, NOW) <= queue_allows(None, rate, 0.0, 0, NOW));
            }
        }

        /// No window has more acceptances than `count` plus `burst`, and at most `burst` runs are
        /// assigned.
        #[test]
        fn window_has_at_most_rate_plus_burst_acceptances(
            count in 1_u32..6, burst in 1_u32..6, seconds in 1_u32..40,
            steps in prop::collection::vec((0.0_f64..20.0, 0_u32..4, 0_u32..3, any::<bool>()), 1..120)
        ) {
            let rate = Rate { count: count.max(burst), seconds, burst };
            let (mut now, mut tat, mut assigned) = (NOW, 0.0, 0_u32);
            let mut accepted: Vec<f64> = Vec::new();
            for (pause, accepts, taken_back, looks) in steps {
                now += pause;
                for _ in 0..accepts.min(assigned) {
                    assigned -= 1;
                    tat = stamp(Some(rate), tat, now).unwrap_or(tat);
                    accepted.push(now);
                }
                assigned -= taken_back.min(assigned);
                if looks {
                    let mut bucket = Bucket::new(Some(rate), tat, assigned, now);
                    while bucket.is_open() {
                        bucket.hold();
                        assigned += 1;
                    }
                    prop_assert!(assigned <= burst, "{assigned} assigned runs");
                }
            }
            let window = f64::from(seconds) - 1e-3;
            for (first, from) in accepted.iter().enumerate() {
                let within = accepted[first..].iter().take_while(|at| **at < from + window).count();
                prop_assert!(within <= (rate.count + burst) as usize, "{within} in {seconds} s");
            }
        }

        #[test]
        fn allowed_starts_equal_started_runs(
            free in prop::option::of(0_u64..9), of_key in prop::option::of(0_u32..9), count in 1_u32..9, burst in 1_u32..9,
            seconds in 1_u32..90, behind in -100_i32..100, rated in any::<bool>(), waiting in 0_usize..12, places in 0_u32..12
        ) {
            let rate = rated.then_some(Rate { count: count.max(burst), seconds, burst });
            let tat = NOW - f64::from(behind);
            let key = Key { id: 1, free: of_key, rate: None, tat: 0.0, unclaimed: 0, weight: 1.0 };
            let runs = (1..=waiting).map(|n| i64::try_from(n).unwrap());
            let runs: Vec<Run> = runs.map(|n| Run { seq: n, run: 0, ord: n, bytes: 1, open: true, avoid: None, prefer: None }).collect();
            let head = Head { key: 1, priority: 3, vtime: 1.0, runs, more: false };
            let queue = Queue {
                now: NOW, fair: false, total_free: free, demand: Demand::Requests(vec![places]), rate, tat, unclaimed: 0,
                least: [0.0; PRIORITIES], more_heads: false,
            };
            let started = decide(&queue, &[key], &[head]).starts.len() as u64;
            let allowed = least(queue_allows(free, rate, tat, 0, NOW), key_allows(&key, NOW));
            prop_assert_eq!(started, allowed.unwrap_or(u64::MAX).min(waiting as u64).min(places.into()));
        }
    }
}
