//! `tenure events`: prints events as they happen.

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tenure_client::Error;

use super::http::{CommandError, Server, ServerArgs, may_pass};
use super::print::{escaped, print_bytes};

const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Transient failures in a row before giving up.
const FAILURES_MAX: u32 = 60;

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Only events of this exchange, such as task-completed or task-ready; repeat it for more
    #[arg(long = "exchange", value_name = "NAME")]
    pub exchanges: Vec<String>,
    /// Begin after this position of the log [default: from now on]
    #[arg(long, value_name = "POSITION")]
    pub after: Option<u64>,
}

/// Prints events until interrupted, or until the reader is gone.
pub async fn run(server: &Server, args: &EventsArgs) -> Result<ExitCode, CommandError> {
    // A wrong address is reported at once; a server that has answered may be away for a while.
    let (mut after, mut failures) = (args.after, FAILURES_MAX);
    loop {
        match follow(server, &args.exchanges, &mut after, &mut failures).await {
            Ok(()) => {}
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            Err(error) if !may_pass(&error) || failures == FAILURES_MAX => return Err(server.error(&error)),
            Err(_) => failures += 1,
        }
        tokio::time::sleep(OPEN_AGAIN_AFTER).await;
    }
}

/// Prints a stream to its end and advances the position. An opened stream resets the failures.
async fn follow(
    server: &Server,
    exchanges: &[String],
    after: &mut Option<u64>,
    failures: &mut u32,
) -> Result<(), Error> {
    let mut events = server.client.follow_events(*after, exchanges).await?;
    *failures = 0;
    loop {
        let read = events.read().await;
        if let Ok(Some(event)) = &read {
            print_bytes(line(event).as_bytes())
                .map_err(|source| Error::File { what: "an event cannot be written".to_owned(), source })?;
        }
        *after = events.position();
        if read?.is_none() {
            return Ok(());
        }
    }
}

/// Formats an event on one line, without control characters.
fn line(event: &Value) -> String {
    escaped(&event.to_string()) + "\n"
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    #[derive(Debug, Parser)]
    struct Tenure {
        #[command(flatten)]
        events: EventsArgs,
    }

    #[test]
    fn event_is_one_line_without_control_characters() {
        let event = serde_json::json!({"tags": {"a": "\u{1b}[31m\n\u{9b}31m\u{7f}é"}});
        let line = line(&event);
        assert_eq!(line, "{\"tags\":{\"a\":\"\\u001b[31m\\n\\u009b31m\\u007fé\"}}\n");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), event);
    }

    #[test]
    fn exchange_repeats_and_position_is_a_number() {
        let words = ["events", "--exchange", "task-ready", "--after", "5", "--exchange", "task-completed"];
        let EventsArgs { exchanges, after, .. } = Tenure::try_parse_from(words).unwrap().events;
        assert_eq!((exchanges, after), (vec!["task-ready".to_owned(), "task-completed".to_owned()], Some(5)));
        for words in [["events", "--after", "-1"], ["events", "--after", "latest"]] {
            assert!(Tenure::try_parse_from(words).is_err(), "{words:?}");
        }
        let wrong = Tenure::try_parse_from(["events", "task-ready"]).map_err(|error| error.kind()).err();
        assert_eq!(wrong, Some(ErrorKind::UnknownArgument));
    }
}
