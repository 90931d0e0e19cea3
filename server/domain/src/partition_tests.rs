use super::*;
use proptest::prelude::*;
use tenure_api::partitions::slot_of_key;

/// Milliseconds since 1970 at the beginning of interval 100,000.
const START: i64 = 1_000_000_000;
const INTERVAL: i64 = 10_000;

fn at(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(START + millis).unwrap()
}

fn empty(drain_timeout: i64) -> State {
    State { group: Group::new(Settings { interval: None, drain_timeout }), members: BTreeMap::new() }
}

fn tick(state: &mut State, member: &str, millis: i64, acked: Option<i64>) -> Share {
    step(state, &[Event::Tick { member: member.to_owned(), acked }], at(millis));
    state.share(member).unwrap()
}

fn name(n: usize) -> String {
    format!("m{n:02}")
}

/// Members that join in the first interval, with a map after the third.
fn settled(phases: &[i64]) -> State {
    let mut state = empty(0);
    call_in_turn(&mut state, phases, 0..3);
    state
}

/// Lets the members call once in each of these intervals, at their phases.
fn call_in_turn(state: &mut State, phases: &[i64], intervals: std::ops::Range<i64>) {
    let mut order: Vec<(i64, usize)> = phases.iter().copied().zip(0..).collect();
    order.sort_unstable();
    for interval in intervals {
        for (phase, member) in &order {
            tick(state, &name(*member), interval * INTERVAL + phase, None);
        }
    }
}

fn indices(state: &State) -> Vec<Option<u16>> {
    state.members.values().map(|member| member.index).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// P1, P2: with one call per interval, and with ten.
    #[test]
    fn first_share_comes_in_second_interval(phase in 0..INTERVAL, other in 0..INTERVAL, alone in any::<bool>()) {
        for every in [INTERVAL, INTERVAL / 10] {
            let mut state = empty(0);
            if !alone {
                call_in_turn(&mut state, &[other], 0..3);
            }
            let joined = 3 * INTERVAL + phase;
            let mut first = None;
            for time in (0..=2 * INTERVAL).step_by(every as usize) {
                let now = joined + time;
                if !alone && time % INTERVAL == 0 {
                    let in_interval = now - now % INTERVAL + other;
                    let acked = state.group.proposed;
                    tick(&mut state, &name(0), in_interval.max(now), Some(acked));
                    tick(&mut state, &name(0), in_interval.max(now), Some(acked + 1));
                }
                let share = tick(&mut state, "new", now, None);
                if first.is_none() && share.index.or(share.next.and_then(|next| next.index)).is_some() {
                    first = Some(time);
                }
            }
            let first = first.expect("a share within two intervals");
            prop_assert!((INTERVAL..=2 * INTERVAL).contains(&first), "{first}");
        }
    }

    /// P7.
    #[test]
    fn repeated_call_changes_nothing(calls in prop::collection::vec((0..6_usize, 0..8_000_i64, 0..4_i64), 1..80)) {
        let mut state = empty(5);
        let mut now = 0;
        for (member, later, acked) in calls {
            now += later;
            let acked = (acked > 0).then_some(state.group.proposed);
            let first = tick(&mut state, &name(member), now, acked);
            let once = state.clone();
            let second = tick(&mut state, &name(member), now, acked);
            prop_assert_eq!(&state, &once);
            prop_assert_eq!(first, second);
        }
    }

    /// In every state, no two members have the same index.
    #[test]
    fn indices_are_unique(calls in prop::collection::vec((0..8_usize, 0..9_000_i64, any::<bool>(), 0..20_u8), 1..120)) {
        let mut state = empty(0);
        let mut now = 0;
        for (member, later, acks, leaves) in calls {
            now += later;
            if leaves == 0 {
                step(&mut state, &[Event::Leave { member: name(member) }], at(now));
            } else {
                let proposed = state.group.proposed;
                tick(&mut state, &name(member), now, acks.then_some(proposed));
            }
            for of in [|member: &Member| member.index, |member: &Member| member.next_index] {
                let mut found: Vec<u16> = state.members.values().filter_map(of).collect();
                let count = found.len();
                found.sort_unstable();
                found.dedup();
                prop_assert_eq!(found.len(), count);
            }
            prop_assert!(indices(&state).into_iter().flatten().all(|index| index < state.group.replicas));
        }
    }
}

proptest! {
    /// P3, P5: a permutation after one interval, which then never changes.
    #[test]
    fn indices_are_stable_permutation(phases in prop::collection::vec(0..INTERVAL, 1..30)) {
        let mut state = settled(&phases);
        let mut sorted = indices(&state);
        sorted.sort_unstable();
        let count = phases.len() as u16;
        prop_assert_eq!(sorted, (0..count).map(Some).collect::<Vec<_>>());
        prop_assert_eq!(state.group.replicas, count);
        let (map, epoch) = (indices(&state), state.group.epoch);
        call_in_turn(&mut state, &phases, 3..103);
        prop_assert_eq!(indices(&state), map);
        prop_assert_eq!(state.group.epoch, epoch);
        prop_assert_eq!(state.overall(), PartitionState::Active);
    }
}

/// P4.
#[test]
fn each_key_is_in_one_share() {
    let slots: Vec<u32> = (0..100_000).map(|n| slot_of_key(&format!("customer {n}"))).collect();
    for replicas in 1..=30_u32 {
        let mut counts = vec![0_usize; replicas as usize];
        for slot in &slots {
            let owners = (0..replicas).filter(|index| slot % replicas == *index);
            for owner in owners {
                counts[owner as usize] += 1;
            }
        }
        assert_eq!(counts.iter().sum::<usize>(), slots.len());
        let even = slots.len() / replicas as usize;
        assert!(counts.iter().all(|count| *count > even * 3 / 4 && *count < even * 5 / 4), "{replicas}: {counts:?}");
    }
}

#[test]
fn members_keep_their_index_and_holes_are_filled() {
    let phases = [1_000, 2_000, 3_000, 4_000, 5_000];
    let mut state = settled(&phases);
    assert_eq!(indices(&state), [0, 1, 2, 3, 4].map(Some));
    step(&mut state, &[Event::Leave { member: name(1) }], at(29_000));
    let next: Vec<Option<u16>> = state.members.values().map(|member| member.next_index).collect();
    assert_eq!(next, [0, 2, 3, 1].map(Some), "only the last index moves");
    assert_eq!(state.overall(), PartitionState::Draining);
    for member in [0, 2, 3, 4] {
        let acked = state.group.proposed;
        tick(&mut state, &name(member), 29_500, Some(acked));
    }
    assert_eq!(indices(&state), [0, 2, 3, 1].map(Some));
    assert_eq!((state.group.epoch, state.group.replicas, state.group.next), (2, 4, None));
}

/// P6: the share of a silent member is free two intervals after the beginning of the last one in
/// which it called.
#[test]
fn silent_member_loses_its_share_in_time() {
    let phases = [1_000, 2_000, 3_000];
    let mut state = settled(&phases);
    for (interval, shares) in [(3, 3), (4, 2)] {
        for (member, phase) in [(1, 2_000), (2, 3_000)] {
            for _ in 0..2 {
                let acked = state.group.proposed;
                tick(&mut state, &name(member), interval * INTERVAL + phase, Some(acked));
            }
        }
        assert_eq!(state.group.replicas, shares);
    }
    assert!(!state.members.contains_key(&name(0)));
    let back = tick(&mut state, &name(0), 5 * INTERVAL, None);
    assert_eq!((back.state, back.index, back.valid_until), (PartitionState::Waiting, None, None));
}

#[test]
fn pause_of_all_expels_nobody() {
    let phases = [1_000, 5_000, 9_000];
    let mut state = settled(&phases);
    let before = (indices(&state), state.group.epoch);
    // The second and third have not called in the last interval before the pause.
    tick(&mut state, &name(0), 3 * INTERVAL + 1_000, None);
    for interval in [9, 10, 11] {
        for (member, phase) in [(0, 9_999), (1, 9_998), (2, 9_997)] {
            // One of them comes back only in the second interval.
            if (interval, member) != (9, 1) {
                tick(&mut state, &name(member), interval * INTERVAL + phase, None);
            }
        }
        assert_eq!((indices(&state), state.group.epoch), before, "interval {interval}");
    }
}

#[test]
fn absent_members_are_expelled_after_a_pause() {
    let mut state = settled(&[1_000, 5_000]);
    for interval in 9..=11 {
        for _ in 0..2 {
            let acked = state.group.proposed;
            tick(&mut state, &name(0), interval * INTERVAL, Some(acked));
        }
    }
    assert_eq!((indices(&state), state.group.replicas), (vec![Some(0)], 1));
}

#[test]
fn late_acknowledgement_of_earlier_proposal_is_ignored() {
    let mut state = settled(&[1_000, 2_000]);
    let old = state.group.proposed + 1;
    for interval in 3..=5 {
        for member in 0..=2 {
            tick(&mut state, &name(member), interval * INTERVAL + 3_000, None);
        }
    }
    assert_eq!((state.group.proposed, state.overall()), (old, PartitionState::Draining));
    tick(&mut state, &name(3), 53_500, None);
    for interval in 6..=7 {
        for member in 0..=3 {
            tick(&mut state, &name(member), interval * INTERVAL + 3_000, None);
        }
    }
    assert_eq!(state.group.proposed, old + 1, "another proposal takes its place");
    for member in 0..=3 {
        tick(&mut state, &name(member), 74_000, Some(old));
    }
    assert_eq!((state.group.epoch, state.overall()), (old - 1, PartitionState::Draining));
    for member in 0..=1 {
        tick(&mut state, &name(member), 75_000, Some(old + 1));
    }
    assert_eq!((state.group.epoch, state.group.replicas), (old + 1, 4));
}

#[test]
fn slow_member_is_removed_after_drain_timeout() {
    let mut state = settled(&[1_000, 2_000]);
    state.group.drain_timeout = 30;
    for interval in 3..=5 {
        for member in 0..=2 {
            tick(&mut state, &name(member), interval * INTERVAL + 3_000, None);
        }
    }
    assert_eq!(state.overall(), PartitionState::Draining);
    let proposal = state.group.proposed;
    tick(&mut state, &name(0), 54_000, Some(proposal));
    for interval in 6..=8 {
        for member in 0..=2 {
            let acked = (member != 1).then_some(state.group.proposed);
            tick(&mut state, &name(member), interval * INTERVAL + 4_000, acked);
            let proposed = state.group.proposed;
            tick(&mut state, &name(member), interval * INTERVAL + 4_000, acked.map(|_| proposed));
        }
    }
    let removed = state.share(&name(1)).unwrap();
    assert_eq!((removed.state, removed.index), (PartitionState::Waiting, None));
    assert_eq!(state.group.replicas, 2);
    assert_eq!(state.share(&name(2)).unwrap().state, PartitionState::Active);
}

#[test]
fn full_group_admits_nobody_and_few_shares_are_given() {
    let mut state = empty(0);
    let ticks: Vec<Event> =
        (0..=MEMBERS_MAX).map(|n| Event::Tick { member: format!("m{n:04}"), acked: None }).collect();
    for interval in 0..3 {
        step(&mut state, &ticks, at(interval * INTERVAL));
    }
    assert_eq!(state.members.len(), MEMBERS_MAX);
    assert_eq!(state.share(&format!("m{MEMBERS_MAX:04}")), None);
    assert_eq!(usize::from(state.group.replicas), REPLICAS_MAX);
    assert_eq!(indices(&state).into_iter().flatten().count(), REPLICAS_MAX);
    let waiting = state.share("m0999").unwrap();
    assert_eq!((waiting.state, waiting.next), (PartitionState::Waiting, None));
}

#[test]
fn clock_that_goes_back_moves_no_interval() {
    let mut state = settled(&[1_000]);
    let before = state.clone();
    tick(&mut state, &name(0), -50_000, None);
    assert_eq!(state, before);
}

#[test]
fn members_are_listed_by_share_with_their_map() {
    let group = Group {
        epoch: 3,
        replicas: 2,
        proposed: 5,
        next: Some(Proposal { replicas: 3, since: at(0) }),
        ..Group::new(Settings { interval: None, drain_timeout: 0 })
    };
    let member = |index, acked| Member { joined: 0, ticked: 100_000, index, next_index: None, acked };
    let members = [("a", None, false), ("b", Some(1), true), ("c", None, false), ("d", Some(0), false)];
    let members = members.map(|(name, index, acked)| (name.to_owned(), member(index, acked)));
    let mut state = State { group, members: members.into() };
    let listed = |state: &State| -> Vec<(String, Option<i64>)> {
        let all = state.by_share();
        all.into_iter().map(|(name, member)| (name.to_owned(), state.group.acknowledged(member))).collect()
    };
    let expected = |maps: [Option<i64>; 4]| -> Vec<(String, Option<i64>)> {
        ["d", "b", "a", "c"].map(str::to_owned).into_iter().zip(maps).collect()
    };
    assert_eq!(listed(&state), expected([Some(3), Some(5), None, None]));
    assert_eq!(state.group.last_tick(&state.members["a"]), at(0));
    assert_eq!(state.group.valid_until(&state.members["a"]), at(2 * INTERVAL));
    state.group.next = None;
    assert_eq!(listed(&state), expected([Some(3), Some(3), None, None]));
}

#[test]
fn settings_and_names_are_checked() {
    let of = |interval, drain_timeout| Settings::from_request(&PartitionRequest { interval, drain_timeout });
    assert_eq!(of(None, None), Ok(Settings { interval: None, drain_timeout: 0 }));
    for (interval, drain_timeout, accepted) in [
        (Some(1), Some(0), true),
        (Some(3_600), Some(86_400), true),
        (Some(0), None, false),
        (Some(3_601), None, false),
        (None, Some(-1), false),
        (None, Some(86_401), false),
    ] {
        assert_eq!(of(interval, drain_timeout).is_ok(), accepted, "{interval:?} {drain_timeout:?}");
    }
    assert!(named("mail_1-a").is_ok() && member_named("host-1.acme_2").is_ok());
    assert!(named(&"n".repeat(64)).is_ok() && member_named(&"n".repeat(128)).is_ok());
    for bad in ["", "a b", "ä", "a/b", "a\0", &"n".repeat(129)] {
        assert!(named(bad).is_err() && member_named(bad).is_err(), "{bad:?}");
    }
    for bad in [".", "..", "-a", "_a"] {
        assert!(member_named(bad).is_err(), "{bad:?}");
    }
    assert!(named("a.b").is_err());
}
