use super::*;

const QUEUE: i32 = 7;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn name(on_duplicate: OnDuplicate, holders: &[Uuid]) -> Name<'_> {
    Name { id: 1, on_duplicate, holders, locked: true }
}

fn member(name: Option<Name<'_>>) -> Member<'_> {
    Member { exists: false, name, queue: QUEUE, waits: false, bytes: 10 }
}

fn limit(tasks: Option<i64>, bytes: Option<i64>) -> Limit {
    Limit { tasks, bytes }
}

fn pending(tasks: i64) -> Pending {
    Pending { tasks, bytes: 0 }
}

fn backlog(tasks: i64, used: i64, lock: BacklogLock) -> HashMap<i32, Backlog> {
    HashMap::from([(QUEUE, Backlog { limit: limit(Some(tasks), None), used: pending(used), lock })])
}

fn one(member: Member<'_>, backlogs: &HashMap<i32, Backlog>) -> Decision {
    decide(&[member], backlogs)[0]
}

/// Every treatment, with and without holders and locks.
#[test]
fn every_case_of_a_name_has_its_decision() {
    use OnDuplicate::{Coalesce, Queue, Reject};
    let (held, crowd) = ([id(1), id(2)], vec![id(1); HOLDERS_MAX]);
    let duplicate = Decision::Refuse(Refusal::Duplicate(id(1)));
    for (on_duplicate, holders, locked, expected) in [
        (Reject, &[][..], true, Decision::Create),
        (Reject, &[][..], false, Decision::Locked),
        (Reject, &held[..], true, duplicate),
        (Reject, &held[..], false, duplicate),
        (Reject, &crowd[..], true, duplicate),
        (Coalesce, &[][..], true, Decision::Create),
        (Coalesce, &[][..], false, Decision::Locked),
        (Coalesce, &held[..], true, duplicate),
        (Coalesce, &held[..], false, duplicate),
        (Queue, &[][..], true, Decision::Create),
        (Queue, &[][..], false, Decision::Locked),
        (Queue, &held[..], true, Decision::Wait),
        (Queue, &held[..], false, Decision::Locked),
        (Queue, &crowd[..], true, Decision::Refuse(Refusal::Crowded)),
        (Queue, &crowd[..], false, Decision::Refuse(Refusal::Crowded)),
        (Queue, &crowd[1..], true, Decision::Wait),
    ] {
        let named = member(Some(Name { locked, ..name(on_duplicate, holders) }));
        assert_eq!(one(named, &HashMap::new()), expected, "{on_duplicate:?} {} {locked}", holders.len());
        let repeat = Member { exists: true, ..named };
        assert_eq!(one(repeat, &HashMap::new()), Decision::Create, "a repeat is answered by its task");
    }
}

/// Every lock, with a backlog that is far from, near, at and over its limit.
#[test]
fn every_case_of_a_backlog_has_its_decision() {
    use BacklogLock::{Exclusive, None as Unlocked, Shared};
    let (limit, full) = (30_000, |used| Decision::Refuse(Refusal::Full(pending(used))));
    for (used, lock, expected) in [
        (9_999, Unlocked, Decision::Locked),
        (9_999, Shared, Decision::Create),
        (9_999, Exclusive, Decision::Create),
        (10_000, Unlocked, Decision::Locked),
        (10_000, Shared, Decision::Locked),
        (10_000, Exclusive, Decision::Create),
        (29_999, Shared, Decision::Locked),
        (29_999, Exclusive, Decision::Create),
        (30_000, Unlocked, full(30_000)),
        (30_000, Shared, full(30_000)),
        (30_000, Exclusive, full(30_000)),
        (40_000, Exclusive, full(40_000)),
    ] {
        let backlogs = backlog(limit, used, lock);
        assert_eq!(one(member(None), &backlogs), expected, "{used} {lock:?}");
        let elsewhere = Member { queue: 8, ..member(None) };
        assert_eq!(one(elsewhere, &backlogs), Decision::Create, "another queue has no limit");
        let waits = Member { waits: true, ..member(None) };
        assert_eq!(one(waits, &backlogs), Decision::Create, "an unscheduled task does not count");
        let repeat = Member { exists: true, ..member(None) };
        assert_eq!(one(repeat, &backlogs), Decision::Create, "a repeat does not count");
    }
}

#[test]
fn batch_fills_a_backlog_exactly() {
    let backlogs = backlog(5, 3, BacklogLock::Exclusive);
    let repeat = Member { exists: true, ..member(None) };
    let waits = Member { waits: true, ..member(None) };
    let members = [repeat, member(None), waits, member(None), member(None), waits];
    let full = Decision::Refuse(Refusal::Full(Pending { tasks: 5, bytes: 20 }));
    let create = Decision::Create;
    assert_eq!(decide(&members, &backlogs), [create, create, create, create, full, create]);
}

/// Every lock, with bytes that are below, at and over their limit, alone and beside one of tasks.
#[test]
fn every_case_of_bytes_has_its_decision() {
    use BacklogLock::{Exclusive, None as Unlocked, Shared};
    let full = |tasks, bytes| Decision::Refuse(Refusal::Full(Pending { tasks, bytes }));
    let too_large = Decision::Refuse(Refusal::TooLarge { bytes: 10, limit: 9 });
    for (limit, used, lock, expected) in [
        (limit(None, Some(100)), (1, 89), Exclusive, Decision::Create),
        (limit(None, Some(100)), (1, 90), Exclusive, Decision::Create),
        (limit(None, Some(100)), (1, 91), Exclusive, full(1, 91)),
        (limit(None, Some(100)), (1, 91), Unlocked, full(1, 91)),
        (limit(None, Some(100)), (1, 200), Shared, full(1, 200)),
        (limit(None, Some(100)), (0, 0), Unlocked, Decision::Locked),
        (limit(None, Some(1_000_000_000_000)), (0, 0), Shared, Decision::Locked),
        (limit(Some(2), Some(100)), (1, 90), Exclusive, Decision::Create),
        (limit(Some(2), Some(100)), (2, 20), Exclusive, full(2, 20)),
        (limit(Some(2), Some(100)), (1, 91), Exclusive, full(1, 91)),
        (limit(Some(30_000), Some(1_000_000)), (0, 0), Shared, Decision::Locked),
        (limit(None, Some(10)), (0, 0), Exclusive, Decision::Create),
        (limit(None, Some(9)), (0, 0), Exclusive, too_large),
        (limit(Some(1), Some(9)), (1, 10), Unlocked, too_large),
    ] {
        let backlogs =
            HashMap::from([(QUEUE, Backlog { limit, used: Pending { tasks: used.0, bytes: used.1 }, lock })]);
        assert_eq!(one(member(None), &backlogs), expected, "{limit:?} {used:?} {lock:?}");
        let waits = Member { waits: true, ..member(None) };
        assert_eq!(one(waits, &backlogs), Decision::Create, "an unscheduled task does not count");
        let repeat = Member { exists: true, ..member(None) };
        assert_eq!(one(repeat, &backlogs), Decision::Create, "a repeat does not count");
    }
}

#[test]
fn smaller_task_fits_behind_a_larger_one() {
    let used = Pending { tasks: 1, bytes: 60 };
    let backlogs =
        HashMap::from([(QUEUE, Backlog { limit: limit(None, Some(100)), used, lock: BacklogLock::Exclusive })]);
    let of = |bytes| Member { bytes, ..member(None) };
    let full = Decision::Refuse(Refusal::Full(Pending { tasks: 2, bytes: 90 }));
    let decisions = decide(&[of(30), of(11), of(10), of(1)], &backlogs);
    let none_left = Decision::Refuse(Refusal::Full(Pending { tasks: 3, bytes: 100 }));
    assert_eq!(decisions, [Decision::Create, full, Decision::Create, none_left]);
}

#[test]
fn used_part_is_that_of_the_nearer_limit() {
    let used = Pending { tasks: 5, bytes: 20 };
    for (limit, expected) in [
        (limit(Some(10), None), 0.5),
        (limit(None, Some(100)), 0.2),
        (limit(Some(10), Some(100)), 0.5),
        (limit(Some(50), Some(100)), 0.2),
        (limit(Some(5), Some(100)), 1.0),
        (limit(Some(10), Some(10)), 2.0),
    ] {
        assert!((used.part_of(limit) - expected).abs() < 1e-9, "{limit:?}");
    }
}

#[test]
fn name_and_backlog_count_together() {
    let held = [id(1)];
    let full = backlog(5, 5, BacklogLock::Exclusive);
    let queued = member(Some(name(OnDuplicate::Queue, &held)));
    assert_eq!(one(queued, &full), Decision::Wait, "it has no run, so it does not count");
    let rejected = member(Some(name(OnDuplicate::Reject, &held)));
    assert_eq!(one(rejected, &full), Decision::Refuse(Refusal::Duplicate(id(1))), "the name comes first");
    let free = member(Some(name(OnDuplicate::Queue, &[])));
    assert_eq!(one(free, &full), Decision::Refuse(Refusal::Full(pending(5))));
}

#[test]
fn first_of_a_name_in_a_batch_goes_on() {
    let free = member(Some(name(OnDuplicate::Reject, &[])));
    let other = member(Some(Name { id: 2, ..name(OnDuplicate::Queue, &[]) }));
    let repeat = Member { exists: true, ..free };
    let decisions = decide(&[repeat, free, other, free, other], &HashMap::new());
    let expected = [Decision::Create, Decision::Create, Decision::Create, Decision::Behind(1), Decision::Behind(2)];
    assert_eq!(decisions, expected);
    let held = [id(1)];
    let queued = member(Some(name(OnDuplicate::Queue, &held)));
    assert_eq!(decide(&[queued, queued], &HashMap::new()), [Decision::Wait, Decision::Behind(0)]);
    let full = backlog(5, 5, BacklogLock::Exclusive);
    let refused = decide(&[free, free], &full);
    assert_eq!(refused, [Decision::Refuse(Refusal::Full(pending(5))); 2], "a refused member takes no name");
}

#[test]
fn early_refusals_need_no_lock() {
    let unlocked = Backlog { limit: limit(Some(5), None), used: pending(5), lock: BacklogLock::None };
    assert_eq!(refusal(&member(None), Some(&unlocked)), Some(Refusal::Full(pending(5))));
    assert_eq!(refusal(&member(None), None), None);
    let room = Backlog { used: pending(4), ..unlocked };
    assert_eq!(refusal(&member(None), Some(&room)), None, "only the lock can tell");
}
