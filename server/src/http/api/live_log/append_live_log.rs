//! appendLiveLog.

use tenure_api::errors::ErrorCode::InputTooLarge;
use tenure_api::live_log::{LIVE_LOG_CHUNK_MAX, LiveLogAppended};

use tenure_domain::live_log::{OFFSET_MAX, fits, offset};
use tenure_engine::ops::create_artifact::RunRef;

use crate::http::api::prelude::*;

/// `PUT /api/tenure/v1/tasks/:taskId/runs/:runId/live-log`
pub fn endpoint() -> Endpoint {
    Endpoint::put("appendLiveLog", append_live_log).scopes(SCOPES).early_check(early_check).described(
        "tenure",
        "Append to the log of a run",
        describe,
    )
}

/// A claim's credentials include it.
const SCOPES: Template = Scope("queue:create-artifact:<taskId>/<runId>");

fn describe(operation: Operation, _: &Sample) -> Operation {
    let text = json!({"type": "string", "maxLength": LIVE_LOG_CHUNK_MAX});
    operation
        .about(
            "For the worker that holds the run, with the credentials of its claim. The body is the next piece of the \
             log, at most 64 KiB of raw bytes, and is readable at once. `offset` counts the bytes of the whole log. \
             A repeated piece is not stored twice, so send it again if the response is lost. A piece that begins \
             after the end of the log leaves a gap, which readers see as a line. The last 4 MiB of a log are kept. \
             `kept` is false while live logs are disabled or their storage is full: nothing was stored, retry after \
             a minute. A live log does not survive a crash of the database: upload the whole log as \
             `public/logs/live_backing.log` at the end. Of a run whose worker has not, the server makes that \
             artifact of what it has, two to three minutes after the end.",
        )
        .query(
            "offset",
            "The offset of the body's first byte in the whole log",
            &json!({"type": "integer", "minimum": 0, "maximum": OFFSET_MAX}),
            &json!(0),
        )
        .required()
        .may_take("text/plain", &text, &Value::from("cc -c main.c\n"))
        .answers::<LiveLogAppended>("The offset of the next piece", &json!({"next": 13, "kept": true}))
        .refuses(ResourceNotFound, "the task does not exist")
        .refuses(RequestConflict, "the run is not claimed: it has ended or does not exist")
        .refuses(InputTooLarge, "the body is over 64 KiB")
}

fn early_check(call: &Call) -> Result<(), ApiError> {
    let run = call.run_id()?;
    call.authorize(&Values::of_path().text("runId", run.to_string()))?;
    call.task_id().map(drop)
}

async fn append_live_log(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    early_check(&call)?;
    let of = RunRef { task: call.task_id()?, run: call.run_id()? };
    let query = call.query(&["offset"])?;
    let missing = || ApiError::arguments("the query parameter `offset` is missing; that of the first piece is 0");
    let given = query.first().ok_or_else(missing)?;
    let offset = offset(&given.1).map_err(ApiError::arguments)?;
    if !fits(call.body.len()) {
        let message = format!("the body is over the limit of {LIVE_LOG_CHUNK_MAX} bytes; send it in pieces");
        return Err(ApiError::new(InputTooLarge, message));
    }
    ok(&app.engine.live_logs.append(of, offset, call.body.to_vec()).await?)
}
