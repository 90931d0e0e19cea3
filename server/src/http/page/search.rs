//! `/search`: leads to the task, group, queue or worker that somebody names, or to a list of tasks.

use axum::extract::{Request, State};
use axum::response::Response;
use tenure_api::ids::{TaskId, TaskQueueId};

use super::answer::{read_visit, refuse, see_other};
use super::error::PageError;
use super::of_visitor;
use super::overview::listing_scope;
use super::rows::workers_scope;
use super::state::Site;
use super::tasks::{self, OF_STATUSES, SHORT};
use super::visit::Visit;
use tenure_domain::task_filter::{TaskFilter, ids_of_short};
use tenure_engine::ops::{task_list, workers};
use tenure_store::page;

/// Scopes of workers begin with it.
const OF_WORKERS: &str = "queue:list-workers:";

/// `GET /search`
pub(super) async fn search(State(app): State<Site>, request: Request) -> Response {
    let visit = match read_visit(&app, request).await {
        Ok(visit) => visit,
        Err(response) => return response,
    };
    let response = match find(&app, &visit).await {
        Ok(place) => see_other(&place),
        Err(error) => refuse(&visit, &error),
    };
    of_visitor(&visit, response)
}

/// Returns the address of the page.
async fn find(app: &Site, visit: &Visit) -> Result<String, PageError> {
    let text = visit.query("q").unwrap_or_default().trim();
    let by_name = TaskFilter { name: Some(text.to_owned()).filter(|text| !text.is_empty()), ..TaskFilter::default() };
    // PostgreSQL cannot store NUL.
    if text.is_empty() || text.contains('\0') {
        return Ok(tasks::link(visit, &by_name, None));
    }
    let _slot = app.intake.read_slots.take(visit.share()).await?;
    if let Ok(id) = text.parse::<TaskId>() {
        return of_id(app, visit, id).await;
    }
    if let Some(place) = of_queue(app, visit, text).await? {
        return Ok(place);
    }
    if let Some(place) = of_worker(app, visit, text).await? {
        return Ok(place);
    }
    if let Some(place) = of_short_id(app, visit, text).await? {
        return Ok(place);
    }
    Ok(tasks::link(visit, &by_name, None))
}

/// A group is often named after its first task, which then is found.
async fn of_id(app: &Site, visit: &Visit, id: TaskId) -> Result<String, PageError> {
    let mut conn = page::begin(&app.engine.pool).await?;
    let tasks = tenure_store::tasks::list_existing(&mut conn, &[id.uuid()]).await?;
    let is_group = tasks.is_empty() && page::find_group(&mut conn, id.uuid()).await?.is_some();
    conn.commit().await?;
    Ok(visit.link_to(if is_group { "group" } else { "task" }, &[&id.to_string()]))
}

async fn of_queue(app: &Site, visit: &Visit, text: &str) -> Result<Option<String>, PageError> {
    let Ok(queue) = text.parse::<TaskQueueId>() else { return Ok(None) };
    if !visit.may(listing_scope(queue.as_str()))
        || app.engine.queues.find_key(&app.engine.pool, &queue).await?.is_none()
    {
        return Ok(None);
    }
    Ok(Some(visit.link_to("queue", &[queue.provisioner_id(), queue.worker_type()])))
}

async fn of_worker(app: &Site, visit: &Visit, text: &str) -> Result<Option<String>, PageError> {
    let Some((group, id)) = text.split_once('/') else { return Ok(None) };
    if !visit.may_some(OF_WORKERS) {
        return Ok(None);
    }
    // Includes this server's latest contacts.
    workers::write_down(&app.engine.pool, &app.engine.workers).await?;
    let mut conn = page::begin(&app.engine.pool).await?;
    let known = page::list_of_name(&mut conn, group, id).await?;
    conn.commit().await?;
    let is_seen = known.iter().any(|worker| visit.may(workers_scope(&worker.queue_name)));
    Ok(is_seen.then(|| visit.link_to("worker", &[group, id])))
}

async fn of_short_id(app: &Site, visit: &Visit, text: &str) -> Result<Option<String>, PageError> {
    if ids_of_short(text).is_none() {
        return Ok(None);
    }
    let mut found = task_list::find_short(&app.engine.pool, text).await?;
    found.retain(|task| visit.may(format!("{OF_STATUSES}{}", task.task_id)));
    Ok(match found.as_slice() {
        [] => None,
        [task] => Some(visit.link_to("task", &[&task.task_id.to_string()])),
        _ => Some(visit.link(&format!("/tasks?{SHORT}={text}"))),
    })
}
