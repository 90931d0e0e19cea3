//! Arguments, refusals and output of the commands.

use clap::Parser;
use clap::error::ErrorKind;

use super::create::{created as listing, definition};
use super::*;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(subcommand)]
    task: TaskCommand,
}

const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";
const OTHER: &str = "-hrBC1jMQ3KlZw4CssPUeQ";

fn parse(words: &[&str]) -> Result<TaskCommand, ErrorKind> {
    Tenure::try_parse_from(["task"].iter().chain(words)).map(|tenure| tenure.task).map_err(|error| error.kind())
}

fn created(words: &[&str]) -> Value {
    let Ok(TaskCommand::Create(args)) = parse(&[&["create", "-q", "p/w"], words].concat()) else {
        panic!("{words:?} is a task")
    };
    definition(&args, args.options.deadline.map(|deadline| deadline.time(tenure_engine::clock::real_now().into())))
}

#[test]
fn command_becomes_task_with_command_payload() {
    let plain = json!({"taskQueueId": "p/w", "payload": {"command": [["make", "-j2"]]}});
    assert_eq!(created(&["--", "make", "-j2"]), plain);
    let options = ["--name", "n", "--priority", "high", "--retries", "1", "--deadline", "2027-01-31T12:00:00Z"];
    let full = created(&[&options[..], &["--after", ID, "--", "make"]].concat());
    assert_eq!(
        full,
        json!({
            "taskQueueId": "p/w", "payload": {"command": [["make"]]}, "metadata": {"name": "n"}, "priority": "high",
            "retries": 1, "deadline": "2027-01-31T12:00:00.000Z", "dependencies": [ID],
        })
    );
    let named = created(&["--unique", "nightly", "--", "make"]);
    assert_eq!(named["options"], json!({"unique": "nightly"}));
    let named = created(&["--unique", "nightly", "--on-duplicate", "coalesce", "--", "make"]);
    assert_eq!(named["options"], json!({"unique": "nightly", "onDuplicate": "coalesce"}));
    let soon: Timestamp =
        serde_json::from_value(created(&["--deadline", "2h", "--", "x"])["deadline"].clone()).unwrap();
    let minutes = (soon.time() - tenure_engine::clock::real_now()).num_minutes();
    assert!((118..=120).contains(&minutes), "{minutes}");
}

#[test]
fn options_become_fields_of_task_and_payload() {
    let words = [
        "--group",
        OTHER,
        "--delay",
        "1h",
        "--key",
        "acme",
        "--max-run-time",
        "10m",
        "--env",
        "A=1",
        "--env",
        "B=x=y",
        "--input",
        &format!("{ID}/public/in.tar"),
        "--input",
        &format!("{OTHER}/a=in/a"),
        "--after",
        ID,
        "--artifact",
        "out/=public/out",
        "--artifact",
        "sum.txt",
        "--",
        "make",
    ];
    let expected = json!({
        "taskQueueId": "p/w", "taskGroupId": OTHER, "dependencies": [ID, OTHER],
        "options": {"delay": 3_600, "key": "acme"},
        "payload": {
            "command": [["make"]], "env": {"A": "1", "B": "x=y"}, "maxRunTime": 600,
            "inputs": [
                {"taskId": ID, "artifact": "public/in.tar", "path": "in.tar"},
                {"taskId": OTHER, "artifact": "a", "path": "in/a"},
            ],
            "artifacts": [
                {"path": "out", "name": "public/out", "type": "directory"},
                {"path": "sum.txt", "name": "sum.txt", "type": "file"},
            ],
        },
    });
    assert_eq!(created(&words), expected);
    let later = created(&["--delay", "2027-01-31T12:00:00Z", "--", "make"]);
    assert_eq!(later["options"], json!({"notBefore": "2027-01-31T12:00:00.000Z"}));
}

#[test]
fn run_passes_its_options_on() {
    let words = ["run", "-q", "p/w", "--unique", "wait", "--on-duplicate", "queue", "--retries", "1", "--", "make"];
    let Ok(TaskCommand::Run(args)) = parse(&words) else { panic!("a task") };
    let expected = json!({"taskQueueId": "p/w", "payload": {"command": [["make"]]}, "retries": 1,
        "options": {"unique": "wait", "onDuplicate": "queue"}});
    assert_eq!(definition(&CreateArgs::from(*args), None), expected);
}

#[test]
fn existing_task_is_told_from_new_one() {
    let task = |n: usize| json!({"taskId": format!("T{n}"), "status": {"state": "pending"}});
    let mut existing = task(2);
    existing["deduplicated"] = json!(true);
    let text = listing(&json!({"taskGroupId": "G", "tasks": [task(1), existing]}));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "group G");
    assert_eq!(lines[2..], ["T1    pending             -", "T2    pending (existing)  -"]);
}

#[test]
fn queue_may_be_short_and_refusal_suggests_a_name() {
    let Ok(TaskCommand::Create(args)) = parse(&["create", "-q", "mail", "--", "true"]) else { panic!("a short name") };
    assert_eq!(definition(&args, None)["taskQueueId"], "default/mail");
    let refused =
        Tenure::try_parse_from(["task", "run", "-q", "web/send_email", "--", "true"]).unwrap_err().to_string();
    assert!(refused.contains("a-z, 0-9 and -") && refused.contains("Try \"web/send-email\""), "{refused}");
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for (words, kind) in [
        (&["create", "-q", "p/w"][..], ErrorKind::MissingRequiredArgument),
        (&["create", "--", "true"], ErrorKind::MissingRequiredArgument),
        (&["create", "-q", "p_w", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--priority", "urgent", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--deadline", "soon", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--after", "x", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--file", "x"], ErrorKind::ArgumentConflict),
        (&["create", "--file", "x", "--", "true"], ErrorKind::ArgumentConflict),
        (&["create", "--file", "x", "--unique", "n"], ErrorKind::ArgumentConflict),
        (&["create", "--file", "x", "--env", "A=1"], ErrorKind::ArgumentConflict),
        (&["create", "-q", "p/w", "--env", "A", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--input", ID, "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--artifact", "/", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--max-run-time", "long", "--", "true"], ErrorKind::ValueValidation),
        (&["create", "-q", "p/w", "--cancel-on-interrupt", "--", "true"], ErrorKind::UnknownArgument),
        (&["artifacts"], ErrorKind::MissingRequiredArgument),
        (&["download", ID], ErrorKind::MissingRequiredArgument),
        (&["create", "-q", "p/w", "--on-duplicate", "queue", "--", "true"], ErrorKind::MissingRequiredArgument),
        (&["run", "-q", "p/w", "--unique", "n", "--on-duplicate", "x", "--", "true"], ErrorKind::ValueValidation),
        (&["run", "-q", "p/w"], ErrorKind::MissingRequiredArgument),
        (&["run", "-q", "p/w", "--wait", "--", "true"], ErrorKind::UnknownArgument),
        (&["logs"], ErrorKind::MissingRequiredArgument),
        (&["logs", ID, "--run", "x"], ErrorKind::ValueValidation),
        (&["list", "--group", ID, "--state", "done"], ErrorKind::ValueValidation),
        (&["wait"], ErrorKind::MissingRequiredArgument),
        (&["wait", "x"], ErrorKind::ValueValidation),
        (&["list", "--state", "done"], ErrorKind::ValueValidation),
        (&["list", "--tag", "nightly"], ErrorKind::ValueValidation),
        (&["list", "--worker", "linux-1"], ErrorKind::ValueValidation),
        (&["list", "--since", "soon"], ErrorKind::ValueValidation),
        (&["list", "--limit", "0"], ErrorKind::ValueValidation),
        (&["list", "--until", "soon"], ErrorKind::ValueValidation),
        (&["list", "--group", ID, "--since", "2h"], ErrorKind::ArgumentConflict),
        (&["list", "--group", ID, "--project", "acme"], ErrorKind::ArgumentConflict),
        (&["why"], ErrorKind::MissingRequiredArgument),
        (&["release", ID], ErrorKind::MissingRequiredArgument),
        (&["release", ID, "0", "--delay", "soon"], ErrorKind::ValueValidation),
        (&["release", ID, "0", "--not-before", "2h"], ErrorKind::ValueValidation),
        (&["release", ID, "0", "--delay", "3", "--not-before", "2027-01-31T12:00:00Z"], ErrorKind::ArgumentConflict),
        (&["result", ID, "--run", "x"], ErrorKind::ValueValidation),
        (&["command"], ErrorKind::MissingRequiredArgument),
        (&["command", ID, "dance"], ErrorKind::ValueValidation),
        (&["command", ID, "{\"command\": \"pause\"}"], ErrorKind::ValueValidation),
        (&["command", ID, "sleep", "--until", "soon"], ErrorKind::ValueValidation),
        (&["command", ID, "--until", "2h"], ErrorKind::MissingRequiredArgument),
        (&["rename"], ErrorKind::InvalidSubcommand),
    ] {
        assert_eq!(parse(words).err(), Some(kind), "{words:?}");
    }
    for words in [
        &["create", "--file", "-", "--wait"][..],
        &["run", "-q", "p/w", "--cancel-on-interrupt", "--", "true"],
        &["artifacts", OTHER, "--run", "0"],
        &["download", OTHER, "public/x", "-o", "-"],
        &["command", ID],
        &["list"],
        &["list", "--queue", "mail", "--state", "held", "--tag", "kind=a=b", "--since", "2h", "--limit", "5"],
        &["show", "9HrBC1jM"],
        &["wait", ID, "9HrBC1jM"],
        &["command", "-hrBC1jMQ3KlZw4CssPUeQ", "sleep", "--until", "2h"],
    ] {
        assert!(parse(words).is_ok(), "{words:?}");
    }
}

#[test]
fn run_is_released_now_or_with_delay() {
    for (words, expected) in [
        (&[][..], ReleaseRequest::default()),
        (&["--delay", "30"], ReleaseRequest { delay: Some(30), not_before: None }),
        (&["--delay", "2h"], ReleaseRequest { delay: Some(7_200), not_before: None }),
    ] {
        let parsed = parse(&[&["release", ID, "3"], words].concat());
        let Ok(TaskCommand::Release(ReleaseArgs { run, delay, not_before, .. })) = parsed else { panic!("{words:?}") };
        assert_eq!((run.number(), ReleaseRequest { delay, not_before }), (3, expected));
    }
}

#[test]
fn short_option_precedes_or_follows_dashed_id() {
    let id = "-hrBC1jMQ3KlZw4CssPUeQ";
    for words in [&["logs", "-f", id][..], &["logs", id, "-f"], &["logs", id, "--follow"], &["log", id, "--follow"]] {
        let Ok(TaskCommand::Logs(args)) = parse(words) else { panic!("{words:?}") };
        assert!(args.follow && args.task.to_string() == id);
    }
}

#[test]
fn option_value_is_no_command() {
    let sheltered = |line: &str| {
        let words = shelter_ids(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    for (line, expected) in [
        (
            format!("tenure task create -q p/w --name wait --after {ID} {ID} -- make"),
            format!("tenure task create -q p/w --name wait --after {ID} --after {ID} -- make"),
        ),
        (
            "tenure task run -q p/w --after 9HrBC1jM 9HrBC1jN --unique n -- make".to_owned(),
            "tenure task run -q p/w --after 9HrBC1jM --after 9HrBC1jN --unique n -- make".to_owned(),
        ),
        (
            format!("tenure task --root-url cancel wait {ID} --json"),
            format!("tenure task --root-url cancel wait --json -- {ID}"),
        ),
        (format!("tenure task --json rerun {ID}"), format!("tenure task --json rerun -- {ID}")),
        (format!("tenure task --root-url wait show {ID}"), format!("tenure task --root-url wait show {ID}")),
    ] {
        assert_eq!(sheltered(&line), expected);
    }
}
