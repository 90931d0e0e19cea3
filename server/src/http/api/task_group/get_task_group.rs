//! getTaskGroup.

use super::{GroupBody, NO_GROUP, a_group};
use crate::http::api::prelude::*;
use tenure_engine::ops::task_group;

/// `GET /task-group/:taskGroupId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getTaskGroup", get_task_group).scopes(Scope("queue:list-task-group:<taskGroupId>")).described(
        "queue",
        "Read a group",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("A group comes into being with its first task, and lasts as long as the longest of its tasks.")
        .answers::<GroupBody>("The group", &a_group(sample))
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn get_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_group_id()?;
    call.no_query()?;
    ok(&GroupBody::from(task_group::get(&mut *app.engine.pool.acquire().await?, id).await?))
}
