//! sealTaskGroup.

use super::{GroupBody, NO_GROUP, a_group};
use crate::http::api::prelude::*;
use tenure_engine::ops::task_group;

/// `POST /task-group/:taskGroupId/seal`
pub fn endpoint() -> Endpoint {
    Endpoint::post("sealTaskGroup", seal_task_group)
        .scopes(Scope("queue:seal-task-group:<schedulerId>/<taskGroupId>"))
        .described("queue", "Close a group to further tasks", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let mut sealed = a_group(sample);
    sealed["sealed"] = sample.after(5);
    operation
        .experimental()
        .about("It cannot be opened again. A group that is sealed stays as it is.")
        .answers::<GroupBody>("The group", &sealed)
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn seal_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    call.authorize(&Values::of_path().text("schedulerId", group.scheduler.as_str()))?;
    ok(&GroupBody::from(task_group::seal(&app.engine.pool, id).await?))
}
