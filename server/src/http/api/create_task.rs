//! createTask.

use std::sync::Arc;

use axum::response::Response;
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::states::Priority;

use super::{StatusBody, ok};
use crate::domain::create::NewTask;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::create_task::Request;

/// `PUT /task/:taskId`
pub async fn create_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    let task = NewTask::from_request(id, &call.json::<CreateTaskRequest<'_>>()?)?;
    call.authorize(&scopes(&task))?;
    let queue = app.engine.queues.make_key(&app.engine.pool, &task.queue).await?;
    #[cfg(feature = "test-util")]
    if crate::breakage::strikes(crate::breakage::Breakage::LoseCreate) {
        return Ok(super::raw("{\"status\":{}}".to_owned()));
    }
    let created = app.engine.create.submit(Request { task: Arc::new(task), queue }).await?;
    ok(&StatusBody { status: &created.status() })
}

/// What creating this task requires: what the task itself may do, its routes, project, scheduler, and its priority or a
/// higher one in its queue.
pub(super) fn scopes(task: &NewTask) -> Expression {
    let own = task.scopes.iter().cloned();
    let routes = task.routes.iter().map(|route| format!("queue:route:{route}"));
    let named =
        [format!("queue:create-task:project:{}", task.project), format!("queue:scheduler-id:{}", task.scheduler)];
    let priorities = Priority::ALL
        .iter()
        .filter(|&&priority| priority <= task.priority)
        .map(|priority| format!("queue:create-task:{priority}:{}", task.queue));
    let modern = Expression::all_of(named.map(Expression::from).into_iter().chain([Expression::any_of(priorities)]));
    let here = if task.priority == Priority::Lowest { Expression::any_of([modern, legacy(task)]) } else { modern };
    Expression::all_of(own.chain(routes).map(Expression::from).chain([here]))
}

/// What submitters had in the days of signed URLs, before scopes named priorities: enough for the lowest one.
fn legacy(task: &NewTask) -> Expression {
    let (queue, group) = (&task.queue, format!("{}/{}", task.scheduler, task.group));
    Expression::any_of([
        Expression::from(format!("queue:create-task:{queue}")),
        Expression::all_of([
            format!("queue:define-task:{queue}"),
            format!("queue:task-group-id:{group}"),
            format!("queue:schedule-task:{group}/{}", task.id),
        ]),
    ])
}
