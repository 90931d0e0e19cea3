use super::*;

const QUEUE: i32 = 7;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn name(on_duplicate: OnDuplicate, holders: &[Uuid]) -> Name<'_> {
    Name { id: 1, on_duplicate, holders, locked: true }
}

fn member(name: Option<Name<'_>>) -> Member<'_> {
    Member { exists: false, name, queue: QUEUE, waits: false }
}

fn backlog(limit: i64, used: i64, lock: BacklogLock) -> HashMap<i32, Backlog> {
    HashMap::from([(QUEUE, Backlog { limit, used, lock })])
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
    let (limit, full) = (30_000, Decision::Refuse(Refusal::Full));
    for (used, lock, expected) in [
        (9_999, Unlocked, Decision::Locked),
        (9_999, Shared, Decision::Create),
        (9_999, Exclusive, Decision::Create),
        (10_000, Unlocked, Decision::Locked),
        (10_000, Shared, Decision::Locked),
        (10_000, Exclusive, Decision::Create),
        (29_999, Shared, Decision::Locked),
        (29_999, Exclusive, Decision::Create),
        (30_000, Unlocked, full),
        (30_000, Shared, full),
        (30_000, Exclusive, full),
        (40_000, Exclusive, full),
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
    let full = Decision::Refuse(Refusal::Full);
    let create = Decision::Create;
    assert_eq!(decide(&members, &backlogs), [create, create, create, create, full, create]);
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
    assert_eq!(one(free, &full), Decision::Refuse(Refusal::Full));
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
    assert_eq!(refused, [Decision::Refuse(Refusal::Full); 2], "a refused member takes no name");
}

#[test]
fn early_refusals_need_no_lock() {
    let unlocked = Backlog { limit: 5, used: 5, lock: BacklogLock::None };
    assert_eq!(refusal(&member(None), Some(&unlocked)), Some(Refusal::Full));
    assert_eq!(refusal(&member(None), None), None);
    let room = Backlog { used: 4, ..unlocked };
    assert_eq!(refusal(&member(None), Some(&room)), None, "only the lock can tell");
}
