use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

fn task(number: u128) -> TaskId {
    TaskId::from_random(number.to_be_bytes())
}

fn read(body: &Value) -> Result<Redrive, String> {
    let sent: RedriveRequest = serde_json::from_str(&body.to_string()).map_err(|error| error.to_string())?;
    Redrive::from_request(&sent, None).map_err(|refused| match refused {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

#[test]
fn redrive_has_defaults_and_limits() {
    let all = Which::Oldest { filter: Filter::default(), limit: 1_000, from: None };
    assert_eq!(read(&json!({})), Ok(Redrive { which: all, copy: None }));
    let sent = json!({"reason": "failed", "before": "2027-01-15T08:00:00.000Z", "limit": 10_000, "copy": {"deadlineAfter": 60}});
    let until = Some(at(0) - TimeDelta::microseconds(1));
    let filter = Filter { reason: Some(ReasonResolved::Failed), until };
    let which = Which::Oldest { filter, limit: 10_000, from: None };
    assert_eq!(read(&sent), Ok(Redrive { which, copy: Some(TimeDelta::seconds(60)) }));
    let ids = [task(1), task(2)];
    assert_eq!(read(&json!({"taskIds": ids})), Ok(Redrive { which: Which::Tasks(ids.to_vec()), copy: None }));
    let many: Vec<TaskId> = (0..1_001).map(task).collect();
    for (wrong, message) in [
        (json!({"limit": 0}), "`limit` must be from 1 to 10000"),
        (json!({"limit": 10_001}), "`limit` must be from 1 to 10000"),
        (json!({"copy": {"deadlineAfter": 59}}), "`copy.deadlineAfter` must be from 60 to 31622400 seconds"),
        (json!({"taskIds": []}), "`taskIds` must have from 1 to 1000 ids; it has 0"),
        (json!({"taskIds": many}), "`taskIds` must have from 1 to 1000 ids; it has 1001"),
        (json!({"taskIds": ids, "limit": 5}), "`taskIds` and `limit` must not both be given: leave one out"),
        (json!({"taskIds": ids, "reason": "failed"}), "`taskIds` and `reason` must not both be given: leave one out"),
    ] {
        assert_eq!(read(&wrong), Err(message.to_owned()));
    }
    for wrong in [json!({"reason": "boredom"}), json!({"copy": {}}), json!({"copy": null}), json!({"ids": []})] {
        assert!(read(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn positions_are_read_as_written() {
    let after = Place { resolved: at(5) + TimeDelta::microseconds(7), seq: 42 };
    assert_eq!(Place::parse(&after.text()), Some(after));
    assert_eq!(Place::parse(&Place::START.text()), Some(Place::START));
    let cursor = Cursor { after, until: at(9) };
    assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
    for wrong in ["", "1", "1/", "/1", "x/1", "1/x", "1/2/3", "9223372036854775807/1"] {
        assert_eq!(Place::parse(wrong), None, "{wrong}");
    }
    for wrong in ["", "1/2", "x/1/2"] {
        assert_eq!(Cursor::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn task_is_rerun_before_its_deadline_and_copied_afterwards() {
    let day = TimeDelta::days(1);
    for (deadline, copy, expected) in [
        (at(1), None, Some(Way::Rerun)),
        (at(1), Some(day), Some(Way::Rerun)),
        (at(0), None, None),
        (at(0), Some(day), Some(Way::Copy(day))),
        (at(-1), None, None),
        (at(-1), Some(day), Some(Way::Copy(day))),
    ] {
        assert_eq!(way(deadline, at(0), copy), expected, "{deadline} {copy:?}");
    }
}

#[test]
fn copy_has_new_id_and_dates_and_no_dependencies() {
    let (id, group, required) = (task(1), task(2), task(3));
    let definition = json!({
        "provisionerId": "proj", "workerType": "worker", "taskQueueId": "proj/worker", "schedulerId": "s", "projectId": "p",
        "taskGroupId": group, "dependencies": [required], "requires": "all-resolved", "routes": ["a.b"],
        "priority": "high", "retries": 3, "created": "2026-01-01T00:00:00.000Z", "deadline": "2026-01-02T00:00:00.000Z",
        "expires": "2026-01-05T00:00:00.000Z", "scopes": ["x"], "payload": {"n": 1.50},
        "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
        "tags": {"a": "b"}, "extra": {"tenure": {"unique": "u"}},
    })
    .to_string();
    let date = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    let deadline = date("2026-01-02T00:00:00Z");
    let original = Original { id, definition: &definition, deadline, expires: date("2026-01-05T00:00:00Z") };
    let copy = copy_of(original, task(4), at(0), TimeDelta::hours(1)).unwrap();
    assert_eq!((copy.id, copy.group.to_string()), (task(4), task(4).to_string()));
    assert_eq!((copy.created, copy.deadline), (at(0), at(3_600)));
    assert_eq!(copy.expires, at(3_600) + TimeDelta::days(3), "kept as long after its deadline");
    assert!(copy.dependencies.is_empty());
    assert_eq!(copy.unique().map(|unique| unique.name.as_str()), Some("u"));
    let shown: Value = serde_json::from_str(&copy.definition).unwrap();
    let mut expected: Value = serde_json::from_str(&definition).unwrap();
    expected["tags"][TAG] = json!(id);
    expected["taskGroupId"] = json!(task(4));
    expected["dependencies"] = json!([]);
    for (field, time) in [("created", copy.created), ("deadline", copy.deadline), ("expires", copy.expires)] {
        expected[field] = json!(Timestamp::new(time));
    }
    assert_eq!(shown, expected);
    let unmarked = copy_of(
        Original { expires: retention::mark_default(original.expires), ..original },
        task(5),
        at(0),
        TimeDelta::hours(1),
    );
    assert!(retention::is_default(unmarked.unwrap().expires), "submitted without a date");
    let broken = copy_of(Original { definition: "{}", ..original }, task(6), at(0), TimeDelta::hours(1));
    assert!(broken.is_err());
}
