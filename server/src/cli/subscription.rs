//! `tenure subscription`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::subscriptions::After;

use super::http::{CommandError, Server, entries, field};
use super::input;
use super::print::table;
use super::when::parse_seconds;

#[derive(Debug, Subcommand)]
pub enum SubscriptionCommand {
    /// Store a subscription, in place of the one of its name; a generated secret is printed once
    Set(Box<SetArgs>),
    /// List subscriptions, with the state of each and how far it is behind
    List,
    /// Show a subscription, with its state and its last error
    Show(NameArg),
    /// Send a test message, and show the receiver's answer
    Test(NameArg),
    /// Let a suspended subscription continue
    Resume(ResumeArgs),
    /// Delete a subscription; its receiver gets no more events
    Delete(NameArg),
}

#[derive(Debug, Args)]
pub struct NameArg {
    /// The name of the subscription
    pub name: String,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The name of the subscription
    pub name: String,
    /// Continue after this position of the event log, or with `latest` after the newest event; the
    /// events before are skipped [default: where it stopped]
    #[arg(long, value_name = "POSITION", value_parser = parse_after)]
    pub after: Option<After>,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// The name of the subscription
    pub name: String,
    /// Where messages are posted, such as https://example.com/tenure, or a broker, such as
    /// amqps://user:password@broker.example/vhost
    #[arg(long, required_unless_present = "url_file")]
    pub url: Option<String>,
    /// A file with the URL, which hides a password from other users; a dash is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub url_file: Option<PathBuf>,
    /// For a broker: prefix of the names of its exchanges [default: none]
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Only events of this exchange, such as task-completed; repeat it for more [default: all]
    #[arg(long = "exchange", value_name = "NAME")]
    pub exchanges: Vec<String>,
    /// Only events whose routing key matches, such as 'primary.*.*.*.*.acme.#' [default: all]
    #[arg(long, value_name = "PATTERN")]
    pub routing_key_pattern: Option<String>,
    /// Only events of tasks with a route that matches [default: all]
    #[arg(long, value_name = "PATTERN")]
    pub route: Option<String>,
    /// For a new subscription: begin after this position of the event log [default: latest]
    #[arg(long, value_name = "POSITION", value_parser = parse_after)]
    pub after: Option<After>,
    /// Send ends of tasks with their results
    #[arg(long)]
    pub result: bool,
    /// Maximum events per message, or for a broker unconfirmed messages, up to 100 [default: 1, for a
    /// broker 100]
    #[arg(long, value_name = "COUNT")]
    pub batch: Option<u8>,
    /// Age of an undelivered event that suspends the subscription: seconds, or a duration such as
    /// 2d, from 1h to 30d [default: 5d]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub give_up_after: Option<i64>,
    /// A file with the secret that signs messages, `whsec_...`; a dash is standard input [default: as
    /// before, or generated]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

fn parse_after(text: &str) -> Result<After, String> {
    if text == "latest" {
        return Ok(After::Latest);
    }
    let position = text.parse().ok().filter(|position| (0..i64::MAX).contains(position));
    position.map(After::Position).ok_or_else(|| "write a position, such as 1234, or latest".to_owned())
}

pub async fn run(server: &Server, command: SubscriptionCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        SubscriptionCommand::Set(args) => {
            let wanted = definition(&args)?;
            server.print(&client.set_subscription(&args.name, &wanted).await.map_err(refused)?, shown)?;
        }
        SubscriptionCommand::List => {
            let answer = client.list_subscriptions().await.map_err(refused)?;
            server.print(&answer, |answer| rows(entries(answer, "subscriptions")))?;
        }
        SubscriptionCommand::Show(NameArg { name }) => {
            server.print(&client.get_subscription(&name).await.map_err(refused)?, shown)?;
        }
        SubscriptionCommand::Test(NameArg { name }) => {
            let result = client.test_subscription(&name).await.map_err(refused)?;
            server.print(&result, tested)?;
            if result["delivered"] != Value::Bool(true) {
                return Ok(ExitCode::FAILURE);
            }
        }
        SubscriptionCommand::Resume(ResumeArgs { name, after }) => {
            let answer = client.resume_subscription(&name, after).await.map_err(refused)?;
            server.print(&answer, |answer| {
                format!("Subscription {name} continues after position {}.", field(answer, "/position"))
            })?;
        }
        SubscriptionCommand::Delete(NameArg { name }) => {
            let answer = client.delete_subscription(&name).await.map_err(refused)?;
            server.print(&answer, |_| format!("Subscription {name} is deleted."))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn definition(args: &SetArgs) -> Result<Value, CommandError> {
    let url = match (&args.url, &args.url_file) {
        (Some(url), _) => url.clone(),
        (None, Some(file)) => input::read_text("--url-file", file)?.trim().to_owned(),
        (None, None) => String::new(),
    };
    let kind = if url.starts_with("amqp") { "amqp" } else { "webhook" };
    let mut receiver = json!({ "url": url });
    if let Some(file) = &args.secret_file {
        receiver["secret"] = json!(input::read_text("--secret-file", file)?.trim());
    }
    if let Some(prefix) = &args.prefix {
        receiver["prefix"] = json!(prefix);
    }
    let mut body = json!({ "to": { kind: receiver } });
    if !args.exchanges.is_empty() {
        body["exchange"] = json!(args.exchanges);
    }
    if let Some(pattern) = &args.routing_key_pattern {
        body["routingKeyPattern"] = json!(pattern);
    }
    if let Some(pattern) = &args.route {
        body["route"] = json!(pattern);
    }
    if let Some(after) = args.after {
        body["after"] = json!(after);
    }
    if args.result {
        body["result"] = json!(true);
    }
    if let Some(batch) = args.batch {
        body["batch"] = json!(batch);
    }
    if let Some(seconds) = args.give_up_after {
        body["giveUpAfter"] = json!(seconds);
    }
    Ok(body)
}

fn rows(subscriptions: &[Value]) -> String {
    let row = |subscription: &Value| {
        [
            field(subscription, "/name"),
            field(subscription, "/state"),
            field(subscription, "/lagEvents"),
            lag(subscription),
            field(subscription, "/lastSuccess"),
            url(subscription),
            field(subscription, "/lastError"),
        ]
    };
    let head = ["SUBSCRIPTION", "STATE", "BEHIND", "BY", "LAST SUCCESS", "URL", "ERROR"];
    table(head, subscriptions.iter().map(row))
}

fn url(subscription: &Value) -> String {
    let kind = if subscription["to"]["amqp"].is_null() { "webhook" } else { "amqp" };
    field(&subscription["to"][kind], "/url")
}

/// Age of the oldest undelivered event.
fn lag(subscription: &Value) -> String {
    format!("{:.0}s", subscription["lagSeconds"].as_f64().unwrap_or_default())
}

fn shown(subscription: &Value) -> String {
    let of = |pointer: &str| field(subscription, pointer);
    let exchanges: Vec<String> = entries(subscription, "exchange").iter().map(|name| field(name, "")).collect();
    let mut rows = vec![
        ("subscription", of("/name")),
        ("url", url(subscription)),
        ("exchanges", if exchanges.is_empty() { "all".to_owned() } else { exchanges.join(", ") }),
        ("routing keys", of("/routingKeyPattern")),
        ("routes", of("/route")),
        ("results", of("/result")),
        ("batch", of("/batch")),
        ("gives up after", format!("{}s", of("/giveUpAfter"))),
        ("client", of("/clientId")),
        ("state", of("/state")),
        ("position", of("/position")),
        ("behind", format!("{} events, {}", of("/lagEvents"), lag(subscription))),
        ("last success", of("/lastSuccess")),
    ];
    for (name, pointer) in [
        ("secret", "/to/webhook/secret"),
        ("prefix", "/to/amqp/prefix"),
        ("suspended", "/suspended"),
        ("suspended by", "/suspendedBy"),
        ("failing since", "/failingSince"),
        ("next try", "/nextTry"),
        ("error", "/lastError"),
    ] {
        if subscription.pointer(pointer).is_some() {
            rows.push((name, of(pointer)));
        }
    }
    rows.into_iter().map(|(name, value)| format!("{name:14}  {value}\n")).collect()
}

fn tested(result: &Value) -> String {
    let time = field(result, "/milliseconds");
    if result["delivered"] == Value::Bool(true) {
        let status = result["status"].as_u64().map_or_else(String::new, |status| format!(" with status {status}"));
        return format!("The receiver accepted the message{status} in {time} ms.");
    }
    let body = if result["body"].is_null() { String::new() } else { format!("\n{}", field(result, "/body")) };
    format!("The message was not accepted after {time} ms: {}{body}", field(result, "/error"))
}

#[cfg(test)]
mod tests;
