use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::{Priority, ReasonCreated, ReasonResolved};

use super::*;
use crate::task::{EndedRun, OpenRun};

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_793_448_000, 0).unwrap()
}

fn upload(n: u8) -> SlugId {
    SlugId::from_random([n; 16])
}

fn tenancy_of_a_worker() -> Tenancy {
    let (worker_group, worker_id) = ("group".to_owned(), "worker".to_owned());
    Tenancy { worker_group, worker_id, started: now(), taken_until: now() + TimeDelta::minutes(20) }
}

fn open(run: u16) -> OpenRun {
    OpenRun { run: RunId::new(run).unwrap(), reason: ReasonCreated::Scheduled, scheduled: now() }
}

fn ended(run: u16, state: RunState, claimed: bool) -> EndedRun {
    let tenancy = claimed.then(tenancy_of_a_worker);
    EndedRun { run: open(run), state, reason: ReasonResolved::Failed, ended_by: None, resolved: now(), tenancy }
}

fn task(last: Last, ended: Vec<EndedRun>) -> Task {
    let id = upload(1);
    Task {
        id,
        seq: 1,
        queue: "p/w".parse().unwrap(),
        scheduler: "-".to_owned(),
        project: "none".to_owned(),
        group: id,
        priority: Priority::Lowest,
        deadline: now() + TimeDelta::hours(1),
        expires: now() + TimeDelta::days(1),
        retries_left: 5,
        last,
        ended,
    }
}

#[test]
fn uploads_end_after_their_last_start() {
    assert_eq!(UPLOADED_AFTER_END, AFTER_EXCEPTION + UPLOAD_MAX);
}

#[test]
fn object_name_never_ends_in_star() {
    for (name, can) in [("*", false), ("public/*", false), ("a**", false), ("public/*.log", true), ("*a", true)] {
        assert_eq!(can_be_object(name), can, "{name}");
    }
}

#[test]
fn object_name_maps_to_artifact_in_one_spelling() {
    let of = upload(1);
    for name in ["a", "a/b", ""] {
        let object = object_name(of, RunId::FIRST, name);
        assert_eq!(artifact_of_object(&object), Some((of, RunId::FIRST, name)));
    }
    for other in ["a/b", "t/x/0/a", &format!("t/{of}/00/a"), &format!("t/{of}/0"), &format!("u/{of}/0/a")] {
        assert_eq!(artifact_of_object(other), None, "{other}");
    }
}

fn all_details() -> Vec<Details> {
    vec![
        Details::S3,
        Details::Object { upload: upload(2) },
        Details::Reference { url: "https://a".to_owned() },
        Details::Reference { url: "https://b".to_owned() },
        Details::Link { artifact: "a".to_owned() },
        Details::Link { artifact: "b".to_owned() },
        Details::Error { reason: ArtifactErrorReason::FileMissing, message: "m".to_owned() },
        Details::Error { reason: ArtifactErrorReason::TooLarge, message: "m".to_owned() },
        Details::Error { reason: ArtifactErrorReason::FileMissing, message: "n".to_owned() },
    ]
}

fn artifact(details: Details) -> Artifact {
    let content_type = "text/plain".to_owned();
    Artifact { name: "x".to_owned(), details, content_type, content_length: None, expires: now() + TimeDelta::hours(2) }
}

fn stored(details: Details) -> Stored {
    let artifact = artifact(details);
    Stored { removable: artifact.expires, artifact, present: true }
}

/// Compatible pairs, by index in [`all_details`].
const COMPATIBLE: &[(usize, usize, bool)] = &[
    (0, 0, false),
    (2, 2, false),
    (2, 3, true),
    (3, 2, true),
    (3, 3, false),
    (2, 4, true),
    (2, 5, true),
    (3, 4, true),
    (3, 5, true),
    (4, 4, false),
    (5, 5, false),
    (6, 6, false),
    (7, 7, false),
    (8, 8, false),
];

#[test]
fn only_compatible_details_replace_artifact() {
    let all = all_details();
    for (o, old) in all.iter().enumerate() {
        for (n, new) in all.iter().enumerate() {
            let decided = combine(Some(&stored(old.clone())), artifact(new.clone()), now());
            let allowed = COMPATIBLE.iter().find(|(from, to, _)| (*from, *to) == (o, n));
            match (decided, allowed) {
                (Ok(decision), Some((.., changed))) => {
                    assert_eq!(
                        decision,
                        Decision { artifact: artifact(new.clone()), changed: *changed },
                        "{old:?} {new:?}"
                    );
                }
                (Err(Refusal::Incompatible(_)), None) => {}
                (decided, allowed) => panic!("{old:?} then {new:?}: {decided:?}, {allowed:?}"),
            }
        }
    }
}

#[test]
fn free_name_accepts_any_artifact() {
    for details in all_details() {
        let decided = combine(None, artifact(details.clone()), now());
        assert_eq!(decided, Ok(Decision { artifact: artifact(details), changed: true }));
    }
}

#[test]
fn repeat_extends_expiry_and_keeps_type() {
    for details in all_details() {
        let old = Stored { present: details.storage_type() != StorageType::Object, ..stored(details.clone()) };
        let later = Artifact { expires: now() + TimeDelta::hours(3), ..artifact(details.clone()) };
        assert_eq!(combine(Some(&old), later.clone(), now()), Ok(Decision { artifact: later, changed: true }));
        let earlier = Artifact { expires: now() + TimeDelta::hours(1), ..artifact(details.clone()) };
        let refusal = combine(Some(&old), earlier, now()).unwrap_err();
        assert!(
            matches!(refusal, Refusal::Incompatible(what) if what.starts_with("expires")),
            "{details:?}: {refusal:?}"
        );
        let other = Artifact { content_type: "text/html".to_owned(), ..artifact(details.clone()) };
        let decided = combine(Some(&old), other, now());
        if details.storage_type() == StorageType::Link {
            assert_eq!(decided, Ok(Decision { artifact: artifact(details), changed: false }));
        } else {
            assert_eq!(decided, Err(Refusal::Incompatible("contentType")), "{details:?}");
        }
    }
}

#[test]
fn link_keeps_content_type_of_replaced_reference() {
    let reference = stored(Details::Reference { url: "https://a".to_owned() });
    let link = Details::Link { artifact: "a".to_owned() };
    for said in ["text/html", CONTENT_TYPE_DEFAULT] {
        let new = Artifact { content_type: said.to_owned(), ..artifact(link.clone()) };
        let decided = combine(Some(&reference), new, now());
        assert_eq!(decided, Ok(Decision { artifact: artifact(link.clone()), changed: true }), "{said}");
    }
    // A new link has its own content type.
    let new = Artifact { content_type: "text/html".to_owned(), ..artifact(link) };
    assert_eq!(combine(None, new.clone(), now()), Ok(Decision { artifact: new, changed: true }));
}

#[test]
fn object_keeps_unfinished_upload() {
    let begun = Details::Object { upload: upload(2) };
    let unfinished = Stored { present: false, ..stored(begun.clone()) };
    let again = combine(Some(&unfinished), artifact(Details::Object { upload: upload(3) }), now()).unwrap();
    assert_eq!(again, Decision { artifact: artifact(begun.clone()), changed: false });
    let finished = combine(Some(&stored(begun)), artifact(Details::Object { upload: upload(3) }), now());
    assert!(matches!(finished, Err(Refusal::Incompatible(what)) if what.starts_with("uploadId")), "{finished:?}");
}

#[test]
fn bytes_under_removal_are_not_replaced() {
    for details in all_details() {
        let old = Stored {
            removable: now(),
            present: details.storage_type() != StorageType::Object,
            ..stored(details.clone())
        };
        let decided = combine(Some(&old), artifact(details.clone()), now());
        let refused = decided == Err(Refusal::BeingRemoved);
        assert_eq!(refused, details == Details::S3, "{details:?}: {decided:?}");
        assert!(refused || decided.is_ok());
    }
    // The removal pass may read before this decision is stored.
    for (later, refused) in [(TimeDelta::zero(), true), (TimeDelta::milliseconds(1), false)] {
        let old = Stored { removable: now() + UNCHANGED_BEFORE_REMOVAL + later, ..stored(Details::S3) };
        assert_eq!(combine(Some(&old), artifact(Details::S3), now()) == Err(Refusal::BeingRemoved), refused);
    }
}

/// Each state of a task, the requested run, and the results now and 25 minutes later.
#[test]
fn claimed_or_recently_excepted_run_accepts_artifacts() {
    let running = |run| Last::Running(open(run), tenancy_of_a_worker());
    let retried = |state| vec![ended(0, state, true)];
    let (gone, never, over) = (Err(Refusal::NoSuchRun), Err(Refusal::NeverClaimed), Err(Refusal::RunEnded));
    let table = [
        (task(Last::Unscheduled, vec![]), 0, gone, gone),
        (task(Last::Pending(open(0)), vec![]), 0, never, never),
        (task(Last::Pending(open(0)), vec![]), 1, gone, gone),
        (task(running(0), vec![]), 0, Ok(()), Ok(())),
        (task(running(0), vec![]), 1, gone, gone),
        (task(Last::Ended, retried(RunState::Completed)), 0, over, over),
        (task(Last::Ended, retried(RunState::Failed)), 0, over, over),
        (task(Last::Ended, retried(RunState::Exception)), 0, Ok(()), over),
        (task(Last::Ended, vec![ended(0, RunState::Exception, false)]), 0, never, never),
        (task(Last::Pending(open(1)), retried(RunState::Exception)), 0, Ok(()), over),
        (task(Last::Pending(open(1)), retried(RunState::Exception)), 1, never, never),
        (task(running(1), retried(RunState::Exception)), 0, Ok(()), over),
        (task(running(1), retried(RunState::Exception)), 1, Ok(()), Ok(())),
        (task(Last::Pending(open(1)), retried(RunState::Completed)), 0, over, over),
    ];
    let expires = now() + TimeDelta::hours(1);
    for (task, run, first, later) in table {
        let run = RunId::new(run).unwrap();
        assert_eq!(admit(&task, run, expires, now()), first, "{:?} {run}", task.last);
        let almost = now() + AFTER_EXCEPTION - TimeDelta::milliseconds(1);
        assert_eq!(admit(&task, run, expires, almost), first, "{:?} {run}", task.last);
        assert_eq!(admit(&task, run, expires, now() + AFTER_EXCEPTION), later, "{:?} {run}", task.last);
        // Bytes are accepted exactly as long.
        for at in [now(), almost, now() + AFTER_EXCEPTION] {
            assert_eq!(admit_bytes(&task, run, at), admit(&task, run, expires, at), "{:?} {run}", task.last);
        }
        let known = !matches!(first, Err(Refusal::NoSuchRun | Refusal::NeverClaimed));
        let outlives = if known { Err(Refusal::OutlivesTask) } else { first };
        assert_eq!(admit(&task, run, task.expires + TimeDelta::hours(1), now()), outlives, "{:?} {run}", task.last);
        assert_eq!(super::tenancy(&task, run).is_some(), known);
    }
}

#[test]
fn artifact_expiry_lies_between_now_and_task_expiry() {
    let task = task(Last::Running(open(0), tenancy_of_a_worker()), vec![]);
    let admit = |expires| admit(&task, RunId::FIRST, expires, now());
    assert_eq!(admit(now() - EXPIRED_DRIFT), Ok(()));
    assert_eq!(admit(now() - EXPIRED_DRIFT - TimeDelta::milliseconds(1)), Err(Refusal::Past));
    assert_eq!(admit(task.expires), Ok(()));
    assert_eq!(admit(task.expires + TimeDelta::milliseconds(1)), Err(Refusal::OutlivesTask));
}

#[test]
fn upload_is_finished_once_with_its_own_id() {
    let object = Details::Object { upload: upload(2) };
    let unfinished = Stored { present: false, ..stored(object.clone()) };
    let kept = now() + UNCHANGED_BEFORE_REMOVAL + TimeDelta::milliseconds(1);
    let until = |n, finished, removable| Some(ObjectState { upload: upload(n), finished, removable });
    let known = |n, finished| until(n, finished, kept);
    let table = [
        (None, 2, known(2, true), Err(Refusal::Missing)),
        (Some(stored(Details::S3)), 2, None, Err(Refusal::NotAnObject)),
        (Some(unfinished.clone()), 3, known(2, true), Err(Refusal::WrongUpload)),
        (Some(unfinished.clone()), 2, None, Err(Refusal::NotUploaded)),
        (Some(unfinished.clone()), 2, known(2, false), Err(Refusal::NotUploaded)),
        (Some(unfinished.clone()), 2, known(3, true), Err(Refusal::NotUploaded)),
        (Some(unfinished.clone()), 2, until(2, true, now() + UNCHANGED_BEFORE_REMOVAL), Err(Refusal::UploadExpired)),
        (Some(unfinished), 2, known(2, true), Ok(true)),
        (Some(stored(object.clone())), 2, None, Ok(false)),
        (Some(stored(object)), 3, None, Err(Refusal::WrongUpload)),
    ];
    for (n, (stored, id, object, expected)) in table.into_iter().enumerate() {
        assert_eq!(finish(stored.as_ref(), upload(id), object, now()), expected, "row {n}");
    }
}

#[test]
fn links_are_followed_without_cycles_up_to_limit() {
    let link = stored(Details::Link { artifact: "b".to_owned() });
    assert_eq!(meet(&["a"], None, now()), Met::Nothing);
    assert_eq!(meet(&["a"], Some(&link), now()), Met::Link("b"));
    assert_eq!(meet(&["b"], Some(&link), now()), Met::Circle, "a link to itself");
    assert_eq!(meet(&["b", "c", "a"], Some(&link), now()), Met::Circle);
    let many = vec!["a"; LINKS_MAX + 1];
    assert_eq!(meet(&many[1..], Some(&link), now()), Met::Link("b"));
    assert_eq!(meet(&many, Some(&link), now()), Met::TooManyLinks);
    let expires = link.artifact.expires;
    assert_eq!(meet(&["a"], Some(&link), expires - TimeDelta::milliseconds(1)), Met::Link("b"));
    assert_eq!(meet(&["a"], Some(&link), expires), Met::Expired);
    let absent = Stored { present: false, ..stored(Details::Object { upload: upload(2) }) };
    assert_eq!(meet(&["a"], Some(&absent), now()), Met::Nothing);
    for details in all_details().into_iter().filter(|details| details.storage_type() != StorageType::Link) {
        let found = stored(details);
        assert_eq!(meet(&many, Some(&found), now()), Met::Artifact(&found.artifact));
    }
}

#[test]
fn expired_artifact_is_known_but_never_delays_task() {
    let after = |minutes| now() + TimeDelta::minutes(minutes);
    let (upload, day) = (UPLOAD_MAX.num_minutes(), 24 * 60);
    // Expiry of artifact and task; when it is removable, without and with stored bytes.
    let table = [
        (1, day, 31, upload),
        (100, day, 130, 130),
        (100, 120, 120, upload),
        (100, 100, 100, upload),
        (day, 2 * day, day + 30, day + 30),
        (day, day, day, day),
        // Expired in the past, which passes may have read already.
        (-10, day, 20, upload),
        (-15, -15, 0, upload),
        // Never before its own expiry, independent of its task.
        (50, 40, 50, upload),
    ];
    for (expires, task, without_bytes, with_bytes) in table {
        let removable = |storage_type| removable(storage_type, after(expires), after(task), now());
        for other in [StorageType::Object, StorageType::Reference, StorageType::Link, StorageType::Error] {
            assert_eq!(removable(other), after(without_bytes), "{other:?} {expires} {task}");
        }
        assert_eq!(removable(StorageType::S3), after(with_bytes), "{expires} {task}");
    }
    assert!(UPLOAD_MAX > PUT_URL_LIFE);
}

#[test]
fn expired_object_is_known_as_long_as_its_artifact() {
    let soon = now() + TimeDelta::minutes(1);
    assert_eq!(object_known_until(soon, None), soon + EXPIRED_KEPT);
    let of = |removable| Stored { removable, ..stored(Details::Object { upload: upload(2) }) };
    let (before, at) = (soon + TimeDelta::minutes(29), soon + EXPIRED_KEPT);
    for (removable, known_until) in [(before, before), (at, at), (at + TimeDelta::days(1), at), (now(), soon)] {
        assert_eq!(object_known_until(soon, Some(&of(removable))), known_until);
    }
}
