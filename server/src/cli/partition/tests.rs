//! Arguments and output of `tenure partition`.

use clap::Parser;
use clap::error::ErrorKind;

use super::*;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(subcommand)]
    partition: PartitionCommand,
}

fn parse(words: &[&str]) -> Result<PartitionCommand, ErrorKind> {
    let parsed = Tenure::try_parse_from(["partition"].iter().chain(words));
    parsed.map(|tenure| tenure.partition).map_err(|error| error.kind())
}

fn stored(words: &[&str]) -> Value {
    let Ok(PartitionCommand::Set(args)) = parse(words) else { panic!("{words:?} is a partition group") };
    settings(&args)
}

#[test]
fn settings_are_sent_only_if_given() {
    assert_eq!(stored(&["set", "mail"]), json!({}));
    let both = ["set", "mail", "--interval", "1m", "--drain-timeout", "90"];
    assert_eq!(stored(&both), json!({"interval": 60, "drainTimeout": 90}));
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for (words, kind) in [
        (vec!["set"], ErrorKind::MissingRequiredArgument),
        (vec!["show"], ErrorKind::MissingRequiredArgument),
        (vec!["set", "mail", "--interval", "soon"], ErrorKind::ValueValidation),
        (vec!["pause", "mail"], ErrorKind::InvalidSubcommand),
    ] {
        assert_eq!(parse(&words).err(), Some(kind), "{words:?}");
    }
}

#[test]
fn group_is_shown_with_its_members() {
    let group = json!({"name": "mail", "interval": 10, "drainTimeout": 0, "state": "draining", "epoch": 3, "replicas": 2,
        "next": {"replicas": 1, "epoch": 4, "since": "2026-08-01T00:00:00.000Z"},
        "members": [{"memberId": "one", "index": 0, "nextIndex": 0, "draining": true, "number": 7,
            "validUntil": "2026-08-01T00:00:20.000Z"}]});
    let text = shown(&group);
    for line in ["partition       mail\n", "shares          2\n", "interval        10s\n", "next shares     1\n"] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let member = text.lines().next_back().unwrap();
    assert!(member.starts_with("one ") && member.contains("draining"), "{text}");
}
