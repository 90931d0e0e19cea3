//! `tenure audit`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tenure_client::AuditFilter;

use super::http::{CommandError, Server, ServerArgs, entries, field};
use super::print::table;
use super::when::{When, parse_when};

/// Changes per request.
const PAGE: u16 = 1_000;

#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Only changes of this client
    #[arg(long, value_name = "CLIENT_ID", allow_hyphen_values = true)]
    pub client: Option<String>,
    /// Only changes of the object with this id: the whole id of a task, group or job; the name of a
    /// queue, client, role, schedule, subscription or partition group; of a worker
    /// `<queue>/<group>/<id>`
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub object: Option<String>,
    /// Only changes by this operation of the API, such as cancelTask
    #[arg(long, value_name = "OPERATION")]
    pub action: Option<String>,
    /// Only changes since this time, or within this duration, such as 2h
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<When>,
    /// The number of changes to show, the latest ones
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

fn parse_since(text: &str) -> Result<When, String> {
    Ok(match parse_when(text)? {
        When::In(ago) => When::In(-ago),
        When::At(time) => When::At(time),
    })
}

pub async fn run(server: &Server, args: AuditArgs) -> Result<ExitCode, CommandError> {
    let AuditArgs { client, object, action, since, limit, .. } = args;
    let after = server.time(since).await?;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut filter = AuditFilter { client_id: client, object, action, after, ..AuditFilter::default() };
    let (mut all, mut token) = (Vec::new(), None::<String>);
    loop {
        filter.limit = Some(u16::try_from(wanted - all.len()).unwrap_or(PAGE).min(PAGE));
        let page = server.client.list_audit(&filter, token.as_deref()).await.map_err(|error| server.error(&error))?;
        all.extend_from_slice(entries(&page, "audit"));
        all.truncate(wanted);
        token = page["continuationToken"].as_str().map(str::to_owned);
        if token.is_none() || all.len() == wanted {
            break;
        }
    }
    server.print(&json!({ "audit": all }), |answer| rows(entries(answer, "audit")))?;
    Ok(ExitCode::SUCCESS)
}

fn rows(entries: &[Value]) -> String {
    let row = |entry: &Value| {
        [
            field(entry, "/at"),
            field(entry, "/clientId"),
            field(entry, "/action"),
            field(entry, "/object"),
            field(entry, "/detail"),
        ]
    };
    table(["TIME", "CLIENT", "ACTION", "OBJECT", "DETAIL"], entries.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_shown_for_people() {
        let text = rows(&[json!({"id": 7, "at": "T", "clientId": "acme/ops", "action": "pauseQueue", "kind": "queue",
            "object": "acme/mail", "detail": {"reason": "a\u{1b}[2J"}})]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "TIME  CLIENT    ACTION      OBJECT     DETAIL");
        assert!(lines[1].starts_with("T     acme/ops  pauseQueue  acme/mail  {\"reason\":"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn since_is_date_or_duration() {
        assert!(matches!(parse_since("2027-01-31T12:00:00Z"), Ok(When::At(_))));
        assert_eq!(parse_since("2h"), Ok(When::In(chrono::TimeDelta::hours(-2))));
        for wrong in ["", "soon", "2", "2027-01-31"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }
}
