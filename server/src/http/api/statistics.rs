//! Numbers of queues over time: getQueueStatistics, getStatistics.

use tenure_api::statistics::Statistics;

use crate::http::api::prelude::*;
use tenure_domain::statistics::{POINTS_MAX, Step};
use tenure_engine::ops::statistics::{Of, Wanted, read};

/// `GET /api/tenure/v1/queues/:taskQueueId/statistics`
pub fn of_queue() -> Endpoint {
    Endpoint::get("getQueueStatistics", handle_of_queue)
        .scopes(Scope("tenure:get-queue:<taskQueueId>"))
        .large_answer()
        .described("tenure", "Read the numbers of a queue over time", describe_of_queue)
}

fn describe_of_queue(operation: Operation, sample: &Sample) -> Operation {
    described(operation, sample, "A queue that was never used has zeros. ")
}

async fn handle_of_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let wanted = wanted(&call)?;
    let key = app.engine.queues.find_key(&app.engine.pool, &queue).await?;
    answer(&app, key.map_or(Of::Nothing, Of::Queue), wanted).await
}

/// `GET /api/tenure/v1/statistics`
pub fn of_all() -> Endpoint {
    Endpoint::get("getStatistics", handle_of_all).scopes(Scope("tenure:get-queue:*")).large_answer().described(
        "tenure",
        "Read the numbers of all queues together over time",
        describe_of_all,
    )
}

fn describe_of_all(operation: Operation, sample: &Sample) -> Operation {
    described(operation, sample, "")
}

async fn handle_of_all(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    answer(&app, Of::All, wanted(&call)?).await
}

async fn answer(app: &Api, of: Of, wanted: Wanted) -> Result<Response, ApiError> {
    ok(&read(&app.engine.pool, of, wanted).await?)
}

fn wanted(call: &Call) -> Result<Wanted, ApiError> {
    let mut wanted = Wanted::default();
    for (name, value) in call.query(&["from", "to", "step"])? {
        match name.as_str() {
            "from" => wanted.from = Some(query_time(&name, &value)?),
            "to" => wanted.to = Some(query_time(&name, &value)?),
            _ => {
                let step = value.parse().ok().and_then(Step::of_seconds);
                let wrong = || ApiError::arguments(format!("the query parameter `{name}` must be 60, 600 or 3600"));
                wanted.step = Some(step.ok_or_else(wrong)?);
            }
        }
    }
    Ok(wanted)
}

fn described(operation: Operation, sample: &Sample, more: &str) -> Operation {
    let date = json!({"type": "string", "format": "date-time"});
    let about = format!(
        "Each point covers `step` seconds, by the clock of the database. Numbers per minute are kept for 24 hours, \
         per ten minutes for 14 days, per hour for 90 days. Numbers appear within 10 seconds; a killed server loses \
         up to 10 seconds of numbers. A percentile is the upper bound of a bucket: 0.1, 0.5, 1, 5, 15, 60, 300, 900, \
         3600, 14400 or 86400 seconds, or 366 days. {more}At most {POINTS_MAX} points are returned."
    );
    operation
        .about(&about)
        .query("from", "Start; an hour before the end by default", &date, &Value::Null)
        .query("to", "End; now by default", &date, &Value::Null)
        .query(
            "step",
            "Seconds per point; by default the smallest that is kept for so long and gives at most 1,500 points",
            &json!({"type": "integer", "enum": [60, 600, 3600]}),
            &json!(60),
        )
        .answers::<Statistics>(
            "The numbers",
            &json!({"step": 60, "points": [{
                "at": sample.after(0),
                "created": 12,
                "started": 10,
                "completed": 9,
                "failed": 1,
                "exception": 0,
                "lost": 0,
                "pendingMost": 4,
                "claimedMost": 3,
                "waitP50": 0.5,
                "waitP95": 5.0,
                "runP50": 15.0,
                "runP95": 60.0,
            }]}),
        )
        .refuses(InputError, "the time is empty, too long ago, too long for `step`, or `step` is not kept for so long")
}
