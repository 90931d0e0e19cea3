//! listWorkers.

use super::RunBody;
use crate::http::api::prelude::*;
use tenure_engine::ops::workers as ops;
use tenure_store::workers::{Wanted, WorkerRow};

/// A worker in a list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ListedWorker)]
struct Entry {
    worker_group: String,
    worker_id: String,
    /// When it was first seen.
    first_claim: Timestamp,
    /// When it was last seen.
    last_date_active: Timestamp,
    /// What it claimed last, if it has claimed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_task: Option<RunBody>,
    /// Until when it gets no work; only while that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_until: Option<Timestamp>,
}

/// A page of a queue's workers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Workers)]
struct ListBody {
    /// By group and id.
    workers: Vec<Entry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType/workers`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listWorkers", list_workers)
        .scopes(Scope("queue:list-workers:<provisionerId>/<workerType>"))
        .described("queue", "List the workers of a queue", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let listed = json!({
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "firstClaim": sample.after(0),
        "lastDateActive": sample.after(1),
        "latestTask": {"taskId": sample.task, "runId": 0},
    });
    paged(operation)
        .about(
            "A worker is shown from the first time that it polls for work until a day after it was last seen, and for \
             as long as it is quarantined. One that polls another server is shown here ten seconds later at most. A \
             queue that does not exist has no workers.",
        )
        .query(
            "quarantined",
            "`true`: only those that are quarantined; `false`: only the others",
            &json!({"type": "string", "enum": ["true", "false"]}),
            &Value::Null,
        )
        .answers::<ListBody>("A page, by group and id; with a token if there are more", &json!({"workers": [listed]}))
}

async fn list_workers(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.queue_of_halves()?;
    let query = call.query(&["continuationToken", "limit", "quarantined"])?;
    let page = Page::read(&query)?;
    let after = page.after.as_deref().map(split).transpose()?.unwrap_or_default();
    let quarantined = match query.iter().find(|(name, _)| name == "quarantined").map(|(_, value)| value.as_str()) {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(ApiError::arguments("the query parameter `quarantined` must be `true` or `false`")),
    };
    let key = match &queue {
        Some(queue) => app.engine.queues.find_key(&app.engine.pool, queue).await?,
        None => None,
    };
    let Some(key) = key else {
        return ok(&ListBody { workers: Vec::new(), continuation_token: None });
    };
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let filter = Wanted { queue: key, quarantined, after, limit: Page::rows(limit) };
    let found = ops::list(&app.engine.pool, &app.engine.workers, filter).await?;
    let place = |row: &WorkerRow| format!("{}/{}", row.worker_group, row.worker_id);
    let mut rows: Vec<(String, WorkerRow)> = found.into_iter().map(|row| (place(&row), row)).collect();
    let continuation_token = Page::cut(limit, &mut rows, |(place, _)| place);
    let workers = rows.into_iter().map(|(_, row)| entry(row)).collect::<Result<_, _>>()?;
    ok(&ListBody { workers, continuation_token })
}

fn entry(row: WorkerRow) -> Result<Entry, ApiError> {
    let latest_task = ops::recent(&row)?.pop().map(RunBody::from);
    let on = row.visibility().is_quarantined(row.now);
    Ok(Entry {
        worker_group: row.worker_group,
        worker_id: row.worker_id,
        first_claim: row.first_claim.into(),
        last_date_active: row.last_seen.into(),
        latest_task,
        quarantine_until: row.quarantine_until.filter(|_| on).map(Timestamp::new),
    })
}

/// The place in a list that a token names. Neither part of it has a slash.
fn split(place: &str) -> Result<(&str, &str), ApiError> {
    place.split_once('/').ok_or_else(ApiError::unknown_token)
}
