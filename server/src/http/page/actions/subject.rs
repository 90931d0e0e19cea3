//! The objects of actions.

use maud::{Markup, html};
use serde::Deserialize;
use tenure_api::ids::{SessionId, TaskGroupId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::states::Priority;

use super::On;
use crate::http::page::access::client::client_of;
use crate::http::page::access::role::role_of;
use crate::http::page::error::PageError;
use crate::http::page::pause::queue_of;
use crate::http::page::state::Site;
use crate::http::page::visit::Visit;
use crate::http::scopes::Values;
use tenure_domain::registration::WorkerName;
use tenure_domain::session::Identity;
use tenure_domain::task::{Group, Task};
use tenure_engine::ops::{sessions, task_group};
use tenure_store::tasks;

/// Facts about the object's state only select the offered actions. They are true if unknown.
pub(in crate::http::page) enum Subject {
    Task(Box<OfTask>),
    Group(Group),
    Queue { name: TaskQueueId, has_policy: bool, has_scheduler: bool, has_dead_letters: bool },
    Worker { name: WorkerName, is_quarantined: bool },
    Session { identity: Identity, is_frozen: bool },
    Access,
    Client { id: String, is_disabled: bool },
    Role(String),
}

pub(in crate::http::page) struct OfTask {
    pub(super) task: Task,
    /// True if the visitor may read the definition.
    pub(super) is_readable: bool,
    lists: Lists,
}

/// Parts of a definition that createTask needs scopes for.
#[derive(Deserialize, Default)]
struct Lists {
    #[serde(default)]
    scopes: Vec<String>,
    #[serde(default)]
    routes: Vec<String>,
}

impl Subject {
    pub(in crate::http::page) fn of_task(task: Task, definition: Option<&str>) -> Self {
        let lists = definition.and_then(|definition| serde_json::from_str(definition).ok()).unwrap_or_default();
        Self::Task(Box::new(OfTask { task, is_readable: definition.is_some(), lists }))
    }

    /// Reads the object that the path names.
    pub(super) async fn load(app: &Site, visit: &Visit, on: On, operation: &str) -> Result<Self, PageError> {
        Ok(match on {
            On::Task => {
                let task = app.engine.status.submit(id::<TaskId>(visit, "taskId", "the id of a task")?).await?;
                let definition = match operation {
                    "createTask" => Some(get_definition(app, visit, task.id).await?),
                    _ => None,
                };
                Self::of_task(task, definition.as_deref())
            }
            On::Group => {
                let id: TaskGroupId = id(visit, "taskGroupId", "the id of a task group")?;
                Self::Group(task_group::get(&mut *app.engine.pool.acquire().await?, id).await?)
            }
            On::Queue => {
                let name = queue_of(visit)?;
                Self::Queue { name, has_policy: true, has_scheduler: true, has_dead_letters: true }
            }
            On::Worker => {
                let group: WorkerGroup = id(visit, "workerGroup", "the name of a worker")?;
                let id: WorkerId = id(visit, "workerId", "the name of a worker")?;
                Self::Worker { name: WorkerName { pool: queue_of(visit)?, group, id }, is_quarantined: true }
            }
            On::Session => {
                let id: SessionId = id(visit, "sessionId", "the id of a session")?;
                let identity = sessions::identify(app.engine.session_parts(), id).await?;
                Self::Session { identity, is_frozen: true }
            }
            On::Access => Self::Access,
            On::Client => Self::Client { id: client_of(visit)?.to_owned(), is_disabled: true },
            On::Role => Self::Role(role_of(visit)?.to_owned()),
        })
    }

    /// Values for the scopes of operations.
    pub(super) fn values(&self) -> Values<'_> {
        match self {
            Self::Task(of) => of.values(),
            Self::Group(group) => Values::of_path()
                .text("taskGroupId", group.id.to_string())
                .text("schedulerId", group.scheduler.as_str()),
            Self::Queue { name, .. } => of_queue(name),
            Self::Worker { name: WorkerName { pool, group, id }, .. } => {
                of_queue(pool).text("workerGroup", group.as_str()).text("workerId", id.as_str())
            }
            Self::Session { identity: Identity { queue, worker_group, worker_id, .. }, .. } => {
                of_queue(queue).text("workerGroup", worker_group.as_str()).text("workerId", worker_id.as_str())
            }
            Self::Access => Values::of_path(),
            // New scopes are checked when the form is sent.
            Self::Client { id, .. } => Values::of_path().text("clientId", id).list("scopesThatAreNew", [""; 0]),
            Self::Role(id) => Values::of_path().text("roleId", id).list("scopesThatAreNew", [""; 0]),
        }
    }

    pub(super) fn title(&self) -> String {
        match self {
            Self::Task(of) => of.task.id.to_string(),
            Self::Group(group) => group.id.to_string(),
            Self::Queue { name, .. } => name.to_string(),
            Self::Worker { name: WorkerName { group, id, .. }, .. } => format!("{group}/{id}"),
            Self::Session { identity, .. } => identity.id.to_string(),
            Self::Access => "clients and roles".to_owned(),
            Self::Client { id, .. } | Self::Role(id) => id.clone(),
        }
    }

    pub(super) fn name(&self) -> Markup {
        let title = self.title();
        match self {
            Self::Task(_) | Self::Group(_) | Self::Session { .. } => html! { code { (title) } },
            Self::Queue { .. } | Self::Access | Self::Client { .. } | Self::Role(_) => html! { (title) },
            Self::Worker { name, .. } => html! { (title) " of " (name.pool) },
        }
    }

    /// The object's page.
    pub(super) fn link(&self, visit: &Visit) -> String {
        let title = self.title();
        match self {
            Self::Task(_) => visit.link_to("task", &[&title]),
            Self::Group(_) => visit.link_to("group", &[&title]),
            Self::Queue { name, .. } => visit.link_to("queue", &[name.provisioner_id(), name.worker_type()]),
            Self::Worker { name, .. } => visit.link_to("worker", &[name.group.as_str(), name.id.as_str()]),
            Self::Session { .. } => visit.link_to("session", &[&title]),
            Self::Access => visit.link("/access"),
            Self::Client { id, .. } => visit.link_to("client", &[id]),
            Self::Role(id) => visit.link_to("role", &[id]),
        }
    }

    pub(super) fn action_link(&self, visit: &Visit, action: &str) -> String {
        match self {
            Self::Worker { name, .. } => {
                let (queue, group, id) = (&name.pool, name.group.as_str(), name.id.as_str());
                visit.link_to("worker", &[group, id, queue.provisioner_id(), queue.worker_type(), action])
            }
            Self::Task(_)
            | Self::Group(_)
            | Self::Queue { .. }
            | Self::Session { .. }
            | Self::Access
            | Self::Client { .. }
            | Self::Role(_) => format!("{}/{action}", self.link(visit)),
        }
    }
}

impl OfTask {
    fn values(&self) -> Values<'_> {
        let Self { task, lists: Lists { scopes, routes }, .. } = self;
        let run = task.status().runs.last().map_or_else(|| "-".to_owned(), |run| run.run_id.to_string());
        let priorities = Priority::ALL.iter().filter(|&&priority| priority <= task.priority);
        of_queue(&task.queue)
            .text("taskId", task.id.to_string())
            .text("taskGroupId", task.group.to_string())
            .text("schedulerId", task.scheduler.as_str())
            .text("projectId", task.project.as_str())
            .text("runId", run)
            .list("scopes", scopes.iter().map(String::as_str))
            .list("routes", routes.iter().map(String::as_str))
            .list("prioritiesFromHighestToThatOfTheTask", priorities.map(ToString::to_string))
            .condition("priorityIsLowest", task.priority == Priority::Lowest)
            // Options are checked when the new task is sent.
            .condition("optionsHaveDelivery", false)
    }
}

fn of_queue(queue: &TaskQueueId) -> Values<'_> {
    Values::of_path()
        .text("taskQueueId", queue.as_str())
        .text("provisionerId", queue.provisioner_id())
        .text("workerType", queue.worker_type())
}

fn id<T: std::str::FromStr>(visit: &Visit, param: &str, what: &str) -> Result<T, PageError> {
    visit.param(param).parse().map_err(|_| PageError::NotFound(format!("This is not {what}.")))
}

/// For visitors who may read it.
pub(super) async fn get_definition(app: &Site, visit: &Visit, task: TaskId) -> Result<String, PageError> {
    visit.authorize(format!("queue:get-task:{task}"))?;
    let found = tasks::find_definition(&mut *app.engine.pool.acquire().await?, task.uuid()).await?;
    found.ok_or_else(|| PageError::NotFound(format!("Task {task} does not exist.")))
}
