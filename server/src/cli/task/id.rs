//! Tasks on the command line: whole ids, or short ids, as tables show them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use serde_json::Value;
use tenure_api::ids::{InvalidId, TaskId};
use tenure_domain::task_filter::{SHORT_ID, ids_of_short};

use crate::cli::http::{CommandError, Server, entries, field};

/// A task, as a caller names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRef {
    Id(TaskId),
    /// The first characters of an id, in ASCII.
    Short([u8; SHORT_ID]),
}

impl FromStr for TaskRef {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let short = || <[u8; SHORT_ID]>::try_from(text.as_bytes()).ok().filter(|_| is_short(text)).map(Self::Short);
        text.parse().map(Self::Id).or_else(|wrong| short().ok_or(wrong))
    }
}

/// False for options with as many characters.
fn is_short(text: &str) -> bool {
    !text.starts_with('-') && ids_of_short(text).is_some()
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => fmt::Display::fmt(id, f),
            Self::Short(short) => f.write_str(&String::from_utf8_lossy(short)),
        }
    }
}

impl Serialize for TaskRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TaskRef {
    /// Returns the id of the task; resolves a short id at the server.
    pub async fn find(self, server: &Server) -> Result<TaskId, CommandError> {
        let short = match self {
            Self::Id(id) => return Ok(id),
            Self::Short(_) => self.to_string(),
        };
        let answer = server.client.find_tasks(&short).await.map_err(|error| server.error(&error))?;
        let found = entries(&answer, "tasks");
        if let [task] = found {
            let id = field(task, "/taskId");
            return id.parse().map_err(|_| CommandError::Refused(format!("the server named a task {id:?}")));
        }
        Err(CommandError::Refused(not_one(&short, found)))
    }

    pub async fn find_all(server: &Server, tasks: &[Self]) -> Result<Vec<TaskId>, CommandError> {
        let mut found = Vec::with_capacity(tasks.len());
        for task in tasks {
            found.push(task.find(server).await?);
        }
        Ok(found)
    }
}

fn not_one(short: &str, found: &[Value]) -> String {
    if found.is_empty() {
        return format!(
            "no id among the newest 10,000 tasks begins with {short}, or you may not read its status: write the whole id"
        );
    }
    let named = |task: &Value| match task["name"].as_str() {
        Some(_) => format!("{} ({})", field(task, "/taskId"), field(task, "/name")),
        None => field(task, "/taskId"),
    };
    let candidates: Vec<String> = found.iter().map(named).collect();
    format!("{short} is ambiguous, write one of these ids: {}", candidates.join(", "))
}

/// The beginning of an id that [`TaskRef`] accepts in its place.
pub fn short(id: &str) -> &str {
    id.get(..SHORT_ID).filter(|short| is_short(short)).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

    #[test]
    fn task_is_named_by_whole_or_short_id() {
        assert_eq!(ID.parse::<TaskRef>(), Ok(TaskRef::Id(ID.parse().unwrap())));
        let named: TaskRef = short(ID).parse().unwrap();
        assert_eq!((named, named.to_string().as_str()), (TaskRef::Short(*b"9HrBC1jM"), "9HrBC1jM"));
        assert_eq!(json!([named]), json!(["9HrBC1jM"]));
        for wrong in ["", "x", "9HrBC1j", "9HrBC1jMQ", "--unique", "-HrBC1jM", "9HrBC1j+", "9HrBC1é"] {
            assert!(wrong.parse::<TaskRef>().is_err(), "{wrong}");
        }
        assert_eq!(short("-HrBC1jMQ3KlZw4CssPUeQ"), "-HrBC1jMQ3KlZw4CssPUeQ", "an option, if it were short");
    }

    #[test]
    fn ambiguous_short_id_lists_its_candidates() {
        let found = [json!({"taskId": "9HrBC1jMA", "name": "build\u{1b}"}), json!({"taskId": "9HrBC1jMB"})];
        assert_eq!(
            not_one("9HrBC1jM", &found),
            "9HrBC1jM is ambiguous, write one of these ids: 9HrBC1jMA (build\u{fffd}), 9HrBC1jMB"
        );
        assert!(not_one("9HrBC1jM", &[]).contains("write the whole id"));
    }
}
