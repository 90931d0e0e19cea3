//! listTasks: tasks by conditions, or by a short id.

use tenure_api::tasks::{ListState, TaskFilter, TaskList, TaskSummary};

use crate::http::api::prelude::*;
use tenure_engine::ops::task_list::{self, LOOKED_AT_MAX, ListedTask, TaskPage};
use tenure_store::page::tasks::SHORT_IDS_MAX;

const OF_STATUS: Template = Scope("queue:status:<taskId>");
const OF_STATUSES: &str = "queue:status:";
const OF_EVERY_STATUS: Template = Scope("queue:status:*");
const OF_DEFINITION: Template = Scope("queue:get-task:<taskId>");
const SHORT_ID: &str = "shortId";
const NAMES: [&str; 14] = [
    "taskQueueId",
    "taskGroupId",
    "state",
    "reason",
    "worker",
    "name",
    "tag",
    "owner",
    "projectId",
    "since",
    "until",
    SHORT_ID,
    "limit",
    "continuationToken",
];

/// `GET /api/tenure/v1/tasks`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listTasks", list_tasks)
        .scopes(ForEach { item: "taskId", list: "taskIds", scopes: &["queue:status:<taskId>"] })
        .large_answer()
        .described("tenure", "List tasks by state, queue, name and other conditions", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let text = json!({"type": "string", "minLength": 1});
    let date = json!({"type": "string", "format": "date-time"});
    let states = json!({"type": "string", "enum": ListState::ALL.map(ListState::as_str)});
    let short = json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{8}$"});
    let queue = "Only tasks of this queue; `mail` means `default/mail`";
    let name = "Only tasks with this text in `metadata.name`; letters from A to Z match in either case";
    let reason = "Only tasks whose last run ended for this reason, such as `claim-expired`";
    let since = "Only tasks with this `created` or a later one; failures by the time of the failure";
    let operation = paged(operation)
        .about(&format!(
            "Only tasks whose status the caller may read; others are left out. `name` and `owner` of an entry, and the \
             conditions `name`, `tag` and `owner`, need `queue:get-task:<taskId>`, too. The order depends on the \
             conditions: with a group by id; with a queue, `pending` and `held` tasks as they wait; `running` tasks by \
             the end of their claims; `failed` and `exception` tasks, and reasons of failures, latest first; all others \
             newest first. Failures are listed for 14 days, dead letters longer. A page examines up to {LOOKED_AT_MAX} \
             tasks, so a page with a token is not the last one, even if it has few or no entries; `lookedSince` is the \
             time of the last task examined. A claim that is renewed meanwhile may be listed twice. Definitions \
             above 16 KiB have neither name nor owner here. With `shortId`, the tasks among the newest \
             {SHORT_IDS_MAX} whose ids begin with it, and no other condition."
        ))
        .query("taskQueueId", queue, &text, &Value::Null)
        .query("taskGroupId", "Only tasks of this group", &text, &Value::Null)
        .query("state", "Only tasks in this state; `held` needs `taskQueueId`", &states, &Value::Null)
        .query("reason", reason, &text, &Value::Null)
        .query("worker", "Only tasks whose last run is or was of this worker, `workerGroup/workerId`", &text, &Value::Null)
        .query("name", name, &text, &Value::Null)
        .query("tag", "Only tasks with this tag, `key=value`", &text, &Value::Null)
        .query("owner", "Only tasks with this `metadata.owner`", &text, &Value::Null)
        .query("projectId", "Only tasks of this project", &text, &Value::Null)
        .query("since", since, &date, &Value::Null)
        .query("until", "Only tasks until this time, likewise", &date, &Value::Null)
        .query(SHORT_ID, "The first 8 characters of an id", &short, &Value::Null);
    operation.answers::<TaskList>(
        "A page; with a token if there may be more",
        &json!({"tasks": [{
            "taskId": sample.task,
            "taskQueueId": QUEUE,
            "projectId": "none",
            "schedulerId": "-",
            "taskGroupId": sample.task,
            "name": "build",
            "owner": "ann@example.com",
            "state": "pending",
            "priority": "lowest",
            "runs": 1,
            "created": sample.after(0),
            "scheduled": sample.after(0),
            "deadline": sample.after(60),
        }]}),
    )
}

async fn list_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    // Each task that is found is checked by itself.
    if !call.principal()?.scopes.allows_some(OF_STATUSES) {
        call.authorize_with(&OF_EVERY_STATUS, &Values::of_path())?;
    }
    let query = call.query(&NAMES)?;
    let page = Page::read(&query)?;
    let filter = filter(&query)?;
    let short = query.iter().find(|(name, _)| name == SHORT_ID).map(|(_, value)| value.as_str());
    // The conditions on definitions need the scope to read them.
    let is_visible = |task: TaskId| {
        let values = Values::of_path().text("taskId", task.to_string());
        let is_allowed = |scopes: &Template| call.is_allowed(scopes, &values).unwrap_or_default();
        is_allowed(&OF_STATUS) && (!filter.reads_definitions() || is_allowed(&OF_DEFINITION))
    };
    let found = match short {
        Some(short) => {
            if let Some((other, _)) = query.iter().find(|(name, _)| name != SHORT_ID) {
                return Err(ApiError::arguments(format!(
                    "the query parameters `{SHORT_ID}` and `{other}` must not both be given: leave one out"
                )));
            }
            let mut tasks = task_list::find_short(&app.engine.pool, short).await?;
            tasks.retain(|task| is_visible(task.task_id));
            TaskPage { tasks, ..TaskPage::default() }
        }
        None => {
            let limit = page.limit.unwrap_or(PAGE_MAX);
            task_list::list_visible(app.engine.task_list_parts(), &filter, page.after.as_deref(), limit, &is_visible)
                .await?
        }
    };
    let TaskPage { tasks, next, looked_since } = found;
    let mut shown = Vec::with_capacity(tasks.len());
    for task in tasks {
        let values = Values::of_path().text("taskId", task.task_id.to_string());
        let may_read = call.is_allowed(&OF_DEFINITION, &values)?;
        shown.push(summary(task, may_read));
    }
    let continuation_token = next.map(|next| Page::token(&next));
    ok(&TaskList { tasks: shown, looked_since: looked_since.map(Timestamp::new), continuation_token })
}

fn filter(query: &[(String, String)]) -> Result<TaskFilter, ApiError> {
    let mut filter = TaskFilter::default();
    for (name, value) in query {
        let text = || Some(value.clone());
        match name.as_str() {
            "taskQueueId" => filter.task_queue_id = text(),
            "taskGroupId" => filter.task_group_id = text(),
            "reason" => filter.reason = text(),
            "worker" => filter.worker = text(),
            "name" => filter.name = text(),
            "tag" => filter.tag = text(),
            "owner" => filter.owner = text(),
            "projectId" => filter.project_id = text(),
            "state" => {
                let known = ListState::ALL.into_iter().find(|state| state.as_str() == value);
                let words = ListState::ALL.map(ListState::as_str).join(", ");
                let wrong = || ApiError::arguments(format!("the query parameter `state` must be one of {words}"));
                filter.state = Some(known.ok_or_else(wrong)?);
            }
            "since" => filter.since = Some(query_time(name, value)?),
            "until" => filter.until = Some(query_time(name, value)?),
            _ => {}
        }
    }
    filter.validate().map_err(|wrong| ApiError::arguments(format!("the query parameter {wrong}")))?;
    Ok(filter)
}

fn summary(task: ListedTask, may_read: bool) -> TaskSummary {
    let (worker_group, worker_id) = task.worker.unzip();
    TaskSummary {
        task_id: task.task_id,
        task_queue_id: task.task_queue_id,
        project_id: task.project_id,
        scheduler_id: task.scheduler_id,
        task_group_id: task.task_group_id,
        name: task.name.filter(|_| may_read),
        owner: task.owner.filter(|_| may_read),
        state: task.state,
        reason_resolved: task.reason,
        ended_by: task.ended_by,
        priority: task.priority,
        runs: task.runs,
        worker_group,
        worker_id,
        created: task.created.map(Timestamp::new),
        scheduled: task.scheduled.map(Timestamp::new),
        started: task.started.map(Timestamp::new),
        resolved: task.resolved.map(Timestamp::new),
        deadline: task.deadline.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &[(&str, &str)]) -> Result<TaskFilter, ApiError> {
        let query: Vec<_> = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        filter(&query)
    }

    #[test]
    fn conditions_are_read_from_the_query() {
        let read_filter =
            read(&[("taskQueueId", "mail"), ("state", "held"), ("since", "2026-01-31T12:00:00Z")]).unwrap();
        assert_eq!(read_filter.task_queue_id.as_deref(), Some("mail"));
        assert_eq!(read_filter.state, Some(ListState::Held));
        assert!(read_filter.since.is_some() && read_filter.until.is_none());
        for wrong in [("state", "done"), ("since", "soon"), ("tag", "x"), ("name", ""), ("taskQueueId", "a b")] {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
