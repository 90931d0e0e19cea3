//! Wrong arguments and settings are refused in one line that names the fix.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::cli::backup::BackupCommand;
use crate::config::{ClockMode, Database, Settings};
use tenure_engine::route::HotSessions;

/// In seconds.
const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER_KEY: &str = "//////////////////////////////////////////8=";
const URL: &str = "postgres://me:hunter2@db.example.com/tenure";

fn read(args: &[&str]) -> Result<Cli, Usage> {
    let args = ["tenure"].iter().chain(args);
    Cli::read(args.map(OsString::from))
}

fn settings(flags: &[&str]) -> Result<Settings, Usage> {
    let args: Vec<&str> = ["serve"].iter().chain(flags).copied().collect();
    let Command::Serve(serve) = read(&args)?.command else { panic!("serve expected") };
    Ok(serve.settings()?)
}

#[track_caller]
fn refused(flags: &[&str], parts: &[&str]) {
    let Err(Usage::Wrong(line)) = settings(flags) else { panic!("{flags:?} was accepted") };
    assert!(!line.contains('\n') && !line.contains("hunter2") && !line.contains(KEY), "{line}");
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}

#[test]
fn default_settings_are_unchanged() {
    let settings = settings(&[]).ok().unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.root_url(settings.listen), "http://127.0.0.1:8080");
    assert_eq!(settings.claim_timeout, Duration::from_secs(20 * MINUTE));
    assert_eq!(settings.claim_work_wait, Duration::from_secs(20));
    assert_eq!(settings.message_visibility, Duration::from_secs(5 * MINUTE));
    assert_eq!(settings.poll_reservation, Duration::from_secs(2));
    assert_eq!(settings.event_retention, Duration::from_secs(7 * DAY));
    assert_eq!(settings.audit_retention, Duration::from_secs(400 * DAY));
    assert_eq!(settings.deliveries.hold, Duration::from_secs(5 * DAY));
    assert!(settings.deliveries.deliver_to.is_empty());
    assert_eq!(settings.artifacts.place.to_string(), "./tenure-data/artifacts");
    assert_eq!(settings.artifacts.size_max, 10 << 30);
    assert_eq!(settings.clock, ClockMode::Database);
    assert!(settings.secret_keys.is_none());
    assert_eq!(settings.drain_delay, Duration::ZERO);
    assert!(matches!(settings.database, Database::Embedded(embedded) if embedded.data_dir.ends_with("tenure-data")));
}

#[test]
fn unconnectable_address_needs_root_url() {
    for listen in ["0.0.0.0:80", "[::]:80"] {
        refused(&["--listen", listen], &["--listen", listen, "--root-url"]);
        let with_root = settings(&["--listen", listen, "--root-url", "https://tenure.example.com"]).ok().unwrap();
        assert_eq!(with_root.root_url(with_root.listen), "https://tenure.example.com");
    }
    let any_port = settings(&["--listen", "127.0.0.1:0"]).ok().unwrap();
    assert_eq!(any_port.root_url("127.0.0.1:4711".parse().unwrap()), "http://127.0.0.1:4711");
    refused(&["--listen", "localhost"], &["--listen", "localhost"]);
}

#[test]
fn malformed_root_url_is_refused() {
    for (url, fix) in [
        ("tenure.example.com", "http://"),
        ("ftp://tenure.example.com", "http://"),
        ("http://tenure.example.com/", "slash"),
        ("http://tenure.example.com?x=1", "?"),
        ("http://tenure.example.com#x", "#"),
        ("http://user@tenure.example.com", "without a user"),
        ("http://", "with a host"),
        ("http://127.0.0.1:99999", "port"),
        ("http://tenure.example.com:0", "port"),
        ("http://tenure.example.com:", "port"),
        ("http://[::1]:70000", "port"),
        ("http:// x", "without a user"),
    ] {
        refused(&["--root-url", url], &["--root-url", url, fix]);
    }
}

#[test]
fn manual_clock_needs_loopback() {
    assert_eq!(settings(&["--clock", "manual"]).ok().unwrap().clock, ClockMode::Manual);
    assert_eq!(settings(&["--clock", "manual", "--listen", "[::1]:0"]).ok().unwrap().clock, ClockMode::Manual);
    refused(&["--clock", "manual", "--listen", "192.0.2.1:80"], &["--clock", "manual", "loopback"]);
    refused(&["--clock", "sundial"], &["--clock", "sundial", "database, manual"]);
}

#[test]
fn external_database_needs_secret_key() {
    refused(&["--database-url", URL], &["--secret-key", "openssl"]);
    refused(&["--database-url", "mysql://me:hunter2@x/y"], &["--database-url", "postgres://"]);
    refused(&["--database-url", "postgres://me:hunter2@x:nan/y"], &["--database-url", "postgres://"]);
    let external = settings(&["--database-url", URL, "--secret-key", KEY]).ok().unwrap();
    let Database::External(hosts) = external.database else { panic!("external expected") };
    assert_eq!(hosts.get(0).get_host(), "db.example.com");
}

#[test]
fn each_secret_key_is_32_bytes() {
    let both = format!("{OTHER_KEY},{KEY}");
    assert!(settings(&["--secret-key", &both]).ok().unwrap().secret_keys.is_some());
    for (value, which) in [("c2hvcnQ=", "number 1"), (",", "number 1"), ("not base64!", "number 1")] {
        refused(&["--secret-key", value], &["--secret-key", which]);
    }
    refused(&["--secret-key", &format!("{KEY},x")], &["--secret-key", "number 2"]);
}

#[test]
fn secrets_in_files_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (url, key) = (write("url", &format!("{URL}\n")), write("key", &format!("{OTHER_KEY},{KEY}\r\n")));
    let given = settings(&["--database-url-file", &url, "--secret-key-file", &key]).ok().unwrap();
    let Database::External(hosts) = given.database else { panic!("external expected") };
    assert_eq!(hosts.get(0).get_host(), "db.example.com");
    let keys = given.secret_keys.unwrap();
    assert_eq!(keys.source_name, format!("the file {key} of --secret-key-file (TENURE_SECRET_KEY_FILE)"));
    let flag_wins = settings(&["--secret-key", KEY, "--secret-key-file", "/missing"]).ok().unwrap();
    assert_eq!(flag_wins.secret_keys.unwrap().source_name, "--secret-key (TENURE_SECRET_KEY)");

    let (wrong_url, wrong_key) = (write("wrong-url", "mysql://me:hunter2@x/y"), write("wrong-key", "hunter2"));
    refused(&["--database-url-file", &wrong_url], &["--database-url-file", &wrong_url, "postgres://"]);
    refused(&["--secret-key-file", &wrong_key], &["--secret-key-file", &wrong_key, "number 1"]);
    refused(&["--database-url-file", &url], &["--secret-key", "is missing"]);
    refused(&["--secret-key-file", ""], &["--secret-key-file", "needs a value"]);
}

#[test]
fn webhooks_reach_listed_networks() {
    let given = settings(&["--deliver-to", "10.20.0.0/16, ::1", "--subscription-hold", "1d"]).ok().unwrap().deliveries;
    assert!(given.deliver_to.lists("10.20.3.4".parse().unwrap()) && given.deliver_to.lists("::1".parse().unwrap()));
    assert_eq!(given.hold, Duration::from_secs(DAY));
    assert!(settings(&["--deliver-to", ""]).ok().unwrap().deliveries.deliver_to.is_empty());
    for wrong in ["localhost", "10.0.0.0/33", "10.0.0.0/8;::1"] {
        refused(&["--deliver-to", wrong], &["--deliver-to", wrong, "10.20.0.0/16"]);
    }
    refused(&["--subscription-hold", "31d"], &["--subscription-hold", "1m and 30d"]);
}

#[test]
fn durations_have_units_and_limits() {
    assert_eq!(settings(&["--claim-timeout", "90s"]).ok().unwrap().claim_timeout, Duration::from_secs(90));
    refused(&["--claim-timeout", "90"], &["--claim-timeout", "'90'", "90s"]);
    refused(&["--claim-timeout", "6d"], &["--claim-timeout", "'6d'", "100ms and 5d"]);
    refused(&["--message-visibility", "0s"], &["--message-visibility", "'0s'", "100ms and 7d"]);
    refused(&["--claim-work-wait", "1h"], &["--claim-work-wait", "'1h'", "10m"]);
    assert_eq!(settings(&["--drain-delay", "15s"]).ok().unwrap().drain_delay, Duration::from_secs(15));
    refused(&["--drain-delay", "15"], &["--drain-delay", "'15'", "90s"]);
    refused(&["--drain-delay", "11m"], &["--drain-delay", "TENURE_DRAIN_DELAY", "'11m'", "0s and 10m"]);
}

#[test]
fn other_usage_errors_are_one_line() {
    refused(&["--colour"], &["--colour", "--help"]);
    refused(&["--root-url"], &["--root-url", "value"]);
    for args in [&["sing"][..], &[], &["client"]] {
        assert!(matches!(read(args), Err(Usage::Wrong(line)) if !line.contains('\n')), "{args:?}");
    }
    for (args, command) in [
        (&["queue", "policy"][..], "tenure queue policy"),
        (&["client", "--data-dir", "/d"], "tenure client"),
        (&[], "tenure"),
    ] {
        let expected = Usage::Wrong(format!("no command given: see {command} --help"));
        assert_eq!(read(args).map(drop).err(), Some(expected), "{args:?}");
    }
    assert!(matches!(read(&["serve", "--help"]), Err(Usage::Answer(_))));
}

#[test]
fn database_options_precede_or_follow_verb() {
    for args in [&["client", "--data-dir", "/d", "list"], &["client", "list", "--data-dir", "/d"]] {
        let Command::Client { database, .. } = read(args).unwrap().command else { panic!("client expected") };
        assert_eq!(database.data_dir, PathBuf::from("/d"));
    }
}

#[test]
fn metrics_queues_out_of_range_are_refused() {
    for wrong in ["0", "10001"] {
        let name = "--metrics-queues (TENURE_METRICS_QUEUES)";
        refused(&["--metrics-queues", wrong], &[name, &format!("'{wrong}'"), "choose between 1 and 10000"]);
    }
    assert_eq!(settings(&[]).ok().unwrap().limits.metrics_queues, 500);
}

#[test]
fn hot_sessions_out_of_range_are_refused() {
    for wrong in ["0", "9"] {
        let name = "--hot-sessions (TENURE_HOT_SESSIONS)";
        refused(&["--hot-sessions", wrong], &[name, &format!("'{wrong}'"), "choose between 1 and 8"]);
    }
    refused(&["--hot-sessions", "some"], &["--hot-sessions", "some"]);
    assert_eq!(settings(&["--hot-sessions", "8"]).ok().unwrap().hot_sessions.count(), 8);
    let default = settings(&[]).ok().unwrap().hot_sessions;
    assert_eq!(default, HotSessions::for_cores(std::thread::available_parallelism().unwrap().get()));
}

#[test]
fn invalid_artifact_location_or_limit_is_refused() {
    refused(&["--artifacts-url", "ftp://x"], &["--artifacts-url", "TENURE_ARTIFACTS_URL", "ftp://x", "s3://"]);
    refused(&["--artifact-size-max", "0"], &["--artifact-size-max", "'0'", "48GiB"]);
    refused(&["--artifact-size-max", "49GiB"], &["--artifact-size-max", "49GiB", "48GiB"]);
    refused(&["--artifact-size-max", "1GB"], &["--artifact-size-max", "1GB", "10GiB"]);
    let given = settings(&["--artifacts-url", "az://c/p", "--artifact-size-max", "5MiB"]).ok().unwrap().artifacts;
    assert_eq!((given.place.to_string().as_str(), given.size_max), ("az://c/p", 5 << 20));
}

#[test]
fn backup_needs_directory_or_verify() {
    let parse = |args: &[&str]| match read(args).map(|cli| cli.command) {
        Ok(Command::Backup { database, backup }) => Ok((database, backup)),
        Ok(other) => panic!("{other:?}"),
        Err(Usage::Wrong(line)) => Err(line),
        Err(Usage::Answer(text)) => panic!("{text}"),
    };
    let (_, backup) = parse(&["backup", "a", "--no-keys"]).unwrap();
    assert!(backup.command.is_none() && backup.no_keys);
    assert_eq!(backup.dir, Some(PathBuf::from("a")));
    let (database, backup) = parse(&["backup", "verify", "a", "--pg-bin", "b"]).unwrap();
    let Some(BackupCommand::Verify { dir }) = backup.command else { panic!("verify expected") };
    assert_eq!((dir, backup.dir, database.pg_bin), (PathBuf::from("a"), None, Some(PathBuf::from("b"))));
    for (args, part) in
        [(&["backup"][..], "DIR"), (&["backup", "verify"][..], "DIR"), (&["backup", "a", "verify"][..], "verify")]
    {
        let line = parse(args).unwrap_err();
        assert!(line.contains(part), "{args:?}: {line}");
    }
}

#[test]
fn connection_options_have_section_of_their_own() {
    let Err(Usage::Answer(help)) = read(&["task", "run", "--help"]) else { panic!("help expected") };
    let (own, connection) = help.split_once("\nConnection:\n").unwrap();
    for option in ["--root-url", "--client-id", "--access-token", "--certificate", "--ca", "--data-dir"] {
        assert!(connection.contains(option) && !own.contains(&format!("{option} ")), "{option}:\n{help}");
    }
    assert!(own.contains("--queue") && own.contains("--json"), "{help}");
}

/// Returns the names of all commands without subcommands, such as `tenure queue policy show`.
fn commands(of: &clap::Command) -> Vec<String> {
    let below: Vec<&clap::Command> = of.get_subcommands().collect();
    let name = of.get_name();
    if below.is_empty() {
        return vec![name.to_owned()];
    }
    below.into_iter().flat_map(commands).map(|rest| format!("{name} {rest}")).collect()
}

#[test]
fn command_line_page_has_every_command() {
    let page = include_str!("../../../../docs/command-line.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `tenure ")?.split('`').next())
        .map(|cell| cell.split([' ', '\\', '|']).filter(|word| !word.is_empty()).collect())
        .collect();
    for command in commands(&<Cli as clap::CommandFactory>::command()) {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let (last, before) = words.split_last().expect("a command has a name");
        let has = |row: &Vec<&str>| row.starts_with(before) && row[before.len()..].contains(last);
        assert!(rows.iter().any(has), "`{command}` is missing in docs/command-line.md");
    }
}

#[test]
fn settings_page_has_every_setting() {
    let page = include_str!("../../../../docs/settings.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| line.split('|').map(str::trim).skip(1).collect())
        .collect();
    let command = <Cli as clap::CommandFactory>::command();
    let serve = command.find_subcommand("serve").unwrap();
    for arg in serve.get_arguments() {
        let flag = format!("`--{}`", arg.get_long().unwrap());
        let row = rows.iter().find(|row| row[0] == flag).unwrap_or_else(|| panic!("{flag} has no row"));
        let variable = arg.get_env().map(|name| format!("`{}`", name.to_str().unwrap())).unwrap_or_default();
        assert_eq!(row[1], variable, "{flag}");
        if let [default] = arg.get_default_values() {
            assert!(row[2].starts_with(&format!("`{}`", default.to_str().unwrap())), "{flag}: {}", row[2]);
        }
    }
    let exists =
        |row: &Vec<&str>| serve.get_arguments().any(|arg| row[0] == format!("`--{}`", arg.get_long().unwrap()));
    for row in &rows {
        assert!(exists(row), "{} does not exist", row[0]);
    }
}
