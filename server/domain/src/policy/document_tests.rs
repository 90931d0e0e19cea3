use serde_json::{Value, json};

use super::*;

fn read(body: &Value, check: fn(&QueuePolicy) -> Result<Policy, Unacceptable>) -> Result<Policy, String> {
    let sent: QueuePolicy = serde_json::from_str(&body.to_string()).map_err(|error| error.to_string())?;
    check(&sent).map_err(|refused| match refused {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

pub(crate) fn policy(body: &Value) -> Result<Policy, String> {
    read(body, Policy::from_request)
}

/// Checks without rules about combinations of fields.
pub(crate) fn checked(body: &Value) -> Result<Policy, String> {
    read(body, Policy::checked)
}

#[test]
fn empty_policy_equals_no_policy() {
    assert_eq!(policy(&json!({})).unwrap(), Policy::none());
    assert_eq!(Policy::from_stored(Policy::none().text()).unwrap(), Policy::none());
}

#[test]
fn every_field_is_read_with_its_limits() {
    let whole = json!({"delivery": "at-most-once", "completeTime": 3, "delay": 30, "claimTimeout": 10,
        "retryDelay": {"first": 5, "factor": 2.5, "most": 600}});
    let read = policy(&whole).unwrap();
    assert_eq!(read.delivery, Delivery::AtMostOnce);
    assert_eq!((read.complete_time, read.delay), (TimeDelta::seconds(3), TimeDelta::seconds(30)));
    assert_eq!(read.claim_timeout, Some(TimeDelta::seconds(10)));
    let retry = RetryDelay { first: TimeDelta::seconds(5), factor: 2.5, most: TimeDelta::seconds(600) };
    assert_eq!(read.retry_delay, Some(retry));
    assert_eq!(Policy::from_stored(read.text()).unwrap(), read);
    let short = policy(&json!({"retryDelay": {"first": 5}})).unwrap().retry_delay.unwrap();
    assert_eq!((short.factor, short.most), (1.0, TimeDelta::seconds(86_400)));
    // Fields with their minimum and maximum.
    for (field, least, most) in [("delay", 0, 432_000), ("completeTime", 0, 432_000), ("claimTimeout", 10, 86_400)] {
        for good in [least, most] {
            policy(&json!({ field: good })).unwrap();
        }
        for bad in [least - 1, most + 1, i64::MAX, i64::MIN] {
            let refused = policy(&json!({ field: bad })).unwrap_err();
            assert_eq!(refused, format!("`{field}` must be from {least} to {most} seconds"));
        }
    }
    for (field, least, most) in [("first", 0, 3_600), ("most", 0, 86_400)] {
        let with = |value: i64| {
            let mut delay = json!({"first": 1});
            delay[field] = value.into();
            policy(&json!({ "retryDelay": delay }))
        };
        assert!(with(least).is_ok() && with(most).is_ok());
        for bad in [least - 1, most + 1] {
            let expected = format!("`retryDelay.{field}` must be from {least} to {most} seconds");
            assert_eq!(with(bad).unwrap_err(), expected);
        }
    }
    for good in [1.0, 1.001, 10.0] {
        policy(&json!({"retryDelay": {"first": 1, "factor": good}})).unwrap();
    }
    for bad in [0.999, 10.001, -1.0, 1e300] {
        let refused = policy(&json!({"retryDelay": {"first": 1, "factor": bad}})).unwrap_err();
        assert_eq!(refused, "`retryDelay.factor` must be from 1 to 10");
    }
}

#[test]
fn late_result_is_rejected_by_default_and_needs_gate_otherwise() {
    for (body, expected, needs_gate) in [
        (json!({}), LateResult::Reject, false),
        (json!({"lateResult": "reject"}), LateResult::Reject, false),
        (json!({"lateResult": "first-wins"}), LateResult::FirstWins, true),
    ] {
        let read = policy(&body).unwrap();
        assert_eq!(read.late_result, expected);
        assert_eq!(Policy::from_stored(read.text()).unwrap(), read);
        assert_eq!(Policy::needs_gate(&Policy::read(read.text()).unwrap()), needs_gate, "{body}");
    }
    assert!(policy(&json!({"lateResult": "last-wins"})).is_err());
}

#[test]
fn neutral_fields_are_shown_as_sent() {
    let neutral = json!({"dispatch": "pull", "acceptTime": 0, "lateResult": "reject", "onSchedulerLoss": "keep",
        "onDuplicate": "reject", "keyBy": "key", "fair": false, "deadLetters": false});
    let read = policy(&neutral).unwrap();
    let shown: Value = serde_json::from_str(read.text()).unwrap();
    assert_eq!(shown, neutral, "shown as sent");
}

#[test]
fn partition_names_group_of_unlimited_queue() {
    let read = policy(&json!({"partition": "mail_1"})).unwrap();
    assert_eq!(read.partition.as_deref(), Some("mail_1"));
    assert_eq!(Policy::from_stored(read.text()).unwrap(), read);
    assert!(Policy::needs_gate(&Policy::read(read.text()).unwrap()));
    assert!(policy(&json!({"partition": "a b"})).unwrap_err().contains("partition group"));
    for limit in [
        json!({"dispatch": "assign"}),
        json!({"fair": true}),
        json!({"concurrency": {"total": 1}}),
        json!({"rate": {"total": {"count": 1, "seconds": 1}}}),
    ] {
        let mut both = limit.clone();
        both["partition"] = "mail".into();
        assert!(policy(&both).unwrap_err().contains("cannot be combined"), "{limit}");
        policy(&limit).unwrap();
    }
    policy(&json!({"partition": "mail", "backlog": {"tasks": 1}})).unwrap();
}

#[test]
fn dead_letters_are_off_by_default_and_need_gate() {
    for (body, listed) in
        [(json!({}), false), (json!({"deadLetters": false}), false), (json!({"deadLetters": true}), true)]
    {
        let read = policy(&body).unwrap();
        assert_eq!(read.dead_letters, listed);
        assert_eq!(Policy::from_stored(read.text()).unwrap(), read);
        assert_eq!(Policy::needs_gate(&Policy::read(read.text()).unwrap()), listed, "{body}");
    }
    assert!(serde_json::from_value::<QueuePolicy>(json!({"deadLetters": "yes"})).is_err());
}

#[test]
fn every_field_of_admission_is_read_with_its_limits() {
    let whole = json!({"dispatch": "assign", "acceptTime": 30, "onSchedulerLoss": "reassign", "keyBy": "taskGroupId",
        "concurrency": {"total": 100_000, "perKey": 1_000}, "fair": true,
        "rate": {"total": {"count": 1_000_000, "seconds": 86_400, "burst": 1_000_000}, "perKey": {"count": 1, "seconds": 1}}});
    let read = checked(&whole).unwrap();
    assert_eq!((read.dispatch, read.on_scheduler_loss), (Dispatch::Assign, OnSchedulerLoss::Reassign));
    let expected = Admission {
        assign: true,
        key_by: KeyBy::TaskGroupId,
        accept_time: Some(TimeDelta::seconds(30)),
        total: Some(100_000),
        per_key: Some(1_000),
        rate_total: Some(Rate { count: 1_000_000, seconds: 86_400, burst: 1_000_000 }),
        rate_per_key: Some(Rate { count: 1, seconds: 1, burst: 1 }),
        fair: true,
    };
    assert_eq!(read.admission(), Some(expected));
    let shown: Value = serde_json::from_str(read.text()).unwrap();
    assert_eq!(shown, whole, "shown as sent");
    let rate = |field: &str, value: i64| {
        let mut rate = json!({"count": 1, "seconds": 1});
        rate[field] = value.into();
        json!({"rate": {"perKey": rate}})
    };
    type With<'a> = &'a dyn Fn(i64) -> Value;
    let cases: [(&str, i64, i64, With<'_>); 6] = [
        ("`acceptTime` must be from 0 to 3600 seconds", 0, 3_600, &|value| json!({ "acceptTime": value })),
        ("`concurrency.total` must be from 1 to 100000", 1, 100_000, &|value| json!({"concurrency": {"total": value}})),
        ("`concurrency.perKey` must be from 1 to 1000", 1, 1_000, &|value| json!({"concurrency": {"perKey": value}})),
        ("`rate.perKey.count` must be from 1 to 1000000", 1, 1_000_000, &|value| rate("count", value)),
        ("`rate.perKey.seconds` must be from 1 to 86400", 1, 86_400, &|value| rate("seconds", value)),
        ("`rate.perKey.burst` must be from 1 to 1000000", 1, 1, &|value| rate("burst", value)),
    ];
    for (refused, least, most, with) in cases {
        for good in [least, most] {
            checked(&with(good)).unwrap();
        }
        for bad in [least - 1, i64::MIN] {
            assert_eq!(checked(&with(bad)).unwrap_err(), refused);
        }
        let too_much = [most + 1, i64::MAX].map(|bad| checked(&with(bad)).unwrap_err());
        let burst = |bad| format!("`rate.perKey.burst` must be at most `rate.perKey.count`, 1: it is {bad}");
        let expected = [most + 1, i64::MAX].map(|bad| if most == 1 { burst(bad) } else { refused.to_owned() });
        assert_eq!(too_much, expected);
    }
    for field in ["concurrency", "rate"] {
        let refused = checked(&json!({ field: {} })).unwrap_err();
        assert_eq!(refused, format!("`{field}` must have `total`, `perKey` or both: state one, or leave it out"));
    }
}

#[test]
fn only_assigning_or_limited_queue_has_admission() {
    let rate = json!({"count": 5, "seconds": 1});
    for (body, has) in [
        (json!({}), false),
        (json!({"dispatch": "pull", "fair": false, "acceptTime": 9, "keyBy": "projectId", "delay": 5}), false),
        (json!({"onSchedulerLoss": "reassign"}), false),
        (json!({"dispatch": "assign"}), true),
        (json!({"concurrency": {"total": 5}}), true),
        (json!({"concurrency": {"perKey": 5}}), true),
        (json!({"rate": {"total": rate}}), true),
        (json!({"rate": {"perKey": rate}}), true),
        (json!({"fair": true}), true),
    ] {
        let policy = checked(&body).unwrap();
        assert_eq!(policy.admission().is_some(), has, "{body}");
        assert_eq!(policy.waits_again(), has, "{body}");
    }
    assert_eq!(Policy::none().admission(), None);
}

#[test]
fn policy_change_requires_named_version() {
    for (header, read) in [
        (None, Match::Anything),
        (Some("\"7\""), Match::Version(7)),
        (Some(" \"0\" "), Match::Version(0)),
        (Some("*"), Match::Some),
    ] {
        assert_eq!(Match::from_header(header), Ok(read));
    }
    for header in ["", "7", "\"\"", "\"-7\"", "\"+7\"", "\"7", "W/\"7\"", "\"99999999999999999999\"", "\"7\", \"8\""] {
        assert!(Match::from_header(Some(header)).is_err(), "{header}");
    }
    for (named, current, allowed) in [
        (Match::Anything, None, true),
        (Match::Anything, Some(7), true),
        (Match::Some, None, false),
        (Match::Some, Some(7), true),
        (Match::Version(7), None, false),
        (Match::Version(7), Some(7), true),
        (Match::Version(7), Some(8), false),
    ] {
        let current = current.map(|version| Current { version, text: "{}" });
        let change = named.change(current, Some("{\"delay\":1}"));
        assert_eq!(change == Change::Allowed, allowed, "{named:?} {current:?}");
        assert_ne!(change, Change::Nothing, "{named:?} {current:?}");
        if current.is_some() {
            assert_eq!(named.change(current, None) == Change::Allowed, allowed, "a removal: {named:?} {current:?}");
        }
    }
}

#[test]
fn repeated_change_succeeds_for_any_version() {
    for named in [Match::Anything, Match::Some, Match::Version(7), Match::Version(8)] {
        let current = Some(Current { version: 8, text: "{\"delay\":1}" });
        assert_eq!(named.change(current, Some("{\"delay\":1}")), Change::Nothing, "{named:?}");
        assert_eq!(named.change(None, None), Change::Nothing, "{named:?}");
    }
}

#[test]
fn backlog_and_duplicates_are_read() {
    let whole = json!({"onDuplicate": "coalesce", "backlog": {"tasks": 1_000_000_000}});
    let read = policy(&whole).unwrap();
    let limit = Backlog { tasks: Some(1_000_000_000), bytes: None };
    assert_eq!((read.on_duplicate, read.backlog), (Some(OnDuplicate::Coalesce), Some(limit)));
    assert_eq!(serde_json::from_str::<Value>(read.text()).unwrap(), whole, "shown as sent");
    for tasks in [0, -1, 1_000_000_001] {
        let refused = policy(&json!({"backlog": {"tasks": tasks}})).unwrap_err();
        assert_eq!(refused, "`backlog.tasks` must be from 1 to 1000000000");
    }
    let both = policy(&json!({"backlog": {"tasks": 1, "bytes": 1_000_000_000_000_i64}})).unwrap();
    assert_eq!(both.backlog, Some(Backlog { tasks: Some(1), bytes: Some(1_000_000_000_000) }));
    for bytes in [0, -1, 1_000_000_000_001_i64] {
        let refused = policy(&json!({"backlog": {"tasks": 1, "bytes": bytes}})).unwrap_err();
        assert_eq!(refused, "`backlog.bytes` must be from 1 to 1000000000000");
    }
    let refused = policy(&json!({"backlog": {}})).unwrap_err();
    assert_eq!(refused, "`backlog` must have `tasks`, `bytes` or both: state one, or leave `backlog` out");
    let gated = |sent: Value| Policy::needs_gate(&serde_json::from_value(sent).unwrap());
    assert!(
        gated(json!({"onDuplicate": "reject"}))
            && gated(json!({"backlog": {"tasks": 1}}))
            && gated(json!({"backlog": {"bytes": 1}}))
            && !gated(json!({"delay": 1}))
    );
}
