//! Submissions of one or more tasks: checks, defaults, local names and detection of cycles.
//!
//! A text in `dependencies` that parses as a task id is one. Any other text is the local name of
//! another task of the submission: 1 to 255 characters, unique, and no task id. So may be
//! `inputs[].taskId` in a payload.

mod inputs;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use tenure_api::bodies::{CreateTaskRequest, Metadata};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_api::submit::{SubmitRequest, SubmittedTask};
use uuid::Uuid;

use super::create::{DEADLINE_AHEAD_SUBMITTED, EXPIRES_DEFAULT, METADATA_SHORT_MAX, NewTask};
use super::json;
use super::policy::options;
use super::unacceptable::Unacceptable;

pub const TASKS_MAX: usize = 1_000;
/// Each is a row in the same transaction.
pub const DEPENDENCIES_TOTAL_MAX: usize = 100_000;
/// Unique names of a submission.
pub const UNIQUE_MAX: usize = 200;
/// Maximum characters of a local name.
pub const NAME_CHARS_MAX: usize = 255;
/// Without `deadlineAfter` in the queue's policy.
pub const DEADLINE_DEFAULT: TimeDelta = DEADLINE_AHEAD_SUBMITTED;
/// Minimum time to a default deadline that an expiry shortens. A task is refused if it or a
/// dependency expires sooner.
const SHORTENED_LEAST: TimeDelta = TimeDelta::days(1);
/// Maximum characters in a generated name.
const COMMAND_CHARS_MAX: usize = 80;
/// Maximum tasks of a cycle in a refusal.
const CIRCLE_SHOWN_MAX: usize = 10;

#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    pub now: DateTime<Utc>,
    pub client_id: &'a str,
    pub root_url: &'a str,
    pub defaults: &'a Defaults,
}

/// Stored values that default deadlines depend on.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// `deadlineAfter` of the queues that have it.
    pub deadline_after: HashMap<TaskQueueId, TimeDelta>,
    /// Expiry of existing dependencies.
    pub expires: HashMap<Uuid, DateTime<Utc>>,
}

/// Keys of the [`Defaults`] that a submission needs, for its tasks without a deadline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultsQuery {
    pub queues: BTreeSet<TaskQueueId>,
    pub dependencies: BTreeSet<Uuid>,
}

impl DefaultsQuery {
    #[must_use]
    pub fn of(tasks: &[SubmittedTask<'_>]) -> Self {
        let own: BTreeSet<Uuid> = tasks.iter().filter_map(|task| Some(task.task_id?.uuid())).collect();
        let mut query = Self::default();
        for task in tasks.iter().filter(|task| task.deadline.is_none()) {
            let ids = task.dependencies.iter().filter_map(|text| Some(text.parse::<TaskId>().ok()?.uuid()));
            query.dependencies.extend(ids.filter(|id| !own.contains(id)));
            query.queues.extend(queue(task));
        }
        query
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.dependencies.is_empty()
    }
}

/// Checked and complete tasks.
#[derive(Debug, Clone)]
pub struct Graph {
    pub group: TaskGroupId,
    /// The tasks, in the order of the request.
    pub entries: Vec<GraphTask>,
    several: bool,
}

#[derive(Debug, Clone)]
pub struct GraphTask {
    pub name: Option<String>,
    pub task: NewTask,
    /// True if the request names the task's id.
    pub is_given: bool,
    /// The existing task that takes its place: it has the unique name.
    pub holder: Option<TaskId>,
}

/// True if these tasks name all dates that would otherwise depend on the time and on [`Defaults`].
#[must_use]
pub fn are_dated(tasks: &[SubmittedTask<'_>]) -> bool {
    tasks.iter().all(|task| task.created.is_some() && task.deadline.is_some())
}

impl Graph {
    pub fn of_one(
        task: SubmittedTask<'_>,
        origin: Origin<'_>,
        draw: impl FnMut() -> TaskId,
    ) -> Result<Self, Unacceptable> {
        let request = SubmitRequest { task_group_id: None, tasks: vec![task] };
        Self::build(request, false, origin, draw)
    }

    /// `draw` generates ids.
    pub fn of_several(
        request: SubmitRequest<'_>,
        origin: Origin<'_>,
        draw: impl FnMut() -> TaskId,
    ) -> Result<Self, Unacceptable> {
        Self::build(request, true, origin, draw)
    }

    /// True if servers of the previous release cannot store a task.
    pub fn needs_gate(&self) -> bool {
        self.entries.iter().any(|entry| entry.task.needs_gate())
    }

    /// Prefix of a message about an entry of a list.
    pub fn place(&self, entry: usize) -> String {
        place(self.several, entry)
    }

    fn build(
        request: SubmitRequest<'_>,
        several: bool,
        origin: Origin<'_>,
        mut draw: impl FnMut() -> TaskId,
    ) -> Result<Self, Unacceptable> {
        let SubmitRequest { task_group_id, tasks } = request;
        if tasks.is_empty() || tasks.len() > TASKS_MAX {
            return Err(Unacceptable::Schema(format!(
                "`tasks` must have from 1 to {TASKS_MAX} entries; it has {}",
                tasks.len()
            )));
        }
        let dependencies: usize = tasks.iter().map(|task| task.dependencies.len()).sum();
        if several && dependencies > DEPENDENCIES_TOTAL_MAX {
            return Err(Unacceptable::Schema(format!(
                "`tasks` have {dependencies} dependencies together; at most {DEPENDENCIES_TOTAL_MAX}: split the request"
            )));
        }
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.task_id.unwrap_or_else(&mut draw)).collect();
        let wiring = Wiring::new(&tasks, &ids, several)?;
        let group = match group(task_group_id, &tasks, several)? {
            Some(group) => group,
            None if ids.len() == 1 => ids[0],
            None => draw(),
        };
        let deadlines = deadlines(&tasks, &ids, &wiring, origin);
        let payloads = if several { inputs::payloads(&tasks, &ids)? } else { Vec::new() };
        let mut entries = Vec::with_capacity(tasks.len());
        for (n, (mut task, dependencies)) in tasks.into_iter().zip(wiring.dependencies).enumerate() {
            task.payload = payloads.get(n).and_then(Option::as_deref).or(task.payload);
            let (name, is_given) = (task.name.clone(), task.task_id.is_some());
            let task = entry(task, ids[n], group, dependencies, deadlines[n], origin)
                .map_err(|error| at(several, n, error))?;
            entries.push(GraphTask { name, task, is_given, holder: None });
        }
        check_unique(&entries, several)?;
        Ok(Self { group, entries, several })
    }

    /// Puts existing tasks in the place of entries. Entries that depend on these depend on the
    /// existing tasks instead.
    pub fn coalesce(&mut self, holders: &BTreeMap<usize, TaskId>) {
        let replaced: HashMap<Uuid, TaskId> =
            holders.iter().map(|(&n, &holder)| (self.entries[n].task.id.uuid(), holder)).collect();
        for (n, entry) in self.entries.iter_mut().enumerate() {
            entry.holder = holders.get(&n).copied();
            entry.task.replace_dependencies(&replaced);
            if let Some(definition) = inputs::replaced(&entry.task.definition, &replaced) {
                entry.task.definition = definition;
            }
        }
    }

    /// Ids of the tasks of all entries.
    pub fn ids(&self) -> Vec<Uuid> {
        self.entries.iter().map(|entry| entry.holder.unwrap_or(entry.task.id).uuid()).collect()
    }

    /// How answers name an entry: its local name, else its index.
    pub fn label(&self, entry: usize) -> serde_json::Value {
        self.entries[entry].name.clone().map_or_else(|| entry.into(), serde_json::Value::String)
    }
}

/// Each unique name is a lock, and at most one task of a submission may have it.
fn check_unique(entries: &[GraphTask], several: bool) -> Result<(), Unacceptable> {
    let mut names = HashMap::new();
    for (n, GraphTask { task, .. }) in entries.iter().enumerate() {
        let Some(unique) = task.unique() else { continue };
        if let Some(earlier) = names.insert((&task.queue, &task.scheduler, &unique.name), n) {
            return Err(Unacceptable::Rule(format!(
                "{} is {:?}, which is already the unique name of tasks[{earlier}]",
                field(several, n, &format!("{}.unique", task.options_place)),
                unique.name
            )));
        }
    }
    if names.len() > UNIQUE_MAX {
        return Err(Unacceptable::Rule(format!(
            "`tasks` have {} unique names together; at most {UNIQUE_MAX}: split the request",
            names.len()
        )));
    }
    Ok(())
}

fn place(several: bool, entry: usize) -> String {
    if several { format!("tasks[{entry}]: ") } else { String::new() }
}

fn field(several: bool, entry: usize, name: &str) -> String {
    if several { format!("`tasks[{entry}].{name}`") } else { format!("`{name}`") }
}

fn at(several: bool, entry: usize, error: Unacceptable) -> Unacceptable {
    let place = place(several, entry);
    match error {
        Unacceptable::Schema(message) => Unacceptable::Schema(place + &message),
        Unacceptable::Rule(message) => Unacceptable::Rule(place + &message),
        unserializable @ Unacceptable::Unserializable(_) => unserializable,
    }
}

/// All named groups must agree.
fn group(
    whole: Option<TaskGroupId>,
    tasks: &[SubmittedTask<'_>],
    several: bool,
) -> Result<Option<TaskGroupId>, Unacceptable> {
    let mut group = whole;
    for (n, task) in tasks.iter().enumerate() {
        match (group, task.task_group_id) {
            (Some(group), Some(own)) if group != own => {
                return Err(Unacceptable::Rule(format!(
                    "{} is {own}, but all tasks of a submission belong to one group, here {group}",
                    field(several, n, "taskGroupId")
                )));
            }
            (None, own) => group = own,
            (Some(_), _) => {}
        }
    }
    Ok(group)
}

struct Wiring {
    dependencies: Vec<Vec<TaskId>>,
    /// All entries, each after its dependencies.
    order: Vec<usize>,
}

impl Wiring {
    fn new(tasks: &[SubmittedTask<'_>], ids: &[TaskId], several: bool) -> Result<Self, Unacceptable> {
        let names = names(tasks, several)?;
        let mut places = HashMap::with_capacity(ids.len());
        for (n, id) in ids.iter().enumerate() {
            if let Some(earlier) = places.insert(*id, n) {
                return Err(Unacceptable::Rule(format!(
                    "{} is {id}, which is already the id of tasks[{earlier}]",
                    field(several, n, "taskId")
                )));
            }
        }
        let mut dependencies = Vec::with_capacity(tasks.len());
        for (n, task) in tasks.iter().enumerate() {
            let required = task.dependencies.iter().enumerate().map(|(k, text)| match text.parse::<TaskId>() {
                Ok(id) => Ok(id),
                Err(_) => names.get(text.as_str()).map(|&place| ids[place]).ok_or_else(|| {
                    Unacceptable::Rule(format!(
                        "{} is {:?}, which is neither a task id nor the `name` of a task in this request",
                        field(several, n, &format!("dependencies[{k}]")),
                        text.chars().take(NAME_CHARS_MAX).collect::<String>()
                    ))
                }),
            });
            dependencies.push(required.collect::<Result<Vec<_>, _>>()?);
        }
        let mut wiring = Self { dependencies, order: Vec::new() };
        match wiring.sort(&places) {
            Ok(order) => wiring.order = order,
            Err(circle) => return Err(wiring.refuse(&circle, tasks, ids, several)),
        }
        Ok(wiring)
    }

    /// Returns the order of the entries.
    ///
    /// # Errors
    /// A cycle: entries that each depend on the next, and the last on the first.
    fn sort(&self, places: &HashMap<TaskId, usize>) -> Result<Vec<usize>, Vec<usize>> {
        let inner = |n: usize| self.dependencies[n].iter().filter_map(|id| places.get(id).copied());
        let mut waits: Vec<usize> = (0..self.dependencies.len()).map(|n| inner(n).count()).collect();
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); waits.len()];
        for n in 0..waits.len() {
            inner(n).for_each(|required| dependents[required].push(n));
        }
        let mut free: Vec<usize> = (0..waits.len()).filter(|&n| waits[n] == 0).collect();
        let mut order = Vec::with_capacity(waits.len());
        while let Some(n) = free.pop() {
            order.push(n);
            for &dependent in &dependents[n] {
                waits[dependent] -= 1;
                if waits[dependent] == 0 {
                    free.push(dependent);
                }
            }
        }
        // Each remaining entry depends on another one, so following them forms a cycle.
        let mut path: Vec<usize> = Vec::new();
        let mut next = waits.iter().position(|&left| left > 0);
        while let Some(n) = next {
            if let Some(start) = path.iter().position(|&earlier| earlier == n) {
                return Err(path.split_off(start));
            }
            path.push(n);
            next = inner(n).find(|&required| waits[required] > 0);
        }
        Ok(order)
    }

    fn refuse(&self, circle: &[usize], tasks: &[SubmittedTask<'_>], ids: &[TaskId], several: bool) -> Unacceptable {
        let (first, next) = (circle[0], circle[1 % circle.len()]);
        let at = self.dependencies[first].iter().position(|id| *id == ids[next]).unwrap_or_default();
        let label = |&n: &usize| tasks[n].name.clone().unwrap_or_else(|| ids[n].to_string());
        let mut shown: Vec<String> = circle.iter().take(CIRCLE_SHOWN_MAX).map(label).collect();
        if circle.len() > CIRCLE_SHOWN_MAX {
            shown.push("...".to_owned());
        }
        shown.push(label(&first));
        Unacceptable::Rule(format!(
            "{} closes a cycle in which each task waits for the next: {}",
            field(several, first, &format!("dependencies[{at}]")),
            shown.join(" -> ")
        ))
    }
}

fn names<'a>(tasks: &'a [SubmittedTask<'_>], several: bool) -> Result<HashMap<&'a str, usize>, Unacceptable> {
    let mut names = HashMap::new();
    for (n, task) in tasks.iter().enumerate() {
        let Some(name) = task.name.as_deref() else { continue };
        let field = || field(several, n, "name");
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX {
            return Err(Unacceptable::Schema(format!("{} must have from 1 to {NAME_CHARS_MAX} characters", field())));
        }
        if name.parse::<TaskId>().is_ok() {
            return Err(Unacceptable::Rule(format!("{} has the form of a task id; choose another name", field())));
        }
        if let Some(earlier) = names.insert(name, n) {
            return Err(Unacceptable::Rule(format!(
                "{} is {name:?}, which is already the name of tasks[{earlier}]",
                field()
            )));
        }
    }
    Ok(names)
}

/// Returns the deadline of each task. A default one is at the latest when the task or a dependency
/// expires, which may itself follow from a default.
fn deadlines(tasks: &[SubmittedTask<'_>], ids: &[TaskId], wiring: &Wiring, origin: Origin<'_>) -> Vec<Timestamp> {
    let mut deadlines = vec![Timestamp::new(origin.now); tasks.len()];
    let mut expires: HashMap<Uuid, DateTime<Utc>> = HashMap::with_capacity(tasks.len());
    for &n in &wiring.order {
        let task = &tasks[n];
        let deadline = task.deadline.unwrap_or_else(|| {
            let required = wiring.dependencies[n].iter().map(|id| id.uuid());
            let required = required.filter_map(|id| expires.get(&id).or_else(|| origin.defaults.expires.get(&id)));
            let first = required.copied().chain(task.expires.map(Timestamp::time)).min();
            let after = queue(task).and_then(|queue| origin.defaults.deadline_after.get(&queue).copied());
            Timestamp::new(default_deadline(created(task, origin).time(), after, first))
        });
        let end = task.expires.map(Timestamp::time).or_else(|| deadline.time().checked_add_months(EXPIRES_DEFAULT));
        expires.extend(end.map(|end| (ids[n].uuid(), end)));
        deadlines[n] = deadline;
    }
    deadlines
}

/// Default deadline of a task. `after` is `deadlineAfter` of its queue's policy, `expires` the
/// first expiry of the task and its dependencies.
fn default_deadline(created: DateTime<Utc>, after: Option<TimeDelta>, expires: Option<DateTime<Utc>>) -> DateTime<Utc> {
    let wanted = created + after.unwrap_or(DEADLINE_DEFAULT);
    match expires {
        Some(expires) if expires >= created + SHORTENED_LEAST => wanted.min(expires),
        Some(_) | None => wanted,
    }
}

fn created(task: &SubmittedTask<'_>, origin: Origin<'_>) -> Timestamp {
    task.created.unwrap_or_else(|| Timestamp::new(origin.now))
}

/// Queue of a task, if it names one. Contradictions are refused later.
pub(crate) fn queue(task: &SubmittedTask<'_>) -> Option<TaskQueueId> {
    let halves = task.provisioner_id.as_ref().zip(task.worker_type.as_ref());
    halves
        .map(|(provisioner, worker_type)| TaskQueueId::new(provisioner, worker_type))
        .or_else(|| task.task_queue_id.clone())
}

/// Options are stored in `extra`, wherever the request has them.
fn entry(
    task: SubmittedTask<'_>,
    id: TaskId,
    group: TaskGroupId,
    dependencies: Vec<TaskId>,
    deadline: Timestamp,
    origin: Origin<'_>,
) -> Result<NewTask, Unacceptable> {
    let place = if task.options.is_some() { options::BESIDE } else { options::IN_EXTRA };
    let extra = options::stored_extra(task.extra, task.options)?.map(json::raw).transpose()?;
    let mut request = complete(task, id, group, dependencies, deadline, origin);
    request.extra = extra.as_deref().or(request.extra);
    NewTask::from_submission(id, &request, place)
}

/// Builds the equivalent createTask request.
fn complete<'a>(
    task: SubmittedTask<'a>,
    id: TaskId,
    group: TaskGroupId,
    dependencies: Vec<TaskId>,
    deadline: Timestamp,
    origin: Origin<'_>,
) -> CreateTaskRequest<'a> {
    let created = created(&task, origin);
    let metadata = metadata(&task, id, origin);
    CreateTaskRequest {
        provisioner_id: task.provisioner_id,
        worker_type: task.worker_type,
        task_queue_id: task.task_queue_id,
        scheduler_id: task.scheduler_id,
        project_id: task.project_id,
        task_group_id: Some(group),
        dependencies,
        requires: task.requires,
        routes: task.routes,
        priority: task.priority,
        retries: task.retries,
        created,
        deadline,
        expires: task.expires,
        scopes: task.scopes,
        payload: task.payload.unwrap_or_else(|| empty_object()),
        metadata,
        tags: task.tags,
        extra: task.extra,
    }
}

fn empty_object() -> &'static RawValue {
    serde_json::from_str("{}").expect("{} is JSON")
}

fn metadata(task: &SubmittedTask<'_>, id: TaskId, origin: Origin<'_>) -> Metadata {
    let given = &task.metadata;
    let short = |text: &str| text.chars().take(METADATA_SHORT_MAX).collect::<String>();
    let name = || match (&task.name, command(task), &task.task_queue_id) {
        (Some(name), ..) => short(name),
        (None, Some(command), _) => command,
        (None, None, Some(queue)) => queue.to_string(),
        (None, None, None) => id.to_string(),
    };
    Metadata {
        name: given.name.clone().unwrap_or_else(name),
        description: given.description.clone().unwrap_or_else(|| "Submitted without a description.".to_owned()),
        owner: given.owner.clone().unwrap_or_else(|| short(origin.client_id)),
        source: given.source.clone().unwrap_or_else(|| format!("{}/api/queue/v1/task/{id}", origin.root_url)),
    }
}

/// First command of a payload for `tenure-worker`, as a recognizable name.
fn command(task: &SubmittedTask<'_>) -> Option<String> {
    #[derive(Deserialize)]
    struct Commands {
        command: Vec<Vec<String>>,
    }
    let Commands { command } = serde_json::from_str(task.payload?.get()).ok()?;
    let text = command.first()?.join(" ");
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    Some(printable.take(COMMAND_CHARS_MAX).collect::<String>()).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
#[path = "submit_tests.rs"]
mod tests;
