use super::*;
use serde_json::json;

pub(crate) fn policy(body: &Value) -> Result<Policy, String> {
    let sent: QueuePolicy = serde_json::from_str(&body.to_string()).map_err(|error| error.to_string())?;
    Policy::from_request(&sent).map_err(|refused| match refused {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

#[test]
fn an_empty_policy_is_as_none() {
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
    // Field, what is too little, least, most, what is too much.
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
fn what_is_not_built_yet_is_refused_by_name_unless_it_changes_nothing() {
    let neutral = json!({"dispatch": "pull", "acceptTime": 0, "lateResult": "reject", "onSchedulerLoss": "keep",
        "onDuplicate": "reject", "keyBy": "key", "fair": false, "deadLetters": false});
    let read = policy(&neutral).unwrap();
    let shown: Value = serde_json::from_str(read.text()).unwrap();
    assert_eq!(shown, neutral, "what was sent is what is shown");
    for (field, value, or) in [
        ("dispatch", json!("assign"), ", or set it to \"pull\""),
        ("dispatch", json!(null), ", or set it to \"pull\""),
        ("acceptTime", json!(1), ", or set it to 0"),
        ("lateResult", json!("first-wins"), ", or set it to \"reject\""),
        ("onSchedulerLoss", json!("reassign"), ", or set it to \"keep\""),
        ("onDuplicate", json!("queue"), ", or set it to \"reject\""),
        ("backlog", json!({"tasks": 5}), ""),
        ("keyBy", json!("projectId"), ", or set it to \"key\""),
        ("concurrency", json!({"total": 5}), ""),
        ("rate", json!({}), ""),
        ("fair", json!(true), ", or set it to false"),
        ("partition", json!("p"), ""),
        ("deadLetters", json!(true), ", or set it to false"),
    ] {
        let refused = policy(&json!({ field: value })).unwrap_err();
        assert_eq!(refused, format!("`{field}` is not built yet: leave it out{or}"));
    }
}

#[test]
fn a_policy_is_changed_only_from_the_version_that_was_named() {
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
    for (wanted, current, refused) in [
        (Match::Anything, None, false),
        (Match::Anything, Some(7), false),
        (Match::Some, None, true),
        (Match::Some, Some(7), false),
        (Match::Version(7), None, true),
        (Match::Version(7), Some(7), false),
        (Match::Version(7), Some(8), true),
    ] {
        assert_eq!(wanted.refusal(current).is_some(), refused, "{wanted:?} {current:?}");
    }
}
