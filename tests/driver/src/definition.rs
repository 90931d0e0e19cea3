//! Task definitions as text, built without a JSON tree: the load generator writes thousands a
//! second.

use std::fmt::Write;

use tenure_api::ids::SlugId;

use crate::clock::wire_date;
use crate::random::Random;

/// The parts of a task that tests vary. Everything else is constant.
#[derive(Debug, Clone)]
pub struct Definition<'a> {
    pub queue: &'a str,
    pub priority: &'a str,
    pub retries: u32,
    /// In milliseconds since 1970 of the server's clock.
    pub created: i64,
    /// In milliseconds since 1970 of the server's clock.
    pub deadline: i64,
    /// `None` means the server's default: a separate group.
    pub group: Option<&'a str>,
    pub note: &'a str,
    pub dependencies: &'a [SlugId],
    /// True if any resolution of the dependencies suffices.
    pub any_end: bool,
}

impl Definition<'_> {
    #[must_use]
    pub fn body(&self, padding: usize, random: &mut Random) -> String {
        let Self { queue, priority, retries, note, .. } = self;
        let created = wire_date(self.created);
        let deadline = wire_date(self.deadline);
        let mut body = String::with_capacity(600 + padding);
        let written = write!(
            body,
            r#"{{"taskQueueId":"{queue}","priority":"{priority}","retries":{retries},"created":"{created}","deadline":"{deadline}""#
        );
        written.expect("a String takes whatever is written");
        if let Some(group) = self.group {
            write!(body, r#","taskGroupId":"{group}""#).expect("a String takes whatever is written");
        }
        if !self.dependencies.is_empty() {
            let requires = if self.any_end { "all-resolved" } else { "all-completed" };
            let ids: Vec<String> = self.dependencies.iter().map(|id| format!("\"{id}\"")).collect();
            write!(body, r#","requires":"{requires}","dependencies":[{}]"#, ids.join(","))
                .expect("a String takes whatever is written");
        }
        body.push_str(
            r#","payload":{"maxRunTime":3600,"image":{"type":"indexed-image","path":"public/image.tar.zst"},"#,
        );
        body.push_str(
            r#""command":["/bin/sh","-cx","make all && make check"],"env":{"CHECKOUT":"/builds/worker/checkout"},"#,
        );
        write!(body, r#""note":"{note}","input":""#).expect("a String takes whatever is written");
        random.push_hex(&mut body, padding);
        body.push_str(r#""},"metadata":{"name":"build linux64/opt","description":"Builds and checks one revision.","#);
        body.push_str(r#""owner":"builds@example.com","source":"https://example.com/repository/file/taskcluster"}}"#);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_of_the_size_asked_for() {
        let definition = Definition {
            queue: "prov/wt",
            priority: "high",
            retries: 2,
            created: 0,
            deadline: 3_600_000,
            group: Some("f47ac10bTcKlZw4CssPUeQ"),
            note: "n",
            dependencies: &["f47ac10bTcKlZw4CssPUeQ".parse().unwrap()],
            any_end: true,
        };
        let body = definition.body(900, &mut Random::from_seed(1));
        let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(parsed["taskQueueId"], "prov/wt");
        assert_eq!(parsed["dependencies"][0], "f47ac10bTcKlZw4CssPUeQ");
        assert_eq!(parsed["deadline"], "1970-01-01T01:00:00.000Z");
        assert_eq!(parsed["payload"]["input"].as_str().unwrap().len(), 900);
        assert!((1_400..1_800).contains(&body.len()), "{}", body.len());
    }
}
