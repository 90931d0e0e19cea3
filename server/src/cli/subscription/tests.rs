//! Arguments and output of `tenure subscription`.

use clap::Parser;
use clap::error::ErrorKind;

use super::*;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(subcommand)]
    subscription: SubscriptionCommand,
}

fn parse(words: &[&str]) -> Result<SubscriptionCommand, ErrorKind> {
    let parsed = Tenure::try_parse_from(["subscription"].iter().chain(words));
    parsed.map(|tenure| tenure.subscription).map_err(|error| error.kind())
}

fn stored(words: &[&str]) -> Value {
    let Ok(SubscriptionCommand::Set(args)) = parse(words) else { panic!("{words:?} is a subscription") };
    definition(&args).unwrap()
}

#[test]
fn subscription_has_receiver_and_filters() {
    let url = ["set", "billing", "--url", "https://example.com/hook"];
    assert_eq!(stored(&url), json!({"to": {"webhook": {"url": "https://example.com/hook"}}}));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "whsec_abc\n").unwrap();
    let what = ["--exchange", "task-completed", "--exchange", "task-failed", "--routing-key-pattern", "primary.#"];
    let how = ["--route", "index.*", "--after", "7", "--result", "--batch", "100", "--give-up-after", "2d"];
    let secret = ["--secret-file", file.to_str().unwrap()];
    let full = json!({"to": {"webhook": {"url": "https://example.com/hook", "secret": "whsec_abc"}},
        "exchange": ["task-completed", "task-failed"], "routingKeyPattern": "primary.#", "route": "index.*", "after": 7,
        "result": true, "batch": 100, "giveUpAfter": 172_800});
    assert_eq!(stored(&[&url[..], &what, &how, &secret].concat()), full);
    assert_eq!(stored(&[&url[..], &["--after", "latest"]].concat())["after"], "latest");
}

#[test]
fn broker_has_a_url_and_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    let url = "amqps://user:password@broker.example/vhost";
    std::fs::write(&file, format!("{url}\n")).unwrap();
    let words = ["set", "pulse", "--url-file", file.to_str().unwrap(), "--prefix", "prod/"];
    assert_eq!(stored(&words), json!({"to": {"amqp": {"url": url, "prefix": "prod/"}}}));
    let shown = shown(&json!({"to": {"amqp": {"url": "amqps://broker.example/vhost", "prefix": "prod/"}}}));
    assert!(shown.contains("amqps://broker.example/vhost") && shown.contains("prod/"), "{shown}");
    assert_eq!(parse(&["set", "pulse", "--url", url, "--url-file", "-"]).err(), Some(ErrorKind::ArgumentConflict));
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let set = |words: &'static [&'static str]| [&["set", "billing", "--url", "https://example.com/"], words].concat();
    for (words, kind) in [
        (vec!["show"], ErrorKind::MissingRequiredArgument),
        (vec!["set", "billing"], ErrorKind::MissingRequiredArgument),
        (set(&["--after", "newest"]), ErrorKind::ValueValidation),
        (set(&["--batch", "many"]), ErrorKind::ValueValidation),
        (set(&["--give-up-after", "soon"]), ErrorKind::ValueValidation),
        (vec!["pause", "billing"], ErrorKind::InvalidSubcommand),
    ] {
        assert_eq!(parse(&words).err(), Some(kind), "{words:?}");
    }
    for verb in ["show", "test", "resume", "delete"] {
        assert!(parse(&[verb, "billing"]).is_ok(), "{verb}");
    }
    for after in ["latest", "0"] {
        assert!(parse(&["resume", "billing", "--after", after]).is_ok(), "{after}");
    }
}

fn billing() -> Value {
    json!({
        "name": "billing", "to": {"webhook": {"url": "https://example.com/", "secret": "***"}}, "result": false,
        "batch": 1, "giveUpAfter": 432_000, "state": "active", "position": 7, "lagEvents": 2, "lagSeconds": 1.5,
        "lastSuccess": "L", "clientId": "root", "exchange": ["task-completed", "task-failed"],
    })
}

#[test]
fn subscription_is_shown_with_state_and_error() {
    let mut subscription = billing();
    let text = shown(&subscription);
    for line in [
        "subscription    billing\n",
        "exchanges       task-completed, task-failed\n",
        "gives up after  432000s\n",
        "behind          2 events, 2s\n",
        "last success    L\n",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    assert!(!text.contains("error"), "{text}");
    subscription["lastError"] = json!("the receiver\nanswered 500");
    subscription["suspendedBy"] = json!("age");
    let text = shown(&subscription);
    assert!(text.ends_with("suspended by    age\nerror           the receiver\u{fffd}answered 500\n"), "{text}");
}

#[test]
fn subscriptions_are_listed_in_a_table() {
    let text = rows(&[billing()]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "SUBSCRIPTION  STATE   BEHIND  BY  LAST SUCCESS  URL                   ERROR");
    assert_eq!(lines[1], "billing       active  2       2s  L             https://example.com/  -");
}

#[test]
fn test_result_says_what_the_receiver_answered() {
    let accepted = tested(&json!({"delivered": true, "status": 204, "milliseconds": 38}));
    assert_eq!(accepted, "The receiver accepted the message with status 204 in 38 ms.");
    let refused = json!({"delivered": false, "status": 401, "error": "the receiver answered 401", "body": "who?",
        "milliseconds": 38});
    let refused = tested(&refused);
    assert_eq!(refused, "The message was not accepted after 38 ms: the receiver answered 401\nwho?");
}
