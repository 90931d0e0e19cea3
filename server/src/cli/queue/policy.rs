//! `tenure queue policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_api::ids::TaskQueueId;

use super::QueueArg;
use super::keys::parse_rate;
use crate::cli::http::{CommandError, Server, field};
use crate::cli::input;
use crate::cli::when::parse_seconds;

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the policy
    Show(QueueArg),
    /// Replace the policy, or with --merge change some fields
    Set(Box<SetArgs>),
    /// Delete the policy
    Delete(QueueArg),
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// The queue, `<provisionerId>/<workerType>`; `mail` means `default/mail`
    #[arg(allow_hyphen_values = true)]
    pub queue: TaskQueueId,
    /// A file with the policy as JSON; a dash is standard input. Options override its fields
    #[arg(required_unless_present = "Fields")]
    pub file: Option<PathBuf>,
    /// Keep the fields that neither the file nor an option has; a null in the file removes one.
    /// Without it, they get their defaults
    #[arg(long)]
    pub merge: bool,
    #[command(flatten)]
    pub fields: Fields,
}

/// Fields of a policy.
#[derive(Debug, Args)]
pub struct Fields {
    /// The cost of a lost or slow worker
    #[arg(long, value_name = "WHAT", value_parser = ["retries", "at-least-once", "at-most-once"])]
    pub delivery: Option<String>,
    /// Who decides which worker gets a run
    #[arg(long, value_name = "WHO", value_parser = ["pull", "assign"])]
    pub dispatch: Option<String>,
    /// The lease of a claim: seconds, or a duration such as 2m
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub claim_timeout: Option<i64>,
    /// Maximum duration of a claim, including renewals; 0 is unlimited
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub complete_time: Option<i64>,
    /// Time before a worker can claim the first run of a task
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub delay: Option<i64>,
    /// Deadline of a submitted task without one, after its creation
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub deadline_after: Option<i64>,
    /// Try failed runs again while their tasks have retries
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub retry_failed: Option<bool>,
    /// List tasks that ended as failed or exception until they are run again
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub dead_letters: Option<bool>,
    /// Limit of pending tasks, beyond which new ones are refused
    #[arg(long, value_name = "TASKS")]
    pub backlog: Option<i64>,
    /// Limit of the bytes of pending tasks, beyond which new ones are refused
    #[arg(long, value_name = "BYTES")]
    pub backlog_bytes: Option<i64>,
    /// The source of a task's key
    #[arg(long, value_name = "WHAT", value_parser = ["key", "projectId", "schedulerId", "taskGroupId"])]
    pub key_by: Option<String>,
    /// Share fairly between keys
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub fair: Option<bool>,
    /// How many runs of all keys may be given out at a time
    #[arg(long, value_name = "RUNS")]
    pub concurrency: Option<i64>,
    /// How many runs of each key may be given out at a time
    #[arg(long, value_name = "RUNS")]
    pub concurrency_per_key: Option<i64>,
    /// How many runs of all keys may start per time of at most a day, such as 100/1h
    #[arg(long, value_name = "COUNT/TIME", value_parser = parse_rate)]
    pub rate: Option<(i64, i64)>,
    /// How many runs of this rate may start at once [default: 1]
    #[arg(long, value_name = "COUNT", requires = "rate")]
    pub burst: Option<i64>,
    /// How many runs of each key may start per time of at most a day
    #[arg(long, value_name = "COUNT/TIME", value_parser = parse_rate)]
    pub rate_per_key: Option<(i64, i64)>,
    /// How many runs of this rate may start at once [default: 1]
    #[arg(long, value_name = "COUNT", requires = "rate_per_key")]
    pub burst_per_key: Option<i64>,
}

impl Fields {
    /// Returns the given fields. A null removes the burst of an earlier rate.
    fn patch(&self) -> Value {
        let rate = |(count, seconds): (i64, i64), burst: Option<i64>| json!({ "count": count, "seconds": seconds, "burst": burst });
        let of_queue = [
            ("delivery", self.delivery.as_ref().map(|word| json!(word))),
            ("dispatch", self.dispatch.as_ref().map(|word| json!(word))),
            ("claimTimeout", self.claim_timeout.map(Value::from)),
            ("completeTime", self.complete_time.map(Value::from)),
            ("delay", self.delay.map(Value::from)),
            ("deadlineAfter", self.deadline_after.map(Value::from)),
            ("retryFailed", self.retry_failed.map(Value::from)),
            ("deadLetters", self.dead_letters.map(Value::from)),
            ("keyBy", self.key_by.as_ref().map(|word| json!(word))),
            ("fair", self.fair.map(Value::from)),
        ];
        let within = [
            ("backlog", "tasks", self.backlog.map(Value::from)),
            ("backlog", "bytes", self.backlog_bytes.map(Value::from)),
            ("concurrency", "total", self.concurrency.map(Value::from)),
            ("concurrency", "perKey", self.concurrency_per_key.map(Value::from)),
            ("rate", "total", self.rate.map(|starts| rate(starts, self.burst))),
            ("rate", "perKey", self.rate_per_key.map(|starts| rate(starts, self.burst_per_key))),
        ];
        let mut patch = json!({});
        for (name, value) in of_queue {
            if let Some(value) = value {
                patch[name] = value;
            }
        }
        for (outer, inner, value) in within {
            if let Some(value) = value {
                patch[outer][inner] = value;
            }
        }
        patch
    }
}

/// Changes JSON as RFC 7396 says: objects are merged, null removes a field.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let Value::Object(object) = into else { return };
    for (name, value) in patch {
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

pub(super) async fn run(server: &Server, command: PolicyCommand) -> Result<(), CommandError> {
    let refused = |error| server.error(&error);
    let client = &server.client;
    match command {
        PolicyCommand::Show(QueueArg { queue }) => {
            server.print(&client.get_queue_policy(&queue).await.map_err(refused)?, shown)
        }
        PolicyCommand::Set(args) => set(server, &args).await,
        PolicyCommand::Delete(QueueArg { queue }) => {
            let answer = client.delete_queue_policy(&queue).await.map_err(refused)?;
            server.print(&answer, |_| format!("Queue {queue} has no policy."))
        }
    }
}

async fn set(server: &Server, SetArgs { queue, file, merge: keeps, fields }: &SetArgs) -> Result<(), CommandError> {
    let refused = |error| server.error(&error);
    let given = file.as_ref().map(|file| input::read_json("FILE", file)).transpose()?;
    let current = if *keeps { find(server, queue).await? } else { None };
    let version = current.as_ref().and_then(|current| current["version"].as_i64());
    let mut wanted = match current {
        Some(mut current) => current["policy"].take(),
        None => json!({}),
    };
    match given {
        Some(given) if *keeps => merge(&mut wanted, &given),
        Some(given) => wanted = given,
        None => {}
    }
    // A file that is no object is the server's to refuse.
    if wanted.is_object() {
        merge(&mut wanted, &fields.patch());
    }
    let answer = match version {
        Some(version) => server.client.change_queue_policy(queue, &wanted, version).await,
        None => server.client.set_queue_policy(queue, &wanted).await,
    };
    server.print(&answer.map_err(refused)?, shown)
}

async fn find(server: &Server, queue: &TaskQueueId) -> Result<Option<Value>, CommandError> {
    match server.client.get_queue_policy(queue).await {
        Ok(current) => Ok(Some(current)),
        Err(error) if error.status() == Some(404) && !error.is_unclear() => Ok(None),
        Err(error) => Err(server.error(&error)),
    }
}

pub(super) fn shown(answer: &Value) -> String {
    let head = ["queue", "version", "updated", "by", "refiling"].map(str::to_owned);
    let of_queue = ["/taskQueueId", "/version", "/updated", "/clientId", "/refiling"].map(|at| field(answer, at));
    let fields = answer["policy"].as_object().into_iter().flatten();
    let fields = fields.map(|(name, _)| (format!("  {name}"), field(&answer["policy"], &format!("/{name}"))));
    let rows = head.into_iter().zip(of_queue).chain(fields);
    rows.map(|(name, value)| format!("{name:15}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Tenure {
        #[command(flatten)]
        set: SetArgs,
    }

    fn patched(mut policy: Value, words: &[&str]) -> Value {
        let args = Tenure::try_parse_from(["set", "p/w"].iter().chain(words)).unwrap().set;
        merge(&mut policy, &args.fields.patch());
        policy
    }

    #[test]
    fn options_change_their_fields_only() {
        let policy = json!({"delay": 5, "concurrency": {"total": 1, "perKey": 2},
            "rate": {"total": {"count": 1, "seconds": 60, "burst": 1}}});
        let words =
            ["--concurrency", "9", "--rate", "100/1h", "--fair", "--retry-failed=false", "--key-by", "projectId"];
        let expected = json!({"delay": 5, "concurrency": {"total": 9, "perKey": 2},
            "rate": {"total": {"count": 100, "seconds": 3_600}}, "fair": true, "retryFailed": false, "keyBy": "projectId"});
        assert_eq!(patched(policy, &words), expected);
        let words = ["--rate-per-key", "1/1", "--burst-per-key", "1", "--backlog", "7", "--claim-timeout", "2m"];
        let expected = json!({"rate": {"perKey": {"count": 1, "seconds": 1, "burst": 1}}, "backlog": {"tasks": 7},
            "claimTimeout": 120});
        assert_eq!(patched(json!({}), &words), expected);
        let bounded = json!({"backlog": {"tasks": 7, "bytes": 5_000}});
        assert_eq!(patched(json!({"backlog": {"tasks": 7}}), &["--backlog-bytes", "5000"]), bounded);
    }

    #[test]
    fn merge_follows_rfc_7396() {
        for (mut into, patch, expected) in [
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (json!({"a": 1, "b": {"c": 2, "d": 3}}), json!({"a": null, "b": {"c": null}}), json!({"b": {"d": 3}})),
            (json!({"a": 1}), json!({"a": {"b": 2, "c": null}}), json!({"a": {"b": 2}})),
            (json!({"a": {"b": 2}}), json!({"a": "b"}), json!({"a": "b"})),
        ] {
            merge(&mut into, &patch);
            assert_eq!(into, expected, "{patch}");
        }
    }
}
