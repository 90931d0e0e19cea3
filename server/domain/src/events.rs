//! Rendering of events. The outbox keeps a few numbers per transition. Exchange, routing key and
//! payload are rendered at reads, and show the task right after the transition.
//!
//! Events are immutable. Rendering may use immutable parts of the current task: ids, dates, ended
//! runs, and who claimed a run and when. Mutable parts are stored with the transition: priority,
//! retries left, the end of a claim, a group's expiry.

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

/// Kinds of transitions, as the outbox stores them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The task was created with a pending first run.
    Created,
    Claimed,
    Completed,
    Failed,
    /// The run and the task ended as exceptions.
    Exception,
    /// The run ended as an exception and the next run is pending.
    Retried,
    /// The task was created without a run.
    Defined,
    /// A run became pending; the task had no open run.
    Scheduled,
    Reprioritised,
    GroupResolved,
    GroupSealed,
    GroupReprioritised,
    /// An artifact of the run can be read.
    ArtifactCreated,
    /// The run failed and the next run is pending.
    RetriedFailed,
}

impl Kind {
    pub const ARTIFACT_CREATED: i16 = 13;

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
            // 14 is [`note::KIND`].
            15 => Some(Self::RetriedFailed),
            _ => None,
        }
    }

    /// Returns the exchanges of a transition, in order. Each takes one position in the log.
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
            // Only the task's last run sends task-failed.
            Self::RetriedFailed => &[Exchange::TaskPending],
        }
    }
}

#[derive(Clone, Debug)]
pub struct Transition {
    pub kind: Kind,
    pub run: RunId,
    /// Retries left after the transition.
    pub retries_left: u16,
    /// The priority after the transition. None for groups and for transitions of old releases.
    pub priority: Option<Priority>,
    pub at: DateTime<Utc>,
    /// End of a claim, unless renewed.
    pub taken_until: Option<DateTime<Utc>>,
    /// JSON text of further details.
    pub details: Option<String>,
}

#[derive(Deserialize)]
struct PriorityChange {
    old: i16,
    new: i16,
    /// State: 0 unscheduled, 1 pending, 2 running.
    place: i16,
    /// End of the claim at that time.
    #[serde(default, rename = "takenUntil")]
    taken_until: Option<DateTime<Utc>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactNote {
    storage_type: StorageType,
    name: String,
    expires: DateTime<Utc>,
    content_type: String,
    /// The task's last run at that time.
    last: Option<RunId>,
    /// State of the last run: 0 resolved, 1 pending, 2 running.
    place: i16,
    /// End of its claim at that time.
    #[serde(default)]
    taken_until: Option<DateTime<Utc>>,
}

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

/// A task with everything that rendering needs.
#[derive(Clone, Debug)]
pub struct Subject {
    pub task: Task,
    pub group: Group,
    pub routes: Vec<String>,
    /// JSON text.
    pub tags: Box<RawValue>,
    /// Its unique name.
    pub unique: Option<String>,
}

/// An event of the log.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Position in the log, from 1.
    pub position: i64,
    /// When the event happened.
    pub time: Timestamp,
    /// The exchange it is published on.
    pub exchange: &'static str,
    /// The primary routing key.
    pub routing_key: String,
    /// Further routing keys: `route.` followed by each of the task's routes.
    pub cc: Vec<String>,
    /// The unique name of the task, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
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
    /// About a queue or a subscription.
    Note(note::Note),
}

/// The message of an event about a task.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskEventPayload)]
pub struct TaskPayload {
    /// Version of the message format.
    version: u8,
    /// The task right after the event.
    status: Status,
    /// The run, if the event is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// The worker that claimed the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// When the claim expires unless renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_until: Option<Timestamp>,
    /// The previous priority, for a change of priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_priority: Option<Priority>,
    /// The new priority, for a change of priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_priority: Option<Priority>,
    /// The artifact, if the event is about one.
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
    /// Version of the message format.
    version: u8,
    /// The group.
    task_group_id: TaskGroupId,
    /// The scheduler that owns the group.
    scheduler_id: String,
    /// When the group is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
    /// When the group was sealed: since then no tasks can be added.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
    /// For a resolved group: true if no task has an open run. A rerun task has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    quiescent: Option<bool>,
    /// The new priority of its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_priority: Option<Priority>,
    /// Number of changed tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_affected: Option<i64>,
}

/// An artifact in an event.
#[derive(Serialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
struct EventArtifact {
    /// The storage type.
    storage_type: StorageType,
    /// Name within the run.
    name: String,
    /// When the artifact expires.
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

/// Renders the events of a transition, from this position on. An event about a task needs
/// `subject`, and is skipped once the task has expired.
pub fn render(transition: &Transition, subject: Option<&Subject>, position: i64) -> Vec<Event> {
    (position..)
        .zip(transition.kind.exchanges())
        .filter_map(|(position, &exchange)| match (transition.kind, subject) {
            (Kind::GroupSealed | Kind::GroupReprioritised, _) => {
                group_event(transition, details_of(transition)?, exchange, position)
            }
            (Kind::GroupResolved, Some(Subject { task, .. })) => {
                // A lone task's resolution stores no details: its group was as the task created it.
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
    // A change of a group's priority has only the group and the new priority.
    let described = transition.kind != Kind::GroupReprioritised;
    Some(Event {
        position,
        time: Timestamp::new(transition.at),
        exchange: exchange.name(),
        routing_key: format!("primary.{id}.{}._", group.scheduler),
        cc: Vec::new(),
        unique: None,
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
        unique: subject.unique.clone(),
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

/// Converts stored tags.
pub fn raw_tags(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned())
        .or_else(|_| serde_json::value::to_raw_value(&Value::Object(serde_json::Map::new())))
        .unwrap_or_default()
}
