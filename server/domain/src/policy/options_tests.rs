use super::*;
use serde_json::{Value, json};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn refused(error: Unacceptable) -> (&'static str, String) {
    match error {
        Unacceptable::Schema(message) => ("InputValidationError", message),
        Unacceptable::Rule(message) => ("InputError", message),
        Unacceptable::Unserializable(error) => ("InternalServerError", error.to_string()),
    }
}

fn options(tenure: &Value) -> Result<Options, (&'static str, String)> {
    let extra = raw(&json!({"other": 1, "tenure": tenure}).to_string());
    Options::in_extra(Some(&extra)).map(Option::unwrap).map_err(refused)
}

#[test]
fn options_are_found_only_in_their_place() {
    for extra in ["{}", r#"{"a": {"tenure": {"delay": "x"}}}"#, r#"{"text": "tenure"}"#, r#"{"Tenure": 1}"#, "  {}"] {
        assert_eq!(Options::in_extra(Some(&raw(extra))), Ok(None), "{extra}");
    }
    assert_eq!(Options::in_extra(None), Ok(None));
    let delayed = Options { start: Some(Start::After(TimeDelta::seconds(5))), ..Options::default() };
    for extra in [r#"{"tenure":{"delay":5}}"#, r#"{"a": [1.50], "\u0074enure" : { "delay" : 5.0 } }"#] {
        assert_eq!(Options::in_extra(Some(&raw(extra))), Ok(Some(delayed.clone())), "{extra}");
    }
    assert!(options(&json!({})).unwrap().is_empty() && !delayed.is_empty());
}

#[test]
fn every_option_is_read() {
    let read = options(&json!({"notBefore": "2026-01-31T12:00:00Z", "delivery": "at-most-once", "completeTime": 0,
        "retryDelay": {"first": 0}}))
    .unwrap();
    assert_eq!(read.start, Some(Start::At(DateTime::from_timestamp(1_769_860_800, 0).unwrap())));
    assert_eq!(read.delivery, Some(Delivery::AtMostOnce));
    assert_eq!(read.complete_time, Some(TimeDelta::zero()));
    assert!(read.retry_delay.unwrap().is_none());
    assert_eq!(read.needs(), Needs::TaskOptions);
    assert_eq!(options(&json!({"delay": 31_622_400})).unwrap().needs(), Needs::Nothing);
}

#[test]
fn refusal_names_option_and_remedy() {
    for (tenure, code, message) in [
        (json!(5), "InputValidationError", "`extra.tenure` must be an object"),
        (json!(null), "InputValidationError", "`extra.tenure` must be an object"),
        (json!([]), "InputValidationError", "`extra.tenure` must be an object"),
        (json!({"delay": 31_622_401}), "InputError", "`extra.tenure.delay` must be from 0 to 31622400 seconds"),
        (json!({"delay": -1}), "InputError", "`extra.tenure.delay` must be from 0 to 31622400 seconds"),
        (
            json!({"completeTime": 432_001}),
            "InputError",
            "`extra.tenure.completeTime` must be from 0 to 432000 seconds",
        ),
        (
            json!({"retryDelay": {"first": 3_601}}),
            "InputError",
            "`extra.tenure.retryDelay.first` must be from 0 to 3600 seconds",
        ),
        (
            json!({"delay": 1, "notBefore": "2026-01-31T12:00:00Z"}),
            "InputError",
            "`extra.tenure.delay` and `extra.tenure.notBefore` must not both be given: leave one out",
        ),
        (json!({"unique": ""}), "InputError", "`extra.tenure.unique` must have from 1 to 255 characters"),
        (json!({"unique": "u\0"}), "InputError", "`extra.tenure.unique` must not contain the character U+0000"),
        (json!({"onDuplicate": "reject"}), "InputError", "`extra.tenure.onDuplicate` requires `extra.tenure.unique`"),
    ] {
        assert_eq!(options(&tenure).unwrap_err(), (code, message.to_owned()), "{tenure}");
    }
    for (tenure, path) in [
        (json!({"delay": "5"}), "`extra.tenure.delay`: "),
        (json!({"delay": 1.5}), "`extra.tenure.delay`: "),
        (json!({"notBefore": "soon"}), "`extra.tenure.notBefore`: "),
        (json!({"delivery": "sometimes"}), "`extra.tenure.delivery`: "),
        (json!({"retryDelay": {"first": null}}), "`extra.tenure.retryDelay.first`: "),
        (json!({"key": 5}), "`extra.tenure.key`: "),
        (json!({"unique": "u", "onDuplicate": "merge"}), "`extra.tenure.onDuplicate`: "),
        (json!({"worker": {}}), "`extra.tenure.worker"),
        (json!({"worker": {"workerGroup": "g", "workerId": "", "wait": 1}}), "`extra.tenure.worker.workerId`: "),
        (json!({"copyOf": "x"}), "`extra.tenure.copyOf`: unknown field"),
    ] {
        let (code, message) = options(&tenure).unwrap_err();
        assert_eq!(code, "InputValidationError");
        assert!(message.starts_with(path), "{tenure}: {message}");
    }
}

#[test]
fn key_and_preferred_worker_are_checked() {
    let checked = |tenure: Value| {
        let sent: TaskOptions = serde_json::from_value(tenure).unwrap();
        Options::from_request("options", &sent).map_err(refused)
    };
    let worker = |wait: i64| json!({"worker": {"workerGroup": "g", "workerId": "w", "wait": wait}});
    for wait in [0, 3_600] {
        let read = checked(worker(wait)).unwrap();
        let preferred = read.worker.clone().unwrap();
        assert_eq!((preferred.worker_group.as_str(), preferred.worker_id.as_str()), ("g", "w"));
        assert_eq!((preferred.wait, read.needs()), (TimeDelta::seconds(wait), Needs::TaskOptions));
        assert!(!read.is_empty());
    }
    for wait in [-1, 3_601, i64::MAX] {
        let message = "`options.worker.wait` must be from 0 to 3600 seconds".to_owned();
        assert_eq!(checked(worker(wait)).unwrap_err(), ("InputError", message));
    }
    for key in ["k", " ", "\u{e9}", &"\u{e9}".repeat(255)] {
        let read = checked(json!({ "key": key })).unwrap();
        assert_eq!((read.key.as_deref(), read.needs(), read.is_empty()), (Some(key), Needs::Nothing, false));
    }
    for key in ["", &"k".repeat(256)] {
        let message = "`options.key` must have from 1 to 255 characters".to_owned();
        assert_eq!(checked(json!({ "key": key })).unwrap_err(), ("InputError", message));
    }
    let message = "`options.key` must not contain the character U+0000".to_owned();
    assert_eq!(checked(json!({"key": "a\u{0}"})).unwrap_err(), ("InputError", message));
}

#[test]
fn options_beside_a_task_are_stored_in_its_extra() {
    for (extra, expected) in [
        (None, r#"{"tenure":{"delay": 5}}"#),
        (Some("{}"), r#"{"tenure":{"delay": 5}}"#),
        (Some(" { } "), r#"{"tenure":{"delay": 5}}"#),
        (Some(r#"{"a": {"b":{}}}"#), r#"{"a": {"b":{}},"tenure":{"delay": 5}}"#),
        (Some(r#"{"a": "}" }"#), r#"{"a": "}","tenure":{"delay": 5}}"#),
    ] {
        let extra = extra.map(raw);
        let stored = stored_extra(extra.as_deref(), Some(&raw(r#"{"delay": 5}"#))).unwrap().unwrap();
        assert_eq!(stored, expected);
        let read = Options::in_extra(Some(&raw(&stored))).unwrap().unwrap();
        assert_eq!(read.start, Some(Start::After(TimeDelta::seconds(5))));
    }
    assert_eq!(stored_extra(Some(&raw(r#"{"tenure": {}}"#)), None), Ok(None));
    let twice = stored_extra(Some(&raw(r#"{"tenure": {}}"#)), Some(&raw("{}"))).map_err(refused);
    assert_eq!(
        twice.unwrap_err(),
        ("InputError", "`options` and `extra.tenure` must not both be given: leave one out".to_owned())
    );
    let nothing_to_stand_in = stored_extra(Some(&raw("[1]")), Some(&raw("{}"))).map_err(refused);
    assert_eq!(nothing_to_stand_in.unwrap_err(), ("InputValidationError", "`extra` must be an object".to_owned()));
    let wrong = stored_extra(None, Some(&raw(r#"{"delay": 31622401}"#))).map_err(refused);
    assert_eq!(wrong.unwrap_err().1, "`options.delay` must be from 0 to 31622400 seconds");
}

#[test]
fn empty_options_are_none() {
    let body = |extra: Value| {
        json!({"taskQueueId": "p/w", "created": "2026-01-31T12:00:00Z", "deadline": "2026-01-31T13:00:00Z", "payload": {},
            "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"}, "extra": extra})
        .to_string()
    };
    for (extra, some) in [(json!({}), false), (json!({"tenure": {}}), false), (json!({"tenure": {"delay": 0}}), true)] {
        let text = body(extra);
        let request: CreateTaskRequest<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(of_request(&request).unwrap().is_some(), some, "{text}");
    }
}
