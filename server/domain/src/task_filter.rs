//! Filters of lists of tasks: which index a list reads, where it continues, and which tasks match.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use tenure_api::bodies::Metadata;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;
pub use tenure_api::tasks::{ListState, TaskFilter};
use uuid::Uuid;

use crate::dead_letter::time;

/// Characters of a short id.
pub const SHORT_ID: usize = 8;
/// Bytes of a task's id that a short id has.
const SHORT_BYTES: usize = 6;

/// Source of a list, with its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The tasks of a group, by id.
    Group,
    /// The pending runs of a queue, by their order in it.
    Pending,
    /// The held runs of a queue, likewise.
    Held,
    /// Claimed runs, by the end of their leases.
    Running,
    /// Failed runs, latest first.
    Failed,
    /// All tasks, newest first.
    Created,
}

impl Source {
    #[must_use]
    pub fn of(filter: &TaskFilter) -> Self {
        if filter.task_group_id.is_some() {
            return Self::Group;
        }
        let has_queue = filter.task_queue_id.is_some();
        match filter.state {
            Some(ListState::Pending) if has_queue => Self::Pending,
            Some(ListState::Held) if has_queue => Self::Held,
            Some(ListState::Running) => Self::Running,
            Some(ListState::Failed | ListState::Exception) => Self::Failed,
            None if filter.is_of_failures() => Self::Failed,
            Some(ListState::Pending | ListState::Held | ListState::Unscheduled | ListState::Completed) | None => {
                Self::Created
            }
        }
    }
}

/// The last task that a page looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    Group(TaskId),
    /// Position in the queue, for [`Source::Pending`] and [`Source::Held`].
    Queued(i64),
    /// End of the lease, and `tasks.seq`.
    Running(DateTime<Utc>, i64),
    /// Time of the failure, and `tasks.seq`.
    Failed(DateTime<Utc>, i64),
    /// `tasks.seq`.
    Created(i64),
}

impl Position {
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Group(task) => format!("g/{task}"),
            Self::Queued(ord) => format!("q/{ord}"),
            Self::Running(time, seq) => format!("r/{}/{seq}", time.timestamp_micros()),
            Self::Failed(time, seq) => format!("f/{}/{seq}", time.timestamp_micros()),
            Self::Created(seq) => format!("c/{seq}"),
        }
    }

    /// Reads a position in a list of `source`.
    #[must_use]
    pub fn parse(text: &str, source: Source) -> Option<Self> {
        let (kind, rest) = text.split_once('/')?;
        let timed = || {
            let (micros, seq) = rest.split_once('/')?;
            Some((time(micros)?, seq.parse::<i64>().ok()?))
        };
        match (source, kind) {
            (Source::Group, "g") => rest.parse().ok().map(Self::Group),
            (Source::Pending | Source::Held, "q") => rest.parse().ok().map(Self::Queued),
            (Source::Running, "r") => timed().map(|(time, seq)| Self::Running(time, seq)),
            (Source::Failed, "f") => timed().map(|(time, seq)| Self::Failed(time, seq)),
            (Source::Created, "c") => rest.parse().ok().map(Self::Created),
            _ => None,
        }
    }
}

/// Parts of a definition that a list shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brief {
    pub name: String,
    pub owner: String,
    pub created: DateTime<Utc>,
}

impl Brief {
    #[must_use]
    pub fn read(definition: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Definition {
            created: Timestamp,
            metadata: Metadata,
        }
        let Definition { created, metadata } = serde_json::from_str(definition).ok()?;
        Some(Self { name: metadata.name, owner: metadata.owner, created: created.time() })
    }
}

/// Texts that the stored JSON of a matching task contains. A task whose JSON contains them may
/// still not match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needles {
    /// In the definition, with its letters from A to Z in lower case.
    pub name: Option<String>,
    /// In the definition.
    pub owner: Option<String>,
    /// In the tags.
    pub tag: Option<String>,
}

impl Needles {
    #[must_use]
    pub fn of(filter: &TaskFilter) -> Self {
        let name = filter.name.as_deref().map(|name| inner(name).to_ascii_lowercase());
        let owner = filter.owner.as_deref().map(|owner| format!("\"owner\":\"{}\"", inner(owner)));
        let tag = filter.tag_pair().map(|(key, value)| format!("\"{}\":\"{}\"", inner(key), inner(value)));
        Self { name, owner, tag }
    }
}

/// The text as it stands within a string of JSON.
fn inner(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// True if a task matches the texts of a filter. `tags` is JSON text.
#[must_use]
pub fn matches_texts(filter: &TaskFilter, brief: Option<&Brief>, tags: Option<&str>) -> bool {
    let of_definition = |wanted: Option<&str>, has: fn(&Brief, &str) -> bool| {
        wanted.is_none_or(|wanted| brief.is_some_and(|brief| has(brief, wanted)))
    };
    let tag = filter.tag_pair().is_none_or(|(key, value)| {
        let tags = tags.and_then(|tags| serde_json::from_str::<BTreeMap<String, String>>(tags).ok());
        tags.is_some_and(|tags| tags.get(key).is_some_and(|tagged| tagged == value))
    });
    tag && of_definition(filter.owner.as_deref(), |brief, owner| brief.owner == owner)
        && of_definition(filter.name.as_deref(), |brief, part| {
            brief.name.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
        })
}

/// True if the time lies within the filter's. A task without a known time is left out.
#[must_use]
pub fn matches_time(filter: &TaskFilter, time: Option<DateTime<Utc>>) -> bool {
    let since = filter.since.is_none_or(|since| time.is_some_and(|time| time >= since));
    since && filter.until.is_none_or(|until| time.is_some_and(|time| time <= until))
}

/// Returns the first and the last id that begin with a short id.
#[must_use]
pub fn ids_of_short(short: &str) -> Option<(Uuid, Uuid)> {
    let begin: [u8; SHORT_BYTES] = URL_SAFE_NO_PAD.decode(short).ok()?.try_into().ok()?;
    let filled = |byte: u8| {
        let mut bytes = [byte; 16];
        bytes[..SHORT_BYTES].copy_from_slice(&begin);
        Uuid::from_bytes(bytes)
    };
    Some((filled(0), filled(u8::MAX)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "fN1SbArXTPSVFNUvaOlinQ";

    fn filter(fields: serde_json::Value) -> TaskFilter {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn list_reads_the_narrowest_index() {
        for (fields, source) in [
            (json!({}), Source::Created),
            (json!({"taskQueueId": "a/b"}), Source::Created),
            (json!({"taskQueueId": "a/b", "state": "completed"}), Source::Created),
            (json!({"taskQueueId": "a/b", "state": "pending"}), Source::Pending),
            (json!({"taskQueueId": "a/b", "state": "held"}), Source::Held),
            (json!({"state": "pending"}), Source::Created),
            (json!({"state": "running"}), Source::Running),
            (json!({"state": "failed"}), Source::Failed),
            (json!({"reason": "deadline-exceeded"}), Source::Failed),
            (json!({"reason": "completed"}), Source::Created),
            (json!({"state": "pending", "reason": "failed"}), Source::Created),
            (json!({"state": "failed", "taskGroupId": ID}), Source::Group),
        ] {
            assert_eq!(Source::of(&filter(fields.clone())), source, "{fields}");
        }
    }

    #[test]
    fn position_belongs_to_its_source() {
        let time = DateTime::from_timestamp_micros(1_700_000_000_123_456).unwrap();
        let all = [
            (Source::Group, Position::Group(ID.parse().unwrap())),
            (Source::Pending, Position::Queued(7)),
            (Source::Running, Position::Running(time, 7)),
            (Source::Failed, Position::Failed(time, 7)),
            (Source::Created, Position::Created(7)),
        ];
        for (source, position) in all {
            for (other, _) in all {
                let read = Position::parse(&position.text(), other);
                assert_eq!(read, Some(position).filter(|_| other == source), "{other:?}");
            }
        }
        assert_eq!(Position::parse("q/7", Source::Held), Some(Position::Queued(7)));
        for wrong in ["", "c", "c/", "c/x", "c/1/2", "f/1", "f/x/1", "f/-1/1", "f/9999999999999999999/1", "g/short"] {
            for source in [Source::Created, Source::Failed, Source::Group] {
                assert_eq!(Position::parse(wrong, source), None, "{wrong}");
            }
        }
    }

    #[test]
    fn texts_match_whole_owner_and_tag_and_part_of_name() {
        let brief = Brief { name: "Build \"é\"".to_owned(), owner: "a@b".to_owned(), created: DateTime::UNIX_EPOCH };
        let tags = r#"{"kind":"nightly","x\"kind":"weekly"}"#;
        for (fields, expected) in [
            (json!({}), true),
            (json!({"name": "build"}), true),
            (json!({"name": "\"é"}), true),
            (json!({"name": "É"}), false),
            (json!({"owner": "a@b"}), true),
            (json!({"owner": "a@"}), false),
            (json!({"tag": "kind=nightly"}), true),
            (json!({"tag": "kind=weekly"}), false),
            (json!({"name": "build", "tag": "kind="}), false),
        ] {
            let filter = filter(fields.clone());
            assert_eq!(matches_texts(&filter, Some(&brief), Some(tags)), expected, "{fields}");
            let has = filter.reads_definitions();
            assert_eq!(matches_texts(&filter, None, None), !has, "{fields}");
        }
    }

    #[test]
    fn stored_text_of_a_match_contains_the_needles() {
        for text in ["plain", "Qu\"ote", "back\\slash", "new\nline", "é", "\u{1f}", "A\u{7f}"] {
            let stored = json!({"metadata": {"name": format!("x{text}y"), "owner": text}}).to_string();
            let tags = json!({"a": "b", text: text}).to_string();
            let filter = TaskFilter {
                name: Some(text.to_owned()),
                owner: Some(text.to_owned()),
                tag: Some(format!("{text}={text}")),
                ..TaskFilter::default()
            };
            let Needles { name, owner, tag } = Needles::of(&filter);
            assert!(stored.to_ascii_lowercase().contains(&name.unwrap()), "{stored}");
            assert!(stored.contains(&owner.unwrap()) && tags.contains(&tag.unwrap()), "{stored} {tags}");
        }
    }

    #[test]
    fn times_include_their_ends() {
        let at = |seconds: i64| DateTime::from_timestamp(seconds, 0).unwrap();
        let filter = TaskFilter { since: Some(at(5)), until: Some(at(7)), ..TaskFilter::default() };
        let within: Vec<i64> = (3..10).filter(|second| matches_time(&filter, Some(at(*second)))).collect();
        assert_eq!(within, [5, 6, 7]);
        assert!(!matches_time(&filter, None) && matches_time(&TaskFilter::default(), None));
    }

    #[test]
    fn short_id_spans_the_ids_that_begin_with_it() {
        let id: TaskId = ID.parse().unwrap();
        let (first, last) = ids_of_short(&ID[..SHORT_ID]).unwrap();
        assert!(first < id.uuid() && id.uuid() < last);
        let (first, last) = ids_of_short("fN1SbArY").unwrap();
        assert!(id.uuid() < first && first < last);
        for wrong in ["", "fN1SbAr", "fN1SbArXT", "fN1SbAr+", "fN1SbAré", ID] {
            assert_eq!(ids_of_short(wrong), None, "{wrong}");
        }
    }
}
