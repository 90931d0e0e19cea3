//! Arguments and output of `tenure schedule`.

use clap::Parser;
use clap::error::ErrorKind;

use super::*;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(subcommand)]
    schedule: ScheduleCommand,
}

fn parse(words: &[&str]) -> Result<ScheduleCommand, ErrorKind> {
    let parsed = Tenure::try_parse_from(["schedule"].iter().chain(words));
    parsed.map(|tenure| tenure.schedule).map_err(|error| error.kind())
}

fn stored(words: &[&str]) -> Value {
    let Ok(ScheduleCommand::Set(args)) = parse(words) else { panic!("{words:?} is a schedule") };
    definition(&args).unwrap()
}

#[test]
fn schedule_has_pattern_and_task() {
    let plain = stored(&["set", "nightly", "--cron", "0 3 * * *", "-q", "mail", "--", "make", "-j2"]);
    let task = json!({"taskQueueId": "default/mail", "payload": {"command": [["make", "-j2"]]}});
    assert_eq!(plain, json!({"cron": "0 3 * * *", "task": task}));

    let when = ["set", "nightly", "--cron", "*/5 * * * *", "--timezone", "Europe/Berlin", "--deadline-after", "2h"];
    let what = ["--catch-up", "none", "-q", "p/w", "--unique", "n", "--on-duplicate", "queue", "--", "make"];
    let task = json!({"taskQueueId": "p/w", "payload": {"command": [["make"]]},
        "options": {"unique": "n", "onDuplicate": "queue"}});
    let full = json!({"cron": "*/5 * * * *", "timezone": "Europe/Berlin", "task": task, "deadlineAfter": 7200,
        "catchUp": "none"});
    assert_eq!(stored(&[&when[..], &what].concat()), full);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("task.json");
    std::fs::write(&file, r#"{"taskQueueId": "p/w", "payload": {"n": 1}}"#).unwrap();
    let from_file = stored(&["set", "nightly", "--cron", "@daily", "--task", file.to_str().unwrap()]);
    assert_eq!(from_file["task"], json!({"taskQueueId": "p/w", "payload": {"n": 1}}));
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let set = |words: &'static [&'static str]| [&["set", "nightly", "--cron", "@daily"], words].concat();
    for (words, kind) in [
        (vec!["show"], ErrorKind::MissingRequiredArgument),
        (vec!["set", "nightly", "-q", "p/w", "--", "make"], ErrorKind::MissingRequiredArgument),
        (set(&["-q", "p/w"]), ErrorKind::MissingRequiredArgument),
        (set(&["--", "make"]), ErrorKind::MissingRequiredArgument),
        (set(&["-q", "p_w", "--", "make"]), ErrorKind::ValueValidation),
        (set(&["--task", "f", "-q", "p/w"]), ErrorKind::ArgumentConflict),
        (set(&["--task", "f", "--unique", "n"]), ErrorKind::ArgumentConflict),
        (set(&["--task", "f", "--", "make"]), ErrorKind::ArgumentConflict),
        (set(&["-q", "p/w", "--on-duplicate", "queue", "--", "make"]), ErrorKind::MissingRequiredArgument),
        (set(&["-q", "p/w", "--catch-up", "some", "--", "make"]), ErrorKind::ValueValidation),
        (set(&["-q", "p/w", "--deadline-after", "soon", "--", "make"]), ErrorKind::ValueValidation),
        (vec!["run", "nightly"], ErrorKind::InvalidSubcommand),
    ] {
        assert_eq!(parse(&words).err(), Some(kind), "{words:?}");
    }
    for verb in ["show", "trigger", "pause", "resume", "delete"] {
        assert!(parse(&[verb, "nightly"]).is_ok(), "{verb}");
    }
}

fn nightly() -> Value {
    json!({
        "name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "paused": false, "catchUp": "last",
        "clientId": "root", "next": ["N1", "N2"], "last": {"at": "L", "outcome": "created", "taskId": "T"},
        "task": {"taskQueueId": "p/w", "payload": {"n": 1}, "options": {"unique": "u"}},
    })
}

#[test]
fn schedule_is_shown_with_next_times_and_last_outcome() {
    let mut schedule = nightly();
    let text = shown(&schedule);
    let expected = [
        "schedule  nightly",
        "cron      0 3 * * *",
        "timezone  Europe/Berlin",
        "paused    no",
        "queue     p/w",
        "payload   {\"n\":1}",
        "unique    u",
        "catch up  last",
        "client    root",
        "next      N1",
        "next      N2",
        "last      L created, task T",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    schedule["last"] = json!({"at": "L", "outcome": "failed"});
    schedule["error"] = json!("the client\nhas no scope");
    schedule["paused"] = json!(true);
    let text = shown(&schedule);
    assert!(text.contains("paused    yes\n"), "{text}");
    assert!(text.ends_with("last      L failed\nerror     the client\u{fffd}has no scope\n"), "{text}");
}

#[test]
fn schedules_are_listed_in_a_table() {
    let new = json!({"name": "new", "cron": "@daily", "timezone": "UTC", "paused": true, "next": []});
    let text = rows(&[nightly(), new]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "SCHEDULE  CRON       TIMEZONE       NEXT    LAST  OUTCOME  TASK");
    assert_eq!(lines[1], "nightly   0 3 * * *  Europe/Berlin  N1      L     created  T");
    assert_eq!(lines[2], "new       @daily     UTC            paused  -     -        -");
}
