//! listProvisioners.

use super::{ProvisionerBody, a_provisioner, read_page};
use crate::http::api::prelude::*;
use tenure_engine::ops::workers::write_down;
use tenure_store::queue_views;

/// A page of provisioners.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Provisioners)]
struct ProvisionersBody {
    /// By name.
    provisioners: Vec<ProvisionerBody>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /provisioners`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listProvisioners", list_provisioners).scopes(Scope("queue:list-provisioners")).described(
        "queue",
        "List the first halves of the names of queues",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about("Of the queues that workers ask. Taskcluster calls them provisioners.")
        .answers::<ProvisionersBody>(
            "A page, by name; with a token if there are more",
            &json!({"provisioners": [a_provisioner(sample)]}),
        )
}

async fn list_provisioners(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let page = read_page(&call)?;
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let after = page.after.as_deref().unwrap_or_default();
    let mut conn = app.engine.pool.acquire().await?;
    let mut rows = queue_views::list_provisioners(&mut conn, after, Page::rows(limit)).await?;
    let continuation_token = Page::cut(limit, &mut rows, |row| &row.name);
    ok(&ProvisionersBody { provisioners: rows.into_iter().map(ProvisionerBody::from).collect(), continuation_token })
}
