//! getProvisioner.

use super::{ProvisionerBody, a_provisioner};
use crate::http::api::prelude::*;
use tenure_engine::ops::OpError;
use tenure_engine::ops::workers::write_down;
use tenure_store::queue_views;

/// `GET /provisioners/:provisionerId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getProvisioner", get_provisioner).scopes(Scope("queue:get-provisioner:<provisionerId>")).described(
        "queue",
        "Read when workers last used any queue of a provisioner",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<ProvisionerBody>("The provisioner", &a_provisioner(sample))
        .refuses(ResourceNotFound, "no worker has used any of its queues lately")
}

async fn get_provisioner(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let provisioner = call.provisioner_id()?;
    call.no_query()?;
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let mut conn = app.engine.pool.acquire().await?;
    let found = queue_views::find_provisioner(&mut conn, provisioner.as_str()).await?;
    let missing = || {
        OpError::NotFound(format!(
            "no worker of a queue of the provisioner {provisioner} was seen lately; it is listed from then on"
        ))
    };
    ok(&ProvisionerBody::from(found.ok_or_else(missing)?))
}
