//! scheduleTask, rerunTask, cancelTask.

use std::sync::Arc;

use axum::response::Response;

use super::{StatusBody, ok};
use crate::domain::scopes::Expression;
use crate::domain::task::Task;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::change_task::{Change, change};

/// `POST /task/:taskId/schedule`
pub async fn schedule_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    change_task(app, call, Change::Schedule, "schedule-task").await
}

/// `POST /task/:taskId/rerun`
pub async fn rerun_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    change_task(app, call, Change::Rerun, "rerun-task").await
}

/// `POST /task/:taskId/cancel`
pub async fn cancel_task(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    change_task(app, call, Change::Cancel, "cancel-task").await
}

async fn change_task(app: App, call: Arc<Call>, wanted: Change, scope: &str) -> Result<Response, ApiError> {
    let id = call.task_id()?;
    call.no_query()?;
    // The scopes name the task's scheduler, group and project, so that it must be known before they can be checked.
    let known = app.engine.status.submit(id).await?;
    call.authorize(&scopes(&known, scope))?;
    let task = change(&app.engine.pool, &app.engine.bells, id, wanted).await?;
    ok(&StatusBody { status: &task.status() })
}

/// The scope for this very task, for its project, or the two that name no task and its scheduler and group.
fn scopes(task: &Task, scope: &str) -> Expression {
    Expression::any_of([
        Expression::from(format!("queue:{scope}:{}/{}/{}", task.scheduler, task.group, task.id)),
        Expression::from(format!("queue:{scope}-in-project:{}", task.project)),
        Expression::all_of([
            format!("queue:{scope}"),
            format!("assume:scheduler-id:{}/{}", task.scheduler, task.group),
        ]),
    ])
}
