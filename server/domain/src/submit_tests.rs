use super::*;
use crate::create::DeadlineLimit;
use crate::policy::retention;
use serde_json::{Value, json};

const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";
const OTHER: &str = "f47ac10bTcKlZw4CssPUeQ";

fn now() -> DateTime<Utc> {
    DateTime::parse_from_rfc3339("2026-01-31T12:00:00Z").unwrap().to_utc()
}

/// Ids in the order of generation: 1, 2, 3.
fn drawn(n: u128) -> TaskId {
    TaskId::from_random(n.to_be_bytes())
}

fn read(body: &Value) -> Result<Graph, String> {
    read_with(body, &Defaults::default())
}

fn read_with(body: &Value, defaults: &Defaults) -> Result<Graph, String> {
    let text = body.to_string();
    let mut last = 0_u128;
    let draw = || {
        last += 1;
        drawn(last)
    };
    let origin = Origin { now: now(), client_id: "me", root_url: "https://tenure.example", defaults };
    let parsed = |error: serde_json::Error| error.to_string();
    let graph = if body.get("tasks").is_some() {
        Graph::of_several(serde_json::from_str(&text).map_err(parsed)?, origin, draw)
    } else {
        Graph::of_one(serde_json::from_str(&text).map_err(parsed)?, origin, draw)
    };
    graph.map_err(|error| match error {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })
}

fn several(tasks: &Value) -> Result<Graph, String> {
    let mut tasks = tasks.clone();
    for task in tasks.as_array_mut().unwrap() {
        task["taskQueueId"] = json!("p/w");
    }
    read(&json!({ "tasks": tasks }))
}

fn definition(graph: &Graph, entry: usize) -> Value {
    serde_json::from_str(&graph.entries[entry].task.definition).unwrap()
}

#[test]
fn absent_fields_get_defaults() {
    let graph = read(&json!({"taskQueueId": "p/w"})).unwrap();
    let id = drawn(1).to_string();
    let expected = json!({
        "provisionerId": "p", "workerType": "w", "taskQueueId": "p/w", "schedulerId": "-", "projectId": "none",
        "taskGroupId": id, "dependencies": [], "requires": "all-completed", "routes": [], "priority": "lowest",
        "retries": 5, "created": "2026-01-31T12:00:00.000Z", "deadline": "2027-02-01T12:00:00.000Z",
        "expires": "2028-02-01T12:00:00.000Z", "scopes": [], "payload": {}, "tags": {}, "extra": {},
        "metadata": {
            "name": "p/w", "description": "Submitted without a description.", "owner": "me",
            "source": format!("https://tenure.example/api/queue/v1/task/{id}"),
        },
    });
    assert_eq!(definition(&graph, 0), expected);
    assert_eq!((graph.group, graph.place(0)), (drawn(1), String::new()));
}

#[test]
fn default_expiry_of_submission_is_marked() {
    let marked = |body: Value| {
        let task = read(&body).unwrap().entries.remove(0).task;
        (retention::is_default(task.expires), Timestamp::new(task.expires).to_string())
    };
    let shown = "2027-02-01T12:00:00.000Z";
    let deadline = json!("2026-02-01T12:00:00Z");
    assert_eq!(marked(json!({"taskQueueId": "p/w", "deadline": deadline})), (true, shown.to_owned()));
    let given = json!({"taskQueueId": "p/w", "deadline": deadline, "expires": shown});
    assert_eq!(marked(given), (false, shown.to_owned()));
    let parts = json!({"taskQueueId": "p/w", "deadline": deadline, "expires": "2027-02-01T12:00:00.000001Z"});
    assert_eq!(marked(parts), (false, shown.to_owned()), "no request can set the mark");
}

#[test]
fn given_fields_are_kept() {
    let body = json!({
        "taskId": ID, "taskQueueId": "p/w", "created": "2026-01-31T11:59:00Z", "deadline": "2026-01-31T13:00:00Z",
        "expires": "2026-03-01T00:00:00Z", "taskGroupId": OTHER, "payload": {"a": 1}, "priority": "high",
        "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
    });
    let graph = read(&body).unwrap();
    let definition = definition(&graph, 0);
    assert_eq!(graph.entries[0].task.id.to_string(), ID);
    for (field, value) in body.as_object().unwrap() {
        let same_time =
            |a: &Value, b: &Value| a.as_str().zip(b.as_str()).is_some_and(|(a, b)| a.replace(".000Z", "Z") == b);
        let found = &definition[field];
        assert!(field == "taskId" || found == value || same_time(found, value), "{field}: {found}");
    }
}

#[test]
fn default_deadline_is_last_allowed_policys_or_first_expiry() {
    let (days, hours) = (TimeDelta::days, TimeDelta::hours);
    for (after, expires, expected) in [
        (None, None, days(366)),
        (Some(hours(1)), None, hours(1)),
        (None, Some(days(365)), days(365)),
        (None, Some(days(400)), days(366)),
        (None, Some(days(1)), days(1)),
        (Some(hours(1)), Some(days(1)), hours(1)),
        (Some(days(3)), Some(days(2)), days(2)),
        // Refused, as with a deadline that a caller chose.
        (None, Some(hours(23)), days(366)),
        (Some(hours(2)), Some(hours(1)), hours(2)),
    ] {
        let found = default_deadline(now(), after, expires.map(|ahead| now() + ahead));
        assert_eq!(found, now() + expected, "{after:?} {expires:?}");
    }
}

#[test]
fn deadlines_follow_policies_and_expiries() {
    let [short, stored] = ["p/short", ID].map(str::to_owned);
    let defaults = Defaults {
        deadline_after: HashMap::from([(short.parse().unwrap(), TimeDelta::hours(1))]),
        expires: HashMap::from([(stored.parse::<TaskId>().unwrap().uuid(), now() + TimeDelta::days(10))]),
    };
    let body = json!({"tasks": [
        {"taskQueueId": "p/w", "dependencies": ["quick"]},
        {"taskQueueId": "p/w", "name": "quick", "dependencies": ["policy"], "deadline": "2026-02-01T00:00:00Z"},
        {"provisionerId": "p", "workerType": "short", "name": "policy"},
        {"taskQueueId": "p/short", "deadline": "2026-03-01T00:00:00Z"},
        {"taskQueueId": "p/w", "name": "after", "dependencies": [stored]},
        {"taskQueueId": "p/w", "dependencies": ["after"]},
        {"taskQueueId": "p/w", "expires": "2026-02-10T00:00:00Z"},
    ]});
    let graph = read_with(&body, &defaults).unwrap();
    let deadlines: Vec<String> =
        graph.entries.iter().map(|entry| Timestamp::new(entry.task.deadline).to_string()).collect();
    assert_eq!(
        deadlines,
        [
            // The expiry of `quick`.
            "2027-02-01T00:00:00.000Z",
            "2026-02-01T00:00:00.000Z",
            "2026-01-31T13:00:00.000Z",
            "2026-03-01T00:00:00.000Z",
            "2026-02-10T12:00:00.000Z",
            "2027-02-01T12:00:00.000Z",
            "2026-02-10T00:00:00.000Z",
        ]
    );
    assert!(graph.entries.iter().all(|entry| deadline_is_acceptable(&entry.task)));
}

#[test]
fn dated_tasks_are_the_same_at_any_time() {
    let dates = json!({"created": "2026-01-31T12:00:00Z", "deadline": "2026-02-01T00:00:00Z"});
    for (left_out, expected) in [(None, true), (Some("created"), false), (Some("deadline"), false)] {
        let mut task = dates.clone();
        task["taskQueueId"] = json!("p/w");
        if let Some(field) = left_out {
            task.as_object_mut().unwrap().remove(field);
        }
        let text = json!({"tasks": [task, {"taskQueueId": "p/w", "taskId": ID, "created": dates["created"],
                                           "deadline": dates["deadline"]}]})
        .to_string();
        let request: SubmitRequest<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(are_dated(&request.tasks), expected, "{left_out:?}");
        let at = |now| {
            let defaults = Defaults::default();
            let origin = Origin { now, client_id: "me", root_url: "https://tenure.example", defaults: &defaults };
            let graph = Graph::of_several(serde_json::from_str(&text).unwrap(), origin, || drawn(1)).unwrap();
            graph.entries.into_iter().map(|entry| entry.task.definition).collect::<Vec<String>>()
        };
        if expected {
            assert_eq!(at(now()), at(now() + TimeDelta::days(1)));
        }
    }
}

fn deadline_is_acceptable(task: &NewTask) -> bool {
    crate::create::date_refusal(task, now()).is_none()
}

#[test]
fn defaults_are_queried_for_tasks_without_deadline() {
    let query = |body: Value| {
        let request: Vec<Value> = body.as_array().unwrap().clone();
        let texts: Vec<String> = request.iter().map(Value::to_string).collect();
        let tasks: Vec<SubmittedTask<'_>> = texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        DefaultsQuery::of(&tasks)
    };
    let deadline = "2026-02-01T00:00:00Z";
    let given = json!([{"taskQueueId": "p/w", "deadline": deadline, "dependencies": [ID]}]);
    assert!(query(given).is_empty());
    let found = query(json!([
        {"taskQueueId": "mail", "dependencies": [ID, OTHER, "local"]},
        {"taskId": OTHER, "provisionerId": "p", "workerType": "w"},
        {"deadline": deadline, "taskQueueId": "p/other"},
    ]));
    let names: Vec<&str> = found.queues.iter().map(TaskQueueId::as_str).collect();
    assert_eq!(names, ["default/mail", "p/w"]);
    assert_eq!(found.dependencies, BTreeSet::from([ID.parse::<TaskId>().unwrap().uuid()]));
}

#[test]
fn name_defaults_to_local_name_command_or_queue() {
    let name = |mut task: Value| {
        task["taskQueueId"] = json!("p/w");
        definition(&read(&task).unwrap(), 0)["metadata"]["name"].as_str().unwrap().to_owned()
    };
    let payload = json!({"command": [["echo", "a\nb"], ["true"]]});
    assert_eq!(name(json!({"name": "build", "payload": payload})), "build");
    assert_eq!(name(json!({"payload": payload})), "echo a b");
    assert_eq!(name(json!({"payload": {"command": "echo"}})), "p/w");
    assert_eq!(name(json!({"metadata": {"name": "x"}, "name": "build"})), "x");
    assert_eq!(name(json!({"payload": {"command": [["x".repeat(500)]]}})).len(), COMMAND_CHARS_MAX);
}

#[test]
fn listed_tasks_share_new_or_named_group() {
    let graph = several(&json!([{}, {}])).unwrap();
    assert_eq!(graph.group, drawn(3), "a generated group");
    assert!(graph.entries.iter().all(|entry| entry.task.group == graph.group));
    assert_eq!(several(&json!([{}])).unwrap().group, drawn(1), "one task alone is its own group");
    assert_eq!(several(&json!([{}, {"taskGroupId": ID}])).unwrap().entries[0].task.group.to_string(), ID);
    let whole = json!({"taskGroupId": ID, "tasks": [{"taskQueueId": "p/w"}]});
    assert_eq!(read(&whole).unwrap().entries[0].task.group.to_string(), ID);
    let refusal = several(&json!([{"taskGroupId": ID}, {}, {"taskGroupId": OTHER}])).unwrap_err();
    assert!(refusal.starts_with("`tasks[2].taskGroupId` is f47"), "{refusal}");
}

#[test]
fn local_names_become_ids_in_any_order() {
    let graph = several(&json!([
        {"name": "test", "dependencies": ["build", ID]},
        {"name": "build"},
        {"taskId": OTHER, "dependencies": ["test"]},
        {"dependencies": [OTHER]},
    ]))
    .unwrap();
    let of = |n: usize| definition(&graph, n)["dependencies"].clone();
    assert_eq!(of(0), json!([drawn(2), ID]));
    assert_eq!(of(2), json!([drawn(1)]));
    assert_eq!(of(3), json!([OTHER]));
}

#[test]
fn local_names_in_inputs_become_ids() {
    let graph = read(&json!({"tasks": [
        {"taskQueueId": "p/w", "dependencies": ["build \"x\""], "payload": {"big": 12345678901234567890_u64, "inputs": [
            {"taskId": "build \"x\"", "artifact": "a", "path": "build \"x\""},
            {"taskId": ID, "artifact": "a", "path": "b"},
            {"taskId": "other", "artifact": "a", "path": "c"},
        ]}},
        {"taskQueueId": "p/w", "name": "build \"x\"", "payload": {"inputs": "build"}},
        {"taskQueueId": "p/w", "payload": {"inputs": [{"taskId": 7}], "name": "build \"x\""}},
    ]}))
    .unwrap();
    let payload = |n: usize| definition(&graph, n)["payload"].clone();
    let expected = json!({"big": 12345678901234567890_u64, "inputs": [
        {"taskId": drawn(2), "artifact": "a", "path": "build \"x\""},
        {"taskId": ID, "artifact": "a", "path": "b"},
        {"taskId": "other", "artifact": "a", "path": "c"},
    ]});
    assert_eq!(payload(0), expected);
    assert_eq!(payload(1), json!({"inputs": "build"}));
    assert_eq!(payload(2), json!({"inputs": [{"taskId": 7}], "name": "build \"x\""}));
    let one = read(&json!({"taskQueueId": "p/w", "name": "x", "payload": {"inputs": [{"taskId": "x"}]}})).unwrap();
    assert_eq!(definition(&one, 0)["payload"], json!({"inputs": [{"taskId": "x"}]}));
}

#[test]
fn inputs_are_those_of_existing_tasks() {
    let mut graph = read(&json!({"tasks": [
        {"taskQueueId": "p/w", "name": "build", "options": {"unique": "build"}},
        {"taskQueueId": "p/w", "dependencies": ["build"], "payload": {"inputs": [{"taskId": "build"}, {"taskId": OTHER}]}},
    ]}))
    .unwrap();
    graph.coalesce(&BTreeMap::from([(0, ID.parse().unwrap())]));
    let stored = definition(&graph, 1);
    assert_eq!(stored["dependencies"], json!([ID]));
    assert_eq!(stored["payload"], json!({"inputs": [{"taskId": ID}, {"taskId": OTHER}]}));
}

#[test]
fn a_refusal_names_the_entry() {
    let long = "x".repeat(NAME_CHARS_MAX + 1);
    for (tasks, says) in [
        (json!([{}, {"dependencies": [ID, "who"]}]), "`tasks[1].dependencies[1]` is \"who\", which is neither"),
        (json!([{"name": "a"}, {"name": "a"}]), "`tasks[1].name` is \"a\", which is already the name of tasks[0]"),
        (json!([{"name": ID}]), "`tasks[0].name` has the form of a task id"),
        (json!([{"name": ""}]), "`tasks[0].name` must have from 1 to 255"),
        (json!([{"name": long}]), "`tasks[0].name` must have from 1 to 255"),
        (json!([{"taskId": ID}, {"taskId": ID}]), "`tasks[1].taskId` is 9Hr"),
        (json!([{}, {"retries": 50}]), "tasks[1]: `retries`"),
        (json!([{}, {"deadline": "2026-01-01T00:00:00Z"}]), "tasks[1]: `created` must not be after"),
        (json!([{"name": "a"}, {"dependencies": ["a", "a"]}]), "tasks[1]: `dependencies` contains"),
        (json!([{}, {"payload": []}]), "tasks[1]: `payload` must be an object"),
        (json!([{"metadata": {"source": "x"}}]), "tasks[0]: `metadata.source`"),
    ] {
        let refusal = several(&tasks).unwrap_err();
        assert!(refusal.starts_with(says), "{refusal}");
    }
    assert!(read(&json!({"tasks": []})).unwrap_err().contains("from 1 to 1000 entries; it has 0"));
    let many = vec![json!({}); TASKS_MAX + 1];
    assert!(several(&json!(many)).unwrap_err().contains("it has 1001"));
    assert_eq!(several(&json!(vec![json!({}); TASKS_MAX])).unwrap().entries.len(), TASKS_MAX);
    let dense: Vec<Value> = (0..11)
        .map(|_| json!({"dependencies": (0..10_000).map(|n| drawn(n + 1_000).to_string()).collect::<Vec<_>>()}))
        .collect();
    let refusal = several(&json!(dense)).unwrap_err();
    assert!(refusal.starts_with("`tasks` have 110000 dependencies together; at most 100000"), "{refusal}");
    assert_eq!(several(&json!(dense[..10])).unwrap().entries.len(), 10);
    let alone = read(&json!({"taskQueueId": "p/w", "dependencies": ["who"]})).unwrap_err();
    assert!(alone.starts_with("`dependencies[0]` is \"who\""), "{alone}");
    let unnamed = read(&json!({"tasks": [{}]})).unwrap_err();
    assert!(unnamed.starts_with("tasks[0]: name the queue"), "{unnamed}");
}

#[test]
fn cycle_is_refused_and_shown() {
    for (tasks, says) in [
        (
            json!([{"name": "a", "dependencies": ["a"]}]),
            "`tasks[0].dependencies[0]` closes a cycle in which each task waits for the next: a -> a",
        ),
        (
            // The first task depends on the cycle but is not part of it.
            json!([
                {"name": "x", "dependencies": ["b"]},
                {"name": "a", "dependencies": [ID, "b"]},
                {"name": "b", "dependencies": ["c"]},
                {"name": "c", "dependencies": ["a"]},
            ]),
            "`tasks[2].dependencies[0]` closes a cycle in which each task waits for the next: b -> c -> a -> b",
        ),
        (
            json!([{"taskId": ID, "dependencies": [OTHER]}, {"taskId": OTHER, "dependencies": [ID]}]),
            "`tasks[0].dependencies[0]` closes a cycle",
        ),
    ] {
        let refusal = several(&tasks).unwrap_err();
        assert!(refusal.starts_with(says), "{refusal}");
    }
    let ring: Vec<Value> = (0..TASKS_MAX)
        .map(|n| json!({"name": format!("n{n}"), "dependencies": [format!("n{}", (n + 1) % TASKS_MAX)]}))
        .collect();
    let refusal = several(&json!(ring)).unwrap_err();
    assert!(refusal.ends_with("n9 -> ... -> n0"), "{refusal}");
    let mut line = ring;
    line[TASKS_MAX - 1] = json!({"name": "n999"});
    assert_eq!(several(&json!(line)).unwrap().entries.len(), TASKS_MAX);
}

#[test]
fn options_field_is_stored_like_extra() {
    let graph = several(&json!([
        {"options": {"delay": 5}},
        {"extra": {"tenure": {"delay": 5}}},
        {"extra": {"a": 1}, "options": {"delay": 5}},
        {"options": {}},
    ]))
    .unwrap();
    let places: Vec<_> =
        graph.entries.iter().map(|entry| (entry.task.options.is_some(), entry.task.options_place)).collect();
    assert_eq!(places, [(true, "options"), (true, "extra.tenure"), (true, "options"), (false, "options")]);
    assert_eq!(definition(&graph, 0)["extra"], definition(&graph, 1)["extra"], "one stored form");
    assert_eq!(definition(&graph, 2)["extra"], json!({"a": 1, "tenure": {"delay": 5}}));
    assert!(graph.entries.iter().all(|entry| entry.task.deadline_limit == DeadlineLimit::Submission));
    for (task, says) in [
        (json!({"options": {"delay": -1}}), "tasks[1]: `options.delay` must be from 0"),
        (
            json!({"options": {}, "extra": {"tenure": {}}}),
            "tasks[1]: `options` and `extra.tenure` must not both be given",
        ),
        (json!({"options": {}, "extra": 1}), "tasks[1]: `extra` must be an object"),
        (json!({"options": 1}), "tasks[1]: `options` must be an object"),
        (json!({"extra": {"tenure": {"delay": -1}}}), "tasks[1]: `extra.tenure.delay` must be from 0"),
    ] {
        let refusal = several(&json!([{}, task])).unwrap_err();
        assert!(refusal.starts_with(says), "{refusal}");
    }
}
