//! `tenure server`.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::http::{CommandError, Server, entries, field};
use super::print::table;

#[derive(Debug, Subcommand)]
pub enum ServersCommand {
    /// List the servers of the database, with the queues that each schedules
    List,
}

pub async fn run(server: &Server, command: ServersCommand) -> Result<ExitCode, CommandError> {
    match command {
        ServersCommand::List => {
            let answer = server.client.list_servers().await.map_err(|error| server.error(&error))?;
            server.print(&answer, |answer| servers(entries(answer, "servers")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn servers(servers: &[Value]) -> String {
    let row = |server: &Value| {
        let queues = server["queues"].as_array().map_or(&[][..], Vec::as_slice);
        let queues: Vec<String> =
            queues.iter().map(|one| format!("{} ({})", field(one, "/taskQueueId"), field(one, "/term"))).collect();
        [
            field(server, "/name"),
            field(server, "/weight"),
            if server["live"] == Value::Bool(true) { "yes" } else { "no" }.to_owned(),
            field(server, "/started"),
            field(server, "/beat"),
            field(server, "/serverId"),
            queues.join(", "),
        ]
    };
    let head = ["NAME", "WEIGHT", "LIVE", "STARTED", "BEAT", "SERVER", "SCHEDULER OF (TERM)"];
    table(head, servers.iter().map(row))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_are_shown_for_people() {
        let text = servers(&[
            json!({"serverId": "A", "name": "one", "weight": 5, "started": "S", "beat": "B", "live": true, "queues": [
                {"taskQueueId": "p/w", "term": 3, "since": "T"}, {"taskQueueId": "p/x", "term": 12, "since": "T"}]}),
            json!({"serverId": "C", "name": "two", "weight": 0, "started": "S", "beat": "B", "live": false, "queues": []}),
        ]);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "NAME  WEIGHT  LIVE  STARTED  BEAT  SERVER  SCHEDULER OF (TERM)");
        assert_eq!(lines[1], "one   5       yes   S        B     A       p/w (3), p/x (12)");
        assert_eq!(lines[2], "two   0       no    S        B     C");
    }
}
