//! Checks and defaults of createTask requests, and detection of repeats.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Datelike, Months, TimeDelta, Utc};
use tenure_api::bodies::{CreateTaskRequest, Metadata, TaskDefinition};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{ProjectId, SchedulerId, TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{Priority, Requires};
use uuid::Uuid;

use super::json::{self, Unserializable};
use super::policy::hold::{Start, start_refusal};
use super::policy::options::{self, Options, Unique};
use super::policy::retention;
pub use super::unacceptable::Unacceptable;

pub const DEPENDENCIES_MAX: usize = 10_000;
pub const ROUTES_MAX: usize = 64;
pub const ROUTE_CHARS_MAX: usize = 249;
pub const RETRIES_MAX: u16 = 49;
pub const RETRIES_DEFAULT: u16 = 5;
/// Maximum characters of a metadata name or owner.
pub const METADATA_SHORT_MAX: usize = 255;
pub const METADATA_DESCRIPTION_MAX: usize = 32_768;
pub const METADATA_SOURCE_MAX: usize = 4_096;
pub const TAG_CHARS_MAX: usize = 4_096;
/// Maximum difference between `created` and now, either way.
pub const CREATED_DRIFT: TimeDelta = TimeDelta::minutes(15);
/// Maximum time to a deadline, apart from [`CREATED_DRIFT`].
pub const DEADLINE_AHEAD: TimeDelta = TimeDelta::days(5);
/// Maximum time to a deadline of a submission, apart from [`CREATED_DRIFT`].
pub const DEADLINE_AHEAD_SUBMITTED: TimeDelta = TimeDelta::days(366);
/// Maximum ids in a refusal.
const LISTED_MAX: usize = 100;
/// After the deadline.
pub(crate) const EXPIRES_DEFAULT: Months = Months::new(12);
/// The last year with four digits.
const LAST_YEAR: i32 = 9999;
/// Initial capacity without `payload` and `extra`, in bytes.
const DEFINITION_ROOM: usize = 1 << 10;
/// Minimum retention of a group after its tasks.
const GROUP_OUTLIVES: TimeDelta = TimeDelta::hours(1);

/// A task to store: checked and complete.
#[derive(Debug, Clone)]
pub struct NewTask {
    pub id: TaskId,
    pub queue: TaskQueueId,
    pub scheduler: SchedulerId,
    pub project: ProjectId,
    pub group: TaskGroupId,
    pub priority: Priority,
    pub retries: u16,
    pub created: DateTime<Utc>,
    /// Unresolved tasks end as an exception at this time.
    pub deadline: DateTime<Utc>,
    /// Marked if the request is a submission without it: see [`retention`].
    pub expires: DateTime<Utc>,
    /// Minimum retention of its group.
    pub group_expires: DateTime<Utc>,
    /// Scopes of the task's own credentials.
    pub scopes: Vec<String>,
    pub routes: Vec<String>,
    pub scopes_text: String,
    pub routes_text: String,
    pub tags: String,
    /// JSON text as returned to readers.
    pub definition: String,
    pub dependencies: Vec<Uuid>,
    pub requires: Requires,
    /// None if the request has no options.
    pub options: Option<Options>,
    /// The field of the options, for messages.
    pub options_place: &'static str,
    pub deadline_limit: DeadlineLimit,
}

/// A requested task. Its scopes are checked before its dates, so a caller without scopes learns
/// nothing about the dates.
#[derive(Debug)]
pub struct Requested {
    task: NewTask,
    broken: Option<Unacceptable>,
}

impl Requested {
    /// The task whose scopes the caller needs.
    pub fn task(&self) -> &NewTask {
        &self.task
    }

    /// Returns the task if its dates and scopes are valid.
    pub fn accept(self) -> Result<NewTask, Unacceptable> {
        self.broken.map_or(Ok(self.task), Err)
    }
}

impl NewTask {
    pub fn from_request(id: TaskId, request: &CreateTaskRequest<'_>) -> Result<Requested, Unacceptable> {
        Self::requested(id, request, options::IN_EXTRA, DeadlineLimit::CreateTask)
    }

    /// Checks a task of a submission. `options_place` names the field of its options.
    pub fn from_submission(
        id: TaskId,
        request: &CreateTaskRequest<'_>,
        options_place: &'static str,
    ) -> Result<Self, Unacceptable> {
        Self::requested(id, request, options_place, DeadlineLimit::Submission)?.accept()
    }

    fn requested(
        id: TaskId,
        request: &CreateTaskRequest<'_>,
        options_place: &'static str,
        deadline_limit: DeadlineLimit,
    ) -> Result<Requested, Unacceptable> {
        check_fields(request).map_err(Unacceptable::Schema)?;
        let queue = queue(request)?;
        let deadline = request.deadline.time();
        let expires = match request.expires {
            Some(expires) => expires.time(),
            None => default_expiry(deadline, deadline_limit)?,
        };
        let default = (SchedulerId::default_value(), ProjectId::default_value());
        let mut task = Self {
            id,
            queue,
            scheduler: request.scheduler_id.clone().unwrap_or(default.0),
            project: request.project_id.clone().unwrap_or(default.1),
            group: request.task_group_id.unwrap_or(id),
            priority: request.priority.unwrap_or(Priority::Lowest),
            retries: request.retries.unwrap_or(RETRIES_DEFAULT),
            created: request.created.time(),
            deadline,
            expires,
            group_expires: group_expires(expires),
            scopes: request.scopes.clone(),
            routes: request.routes.clone(),
            scopes_text: json::text(&request.scopes)?,
            routes_text: json::text(&request.routes)?,
            tags: json::text(&request.tags)?,
            definition: String::new(),
            dependencies: request.dependencies.iter().map(|id| id.uuid()).collect(),
            requires: request.requires.unwrap_or(Requires::AllCompleted),
            options: options::of_request(request)?,
            options_place,
            deadline_limit,
        };
        task.definition = definition(&task, request)?;
        let broken = task.broken_rule().map(Unacceptable::Rule);
        Ok(Requested { task, broken })
    }

    fn broken_rule(&self) -> Option<String> {
        if self.created > self.deadline {
            return Some("`created` must not be after `deadline`".into());
        }
        if self.expires < self.deadline {
            return Some("`expires` must not be before `deadline`".into());
        }
        let scope = self.scopes.iter().find(|scope| scope.ends_with("**"))?;
        Some(format!("`scopes` must not contain a scope that ends in `**`: {scope:?}"))
    }

    /// True if servers of the previous release cannot store the task.
    pub fn needs_gate(&self) -> bool {
        let retries = self.options.as_ref().is_some_and(|options| options.retry_failed.is_some());
        retries || self.unique().is_some()
    }

    pub fn unique(&self) -> Option<&Unique> {
        self.options.as_ref()?.unique.as_ref()
    }

    /// Replaces dependencies, in the definition too.
    pub fn replace_dependencies(&mut self, replaced: &HashMap<Uuid, TaskId>) {
        if !self.dependencies.iter().any(|id| replaced.contains_key(id)) {
            return;
        }
        let mut seen = HashSet::new();
        let new = self.dependencies.iter().map(|id| replaced.get(id).map_or(*id, |id| id.uuid()));
        self.dependencies = new.filter(|id| seen.insert(*id)).collect();
        // The first such key is the definition's: no free text precedes it.
        const KEY: &str = "\"dependencies\":[";
        if let Some(start) = self.definition.find(KEY).map(|key| key + KEY.len())
            && let Some(length) = self.definition[start..].find(']')
        {
            let ids = self.dependencies.iter().filter_map(|id| TaskId::from_uuid(*id));
            let ids: Vec<String> = ids.map(|id| format!("\"{id}\"")).collect();
            self.definition.replace_range(start..start + length, &ids.join(","));
        }
    }

    pub fn bytes(&self) -> usize {
        self.definition.len() + self.tags.len() + size_of::<Uuid>() * self.dependencies.len() + 500
    }
}

/// Returns the stored `expires` of a request without it.
fn default_expiry(deadline: DateTime<Utc>, limit: DeadlineLimit) -> Result<DateTime<Utc>, Unacceptable> {
    let expires = deadline
        .checked_add_months(EXPIRES_DEFAULT)
        .ok_or_else(|| Unacceptable::Rule("`deadline` is too far in the future to derive `expires` from it".into()))?;
    Ok(match limit {
        DeadlineLimit::CreateTask => expires,
        DeadlineLimit::Submission => retention::mark_default(expires),
    })
}

/// Returns the minimum retention of the group, rounded up to the hour, so it seldom changes.
pub(crate) fn group_expires(task_expires: DateTime<Utc>) -> DateTime<Utc> {
    const HOUR_US: i64 = 3_600_000_000;
    let wanted = task_expires + GROUP_OUTLIVES;
    // In microseconds, as in the database: chrono rounds in nanoseconds, which overflow in 2262.
    let rounded_us = (wanted.timestamp_micros() + HOUR_US - 1).div_euclid(HOUR_US) * HOUR_US;
    let rounded = DateTime::from_timestamp_micros(rounded_us).unwrap_or(wanted);
    // The last year of the wire format has no hour after it.
    if rounded.year() > task_expires.year() && task_expires.year() == LAST_YEAR { task_expires } else { rounded }
}

fn definition(task: &NewTask, request: &CreateTaskRequest<'_>) -> Result<String, Unserializable> {
    let definition = TaskDefinition {
        provisioner_id: task.queue.provisioner_id(),
        worker_type: task.queue.worker_type(),
        task_queue_id: &task.queue,
        scheduler_id: &task.scheduler,
        project_id: &task.project,
        task_group_id: task.group,
        dependencies: &request.dependencies,
        requires: task.requires,
        routes: &request.routes,
        priority: task.priority,
        retries: task.retries,
        created: request.created,
        deadline: request.deadline,
        expires: Timestamp::new(task.expires),
        scopes: &request.scopes,
        payload: request.payload,
        metadata: &request.metadata,
        tags: &request.tags,
        extra: request.extra.or_else(|| serde_json::from_str("{}").ok()).unwrap_or(request.payload),
    };
    json::text_with_room(DEFINITION_ROOM + request.payload.get().len() + definition.extra.get().len(), &definition)
}

/// Checks constraints that a JSON schema could express.
fn check_fields(request: &CreateTaskRequest<'_>) -> Result<(), String> {
    if request.dependencies.len() > DEPENDENCIES_MAX {
        return Err(format!("`dependencies` has {} items; at most {DEPENDENCIES_MAX}", request.dependencies.len()));
    }
    unique("dependencies", &request.dependencies)?;
    if request.routes.len() > ROUTES_MAX {
        return Err(format!("`routes` has {} items; at most {ROUTES_MAX}", request.routes.len()));
    }
    unique("routes", &request.routes)?;
    for (n, route) in request.routes.iter().enumerate() {
        let field = format!("routes[{n}]");
        length(&field, route, 1, ROUTE_CHARS_MAX)?;
        storable(&field, route)?;
    }
    if request.retries.is_some_and(|retries| retries > RETRIES_MAX) {
        return Err(format!("`retries` must be from 0 to {RETRIES_MAX}"));
    }
    crate::scopes::check_of_task(&request.scopes)?;
    for (field, value) in [("payload", Some(request.payload)), ("extra", request.extra)] {
        if value.is_some_and(|value| !value.get().trim_start().starts_with('{')) {
            return Err(format!("`{field}` must be an object"));
        }
    }
    check_metadata(&request.metadata)?;
    for (name, value) in &request.tags {
        length(&format!("tags[{name:?}]"), value, 0, TAG_CHARS_MAX)?;
    }
    Ok(())
}

fn check_metadata(metadata: &Metadata) -> Result<(), String> {
    length("metadata.name", &metadata.name, 0, METADATA_SHORT_MAX)?;
    length("metadata.description", &metadata.description, 0, METADATA_DESCRIPTION_MAX)?;
    length("metadata.owner", &metadata.owner, 0, METADATA_SHORT_MAX)?;
    length("metadata.source", &metadata.source, 0, METADATA_SOURCE_MAX)?;
    let schemes = ["http://", "https://", "ssh://", "git@"];
    if !schemes.iter().any(|scheme| metadata.source.starts_with(scheme)) {
        return Err("`metadata.source` must match ^(https?://|ssh://|git@)".into());
    }
    Ok(())
}

fn length(field: &str, text: &str, least: usize, most: usize) -> Result<(), String> {
    // A text has at most as many characters as bytes, so short texts need no count.
    let short_enough = text.len() <= most || text.chars().count() <= most;
    if text.len() < least || !short_enough {
        return Err(format!("`{field}` must have from {least} to {most} characters"));
    }
    Ok(())
}

fn storable(field: &str, text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err(format!("`{field}` must not contain the character U+0000"));
    }
    Ok(())
}

fn unique<T: Eq + std::hash::Hash + std::fmt::Display>(field: &str, items: &[T]) -> Result<(), String> {
    let mut seen = HashSet::with_capacity(items.len());
    match items.iter().find(|item| !seen.insert(*item)) {
        Some(twice) => Err(format!("`{field}` contains {twice} twice")),
        None => Ok(()),
    }
}

fn queue(request: &CreateTaskRequest<'_>) -> Result<TaskQueueId, Unacceptable> {
    let halves = match (&request.provisioner_id, &request.worker_type) {
        (Some(provisioner), Some(worker_type)) => Some(TaskQueueId::new(provisioner, worker_type)),
        (None, None) => None,
        (Some(_), None) => return Err(Unacceptable::Rule("`provisionerId` requires `workerType`".into())),
        (None, Some(_)) => return Err(Unacceptable::Rule("`workerType` requires `provisionerId`".into())),
    };
    match (halves, &request.task_queue_id) {
        (Some(halves), Some(whole)) if halves != *whole => Err(Unacceptable::Rule(format!(
            "`taskQueueId` {whole} does not agree with `provisionerId` and `workerType`, {halves}"
        ))),
        (Some(queue), _) => Ok(queue),
        (None, Some(queue)) => Ok(queue.clone()),
        (None, None) => {
            Err(Unacceptable::Rule("name the queue: `taskQueueId`, or `provisionerId` and `workerType`".into()))
        }
    }
}

/// Returns why a date is invalid now. The create statement has the same rules.
pub fn date_refusal(task: &NewTask, now: DateTime<Utc>) -> Option<String> {
    if (task.created - now).abs() > CREATED_DRIFT {
        return Some(format!("`created` must be within 15 minutes of now, {}", Timestamp::new(now)));
    }
    deadline_refusal(task.deadline, now, task.deadline_limit)
}

/// Returns why a task created now would never start. The create statement has the same rule.
pub fn never_starts(task: &NewTask, queue_delay: TimeDelta, now: DateTime<Utc>) -> Option<String> {
    let own = task.options.as_ref().and_then(|options| options.start);
    let field = match own {
        Some(Start::After(_)) => format!("{}.delay", task.options_place),
        Some(Start::At(_)) => format!("{}.notBefore", task.options_place),
        None => "policy.delay".to_owned(),
    };
    start_refusal(own.unwrap_or(Start::After(queue_delay)), &field, now, task.deadline)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineLimit {
    CreateTask,
    /// A submission through Tenure's own API.
    Submission,
}

impl DeadlineLimit {
    /// Maximum time to the deadline, apart from [`CREATED_DRIFT`].
    #[must_use]
    pub fn ahead(self) -> TimeDelta {
        match self {
            Self::CreateTask => DEADLINE_AHEAD,
            Self::Submission => DEADLINE_AHEAD_SUBMITTED,
        }
    }
}

/// Returns why a deadline is invalid now.
pub fn deadline_refusal(deadline: DateTime<Utc>, now: DateTime<Utc>, limit: DeadlineLimit) -> Option<String> {
    if deadline < now {
        return Some(format!("`deadline` must not be in the past; it is now {}", Timestamp::new(now)));
    }
    let latest = now.checked_add_signed(limit.ahead() + CREATED_DRIFT);
    latest.is_some_and(|latest| deadline > latest).then(|| {
        let days = limit.ahead().num_days();
        format!("`deadline` must be at most {days} days from now, {}", Timestamp::new(now))
    })
}

/// A dependency at the creation of its dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    Missing,
    /// Exists until this time.
    Until(DateTime<Utc>),
    /// The dependent task itself. Only scheduleTask, a rerun or the deadline ends the wait.
    Itself,
}

/// Returns why a task may not have these dependencies.
pub fn dependency_refusal(task: &NewTask, awaited: &[(TaskId, Awaited)]) -> Option<String> {
    let named = |invalid: fn(DateTime<Utc>, Awaited) -> bool| {
        let ids: Vec<TaskId> =
            awaited.iter().filter(|(_, awaited)| invalid(task.deadline, *awaited)).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| list(&ids))
    };
    let missing = named(|_, awaited| awaited == Awaited::Missing)
        .map(|ids| format!("`dependencies` names tasks that do not exist; create them first: {ids}"));
    let expiring = named(|deadline, awaited| matches!(awaited, Awaited::Until(expires) if expires < deadline))
        .map(|ids| format!("`dependencies` names tasks that expire before this task's `deadline`: {ids}"));
    let refusals: Vec<String> = [missing, expiring].into_iter().flatten().collect();
    (!refusals.is_empty()).then(|| refusals.join(". "))
}

fn list(ids: &[TaskId]) -> String {
    let mut text = ids.iter().take(LISTED_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if let Some(more) = ids.len().checked_sub(LISTED_MAX).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[derive(Debug, Clone, Copy)]
pub struct GroupOwner<'a> {
    pub scheduler: &'a str,
    pub sealed: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmade {
    /// The task was created by the same request.
    Repeat,
    Conflict(String),
    Input(String),
    /// The state changed between the two statements.
    Unclear,
}

/// Determines why the create statement skipped a task. `stored` is the task with this id.
pub fn why_unmade(
    task: &NewTask,
    stored: Option<(&str, Priority)>,
    group: Option<GroupOwner<'_>>,
    queue_delay: TimeDelta,
    awaited: &[(TaskId, Awaited)],
    now: DateTime<Utc>,
) -> Unmade {
    if let Some((stored, priority)) = stored {
        // A caller who has read the task sends the definition as shown.
        let repeated = json::same(stored, &task.definition)
            || json::same(&shown_definition(stored.to_owned(), priority), &task.definition);
        return if repeated {
            Unmade::Repeat
        } else {
            Unmade::Conflict(format!("task {} exists already with another definition; choose another taskId", task.id))
        };
    }
    if let Some(refusal) = date_refusal(task, now).or_else(|| never_starts(task, queue_delay, now)) {
        return Unmade::Input(refusal);
    }
    match group {
        Some(owner) if owner.scheduler != task.scheduler.as_str() => Unmade::Conflict(format!(
            "task group {} belongs to schedulerId {}; all of its tasks must have that schedulerId",
            task.group, owner.scheduler
        )),
        Some(GroupOwner { sealed: Some(_), .. }) => {
            Unmade::Conflict(format!("task group {} is sealed; create the task in another group", task.group))
        }
        Some(GroupOwner { sealed: None, .. }) | None => {
            dependency_refusal(task, awaited).map_or(Unmade::Unclear, Unmade::Input)
        }
    }
}

/// Returns a definition with the task's current priority. The stored definition never changes,
/// because repeats are compared with it.
pub fn shown_definition(mut stored: String, priority: Priority) -> String {
    // The first such key is the definition's: only lists of strings precede it, with escaped
    // quotes.
    const KEY: &str = "\"priority\":\"";
    let place = stored.find(KEY).map(|key| key + KEY.len());
    if let Some(start) = place
        && let Some(length) = stored[start..].find('"')
        && stored[start..start + length] != *priority.as_str()
    {
        stored.replace_range(start..start + length, priority.as_str());
    }
    stored
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
