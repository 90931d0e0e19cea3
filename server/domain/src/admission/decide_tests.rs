use super::super::{ANSWER_BYTES_MAX, DECISION_BYTES_MAX, Demand, Prefer, Rate, Run, Session};
use super::*;

const NOW: f64 = 1_800_000_000.0;

fn queue() -> Queue {
    Queue {
        now: NOW,
        fair: false,
        total_free: None,
        demand: Demand::Requests(vec![1_000]),
        rate: None,
        tat: 0.0,
        unclaimed: 0,
        least: [0.0; PRIORITIES],
        more_heads: false,
    }
}

fn assign(sessions: &[Session]) -> Queue {
    Queue { demand: Demand::Sessions(sessions.to_vec()), ..queue() }
}

fn session(epoch: i64, weight: u32, free: u32, held: u32) -> Session {
    Session { epoch, weight, free, held, idle_since: NOW - 100.0 }
}

fn key(id: i64) -> Key {
    Key { id, free: None, rate: None, tat: 0.0, unclaimed: 0, weight: 1.0 }
}

fn run(ord: i64) -> Run {
    Run { seq: ord, run: 0, ord, bytes: 100, open: true, avoid: None, prefer: None }
}

fn head(key: i64, priority: usize, ords: &[i64]) -> Head {
    let vtime = ords.first().copied().unwrap_or(0) as f64;
    Head { key, priority, vtime, runs: ords.iter().map(|ord| run(*ord)).collect(), more: false }
}

fn preferring(ord: i64, epoch: Option<i64>, until: f64) -> Run {
    Run { prefer: Some(Prefer { epoch, until }), ..run(ord) }
}

fn started(decided: &Decided) -> Vec<i64> {
    decided.starts.iter().map(|start| start.seq).collect()
}

fn session_of(start: &Start) -> Option<i64> {
    match start.taker {
        Taker::Session(epoch) => Some(epoch),
        Taker::Request(_) => None,
    }
}

fn given_to(decided: &Decided) -> Vec<(i64, Option<i64>)> {
    decided.starts.iter().map(|start| (start.seq, session_of(start))).collect()
}

fn states(decided: &Decided) -> Vec<HeadState> {
    decided.heads.iter().map(|head| head.state).collect()
}

#[test]
fn without_limits_runs_start_by_priority_then_order() {
    let heads = [head(1, 6, &[1, 4]), head(2, 6, &[2, 3]), head(1, 0, &[9]), head(3, 2, &[5])];
    let decided = decide(&queue(), &[key(1), key(2), key(3)], &heads);
    assert_eq!(started(&decided), [9, 5, 1, 2, 3, 4]);
    assert_eq!(states(&decided), [HeadState::Empty; 4]);
    assert_eq!(decided.least, [9.0, 0.0, 5.0, 0.0, 0.0, 0.0, 4.0]);
    assert_eq!((decided.keys, decided.tat), (vec![], 0.0), "without a rate no time changes");
}

#[test]
fn total_and_key_slots_are_limits() {
    let limited = Key { free: Some(1), ..key(1) };
    let heads = [head(1, 6, &[1, 2]), head(2, 6, &[3, 4, 5])];
    let decided = decide(&queue(), &[limited, key(2)], &heads);
    assert_eq!(started(&decided), [1, 3, 4, 5]);
    assert_eq!(states(&decided), [HeadState::Full, HeadState::Empty]);
    let total = Queue { total_free: Some(3), ..queue() };
    let decided = decide(&total, &[limited, key(2)], &heads);
    assert_eq!(started(&decided), [1, 3, 4]);
    assert_eq!(states(&decided), [HeadState::Full, HeadState::Ready], "the queue's limit does not stop a head");
    // All priorities of a key share its slots. The most urgent run gets the last slot.
    let decided = decide(&queue(), &[limited], &[head(1, 6, &[1]), head(1, 5, &[2])]);
    assert_eq!((started(&decided), states(&decided)), (vec![2], vec![HeadState::Full, HeadState::Empty]));
    let decided = decide(&Queue { total_free: Some(0), ..queue() }, &[key(1)], &[head(1, 6, &[1])]);
    assert_eq!((started(&decided), states(&decided)), (vec![], vec![HeadState::Ready]));
}

fn requests(places: &[u32]) -> Queue {
    Queue { demand: Demand::Requests(places.to_vec()), ..queue() }
}

fn of_requests(decided: &Decided) -> Vec<(i64, usize)> {
    let of = |start: &Start| match start.taker {
        Taker::Request(index) => (start.seq, index),
        Taker::Session(_) => panic!("nothing is assigned"),
    };
    decided.starts.iter().map(of).collect()
}

#[test]
fn requests_are_served_in_order_and_required() {
    let heads = [head(1, 6, &[1, 2, 3, 4, 5])];
    let decided = decide(&requests(&[1, 0, 2]), &[key(1)], &heads);
    assert_eq!(of_requests(&decided), [(1, 0), (2, 2), (3, 2)]);
    assert_eq!((states(&decided), decided.heads[0].from_ord), (vec![HeadState::Ready], Some(4)));
    for none in [&[][..], &[0, 0]] {
        let decided = decide(&requests(none), &[key(1)], &heads);
        assert_eq!((started(&decided), decided.heads[0].from_ord), (vec![], Some(1)));
    }
}

#[test]
fn response_ends_before_first_oversized_run() {
    let sized = |sizes: &[u64]| {
        let runs = (1..).zip(sizes).map(|(ord, bytes)| Run { bytes: *bytes, ..run(ord) }).collect();
        [Head { runs, ..head(1, 6, &[1]) }]
    };
    let half = ANSWER_BYTES_MAX / 2 + 1;
    let decided = decide(&requests(&[9, 9]), &[key(1)], &sized(&[half, half, 10]));
    assert_eq!(of_requests(&decided), [(1, 0), (2, 1), (3, 1)], "no later run overtakes it");
    // The first run starts at any size.
    let decided = decide(&requests(&[9, 1]), &[key(1)], &sized(&[2 * ANSWER_BYTES_MAX, 1, 1]));
    assert_eq!(of_requests(&decided), [(1, 0), (2, 1)]);
    let all = decide(&requests(&[1; 99]), &[key(1)], &sized(&[ANSWER_BYTES_MAX; 99]));
    assert_eq!(all.starts.len() as u64, DECISION_BYTES_MAX / ANSWER_BYTES_MAX);
}

#[test]
fn locked_run_is_passed_over_and_stays_head_start() {
    let locked = |ords: &[i64]| Head {
        runs: ords.iter().map(|ord| Run { open: *ord != 2, ..run(*ord) }).collect(),
        ..head(1, 6, ords)
    };
    let decided = decide(&queue(), &[key(1)], &[locked(&[1, 2, 3])]);
    assert_eq!((started(&decided), decided.heads[0].from_ord), (vec![1, 3], Some(2)));
    assert_eq!(states(&decided), [HeadState::At(NOW + LOCKED_AGAIN)], "the head has no other run");
    let decided = decide(&queue(), &[key(1), key(2)], &[locked(&[2]), head(2, 6, &[5])]);
    assert_eq!(started(&decided), [5], "other keys do not wait");
}

#[test]
fn run_waits_for_preferred_worker_until_timeout() {
    let sessions = assign(&[session(1, 9, 2, 0), session(2, 1, 1, 0), session(3, 9, 0, 0)]);
    let with = |first: Run, ords: &[i64]| Head {
        runs: std::iter::once(first).chain(ords.iter().map(|ord| run(*ord))).collect(),
        ..head(1, 6, &[1])
    };
    let decided = |head: Head| decide(&sessions, &[key(1)], &[head]);
    let free = decided(with(preferring(1, Some(2), NOW + 9.0), &[2]));
    assert_eq!(given_to(&free), [(1, Some(2)), (2, Some(1))]);
    let over = decided(with(preferring(1, Some(2), NOW), &[2]));
    assert_eq!(given_to(&over), [(1, Some(1)), (2, Some(1))], "after the timeout any session may take it");
    for busy in [Some(3), Some(4), None] {
        let waiting = decided(with(preferring(1, busy, NOW + 0.5), &[2]));
        assert_eq!(given_to(&waiting), [(2, Some(1))], "the run behind it starts");
        assert_eq!(waiting.heads[0].state, HeadState::At(NOW + 0.5));
        assert_eq!(waiting.heads[0].vtime, 2.0, "the position of the passed-over run");
        let long = decided(with(preferring(1, busy, NOW + 3_000.0), &[]));
        assert_eq!((given_to(&long), states(&long)), (vec![], vec![HeadState::At(NOW + PREFERRED_AGAIN)]));
    }
    let refused = Run { avoid: Some(2), ..preferring(1, Some(2), NOW + 9.0) };
    assert_eq!(given_to(&decided(with(refused, &[]))), [(1, Some(1))], "a worker that refused is no longer preferred");
    // In a pull queue preferences have no effect.
    let pull = decide(&queue(), &[key(1)], &[with(preferring(1, None, NOW + 9.0), &[2])]);
    assert_eq!(given_to(&pull), [(1, None), (2, None)]);
}

#[test]
fn unread_run_is_not_overtaken() {
    let more = |head: Head| Head { more: true, ..head };
    let keys = [key(1), key(2)];
    // The second head's run came after the unread runs of the first head.
    let decided = decide(&queue(), &keys, &[more(head(1, 5, &[1, 2])), head(2, 5, &[7]), head(2, 6, &[3])]);
    assert_eq!((started(&decided), states(&decided)), (vec![1, 2], vec![HeadState::Ready; 3]));
    assert_eq!(decided.heads[0].vtime, 2.0, "not after the unread runs");
    // With `fair` the decision continues until the first head is next again.
    let fair = Queue { fair: true, ..queue() };
    let zero = |head: Head| Head { vtime: 0.0, ..head };
    let decided = decide(&fair, &keys, &[more(zero(head(1, 5, &[1]))), zero(head(2, 5, &[7, 8, 9]))]);
    assert_eq!(started(&decided), [1, 7], "keys take turns");
    // A head whose runs are all locked stops nothing.
    let decided = decide(&queue(), &keys, &[more(head(1, 5, &[])), head(2, 6, &[3])]);
    assert_eq!((started(&decided), states(&decided)), (vec![3], vec![HeadState::Ready, HeadState::Empty]));
    // Unread heads follow the last head that was read, by their stored positions.
    let cut = Queue { more_heads: true, ..queue() };
    let decided = decide(&cut, &keys, &[head(1, 5, &[1, 5]), head(2, 5, &[3, 4])]);
    assert_eq!((started(&decided), decided.least[5], decided.unread), (vec![1, 3], 3.0, true));
    let full = Queue { total_free: Some(2), ..cut.clone() };
    assert!(!decide(&full, &keys, &[head(1, 5, &[1, 5]), head(2, 5, &[3, 4])]).unread, "nothing more could start");
    assert!(!decide(&queue(), &keys, &[head(1, 5, &[1, 5]), head(2, 5, &[3, 4])]).unread, "there are no more heads");
}

#[test]
fn decision_names_what_stopped_it() {
    let stop = |queue: &Queue, key: &Key, head: Head| decide(queue, std::slice::from_ref(key), &[head]).stop;
    let two = head(1, 5, &[1, 2]);
    let one_taken = Queue { demand: Demand::Requests(vec![1]), ..queue() };
    assert_eq!(stop(&one_taken, &key(1), two.clone()), Stop::Demand);
    let total = Queue { total_free: Some(1), ..queue() };
    assert_eq!(stop(&total, &key(1), two.clone()), Stop::Total);
    assert_eq!(stop(&total, &key(1), head(1, 5, &[1])), Stop::Keys, "no further run waits");
    let rate = Some(Rate { count: 1, seconds: 60, burst: 1 });
    assert_eq!(stop(&Queue { rate, ..queue() }, &key(1), two.clone()), Stop::Rate);
    assert_eq!(stop(&queue(), &Key { free: Some(1), ..key(1) }, two.clone()), Stop::Keys);
    assert_eq!(stop(&queue(), &Key { rate, ..key(1) }, two.clone()), Stop::Keys);
    let locked = Head { runs: vec![Run { open: false, ..run(1) }], ..two.clone() };
    assert_eq!(stop(&queue(), &key(1), locked), Stop::PassedOver);
    assert_eq!(stop(&queue(), &key(1), Head { more: true, ..two }), Stop::Unread);
}

#[test]
fn rate_allows_burst_then_one_per_interval() {
    let rate = Some(Rate { count: 10, seconds: 60, burst: 3 });
    let ords: Vec<i64> = (1..20).collect();
    let limited = Key { rate, ..key(1) };
    let decided = decide(&queue(), &[limited], &[head(1, 6, &ords)]);
    assert_eq!((started(&decided), states(&decided)), (vec![1, 2, 3], vec![HeadState::At(NOW + 6.0)]));
    assert_eq!(decided.keys, [(1, NOW + 6.0)]);
    let again = |now, unclaimed| {
        let limited = Key { tat: NOW + 6.0, unclaimed, ..limited };
        decide(&Queue { now, ..queue() }, &[limited], &[head(1, 6, &ords)])
    };
    assert!(again(NOW + 5.9, 0).starts.is_empty());
    assert_eq!(again(NOW + 6.0, 0).starts.len(), 1);
    assert_eq!(again(NOW + 12.0, 0).starts.len(), 2);
    let later = again(NOW + 500.0, 0);
    assert_eq!((later.starts.len(), later.keys), (3, vec![(1, NOW + 506.0)]));
    // Assigned runs hold their tokens until a session accepts them, even if they exceed the burst.
    for (unclaimed, starts) in [(0, 3), (1, 2), (2, 1), (3, 0), (4, 0)] {
        let limited = Key { tat: NOW + 6.0, unclaimed, ..limited };
        let assigning = Queue { now: NOW + 500.0, ..assign(&[session(1, 1, 9, 0)]) };
        let later = decide(&assigning, &[limited], &[head(1, 6, &ords)]);
        assert_eq!((later.starts.len(), later.keys), (starts, vec![]), "the acceptance spends the token");
    }
    // The queue's rate leaves heads ready and returns the time of the next start.
    let whole = decide(&Queue { rate, ..queue() }, &[key(1)], &[head(1, 6, &ords)]);
    assert_eq!((started(&whole), states(&whole)), (vec![1, 2, 3], vec![HeadState::Ready]));
    assert_eq!((whole.tat, whole.keys), (NOW + 6.0, vec![]));
}

#[test]
fn keys_take_turns_by_their_weight() {
    let fair = Queue { fair: true, total_free: Some(8), ..queue() };
    let keys = [key(1), Key { weight: 3.0, ..key(2) }];
    let zero = |key, from: i64| Head { vtime: 0.0, ..head(key, 6, &(from..from + 20).collect::<Vec<_>>()) };
    let decided = decide(&fair, &keys, &[zero(1, 1), zero(2, 100)]);
    let of_the_second = decided.starts.iter().filter(|start| start.key == 2).count();
    assert_eq!(of_the_second, 6, "three of four");
    // A head that returns has saved nothing up.
    let least = [50.0; PRIORITIES];
    let back = decide(&Queue { least, ..fair }, &keys, &[zero(1, 1)]);
    assert_eq!((back.heads[0].vtime, back.least[6]), (58.0, 57.0));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let decided = decide(&Queue { fair: true, ..queue() }, &[Key { weight, ..key(1) }], &[zero(1, 1)]);
        assert_eq!(decided.heads[0].vtime, 20.0, "an invalid weight counts as 1: {weight}");
    }
}

#[test]
fn head_with_unknown_key_or_priority_stops_nothing() {
    let decided = decide(&queue(), &[key(1)], &[head(7, 0, &[1]), head(1, 99, &[2])]);
    assert_eq!((started(&decided), states(&decided)), (vec![2], vec![HeadState::Ready, HeadState::Empty]));
    assert_eq!(decided.starts[0].priority, 99);
    assert_eq!(decide(&queue(), &[], &[]).starts, []);
}
