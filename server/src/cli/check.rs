//! `tenure serve --check`: checks the settings and prints each one with its value and source. It
//! creates, opens and connects to nothing.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory as _};

use super::command::Cli;
use super::print::{finish, plain};
use super::task::shelter_ids;
use super::wrong;
use crate::config::{MASK, Origin, Secret, ServeArgs, SettingError, Settings, masked_url};
use crate::telemetry;
use tenure_embedded as embedded;

enum Source {
    Flag,
    Environment(String),
    File(PathBuf),
    Credentials,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Credentials => f.write_str("credentials directory"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// `words` is the command line that `args` was parsed from.
pub(super) fn run(args: &ServeArgs, words: &[OsString]) -> ExitCode {
    match report(args, words) {
        Ok(text) => finish(&text),
        Err(error) => wrong(error),
    }
}

/// Returns a line per setting, `name = value (source)`, in the order of `tenure serve --help`.
pub(super) fn report(args: &ServeArgs, words: &[OsString]) -> Result<String, SettingError> {
    let settings = args.settings()?;
    let command = Cli::command();
    let matches = command.clone().try_get_matches_from(shelter_ids(words.to_vec()));
    let matches = matches.expect("this command line was parsed before");
    let (name, matches) = matches.subcommand().expect("a command line has a command");
    let serve = command.find_subcommand(name).expect("the parsed command exists");
    let mut lines = Vec::new();
    for arg in serve.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "check" | "help")) {
        let (value, source) = value_of(arg, args, &settings, matches)?;
        let name = arg.get_long().unwrap_or(arg.get_id().as_str());
        lines.push(format!("{name} = {} ({source})\n", plain(&value)));
    }
    let (filter, source) = match telemetry::given_filter() {
        Some(filter) => (filter.to_string_lossy().into_owned(), Source::Environment(telemetry::FILTER.to_owned())),
        None => (telemetry::DEFAULT_FILTER.to_owned(), Source::Default),
    };
    lines.push(format!("log = {} ({source})\n", plain(&filter)));
    Ok(lines.concat())
}

fn value_of(
    arg: &Arg,
    args: &ServeArgs,
    settings: &Settings,
    matches: &ArgMatches,
) -> Result<(String, Source), SettingError> {
    let id = arg.get_id().as_str();
    let given = matches.get_raw(id).and_then(Iterator::last).map(|value| value.to_string_lossy().into_owned());
    // An empty value counts as absent.
    let given = given.filter(|value| !value.is_empty());
    let source = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => Source::Flag,
        Some(ValueSource::EnvVariable) => {
            Source::Environment(arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
        }
        _ => Source::Default,
    };
    let found = match id {
        "database_url" => args.database.url()?.map(|url| (masked_url(&url.text), source_of(url, source))),
        "secret_key" => args.secret_key.find()?.map(|key| (MASK.to_owned(), source_of(key, source))),
        "metrics_token" => given.map(|_| (MASK.to_owned(), source)),
        _ => given.map(|value| (value, source)),
    };
    Ok(found.unwrap_or_else(|| (default_of(id, settings), Source::Default)))
}

fn source_of(secret: Secret, source: Source) -> Source {
    match secret.origin {
        Origin::Value => source,
        Origin::File(path) => Source::File(path),
        Origin::Credential(_) => Source::Credentials,
    }
}

/// Returns the effective value of a setting whose default is not a constant.
fn default_of(id: &str, settings: &Settings) -> String {
    match id {
        "root_url" if settings.listen.port() == 0 => "http:// and the listen address".to_owned(),
        "root_url" => settings.root_url(settings.listen),
        "database_url" => "none: a PostgreSQL of its own in the data directory".to_owned(),
        "pg_bin" => "PATH and the usual directories".to_owned(),
        "artifacts_url" => settings.artifacts.place.to_string(),
        "hot_sessions" => settings.hot_sessions.count().to_string(),
        "connections_max" => "10000, or as many as the limit of open files allows".to_owned(),
        "server_name" if settings.listen.port() == 0 => "machine name and listen port".to_owned(),
        "server_name" => settings.scheduler.name(settings.listen),
        "secret_key" => embedded::secret_key_path(&settings.data_dir).display().to_string(),
        _ => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn report_of(flags: &[&str]) -> Result<String, SettingError> {
        let words = ["tenure", "serve", "--check"].iter().chain(flags);
        let words: Vec<OsString> = words.map(OsString::from).collect();
        let Command::Serve(args) = Cli::read(words.clone()).ok().unwrap().command else { panic!("serve expected") };
        report(&args, &words)
    }

    #[track_caller]
    fn has_lines(report: &str, lines: &[&str]) {
        for line in lines {
            assert!(report.lines().any(|one| one == *line), "{line:?} is missing:\n{report}");
        }
    }

    #[test]
    fn report_lists_each_setting_once() {
        let report = report_of(&["--claim-timeout", "90s", "--root-url", ""]).unwrap();
        let expected = [
            "listen = 127.0.0.1:8080 (default)",
            "root-url = http://127.0.0.1:8080 (default)",
            "database-url = none: a PostgreSQL of its own in the data directory (default)",
            "data-dir = ./tenure-data (default)",
            "artifacts-url = ./tenure-data/artifacts (default)",
            "claim-timeout = 90s (flag)",
            "secret-key = ./tenure-data/secret-key (default)",
            "secret-key-file = none (default)",
            "metrics-token = none (default)",
            "drain-delay = 0s (default)",
        ];
        has_lines(&report, &expected);
        let names: Vec<&str> = report.lines().map(|line| line.split(" = ").next().unwrap()).collect();
        let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len(), "{report}");
        assert!(!distinct.contains("check") && distinct.contains("log"), "{report}");
    }

    #[test]
    fn report_masks_secrets_and_names_files() {
        let url = "postgres://me:hunter2@db.example.com/tenure";
        let report = report_of(&["--database-url", url, "--secret-key", KEY, "--metrics-token", "hunter2"]).unwrap();
        assert!(!report.contains("hunter2") && !report.contains(KEY), "{report}");
        let expected = [
            "database-url = postgres://me:***@db.example.com/tenure (flag)",
            "secret-key = *** (flag)",
            "metrics-token = *** (flag)",
        ];
        has_lines(&report, &expected);

        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{KEY}\n")).unwrap();
        let path = file.path().to_str().unwrap();
        let report = report_of(&["--secret-key-file", path]).unwrap();
        assert!(!report.contains(KEY), "{report}");
        let expected = [format!("secret-key = *** (file {path})"), format!("secret-key-file = {path} (flag)")];
        has_lines(&report, &[&expected[0], &expected[1]]);
    }

    #[test]
    fn refused_value_is_named() {
        let error = report_of(&["--claim-timeout", "6d"]).unwrap_err().to_string();
        assert!(error.starts_with("--claim-timeout (TENURE_CLAIM_TIMEOUT) is '6d': "), "{error}");
        let error = report_of(&["--secret-key-file", "/missing/key"]).unwrap_err().to_string();
        assert!(error.starts_with("--secret-key-file (TENURE_SECRET_KEY_FILE) is '/missing/key': "), "{error}");
    }
}
