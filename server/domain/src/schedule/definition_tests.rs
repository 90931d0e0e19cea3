use serde_json::{Value, json};

use super::*;
use crate::submit::Defaults;

const OWNER: &str = "ci";
const ROOT: &str = "https://tenure.example";

fn read(body: &Value) -> Result<Definition, String> {
    let text = body.to_string();
    let sent: ScheduleRequest<'_> = serde_json::from_str(&text).unwrap();
    Definition::from_request(&sent).map_err(|wrong| match wrong {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

fn nightly() -> Value {
    json!({"cron": "0 3 * * *", "task": {"taskQueueId": "acme/reports"}})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = nightly();
    body[field] = value;
    body
}

fn task_with(field: &str, value: Value) -> Value {
    let mut body = nightly();
    body["task"][field] = value;
    body
}

fn submission(definition: &Definition, now: DateTime<Utc>, at: DateTime<Utc>) -> Graph {
    let defaults = Defaults::default();
    let origin = Origin { now, client_id: OWNER, root_url: ROOT, defaults: &defaults };
    let occasion = Occasion { name: "nightly", at };
    definition.submission(occasion, origin, || TaskId::from_random([7; 16])).unwrap()
}

#[test]
fn absent_fields_have_defaults() {
    let definition = read(&nightly()).unwrap();
    assert_eq!(definition.timezone, "UTC");
    assert_eq!(definition.catch_up, CatchUp::Last);
    assert_eq!((definition.deadline_after, definition.expires_after, definition.paused), (None, None, false));
}

#[test]
fn queue_is_that_of_tasks() {
    let halves = json!({"provisionerId": "acme", "workerType": "reports"});
    for (task, queue) in [
        (json!({"taskQueueId": "acme/reports"}), Some("acme/reports")),
        (json!({"taskQueueId": "reports"}), Some("default/reports")),
        (halves, Some("acme/reports")),
        (json!({}), None),
    ] {
        let found = read(&with("task", task.clone())).unwrap().queue();
        assert_eq!(found.as_ref().map(TaskQueueId::as_str), queue, "{task}");
    }
}

#[test]
fn bad_fields_are_refused() {
    for (body, word) in [
        (with("cron", json!("0 3 * *")), "five fields"),
        (with("timezone", json!("Berlin")), "time zone"),
        (with("deadlineAfter", json!(59)), "deadlineAfter"),
        (with("deadlineAfter", json!(31_622_401)), "deadlineAfter"),
        (with("expiresAfter", json!(60)), "expiresAfter"),
        (with("expiresAfter", json!(63_244_801)), "expiresAfter"),
        (with("task", json!([])), "object"),
        (with("task", json!({"unknown": 1})), "unknown"),
        (task_with("taskId", json!("AAAAAAAAQACAAAAAAAAAAA")), "taskId"),
        (task_with("deadline", json!("2026-01-01T00:00:00Z")), "deadlineAfter"),
        (task_with("expires", json!("2026-01-01T00:00:00Z")), "expiresAfter"),
        (task_with("created", json!("2026-01-01T00:00:00Z")), "created"),
        (task_with("dependencies", json!(["build"])), "dependencies"),
    ] {
        let refused = read(&body).unwrap_err();
        assert!(refused.contains(word), "{body}: {refused}");
    }
}

#[test]
fn large_task_is_refused() {
    let filled = |bytes: usize| task_with("payload", json!({"text": "x".repeat(bytes)}));
    let most = TASK_BYTES_MAX - filled(0)["task"].to_string().len();
    assert!(read(&filled(most)).is_ok());
    let refused = read(&filled(most + 1)).unwrap_err();
    assert!(refused.contains("`task` has 1048577 bytes; at most 1048576"), "{refused}");
}

#[test]
fn expiry_must_follow_the_deadline() {
    let mut body = with("deadlineAfter", json!(3_600));
    body["expiresAfter"] = json!(3_600);
    assert!(read(&body).is_err());
    body["expiresAfter"] = json!(3_601);
    assert!(read(&body).is_ok());
}

#[test]
fn time_refused_for_now_is_repeated() {
    let next: DateTime<Utc> = "2026-01-01T03:00:00Z".parse().unwrap();
    for (error, late, expected) in [
        (None, 0, Attempt::First),
        // Several times were due.
        (None, 5, Attempt::First),
        // The time before failed for good.
        (Some("refused"), 0, Attempt::First),
        (Some("refused"), 5, Attempt::Repeated),
    ] {
        let schedule = Schedule {
            name: "nightly".to_owned(),
            definition: read(&nightly()).unwrap(),
            next: Some(next),
            try_at: Some(next + TimeDelta::seconds(late)),
            last: None,
            error: error.map(str::to_owned),
            client_id: OWNER.to_owned(),
            created: next,
            changed: next,
        };
        assert_eq!(schedule.attempt(), expected, "{error:?} {late}");
    }
}

#[test]
fn name_is_short_and_plain() {
    for name in ["nightly", "A_b-9", &"n".repeat(NAME_CHARS_MAX)] {
        assert_eq!(named(name).as_deref(), Ok(name));
    }
    for name in ["", "a/b", "a b", "ä", &"n".repeat(NAME_CHARS_MAX + 1)] {
        assert!(named(name).is_err(), "{name}");
    }
}

#[test]
fn task_has_dates_from_its_creation_and_tags_of_its_time() {
    let mut body = task_with("tags", json!({"team": "data"}));
    body["deadlineAfter"] = json!(3_600);
    body["expiresAfter"] = json!(7_200);
    let at: DateTime<Utc> = "2026-01-01T03:00:00Z".parse().unwrap();
    let now = at + TimeDelta::minutes(5);
    let graph = submission(&read(&body).unwrap(), now, at);
    let task = &graph.entries[0].task;
    assert_eq!(task.deadline, now + TimeDelta::hours(1));
    assert_eq!(task.expires, now + TimeDelta::hours(2));
    let tags: Value = serde_json::from_str(&task.tags).unwrap();
    assert_eq!(
        tags,
        json!({"team": "data", "tenure-schedule": "nightly", "tenure-schedule-time": "2026-01-01T03:00:00Z"})
    );
    let definition: Value = serde_json::from_str(&task.definition).unwrap();
    assert_eq!(definition["metadata"]["owner"], OWNER);
    assert_eq!(definition["metadata"]["source"], format!("{ROOT}/api/tenure/v1/schedules/nightly"));
}

#[test]
fn queue_decides_the_deadline_if_the_schedule_does_not() {
    let query = read(&nightly()).unwrap().defaults_query().unwrap();
    assert_eq!(query.queues.len(), 1);
    let query = read(&with("deadlineAfter", json!(60))).unwrap().defaults_query().unwrap();
    assert!(query.is_empty());
}
