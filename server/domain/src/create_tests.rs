use super::*;
use serde_json::{Value, json};

const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

fn body() -> Value {
    json!({
        "taskQueueId": "p/w",
        "created": "2026-01-31T12:00:00Z",
        "deadline": "2026-01-31T13:00:00Z",
        "payload": {},
        "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
    })
}

fn read(body: &Value) -> Result<NewTask, String> {
    let text = body.to_string();
    let request: CreateTaskRequest<'_> = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    NewTask::from_request(ID.parse().unwrap(), &request).and_then(Requested::accept).map_err(|refusal| match refusal {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

fn with(field: &str, value: impl Into<Value>) -> Value {
    let mut body = body();
    body.pointer_mut(field.rsplit_once('/').map_or("", |(parent, _)| parent)).unwrap()
        [field.rsplit('/').next().unwrap()] = value.into();
    body
}

#[test]
fn absent_fields_get_their_defaults() {
    let task = read(&body()).unwrap();
    let definition: Value = serde_json::from_str(&task.definition).unwrap();
    let expected = json!({
        "provisionerId": "p", "workerType": "w", "taskQueueId": "p/w", "schedulerId": "-", "projectId": "none",
        "taskGroupId": ID, "dependencies": [], "requires": "all-completed", "routes": [], "priority": "lowest",
        "retries": 5, "created": "2026-01-31T12:00:00.000Z", "deadline": "2026-01-31T13:00:00.000Z",
        "expires": "2027-01-31T13:00:00.000Z", "scopes": [], "payload": {}, "tags": {}, "extra": {},
        "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
    });
    assert_eq!(definition, expected);
    assert_eq!(Timestamp::new(task.group_expires).to_string(), "2027-01-31T14:00:00.000Z");
    assert!(!retention::is_default(task.expires), "only submissions are purged before a default expiry");
}

#[test]
fn group_outlives_its_tasks_up_to_last_year() {
    for (expires, kept_until) in [
        ("2026-02-01T12:00:00Z", "2026-02-01T13:00:00.000Z"),
        ("2026-02-01T12:00:00.001Z", "2026-02-01T14:00:00.000Z"),
        ("9998-12-31T23:30:00Z", "9999-01-01T01:00:00.000Z"),
        ("9999-12-31T21:59:00Z", "9999-12-31T23:00:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
    ] {
        let task = read(&with("/expires", expires)).unwrap();
        assert_eq!(Timestamp::new(task.group_expires).to_string(), kept_until, "{expires}");
    }
}

#[test]
fn each_field_is_accepted_at_its_limit() {
    let ids: Vec<String> = (0..10_000_u128).map(|n| TaskId::from_random(n.to_be_bytes()).to_string()).collect();
    for (field, value) in [
        ("/schedulerId", json!("x".repeat(38))),
        ("/projectId", json!("x".repeat(500))),
        ("/dependencies", json!(ids)),
        ("/routes", json!((0..64).map(|n| format!("r{n}")).collect::<Vec<_>>())),
        ("/routes", json!(["ü".repeat(249)])),
        ("/retries", json!(0)),
        ("/retries", json!(49)),
        ("/priority", json!("highest")),
        ("/expires", json!("2026-01-31T13:00:00Z")),
        ("/scopes", json!(["a", "a", "", "b*"])),
        ("/scopes", json!(["s".repeat(40_956), "s".repeat(40_956)])),
        ("/metadata/name", json!("ü".repeat(255))),
        ("/metadata/description", json!("d".repeat(32_768))),
        ("/metadata/owner", json!("")),
        ("/metadata/source", json!(format!("ssh://{}", "x".repeat(4_090)))),
        ("/tags", json!({"t": "v".repeat(4_096)})),
        ("/payload", json!({"nul": "\0"})),
        ("/extra", json!({"nul": "\0", "big": 1e300})),
    ] {
        read(&with(field, value)).unwrap_or_else(|error| panic!("{field}: {error}"));
    }
}

#[test]
fn each_field_is_refused_past_its_limit_by_name() {
    let ids: Vec<String> = (0..10_001_u128).map(|n| TaskId::from_random(n.to_be_bytes()).to_string()).collect();
    for (field, value, named) in [
        ("/taskQueueId", json!("p/W"), "taskQueueId"),
        ("/schedulerId", json!("x".repeat(39)), "schedulerId"),
        ("/schedulerId", Value::Null, ""),
        ("/projectId", json!("x".repeat(501)), "projectId"),
        ("/projectId", json!(""), "projectId"),
        ("/taskGroupId", json!("abc"), "slugid"),
        ("/dependencies", json!(ids), "dependencies"),
        ("/dependencies", json!([ID, ID]), "dependencies"),
        ("/requires", json!("some"), "some"),
        ("/routes", json!((0..65).map(|n| format!("r{n}")).collect::<Vec<_>>()), "routes"),
        ("/routes", json!(["r", "r"]), "routes"),
        ("/routes", json!([""]), "routes[0]"),
        ("/routes", json!(["ok", "r".repeat(250)]), "routes[1]"),
        ("/routes", json!(["a\0b"]), "routes[0]"),
        ("/priority", json!("normal"), "normal"),
        ("/retries", json!(50), "retries"),
        ("/retries", json!(-1), ""),
        ("/retries", json!(1.5), ""),
        ("/created", json!("yesterday"), "RFC 3339"),
        ("/created", json!("2026-01-31T14:00:00Z"), "created"),
        ("/deadline", json!(17), ""),
        ("/expires", json!("2026-01-31T12:59:59Z"), "expires"),
        ("/scopes", json!(["a\n"]), "scopes[0]"),
        ("/scopes", json!(["a**"]), "scopes"),
        ("/scopes", json!(["s".repeat(40_956), "s".repeat(40_957)]), "`scopes` takes 81921 bytes"),
        ("/scopes", json!([r#"""#.repeat(40_959)]), "`scopes` takes 81922 bytes"),
        ("/payload", json!([]), "payload"),
        ("/payload", json!("x"), "payload"),
        ("/extra", json!(3), "extra"),
        ("/metadata/name", json!("n".repeat(256)), "metadata.name"),
        ("/metadata/description", json!("d".repeat(32_769)), "metadata.description"),
        ("/metadata/owner", json!("o".repeat(256)), "metadata.owner"),
        ("/metadata/source", json!("ftp://x"), "metadata.source"),
        ("/metadata/source", json!(format!("ssh://{}", "x".repeat(4_091))), "metadata.source"),
        ("/metadata/more", json!("x"), "more"),
        ("/tags", json!({"t": "v".repeat(4_097)}), "tags[\"t\"]"),
        ("/tags", json!({"t": 1}), ""),
        ("/unknown", json!(1), "unknown"),
        ("/workerType", json!("w"), "provisionerId"),
        ("/provisionerId", json!("p"), "workerType"),
    ] {
        let error = read(&with(field, value.clone())).err().unwrap_or_else(|| panic!("{field} {value} was accepted"));
        assert!(error.contains(named), "{field}: {error}");
    }
}

#[test]
fn both_names_of_queue_must_agree() {
    let mut both = body();
    both["provisionerId"] = json!("p");
    both["workerType"] = json!("w");
    assert!(read(&both).is_ok());
    both["workerType"] = json!("other");
    assert!(read(&both).unwrap_err().contains("does not agree"));
    both.as_object_mut().unwrap().remove("taskQueueId");
    assert_eq!(read(&both).unwrap().queue.as_str(), "p/other");
    both.as_object_mut().unwrap().retain(|key, _| key != "provisionerId" && key != "workerType");
    assert!(read(&both).unwrap_err().contains("name the queue"));
}

#[test]
fn missing_required_field_is_named() {
    for field in ["created", "deadline", "payload", "metadata"] {
        let mut short = body();
        short.as_object_mut().unwrap().remove(field);
        assert!(read(&short).unwrap_err().contains(field));
    }
}

#[test]
fn payload_and_extra_are_kept_byte_for_byte() {
    let raw = r#"{"nul":"\u0000","n":1.10,"big":123456789012345678901234567890,"sp" : [ 1 ]}"#;
    let text = body().to_string().replace(r#""payload":{}"#, &format!(r#""payload":{raw},"extra":{raw}"#));
    let request: CreateTaskRequest<'_> = serde_json::from_str(&text).unwrap();
    let task = NewTask::from_request(ID.parse().unwrap(), &request).unwrap().accept().unwrap();
    assert_eq!(task.definition.matches(raw).count(), 2);
}

#[test]
fn dates_are_checked_against_now_at_their_boundaries() {
    let task = read(&body()).unwrap();
    let second = TimeDelta::seconds(1);
    assert_eq!(date_refusal(&task, task.created + CREATED_DRIFT), None);
    assert!(date_refusal(&task, task.created + CREATED_DRIFT + second).unwrap().contains("created"));
    assert!(date_refusal(&task, task.created - CREATED_DRIFT - second).unwrap().contains("created"));
    let soon = NewTask { deadline: task.created, ..task.clone() };
    assert_eq!(date_refusal(&soon, task.created), None);
    assert!(date_refusal(&soon, task.created + second).unwrap().contains("deadline"));
    let far = NewTask { deadline: task.created + DEADLINE_AHEAD + CREATED_DRIFT, ..task.clone() };
    assert_eq!(date_refusal(&far, task.created), None);
    assert!(date_refusal(&far, task.created - second).unwrap().contains("deadline"));
}

#[test]
fn a_task_must_start_before_its_deadline() {
    let now = DateTime::from_timestamp(1_769_860_800, 0).unwrap();
    let (hour, second) = (TimeDelta::hours(1), TimeDelta::seconds(1));
    let with_start = |tenure: Value| read(&with("/extra", json!({ "tenure": tenure }))).unwrap();
    let plain = read(&body()).unwrap();
    assert_eq!(never_starts(&plain, TimeDelta::zero(), now), None);
    assert_eq!(never_starts(&plain, hour - second, now), None);
    assert!(
        never_starts(&plain, hour, now).unwrap().starts_with("`policy.delay`, 3600 seconds from now, must end before")
    );
    for (tenure, named) in [
        (json!({"delay": 3_600}), "`extra.tenure.delay`, 3600"),
        (json!({"notBefore": "2026-01-31T13:00:00Z"}), "`extra.tenure.notBefore`, 2026-01-31T13:00:00.000Z, must"),
    ] {
        let task = with_start(tenure);
        let refused = never_starts(&task, TimeDelta::zero(), now).unwrap();
        assert!(refused.starts_with(named), "{refused}");
        let submitted = NewTask { options_place: options::BESIDE, ..task.clone() };
        let refused = never_starts(&submitted, TimeDelta::zero(), now).unwrap();
        assert!(refused.starts_with(&named.replace("extra.tenure", "options")), "{refused}");
        // An existing task is a repeat, however late the request.
        assert_eq!(why_unmade(&task, Some((&task.definition, task.priority)), None, hour, &[], now), Unmade::Repeat);
        let unmade = why_unmade(&task, None, None, TimeDelta::zero(), &[], now);
        assert!(matches!(unmade, Unmade::Input(why) if why.starts_with(named)));
    }
    for tenure in [json!({"delay": 0}), json!({"notBefore": "2026-01-31T12:59:59.999Z"}), json!({"delay": 3_599})] {
        assert_eq!(never_starts(&with_start(tenure), hour, now), None, "replaces the queue's delay");
    }
}

#[test]
fn submission_deadline_may_be_a_year_ahead() {
    let now = DateTime::from_timestamp(1_769_860_800, 0).unwrap();
    for (limit, days) in [(DeadlineLimit::CreateTask, 5), (DeadlineLimit::Submission, 366)] {
        let latest = now + TimeDelta::days(days) + CREATED_DRIFT;
        assert_eq!(deadline_refusal(latest, now, limit), None);
        let refused = deadline_refusal(latest + TimeDelta::milliseconds(1), now, limit).unwrap();
        assert_eq!(refused, format!("`deadline` must be at most {days} days from now, 2026-01-31T12:00:00.000Z"));
        assert_eq!(deadline_refusal(now, now, limit), None);
        assert!(deadline_refusal(now - TimeDelta::milliseconds(1), now, limit).unwrap().contains("in the past"));
        assert_eq!(deadline_refusal(DateTime::<Utc>::MAX_UTC, DateTime::<Utc>::MAX_UTC, limit), None);
    }
}

#[test]
fn definition_is_shown_with_current_priority() {
    let tricky = [
        ("/payload", json!({"priority": "low"})),
        ("/routes", json!(["\"priority\":\"low\""])),
        ("/scopes", json!(["\"priority\":\"high\""])),
        ("/schedulerId", json!("priority")),
    ];
    for (field, value) in tricky {
        let stored = read(&with(field, value)).unwrap().definition;
        assert_eq!(shown_definition(stored.clone(), Priority::Lowest), stored);
        let mut expected: Value = serde_json::from_str(&stored).unwrap();
        expected["priority"] = json!("very-high");
        let shown: Value = serde_json::from_str(&shown_definition(stored, Priority::VeryHigh)).unwrap();
        assert_eq!(shown, expected);
    }
}
