//! `tenure partition`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::http::{CommandError, Server, entries, field};
use super::print::table;
use super::when::parse_seconds;

#[derive(Debug, Subcommand)]
pub enum PartitionCommand {
    /// Store a partition group, whose members divide work among themselves
    Set(SetArgs),
    /// Show a partition group, with the share of each member
    Show(NameArg),
    /// Delete a partition group; its members stop within two intervals
    Delete(NameArg),
}

#[derive(Debug, Args)]
pub struct NameArg {
    /// The name of the partition group
    pub name: String,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// The name of the partition group
    pub name: String,
    /// How often each member shows that it is alive: seconds, or a duration such as 1m, up to 1h; it
    /// cannot be changed [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub interval: Option<i64>,
    /// How long a member may take to finish work that it loses, up to 1d; then it is removed
    /// [default: 0, as long as it is alive]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub drain_timeout: Option<i64>,
}

pub async fn run(server: &Server, command: PartitionCommand) -> Result<ExitCode, CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        PartitionCommand::Set(args) => {
            let answer = client.set_partition(&args.name, &settings(&args)).await.map_err(refused)?;
            server.print(&answer, shown)?;
        }
        PartitionCommand::Show(NameArg { name }) => {
            server.print(&client.get_partition(&name).await.map_err(refused)?, shown)?;
        }
        PartitionCommand::Delete(NameArg { name }) => {
            let answer = client.delete_partition(&name).await.map_err(refused)?;
            server.print(&answer, |_| format!("Partition group {name} is deleted."))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(args: &SetArgs) -> Value {
    let mut body = json!({});
    if let Some(seconds) = args.interval {
        body["interval"] = seconds.into();
    }
    if let Some(seconds) = args.drain_timeout {
        body["drainTimeout"] = seconds.into();
    }
    body
}

fn shown(group: &Value) -> String {
    let of = |pointer: &str| field(group, pointer);
    let mut rows = vec![
        ("partition", of("/name")),
        ("state", of("/state")),
        ("shares", of("/replicas")),
        ("epoch", of("/epoch")),
        ("interval", format!("{}s", of("/interval"))),
        ("drain timeout", format!("{}s", of("/drainTimeout"))),
    ];
    if group["next"].is_object() {
        rows.push(("next shares", of("/next/replicas")));
        rows.push(("proposed", of("/next/since")));
    }
    let members = entries(group, "members");
    let row = |member: &Value| {
        let waits = if member["draining"] == Value::Bool(true) { "draining" } else { "" };
        [
            field(member, "/memberId"),
            field(member, "/index"),
            field(member, "/nextIndex"),
            field(member, "/validUntil"),
            waits.to_owned(),
        ]
    };
    let mut text: String = rows.into_iter().map(|(name, value)| format!("{name:14}  {value}\n")).collect();
    if !members.is_empty() {
        text.push('\n');
        text.push_str(&table(["MEMBER", "INDEX", "NEXT", "VALID UNTIL", ""], members.iter().map(row)));
    }
    text
}

#[cfg(test)]
mod tests;
