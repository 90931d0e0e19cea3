//! Rendering of events. The outbox keeps a few numbers for each transition; exchange, routing key and payload are made
//! when the log is read, and show the task as it was right after the transition.
//!
//! An event never changes while it can be read. Of the task as it is now, rendering may use what never changes (ids, dates,
//! runs that have ended, who claimed a run and when); what does change (priority, retries left, the end of a claim, a
//! group's expiry) is in the transition.

mod after;
mod exchange;
pub mod note;
mod widths;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::bodies::Status;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskGroupId};
use tenure_api::states::{Priority, StorageType};
use utoipa::ToSchema;

use self::after::{known_tenancy, task_after};
pub use self::exchange::{Exchange, Fields};
pub use self::widths::widths;
use super::create::group_expires;
use super::task::{Group, Last, Task, Tenancy};

/// What happened, as the outbox stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The task was created and its first run is pending.
    Created,
    /// The run was claimed.
    Claimed,
    /// The run was reported as a success.
    Completed,
    /// The run was reported as a failure.
    Failed,
    /// The run ended as an exception, and so did the task.
    Exception,
    /// The run ended as an exception and the next one is pending.
    Retried,
    /// The task was created and has no run yet.
    Defined,
    /// The run became pending, of a task that had none that was open.
    Scheduled,
    /// The task's priority was changed.
    Reprioritised,
    /// Every task of the group is resolved.
    GroupResolved,
    /// The group was sealed.
    GroupSealed,
    /// The priority of the group's tasks was changed.
    GroupReprioritised,
    /// An artifact of the run can be read.
    ArtifactCreated,
}

impl Kind {
    /// The number by which [`Kind::ArtifactCreated`] is stored.
    pub const ARTIFACT_CREATED: i16 = 13;

    /// The kind for a stored number.
    pub fn from_code(code: i16) -> Option<Self> {
        match code {
            1 => Some(Self::Created),
            2 => Some(Self::Claimed),
            3 => Some(Self::Completed),
            4 => Some(Self::Failed),
            5 => Some(Self::Exception),
            6 => Some(Self::Retried),
            7 => Some(Self::Defined),
            8 => Some(Self::Scheduled),
            9 => Some(Self::Reprioritised),
            10 => Some(Self::GroupResolved),
            11 => Some(Self::GroupSealed),
            12 => Some(Self::GroupReprioritised),
            Self::ARTIFACT_CREATED => Some(Self::ArtifactCreated),
            _ => None,
        }
    }

    /// The exchanges that hear of it, in order: as many as the transition takes positions in the log.
    #[must_use]
    pub fn exchanges(self) -> &'static [Exchange] {
        match self {
            Self::Created => &[Exchange::TaskDefined, Exchange::TaskPending],
            Self::Claimed => &[Exchange::TaskRunning],
            Self::Completed => &[Exchange::TaskCompleted],
            Self::Failed => &[Exchange::TaskFailed],
            Self::Exception => &[Exchange::TaskException],
            Self::Retried => &[Exchange::TaskException, Exchange::TaskPending],
            Self::Defined => &[Exchange::TaskDefined],
            Self::Scheduled => &[Exchange::TaskPending],
            Self::Reprioritised => &[Exchange::TaskPriorityChanged],
            Self::GroupResolved => &[Exchange::TaskGroupResolved],
            Self::GroupSealed => &[Exchange::TaskGroupSealed],
            Self::GroupReprioritised => &[Exchange::TaskGroupPriorityChanged],
            Self::ArtifactCreated => &[Exchange::ArtifactCreated],
        }
    }
}

/// A stored transition.
#[derive(Clone, Debug)]
pub struct Transition {
    /// What happened.
    pub kind: Kind,
    /// To which run.
    pub run: RunId,
    /// Retries left afterwards.
    pub retries_left: u16,
    /// The task's priority afterwards; none in what releases stored that did not keep it, and of groups.
    pub priority: Option<Priority>,
    /// When.
    pub at: DateTime<Utc>,
    /// For a claim: when it ended unless renewed.
    pub taken_until: Option<DateTime<Utc>>,
    /// JSON text of further details of its events.
    pub details: Option<String>,
}

/// Further details of a change of a task's priority.
#[derive(Deserialize)]
struct PriorityChange {
    old: i16,
    new: i16,
    /// Where the task was: 0 unscheduled, 1 pending, 2 running.
    place: i16,
    /// When the claim ended then, if the task was running.
    #[serde(default, rename = "takenUntil")]
    taken_until: Option<DateTime<Utc>>,
}

/// Further details of an event about an artifact.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactNote {
    storage_type: StorageType,
    name: String,
    expires: DateTime<Utc>,
    content_type: String,
    /// The task's last run then.
    last: Option<RunId>,
    /// Where that was: 0 resolved, 1 pending, 2 running.
    place: i16,
    /// When its claim ended then, if it was running.
    #[serde(default)]
    taken_until: Option<DateTime<Utc>>,
}

/// The details of an event about a group, not about one of its tasks.
#[derive(Deserialize)]
struct GroupDetails {
    id: String,
    scheduler: String,
    expires: DateTime<Utc>,
    sealed: Option<DateTime<Utc>>,
    quiescent: Option<bool>,
    new: Option<i16>,
    affected: Option<i64>,
}

/// What is needed of a task to render its events.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The task as it is now.
    pub task: Task,
    /// Its group as it is now.
    pub group: Group,
    /// Its routes.
    pub routes: Vec<String>,
    /// JSON text of its tags.
    pub tags: Box<RawValue>,
}

/// An event as it is read.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its place in the log, from 1.
    pub position: i64,
    /// When it happened.
    pub time: Timestamp,
    /// Where it is published.
    pub exchange: &'static str,
    /// The primary routing key.
    pub routing_key: String,
    /// Further routing keys: `route.` and each of the task's routes.
    pub cc: Vec<String>,
    /// The message.
    pub payload: Payload,
}

/// The message of an event.
#[derive(Serialize, Debug, ToSchema)]
#[serde(untagged)]
#[schema(as = EventPayload)]
pub enum Payload {
    /// About a task.
    Task(Box<TaskPayload>),
    /// About a group.
    Group(GroupPayload),
    /// About a queue.
    Note(note::Note),
}

/// The message of an event about a task.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskEventPayload)]
pub struct TaskPayload {
    /// Of the form of this message.
    version: u8,
    /// The task right after it.
    status: Status,
    /// The run, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// Who claimed the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// When the claim ends unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_until: Option<Timestamp>,
    /// The priority before it, if it is about a change of priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_priority: Option<Priority>,
    /// The priority after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_priority: Option<Priority>,
    /// The artifact, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<EventArtifact>,
    /// The part of the definition that events contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Tagged>,
}

/// The message of an event about a group.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GroupEventPayload)]
pub struct GroupPayload {
    /// Of the form of this message.
    version: u8,
    /// The group.
    task_group_id: TaskGroupId,
    /// Whom the group belongs to.
    scheduler_id: String,
    /// When the group is purged.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
    /// Since when no tasks can be added.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
    /// Of a group that is resolved: whether none of its tasks has an open run, which a rerun one has.
    #[serde(skip_serializing_if = "Option::is_none")]
    quiescent: Option<bool>,
    /// The priority that its tasks have now.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_priority: Option<Priority>,
    /// How many tasks were changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_affected: Option<i64>,
}

/// An artifact in an event.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
struct EventArtifact {
    /// How it is stored.
    storage_type: StorageType,
    /// Its name within the run.
    name: String,
    /// Until when it is retained.
    expires: Timestamp,
    /// The media type.
    content_type: String,
}

/// A task's definition in an event.
#[derive(Serialize, Debug, ToSchema)]
#[schema(as = EventTask)]
struct Tagged {
    /// The tags.
    #[schema(value_type = Object)]
    tags: Box<RawValue>,
}

/// Renders the events of a transition; the first one has this position. An event about a task needs it as a subject, and
/// is left out once the task has expired.
pub fn render(transition: &Transition, subject: Option<&Subject>, position: i64) -> Vec<Event> {
    (position..)
        .zip(transition.kind.exchanges())
        .filter_map(|(position, &exchange)| match (transition.kind, subject) {
            (Kind::GroupSealed | Kind::GroupReprioritised, _) => {
                group_event(transition, details_of(transition)?, exchange, position)
            }
            (Kind::GroupResolved, Some(Subject { task, .. })) => {
                // The end of a lone task leaves no details: its group was as the task made it, whatever became of it since.
                let details = details_of(transition).unwrap_or_else(|| GroupDetails {
                    id: task.group.uuid().to_string(),
                    scheduler: task.scheduler.clone(),
                    expires: group_expires(task.expires),
                    sealed: None,
                    quiescent: Some(true),
                    new: None,
                    affected: None,
                });
                group_event(transition, details, exchange, position)
            }
            (_, Some(subject)) => Some(render_one(transition, subject, exchange, position)),
            (_, None) => None,
        })
        .collect()
}

fn details_of<'a, T: Deserialize<'a>>(transition: &'a Transition) -> Option<T> {
    serde_json::from_str(transition.details.as_deref()?).ok()
}

fn group_event(transition: &Transition, group: GroupDetails, exchange: Exchange, position: i64) -> Option<Event> {
    let id = TaskGroupId::from_uuid(group.id.parse().ok()?)?;
    // The change of a group's priority names the group and the new priority; the other two have the group's state.
    let described = transition.kind != Kind::GroupReprioritised;
    Some(Event {
        position,
        time: Timestamp::new(transition.at),
        exchange: exchange.name(),
        routing_key: format!("primary.{id}.{}._", group.scheduler),
        cc: Vec::new(),
        payload: Payload::Group(GroupPayload {
            version: 1,
            task_group_id: id,
            scheduler_id: group.scheduler,
            expires: described.then(|| group.expires.into()),
            sealed: group.sealed.filter(|_| described).map(Timestamp::new),
            quiescent: group.quiescent,
            new_priority: group.new.and_then(Priority::from_code),
            tasks_affected: group.affected,
        }),
    })
}

fn render_one(transition: &Transition, subject: &Subject, exchange: Exchange, position: i64) -> Event {
    let task = task_after(transition, &subject.task, exchange);
    let (run, tenancy) = about(transition, &task, exchange);
    let word = |text: Option<&str>| text.unwrap_or("_").to_owned();
    let routing_key = [
        "primary".to_owned(),
        task.id.to_string(),
        run.map_or_else(|| "_".to_owned(), |run| run.to_string()),
        word(tenancy.as_ref().map(|held| held.worker_group.as_str())),
        word(tenancy.as_ref().map(|held| held.worker_id.as_str())),
        task.queue.provisioner_id().to_owned(),
        task.queue.worker_type().to_owned(),
        task.scheduler.clone(),
        task.group.to_string(),
        "_".to_owned(),
    ]
    .join(".");
    let change: Option<PriorityChange> =
        if transition.kind == Kind::Reprioritised { details_of(transition) } else { None };
    let artifact: Option<ArtifactNote> =
        if transition.kind == Kind::ArtifactCreated { details_of(transition) } else { None };
    Event {
        position,
        time: Timestamp::new(transition.at),
        exchange: exchange.name(),
        routing_key,
        cc: subject.routes.iter().map(|route| format!("route.{route}")).collect(),
        payload: Payload::Task(Box::new(TaskPayload {
            version: 1,
            status: task.status(),
            run_id: run,
            worker_group: tenancy.as_ref().map(|held| held.worker_group.clone()),
            worker_id: tenancy.as_ref().map(|held| held.worker_id.clone()),
            taken_until: transition.taken_until.filter(|_| exchange == Exchange::TaskRunning).map(Timestamp::new),
            old_priority: change.as_ref().and_then(|change| Priority::from_code(change.old)),
            new_priority: change.as_ref().and_then(|change| Priority::from_code(change.new)),
            artifact: artifact.map(|note| EventArtifact {
                storage_type: note.storage_type,
                name: note.name,
                expires: note.expires.into(),
                content_type: note.content_type,
            }),
            task: (!matches!(exchange, Exchange::TaskPriorityChanged | Exchange::ArtifactCreated))
                .then(|| Tagged { tags: subject.tags.clone() }),
        })),
    }
}

/// The run that an event is about, and who holds or held it.
fn about(transition: &Transition, task: &Task, exchange: Exchange) -> (Option<RunId>, Option<Tenancy>) {
    match (exchange, &task.last) {
        (Exchange::TaskDefined | Exchange::TaskPriorityChanged, _) => (None, None),
        (Exchange::TaskPending, Last::Pending(open)) => (Some(open.run), None),
        (Exchange::TaskRunning, Last::Running(open, tenancy)) => (Some(open.run), Some(tenancy.clone())),
        (Exchange::ArtifactCreated, _) => (Some(transition.run), known_tenancy(task, transition.run)),
        (_, _) => {
            let ended = task.ended.iter().find(|ended| ended.run.run == transition.run);
            (Some(transition.run), ended.and_then(|ended| ended.tenancy.clone()))
        }
    }
}

/// The tags of a task as raw JSON.
pub fn raw_tags(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned())
        .or_else(|_| serde_json::value::to_raw_value(&Value::Object(serde_json::Map::new())))
        .unwrap_or_default()
}
