//! Compares [`decide`] with a model that recomputes everything for each start.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;

const NOW: f64 = 1_800_000_000.0;

/// Returns the number of starts that a rate allows now. Each costs an interval; up to `burst` may
/// have been saved.
fn allowed(rate: Option<Rate>, tat: f64, unclaimed: u32) -> u32 {
    let Some(Rate { count, seconds, burst }) = rate else { return u32::MAX };
    let interval = f64::from(seconds) / f64::from(count);
    let saved = ((NOW - tat) / interval).min(f64::from(burst) - 1.0);
    let saved = if unclaimed > 0 { saved - f64::from(unclaimed) } else { saved };
    if saved < -1e-9 { 0 } else { (saved + 1e-9) as u32 + 1 }
}

/// Returns the taker of a run, or an error if the run waits for a worker.
fn session_for(sessions: &mut [Session], run: &Run) -> Result<Taker, ()> {
    let prefer =
        run.prefer.filter(|prefer| prefer.until > NOW && !(prefer.epoch.is_some() && prefer.epoch == run.avoid));
    let mut free: Vec<&mut Session> = sessions.iter_mut().filter(|session| session.free > 0).collect();
    match prefer {
        Some(prefer) => free.retain(|session| Some(session.epoch) == prefer.epoch),
        None if free.iter().any(|session| Some(session.epoch) != run.avoid) => {
            free.retain(|session| Some(session.epoch) != run.avoid);
        }
        None => {}
    }
    let order = |session: &Session| (Reverse(session.weight), session.held, session.idle_since as i64, session.epoch);
    let chosen = free.into_iter().min_by_key(|session| order(session)).ok_or(())?;
    *chosen = Session { free: chosen.free - 1, held: chosen.held + 1, idle_since: NOW, ..*chosen };
    Ok(Taker::Session(chosen.epoch))
}

/// Starts runs one by one: always the first startable run by priority, virtual time and key.
fn model(queue: &Queue, keys: &[Key], heads: &[Head]) -> Vec<(i64, Taker)> {
    let (mut demand, mut starts) = (queue.demand.clone(), Vec::new());
    let mut key_left: Vec<u32> =
        keys.iter().map(|key| key.free.unwrap_or(u32::MAX).min(allowed(key.rate, key.tat, key.unclaimed))).collect();
    let mut left = queue.total_free.unwrap_or(u64::MAX).min(allowed(queue.rate, queue.tat, queue.unclaimed).into());
    let mut heads: Vec<(Head, bool)> = heads.iter().map(|head| (head.clone(), false)).collect();
    for (head, _) in &mut heads {
        let first = head.runs.first().filter(|_| !queue.fair).map(|run| run.ord as f64);
        head.vtime = first.unwrap_or(head.vtime).max(queue.least[head.priority]);
    }
    loop {
        let turn = |(head, has_started): &&mut (Head, bool)| !head.runs.is_empty() || (head.more && *has_started);
        let order =
            |head: &Head| (head.priority, head.vtime as i64 * 1_000 + (head.vtime.fract() * 1_000.0) as i64, head.key);
        let Some((head, has_started)) = heads.iter_mut().filter(turn).min_by_key(|(head, _)| order(head)) else {
            break;
        };
        let nobody = match &demand {
            Demand::Requests(places) => places.iter().all(|places| *places == 0),
            Demand::Sessions(sessions) => sessions.iter().all(|session| session.free == 0),
        };
        if left == 0 || nobody {
            break;
        }
        let index = keys.iter().position(|key| key.id == head.key).unwrap();
        if key_left[index] == 0 {
            (head.runs, head.more) = (Vec::new(), false);
            continue;
        }
        if head.runs.is_empty() {
            break;
        }
        let run = head.runs.remove(0);
        let taker = match &mut demand {
            _ if !run.open => Err(()),
            Demand::Sessions(sessions) => session_for(sessions, &run),
            Demand::Requests(places) => {
                let index = places.iter().position(|places| *places > 0).unwrap();
                places[index] -= 1;
                Ok(Taker::Request(index))
            }
        };
        if let Ok(taker) = taker {
            starts.push((run.seq, taker));
            (left, *has_started, key_left[index]) = (left - 1, true, key_left[index].saturating_sub(1));
            head.vtime += if queue.fair { 1.0 / keys[index].weight } else { 0.0 };
        }
        if let Some(next) = head.runs.first().filter(|_| !queue.fair) {
            head.vtime = head.vtime.max(next.ord as f64);
        }
    }
    starts
}

fn rate() -> impl Strategy<Value = Option<Rate>> {
    let some = (1_u32..6, 1_u32..4).prop_flat_map(|(count, times)| {
        (1..=count).prop_map(move |burst| Some(Rate { count, seconds: count * times, burst }))
    });
    prop_oneof![2 => Just(None), 1 => some]
}

fn a_queue() -> impl Strategy<Value = Queue> {
    let session = (0_u32..3, 0_u32..3, 0_u32..3, 0_u32..3);
    let demand = prop_oneof![
        1 => prop::collection::vec(0_u32..5, 0..6).prop_map(Demand::Requests),
        2 => prop::collection::vec(session, 0..6).prop_map(|sessions| {
            let session = |(epoch, (weight, free, held, idle))| Session {
                epoch,
                weight,
                free,
                held,
                idle_since: NOW - f64::from(idle) * 10.0,
            };
            Demand::Sessions((0..).zip(sessions).map(session).collect())
        }),
    ];
    (any::<bool>(), prop::option::of(0_u64..12), rate(), -9_i32..9, 0_u32..4, demand).prop_map(
        |(fair, total_free, rate, tat, unclaimed, demand)| {
            // Only an assign queue has runs that hold tokens.
            let unclaimed = if matches!(demand, Demand::Sessions(_)) { unclaimed } else { 0 };
            let tat = NOW + f64::from(tat);
            let least = [3.0; PRIORITIES];
            Queue { now: NOW, fair, total_free, demand, rate, tat, unclaimed, least, more_heads: false }
        },
    )
}

fn keys() -> impl Strategy<Value = Vec<Key>> {
    let key = (prop::option::of(0_u32..4), rate(), -9_i32..9, 0_u32..3, prop::sample::select(vec![0.5, 1.0, 2.0, 4.0]));
    prop::collection::vec(key, 4).prop_map(|keys| {
        let key = |(id, (free, rate, tat, unclaimed, weight))| Key {
            id,
            free,
            rate,
            tat: NOW + f64::from(tat),
            unclaimed,
            weight,
        };
        (0..).zip(keys).map(key).collect()
    })
}

fn heads() -> impl Strategy<Value = Vec<Head>> {
    let prefer =
        prop::option::weighted(0.3, (prop::option::of(0_i64..7), prop::sample::select(vec![-5.0, 5.0, 500.0])));
    let run = (prop::option::weighted(0.3, 0_i64..6), prefer, prop::bool::weighted(0.85));
    let head = (prop::collection::vec(run, 0..6), 0_u32..8, any::<bool>());
    let all: Vec<(i64, usize)> = (0..4).flat_map(|key| [0, 3, 6].map(|priority| (key, priority))).collect();
    let chosen = prop::sample::subsequence(all, 0..8);
    (chosen, prop::collection::vec(head, 8), any::<u32>()).prop_map(|(chosen, heads, seed)| {
        type Sent = (Option<i64>, Option<(Option<i64>, f64)>, bool);
        type SentHead = (Vec<Sent>, u32, bool);
        let head = |(n, ((key, priority), (runs, vtime, more))): (usize, (_, SentHead))| {
            // Positions of different heads are interleaved, without duplicates.
            let ord = |run: usize| i64::try_from((run * 8 + (n + seed as usize) % 8) * 2 + 1).unwrap();
            let run = |(place, (avoid, prefer, open)): (usize, Sent)| Run {
                seq: ord(place),
                run: 0,
                ord: ord(place),
                bytes: 1,
                open,
                avoid,
                prefer: prefer.map(|(epoch, until)| Prefer { epoch, until: NOW + until }),
            };
            let runs = runs.into_iter().enumerate().map(run).collect();
            Head { key, priority, vtime: f64::from(vtime), runs, more }
        };
        chosen.into_iter().zip(heads).enumerate().map(head).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// T12, T13: assignments go to the free session with the greatest weight; everything else
    /// follows the model.
    #[test]
    fn decision_starts_same_runs_as_model(queue in a_queue(), keys in keys(), heads in heads()) {
        let decided = decide(&queue, &keys, &heads);
        let starts: Vec<_> = decided.starts.iter().map(|start| (start.seq, start.taker)).collect();
        prop_assert_eq!(starts, model(&queue, &keys, &heads));
        prop_assert_eq!(decided.heads.len(), heads.len());
        for (head, after) in heads.iter().zip(&decided.heads) {
            prop_assert_eq!((head.key, head.priority), (after.key, after.priority));
            // No ready head lies below the low-water mark.
            prop_assert!(after.state != HeadState::Ready || after.vtime >= decided.least[head.priority]);
            let of_head = |start: &&Start| (start.key, start.priority) == (head.key, head.priority);
            let started = decided.starts.iter().filter(of_head).count();
            let all_started = started == head.runs.len() && !head.more;
            prop_assert_eq!(after.state == HeadState::Empty, all_started);
            if let HeadState::At(time) = after.state {
                prop_assert!(time > queue.now);
            }
        }
        for (before, after) in queue.least.iter().zip(decided.least) {
            prop_assert!(*before <= after);
        }
    }
}
