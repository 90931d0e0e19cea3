//! Finds awaited tasks that can never run by themselves, and the task that prevents it.
//!
//! The server reports this only for a task whose own dependency has failed. This module also covers
//! the tasks behind it. It requests each task at most once per check.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use tenure_api::bodies::Status;
use tenure_api::ids::{TaskGroupId, TaskId};
use tenure_api::states::TaskState;
use tenure_api::why::{AwaitedTask, Reason, WhyAnswer};
use tenure_client::Method;
use tenure_domain::verdict::ended;

use super::id::short;
use crate::cli::http::{CommandError, Server};

/// Tasks examined per awaited task. The rest of a longer chain is examined once its beginning has
/// ended.
const LOOKED_AT_MAX: usize = 1_000;
/// Maximal age of a cached answer.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(3);
const READS_MAX: usize = 20;

/// The parts of a task's definition that matter to the tasks waiting for it.
#[derive(Debug, Clone, Default)]
pub struct Definition {
    /// None if unnamed or unreadable for the caller.
    pub name: Option<String>,
    pub group: Option<TaskGroupId>,
    /// True if each dependency must be completed, not just resolved.
    all_completed: bool,
}

impl Definition {
    fn of(definition: &Value) -> Self {
        Self {
            name: definition.pointer("/metadata/name").and_then(Value::as_str).and_then(plain),
            group: definition["taskGroupId"].as_str().and_then(|group| group.parse().ok()),
            all_completed: definition["requires"] != "all-resolved",
        }
    }
}

#[derive(Debug, Clone)]
struct DependencyCheck {
    at: Instant,
    /// The task whose end keeps this one from ever running.
    culprit: Option<String>,
    /// Dependencies without a run.
    unscheduled: Vec<TaskId>,
}

/// The awaited tasks, and cached answers about their dependencies.
pub struct Outlook<'a> {
    server: &'a Server,
    definitions: RefCell<HashMap<TaskId, Definition>>,
    checks: RefCell<HashMap<TaskId, DependencyCheck>>,
}

impl<'a> Outlook<'a> {
    pub fn new(server: &'a Server) -> Self {
        Self { server, definitions: RefCell::default(), checks: RefCell::default() }
    }

    /// Keeps the cached answers, but sends further requests to `server`.
    pub fn asking(self, server: &Server) -> Outlook<'_> {
        Outlook { server, definitions: self.definitions, checks: self.checks }
    }

    pub fn name(&self, task: TaskId, name: &str) {
        let definition = Definition { name: plain(name), group: None, all_completed: false };
        self.definitions.borrow_mut().entry(task).or_insert(definition);
    }

    pub async fn read(&self, tasks: &[TaskId]) -> Result<(), CommandError> {
        stream::iter(tasks)
            .map(|&task| self.definition(task))
            .buffer_unordered(READS_MAX)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(())
    }

    /// Returns the distinct groups of these tasks, as far as known.
    pub fn groups(&self, tasks: &[TaskId]) -> Vec<TaskGroupId> {
        let definitions = self.definitions.borrow();
        let mut groups: Vec<TaskGroupId> = Vec::new();
        for group in tasks.iter().filter_map(|task| definitions.get(task)?.group) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// Returns a task's name and the beginning of its id, or its id.
    pub fn label(&self, task: TaskId) -> String {
        let id = task.to_string();
        match self.definitions.borrow().get(&task).and_then(|definition| definition.name.as_deref()) {
            Some(name) => format!("{name} ({})", short(&id)),
            None => id,
        }
    }

    /// Returns the name of a task, or its id.
    pub fn short(&self, task: TaskId) -> String {
        let definitions = self.definitions.borrow();
        definitions.get(&task).and_then(|definition| definition.name.clone()).unwrap_or_else(|| task.to_string())
    }

    /// Returns why a task will certainly never have a run by itself.
    pub async fn never(&self, task: TaskId) -> Result<Option<String>, CommandError> {
        let (mut open, mut seen) = (vec![task], HashSet::from([task]));
        while let Some(next) = open.pop() {
            let check = self.check(next).await?;
            if check.culprit.is_some() {
                return Ok(check.culprit);
            }
            for awaited in check.unscheduled {
                if seen.len() < LOOKED_AT_MAX && seen.insert(awaited) {
                    open.push(awaited);
                }
            }
        }
        Ok(None)
    }

    async fn check(&self, task: TaskId) -> Result<DependencyCheck, CommandError> {
        let known = self.checks.borrow().get(&task).filter(|check| check.at.elapsed() < CHECK_AGAIN_AFTER).cloned();
        if let Some(check) = known {
            return Ok(check);
        }
        let answer = self.server.client.why(task).await.map_err(|error| self.server.error(&error))?;
        let answer: WhyAnswer = serde_json::from_value(answer).map_err(|error| self.server.strange(&error))?;
        let mut check = DependencyCheck { at: Instant::now(), culprit: None, unscheduled: Vec::new() };
        for reason in answer.reasons {
            let Reason::Dependencies { tasks, never, .. } = reason else { continue };
            let awaited = tasks.unwrap_or_default();
            if never {
                check.culprit = Some(self.culprit(task, &awaited).await?);
            } else if awaited.iter().any(is_unscheduled) && self.definition(task).await?.all_completed {
                check.unscheduled =
                    awaited.iter().filter(|awaited| is_unscheduled(awaited)).map(|it| it.task_id).collect();
            }
        }
        self.checks.borrow_mut().insert(task, check.clone());
        Ok(check)
    }

    /// Describes the task whose end keeps `task` from running, without a full stop.
    async fn culprit(&self, task: TaskId, awaited: &[AwaitedTask]) -> Result<String, CommandError> {
        // The server sorts such a task first.
        let Some(AwaitedTask { task_id, state }) = awaited.first() else {
            return Ok("a dependency was not completed".to_owned());
        };
        if *task_id == task {
            return Ok("it depends on itself".to_owned());
        }
        if state.is_none() {
            return Ok(format!("{} has expired", self.label(*task_id)));
        }
        self.definition(*task_id).await?;
        let label = self.label(*task_id);
        let answer = self.server.client.wait_for_task(*task_id, 0).await.map_err(|error| self.server.error(&error))?;
        let status: Status =
            serde_json::from_value(answer["status"].clone()).map_err(|error| self.server.strange(&error))?;
        let last = status.runs.last();
        Ok(last.map_or(label.clone(), |run| format!("{label} {}", ended(run.state, run.reason_resolved))))
    }

    /// Returns a definition, as far as the caller may read it.
    async fn definition(&self, task: TaskId) -> Result<Definition, CommandError> {
        let known = self.definitions.borrow().get(&task).filter(|definition| definition.group.is_some()).cloned();
        if let Some(definition) = known {
            return Ok(definition);
        }
        let path = format!("/api/queue/v1/task/{task}");
        let definition = match self.server.client.request(Method::GET, &path, None).await {
            Ok(definition) => Definition::of(&definition),
            // Waiting does not require the right to read the definition.
            Err(error) if error.status() == Some(403) => return Ok(Definition::default()),
            Err(error) => return Err(self.server.error(&error)),
        };
        self.definitions.borrow_mut().insert(task, definition.clone());
        Ok(definition)
    }
}

fn plain(name: &str) -> Option<String> {
    let name: String = name.chars().filter(|character| !character.is_control()).collect();
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

fn is_unscheduled(awaited: &AwaitedTask) -> bool {
    awaited.state == Some(TaskState::Unscheduled)
}
