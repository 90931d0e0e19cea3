//! What limits would allow, for those who only ask: nothing is started here.

use super::bucket::Bucket;
use super::{Key, Rate};

/// When the next start conforms to a rate, in seconds since 1970; none if one does now.
#[must_use]
pub fn starts_at(rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<f64> {
    Bucket::new(rate, tat, unclaimed, now).opens_at()
}

/// In how many seconds it is worth to look at a rate again; none if a start conforms now.
#[must_use]
pub fn look_again_in(rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<f64> {
    Bucket::new(rate, tat, unclaimed, now).look_again_at().map(|at| at - now)
}

/// When the next start conforms to a rate after runs that had a token were claimed at these times, in their order, and `unclaimed` are
/// left; none if that is not later than before.
#[must_use]
pub fn after_claims(rate: Option<Rate>, tat: f64, claimed: &[f64], unclaimed: u32, now: f64) -> Option<f64> {
    after_tokens(rate, tat, 0, claimed, unclaimed, now)
}

/// The same where `given_back` other runs had a token since and were not claimed either, but taken back: then it may be earlier than
/// before. What was claimed counts after them, so that it puts off the next start whatever was given back.
#[must_use]
pub fn after_tokens(
    rate: Option<Rate>,
    tat: f64,
    given_back: usize,
    claimed: &[f64],
    unclaimed: u32,
    now: f64,
) -> Option<f64> {
    let mut bucket = Bucket::new(rate, tat, 0, now);
    bucket.give_back(given_back);
    bucket.claim(claimed, unclaimed);
    bucket.changed()
}

/// Whether a rate has its whole burst again: then its time says nothing any more, and may be forgotten.
#[must_use]
pub fn has_whole_burst(rate: Option<Rate>, tat: f64, now: f64) -> bool {
    Bucket::new(rate, tat, 0, now).is_full()
}

/// How many starts the limits of a whole queue allow now, were there workers enough; none if any number. `free` is its limit less
/// its ready, assigned and claimed runs.
#[must_use]
pub fn queue_allows(free: Option<u64>, rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Option<u64> {
    least(free, Bucket::new(rate, tat, unclaimed, now).open_starts())
}

/// The same of a key.
#[must_use]
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
    use super::super::{Head, PRIORITIES, Queue, Run, decide};
    use super::*;
    use proptest::prelude::*;

    const NOW: f64 = 1_800_000_000.0;

    #[test]
    fn nothing_limits_what_has_no_limit() {
        let key = Key { id: 1, free: None, rate: None, tat: NOW + 9.0, unclaimed: 7, weight: 1.0 };
        assert_eq!((key_allows(&key, NOW), starts_at(None, NOW + 9.0, 7, NOW)), (None, None));
        assert_eq!(queue_allows(Some(3), None, 0.0, 0, NOW), Some(3));
    }

    #[test]
    fn a_rate_that_was_slower_before_does_not_stop_what_the_new_one_allows() {
        let rate = Some(Rate { count: 1, seconds: 10, burst: 1 });
        let a_day_ahead = NOW + 86_400.0;
        assert_eq!(starts_at(rate, a_day_ahead, 0, NOW), Some(NOW + 10.0));
        let run = Run { seq: 1, run: 0, ord: 1, avoid: None, prefer: None };
        let head = Head { key: 1, priority: 3, vtime: 1.0, runs: vec![run], more: false };
        let queue = Queue {
            now: NOW,
            fair: false,
            total_free: None,
            ready: [0; PRIORITIES],
            rate,
            tat: a_day_ahead,
            unclaimed: 0,
            least: [0.0; PRIORITIES],
            sessions: None,
            more_heads: false,
        };
        let key = Key { id: 1, free: None, rate: None, tat: 0.0, unclaimed: 0, weight: 1.0 };
        let first = decide(&queue, &[key], std::slice::from_ref(&head));
        assert_eq!((first.starts.len(), first.tat), (0, NOW + 10.0), "written down, so that it comes");
        let later = Queue { now: NOW + 10.0, tat: first.tat, ..queue };
        assert_eq!(decide(&later, &[key], &[head]).starts.len(), 1);
    }

    #[test]
    fn runs_that_were_claimed_since_the_last_look_had_kept_their_tokens_until_then() {
        let rate = Some(Rate { count: 2, seconds: 600, burst: 2 });
        let long_ago = NOW - 3_600.0;
        // Two at once a second ago: none starts until a token has come since.
        assert_eq!(after_claims(rate, long_ago, &[NOW - 1.0, NOW - 1.0], 0, NOW), Some(NOW + 299.0));
        // One of them: the other token is there.
        let after_one = after_claims(rate, long_ago, &[NOW - 1.0], 0, NOW).unwrap();
        assert_eq!(queue_allows(None, rate, after_one, 0, NOW), Some(1));
        assert_eq!(
            after_claims(rate, long_ago, &[NOW - 1.0], 1, NOW),
            Some(NOW + 299.0),
            "and another keeps its token"
        );
        assert_eq!(after_claims(rate, NOW + 200.0, &[NOW - 400.0], 0, NOW), None, "what is stored is later");
        assert_eq!(after_claims(None, long_ago, &[NOW], 0, NOW), None);
        // Runs that were ready before there was a rate.
        assert_eq!(after_claims(rate, long_ago, &[NOW; 400], 0, NOW), Some(NOW + 300.0));
        // Of a slower rate, or by another clock.
        assert_eq!(after_claims(rate, NOW + 86_400.0, &[], 0, NOW), Some(NOW + 300.0));
        assert_eq!(after_claims(rate, NOW + 300.0, &[], 0, NOW), None);
    }

    #[test]
    fn a_run_that_is_taken_back_unclaimed_gives_its_token_back() {
        let rate = |burst| Some(Rate { count: 2, seconds: 600, burst });
        assert_eq!(after_tokens(rate(1), NOW + 300.0, 1, &[], 0, NOW), Some(NOW));
        assert_eq!(queue_allows(None, rate(1), NOW, 0, NOW), Some(1));
        let after_another = after_tokens(rate(1), NOW + 300.0, 1, &[NOW - 1.0], 0, NOW);
        assert_eq!(after_another, Some(NOW + 299.0), "another one was claimed");
        assert_eq!(after_tokens(rate(2), NOW, 1, &[], 0, NOW), Some(NOW - 300.0), "the whole burst");
        assert_eq!(after_tokens(rate(2), NOW, 7, &[], 0, NOW), Some(NOW - 300.0), "and no more");
        assert_eq!(after_tokens(rate(2), NOW - 900.0, 1, &[], 0, NOW), None);
        assert_eq!(after_tokens(None, NOW + 300.0, 1, &[], 0, NOW), None);
    }

    #[test]
    fn a_rate_is_looked_at_again_when_its_next_start_conforms_or_less_often_while_runs_keep_their_tokens() {
        let rate = Some(Rate { count: 100, seconds: 1, burst: 1 });
        let ahead = look_again_in(rate, NOW + 0.01, 0, NOW).unwrap();
        assert!((ahead - 0.01).abs() < 1e-6, "{ahead}");
        let kept = look_again_in(rate, NOW - 1.0, 1, NOW).unwrap();
        assert!((kept - 0.2).abs() < 1e-6, "{kept}");
        assert_eq!(look_again_in(rate, NOW, 0, NOW), None);
        assert_eq!(look_again_in(None, NOW + 5.0, 3, NOW), None);
    }

    #[test]
    fn a_burst_is_whole_again_an_interval_later_for_each_start_of_it_and_not_with_the_first_token() {
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
        /// What is forgotten with the time of a rate is nothing exactly if the burst is whole.
        #[test]
        fn a_rate_whose_burst_is_whole_allows_what_a_new_one_does(
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

        /// Workers are away and come back whenever they like, runs are taken back unclaimed, looks come whenever they like: in no window
        /// start more than `count` and `burst`, and at no time more than `burst`, as the workers see it.
        #[test]
        fn no_window_has_more_claims_than_the_rate_and_its_burst(
            count in 1_u32..6, burst in 1_u32..6, seconds in 1_u32..40,
            steps in prop::collection::vec((0.0_f64..20.0, 0_u32..4, 0_u32..3, any::<bool>()), 1..120)
        ) {
            let rate = Rate { count: count.max(burst), seconds, burst };
            let (mut now, mut tat, mut ready) = (NOW, 0.0, 0_u32);
            let (mut unseen, mut claims): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
            let mut given_back = 0;
            for (pause, claimed, taken_back, looks) in steps {
                now += pause;
                let claimed = claimed.min(ready);
                ready -= claimed;
                unseen.extend((0..claimed).map(|_| now));
                claims.extend((0..claimed).map(|_| now));
                let taken_back = taken_back.min(ready);
                ready -= taken_back;
                given_back += taken_back as usize;
                if looks {
                    now += 0.1;
                    tat = after_tokens(Some(rate), tat, given_back, &unseen, ready, now).unwrap_or(tat);
                    unseen.clear();
                    given_back = 0;
                    let mut bucket = Bucket::new(Some(rate), tat, ready, now);
                    while bucket.is_open() {
                        bucket.start();
                        ready += 1;
                    }
                    tat = bucket.tat();
                    prop_assert!(ready <= burst, "{ready} ready runs");
                }
            }
            let window = f64::from(seconds) - 1e-3;
            for (first, from) in claims.iter().enumerate() {
                let within = claims[first..].iter().take_while(|at| **at < from + window).count();
                prop_assert!(within <= (rate.count + burst) as usize, "{within} in {seconds} s");
            }
        }

        #[test]
        fn it_allows_as_many_as_are_then_started(
            free in prop::option::of(0_u64..9), of_key in prop::option::of(0_u32..9), count in 1_u32..9, burst in 1_u32..9,
            seconds in 1_u32..90, behind in -100_i32..100, unclaimed in 0_u32..4, rated in any::<bool>(), waiting in 0_usize..12
        ) {
            let rate = rated.then_some(Rate { count: count.max(burst), seconds, burst });
            let tat = NOW - f64::from(behind);
            let key = Key { id: 1, free: of_key, rate: None, tat: 0.0, unclaimed: 0, weight: 1.0 };
            let runs = (1..=waiting).map(|n| i64::try_from(n).unwrap());
            let runs: Vec<Run> = runs.map(|n| Run { seq: n, run: 0, ord: n, avoid: None, prefer: None }).collect();
            let head = Head { key: 1, priority: 3, vtime: 1.0, runs, more: false };
            let queue = Queue {
                now: NOW, fair: false, total_free: free, ready: [0; PRIORITIES], rate, tat, unclaimed,
                least: [0.0; PRIORITIES], sessions: None, more_heads: false,
            };
            let started = decide(&queue, &[key], &[head]).starts.len() as u64;
            let allowed = least(queue_allows(free, rate, tat, unclaimed, NOW), key_allows(&key, NOW));
            prop_assert_eq!(started, allowed.unwrap_or(u64::MAX).min(waiting as u64));
        }
    }
}
