//! listWorkerTypes.

use super::{TypeBody, a_type, list, read_page};
use crate::http::api::prelude::*;

/// A page of a provisioner's queues.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProvisionedQueues)]
struct TypesBody {
    /// By name.
    worker_types: Vec<TypeBody>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /provisioners/:provisionerId/worker-types`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listWorkerTypes", list_worker_types)
        .scopes(Scope("queue:list-worker-types:<provisionerId>"))
        .described("queue", "List the queues of a provisioner", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation).about("Those that workers use. An unknown provisioner has none.").answers::<TypesBody>(
        "A page, by name; with a token if there are more",
        &json!({"workerTypes": [a_type(sample)]}),
    )
}

async fn list_worker_types(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let provisioner = call.provisioner_id()?;
    let page = read_page(&call)?;
    // In the order of bytes, what begins with `x/` lies between `x/` and `x0`.
    let (first, before) = (format!("{provisioner}/"), format!("{provisioner}0"));
    let after = page.after.as_deref().unwrap_or_default().max(&first);
    let (rows, continuation_token) = list(&app, &page, after, Some(&before)).await?;
    let worker_types = rows.into_iter().map(TypeBody::try_from).collect::<Result<_, _>>()?;
    ok(&TypesBody { worker_types, continuation_token })
}
