//! Rendering of events. The outbox keeps a few numbers for each transition; exchange, routing key and payload are made
//! when the log is read, and show the task as it was right after the transition.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::bodies::Status;
use tenure_api::dates::Timestamp;
use tenure_api::ids::RunId;
use tenure_api::states::{ReasonCreated, ReasonResolved};
use utoipa::ToSchema;

use super::task::{EndedRun, Last, OpenRun, Task, Tenancy};

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
}

impl Kind {
    /// The kind that a stored number stands for.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        match code {
            1 => Some(Self::Created),
            2 => Some(Self::Claimed),
            3 => Some(Self::Completed),
            4 => Some(Self::Failed),
            5 => Some(Self::Exception),
            6 => Some(Self::Retried),
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
        }
    }
}

/// Where an event is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// A task was created.
    TaskDefined,
    /// A run waits for a worker.
    TaskPending,
    /// A run was claimed.
    TaskRunning,
    /// A run succeeded.
    TaskCompleted,
    /// A run failed.
    TaskFailed,
    /// A run ended for a reason outside the task.
    TaskException,
}

impl Exchange {
    /// The exchange's full name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TaskDefined => "exchange/taskcluster-queue/v1/task-defined",
            Self::TaskPending => "exchange/taskcluster-queue/v1/task-pending",
            Self::TaskRunning => "exchange/taskcluster-queue/v1/task-running",
            Self::TaskCompleted => "exchange/taskcluster-queue/v1/task-completed",
            Self::TaskFailed => "exchange/taskcluster-queue/v1/task-failed",
            Self::TaskException => "exchange/taskcluster-queue/v1/task-exception",
        }
    }
}

/// A stored transition.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// What happened.
    pub kind: Kind,
    /// To which run.
    pub run: RunId,
    /// Retries left afterwards.
    pub retries_left: u16,
    /// When.
    pub at: DateTime<Utc>,
    /// For a claim: when it ended unless renewed.
    pub taken_until: Option<DateTime<Utc>>,
}

/// What is needed of a task to render its events.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The task as it is now.
    pub task: Task,
    /// JSON text of its routes.
    pub routes: String,
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
#[serde(rename_all = "camelCase")]
#[schema(as = EventPayload)]
pub struct Payload {
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
    /// What is said of the definition.
    task: Tagged,
}

/// What an event says of a task's definition.
#[derive(Serialize, Debug, ToSchema)]
#[schema(as = EventTask)]
struct Tagged {
    /// The tags.
    #[schema(value_type = Object)]
    tags: Box<RawValue>,
}

/// Renders the events of a transition; the first one has this position.
#[must_use]
pub fn render(transition: &Transition, subject: &Subject, position: i64) -> Vec<Event> {
    (position..)
        .zip(transition.kind.exchanges())
        .map(|(position, &exchange)| render_one(transition, subject, exchange, position))
        .collect()
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
    let routes: Vec<String> = serde_json::from_str(&subject.routes).unwrap_or_default();
    Event {
        position,
        time: Timestamp::new(transition.at),
        exchange: exchange.name(),
        routing_key,
        cc: routes.into_iter().map(|route| format!("route.{route}")).collect(),
        payload: Payload {
            version: 1,
            status: task.status(),
            run_id: run,
            worker_group: tenancy.as_ref().map(|held| held.worker_group.clone()),
            worker_id: tenancy.as_ref().map(|held| held.worker_id.clone()),
            taken_until: match exchange {
                Exchange::TaskRunning => transition.taken_until.map(Timestamp::new),
                Exchange::TaskDefined
                | Exchange::TaskPending
                | Exchange::TaskCompleted
                | Exchange::TaskFailed
                | Exchange::TaskException => None,
            },
            task: Tagged { tags: subject.tags.clone() },
        },
    }
}

/// The run that an event is about, and who holds or held it.
fn about(transition: &Transition, task: &Task, exchange: Exchange) -> (Option<RunId>, Option<Tenancy>) {
    match (exchange, &task.last) {
        (Exchange::TaskDefined, _) => (None, None),
        (Exchange::TaskPending, Last::Pending(open)) => (Some(open.run), None),
        (Exchange::TaskRunning, Last::Running(open, tenancy)) => (Some(open.run), Some(tenancy.clone())),
        (_, _) => {
            let ended = task.ended.iter().find(|ended| ended.run.run == transition.run);
            (Some(transition.run), ended.and_then(|ended| ended.tenancy.clone()))
        }
    }
}

/// The task as it was right after the transition: what came later is taken away again.
fn task_after(transition: &Transition, now: &Task, exchange: Exchange) -> Task {
    let run = transition.run;
    let open = known_run(now, run, transition.at);
    let ended_before = |last: RunId| now.ended.iter().filter(|ended| ended.run.run < last).cloned().collect();
    let (last, ended): (Last, Vec<EndedRun>) = match (transition.kind, exchange) {
        (Kind::Created, Exchange::TaskDefined) => (Last::Unscheduled, Vec::new()),
        (Kind::Created, _) => (Last::Pending(open), Vec::new()),
        (Kind::Claimed, _) => {
            let last = match known_tenancy(now, run) {
                Some(held) => Last::Running(
                    open,
                    Tenancy {
                        started: transition.at,
                        taken_until: transition.taken_until.unwrap_or(held.taken_until),
                        ..held
                    },
                ),
                None => Last::Pending(open),
            };
            (last, ended_before(run))
        }
        (Kind::Completed | Kind::Failed | Kind::Exception, _) => (Last::Ended, ended_before(run.next())),
        (Kind::Retried, _) => {
            let ended: Vec<EndedRun> = ended_before(run.next());
            let asked = ended.last().is_some_and(|ended| ended.reason == ReasonResolved::IntermittentTask);
            let reason = if asked { ReasonCreated::TaskRetry } else { ReasonCreated::Retry };
            (Last::Pending(OpenRun { run: run.next(), reason, scheduled: transition.at }), ended)
        }
    };
    Task { last, ended, retries_left: transition.retries_left, ..now.clone() }
}

fn known_run(task: &Task, run: RunId, at: DateTime<Utc>) -> OpenRun {
    let ended = task.ended.iter().map(|ended| ended.run);
    let open = match &task.last {
        Last::Pending(open) | Last::Running(open, _) => Some(*open),
        Last::Unscheduled | Last::Ended => None,
    };
    ended.chain(open).find(|known| known.run == run).unwrap_or(OpenRun {
        run,
        reason: ReasonCreated::Scheduled,
        scheduled: at,
    })
}

fn known_tenancy(task: &Task, run: RunId) -> Option<Tenancy> {
    if let Last::Running(open, tenancy) = &task.last
        && open.run == run
    {
        return Some(tenancy.clone());
    }
    task.ended.iter().find(|ended| ended.run.run == run).and_then(|ended| ended.tenancy.clone())
}

/// The tags of a task as raw JSON.
#[must_use]
pub fn raw_tags(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned())
        .or_else(|_| serde_json::value::to_raw_value(&Value::Object(serde_json::Map::new())))
        .unwrap_or_default()
}
