//! `tenure queue keys` and `tenure queue key`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::ids::TaskQueueId;
use tenure_client::KeyRules;

use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::print::table;
use crate::cli::when::parse_seconds;
use tenure_api::policy::Rate;

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Show the rules that override the policy for a key
    Show(KeyArgs),
    /// Replace the rules that override the policy for a key
    Set(SetArgs),
    /// Delete the rules: the policy applies to the key again
    Delete(KeyArgs),
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    queue: TaskQueueId,
    /// The key
    #[arg(allow_hyphen_values = true)]
    key: String,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    of: KeyArgs,
    /// How many of its runs may be given out at a time, 1 to 1000 [default: as the policy says]
    #[arg(long, value_name = "RUNS")]
    concurrency: Option<i64>,
    /// How many runs may start per time of at most a day, such as 100/1h [default: as the policy
    /// says]
    #[arg(long, value_name = "COUNT/TIME", value_parser = parse_rate)]
    rate: Option<(i64, i64)>,
    /// How many runs of the rate may start at once, 1 to all of them [default: 1]
    #[arg(long, value_name = "COUNT", requires = "rate")]
    burst: Option<i64>,
    /// Its share relative to other keys under fair sharing, 0.001 to 1000 [default: 1]
    #[arg(long)]
    weight: Option<f64>,
}

/// Parses `COUNT/TIME`.
pub(super) fn parse_rate(text: &str) -> Result<(i64, i64), String> {
    let wrong = || "write a number of starts and a duration, such as 100/1h".to_owned();
    let (count, time) = text.split_once('/').ok_or_else(wrong)?;
    Ok((count.parse().map_err(|_| wrong())?, parse_seconds(time).map_err(|_| wrong())?))
}

pub async fn list(server: &Server, queue: &TaskQueueId) -> Result<(), CommandError> {
    let (mut keys, mut token) = (Vec::new(), None::<String>);
    loop {
        let page =
            server.client.list_queue_keys(queue, token.as_deref()).await.map_err(|error| server.error(&error))?;
        keys.extend_from_slice(entries(&page, "keys"));
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    server.print(&json!({"keys": keys}), |answer| rows(entries(answer, "keys")))
}

pub async fn run(server: &Server, command: KeyCommand) -> Result<(), CommandError> {
    let refused = |error| server.error(&error);
    match command {
        KeyCommand::Show(KeyArgs { queue, key }) => {
            let answer = server.client.get_queue_key(&queue, &key).await.map_err(refused)?;
            server.print(&answer, |answer| rows(std::slice::from_ref(answer)))
        }
        KeyCommand::Set(SetArgs { of: KeyArgs { queue, key }, concurrency, rate, burst, weight }) => {
            let rate = rate.map(|(count, seconds)| Rate { count, seconds, burst });
            let rules = KeyRules { concurrency, rate, weight };
            let answer = server.client.set_queue_key(&queue, &key, &rules).await.map_err(refused)?;
            server.print(&answer, |answer| rows(std::slice::from_ref(answer)))
        }
        KeyCommand::Delete(KeyArgs { queue, key }) => {
            let answer = server.client.delete_queue_key(&queue, &key).await.map_err(refused)?;
            server.print(&answer, |_| format!("The policy of queue {queue} applies to key {key}."))
        }
    }
}

fn rows(keys: &[Value]) -> String {
    let row = |key: &Value| {
        [
            field(key, "/used"),
            field(key, "/limit"),
            field(key, "/waiting"),
            rate(key),
            field(key, "/weight"),
            field(key, "/key"),
        ]
    };
    table(["USED", "LIMIT", "WAITING", "RATE", "WEIGHT", "KEY"], keys.iter().map(row))
}

fn rate(key: &Value) -> String {
    match &key["rate"] {
        Value::Null => field(key, "/rate"),
        rate => format!("{}/{}s", rate["count"], rate["seconds"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_a_number_and_a_time() {
        for (text, rate) in [("100/1h", (100, 3_600)), ("1/60", (1, 60)), ("5/30s", (5, 30))] {
            assert_eq!(parse_rate(text), Ok(rate));
        }
        for text in ["", "100", "/1h", "100/", "1.5/1h", "a/b", "100/1h/2"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_are_shown_in_a_table() {
        let keys = [
            json!({"key": "acme", "used": 2, "limit": 5, "waiting": 7, "weight": 2.0, "rate": {"count": 3, "seconds": 60, "burst": 1}}),
            json!({"key": "", "used": 1, "waiting": 0}),
        ];
        let text = rows(&keys);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["USED", "LIMIT", "WAITING", "RATE", "WEIGHT", "KEY"]);
        assert_eq!(words[1], ["2", "5", "7", "3/60s", "2.0", "acme"]);
        assert_eq!(words[2][0], "1");
    }
}
