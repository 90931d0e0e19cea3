//! Errors of the command line in one line each.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::print::{complain, print};
use super::task;
use crate::config::SettingError;

/// Text to print instead of running, with its exit code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Usage {
    /// Help or the version was requested: standard output, exit code 0.
    Answer(String),
    /// One line for standard error, exit code 2.
    Wrong(String),
}

impl Usage {
    pub(super) fn from_clap(error: &clap::Error, args: &[OsString]) -> Self {
        let context = |kind| error.get(kind).map(one_value);
        let argument = context(ContextKind::InvalidArg).unwrap_or_default();
        let wrong = |text: String| Self::Wrong(text.split_whitespace().collect::<Vec<_>>().join(" "));
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Answer(error.to_string()),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                wrong(format!("no command given: see {} --help", command_of(&error.to_string())))
            }
            ErrorKind::ValueValidation => {
                let value = context(ContextKind::InvalidValue).unwrap_or_default();
                let reason = error.source().map(ToString::to_string).unwrap_or_default();
                wrong(format!("{argument} is '{value}': {reason}"))
            }
            ErrorKind::InvalidValue => {
                let value = context(ContextKind::InvalidValue).unwrap_or_default();
                match context(ContextKind::ValidValue).filter(|choices| !choices.is_empty()) {
                    Some(choices) => wrong(format!("{argument} is '{value}': choose one of {choices}")),
                    None => wrong(format!("{argument} needs a value")),
                }
            }
            ErrorKind::UnknownArgument => match (context(ContextKind::SuggestedArg), command_without_dashes(args)) {
                (Some(meant), _) if !meant.is_empty() => {
                    wrong(format!("unknown argument '{argument}': did you mean {meant}? See --help for all of them"))
                }
                (_, Some(fix)) => wrong(format!("unknown argument '{argument}': {fix}")),
                _ => wrong(format!("unknown argument '{argument}': see --help for all of them")),
            },
            ErrorKind::InvalidSubcommand => {
                let given = context(ContextKind::InvalidSubcommand).unwrap_or_default();
                match context(ContextKind::SuggestedSubcommand).filter(|meant| !meant.is_empty()) {
                    Some(meant) => {
                        wrong(format!("unknown command '{given}': did you mean {meant}? See --help for all of them"))
                    }
                    None => wrong(format!("unknown command '{given}': see --help for all of them")),
                }
            }
            _ => wrong(first_paragraph(&error.to_string())),
        }
    }

    #[must_use]
    pub fn report(&self) -> u8 {
        match self {
            Self::Answer(text) => {
                if let Err(error) = print(text) {
                    complain(&format!("tenure: the help cannot be written: {error}"));
                    return 1;
                }
                0
            }
            Self::Wrong(text) => {
                complain(&format!("tenure: {text}"));
                SettingError::EXIT_CODE
            }
        }
    }
}

impl From<SettingError> for Usage {
    fn from(error: SettingError) -> Self {
        Self::Wrong(error.to_string())
    }
}

/// Suggests the missing two dashes before the command of `tenure task create` or `run`.
fn command_without_dashes(args: &[OsString]) -> Option<String> {
    let verb = task::verb(args).filter(|verb| matches!(verb.as_str(), "create" | "run"))?;
    (!args.iter().any(|word| word == "--")).then(|| {
        format!(
            "write two dashes before the command to run, as in: tenure task {verb} --queue acme/linux -- echo hello"
        )
    })
}

fn one_value(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(values) => values.join(", "),
        other => other.to_string(),
    }
}

/// Extracts a command such as `tenure queue policy` from clap's usage line.
fn command_of(text: &str) -> String {
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or("tenure");
    usage.split_whitespace().take_while(|word| !word.starts_with(['[', '<'])).collect::<Vec<_>>().join(" ")
}

/// Cuts clap's usage and hints off.
fn first_paragraph(text: &str) -> String {
    text.split("\n\n").next().unwrap_or(text).trim_start_matches("error: ").to_owned()
}
