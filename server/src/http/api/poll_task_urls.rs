//! pollTaskUrls.

use chrono::DateTime;
use tenure_engine::ops::OpError;

use crate::http::api::prelude::*;

/// URLs of one message queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SignedUrls)]
struct Urls {
    /// URL to get messages.
    signed_poll_url: String,
    /// URL to delete a message, with placeholders for its id and receipt.
    signed_delete_url: String,
}

/// URLs of all priorities.
#[derive(Serialize, ToSchema)]
#[schema(as = PollTaskUrls)]
struct Body {
    /// Highest priority first.
    queues: Vec<Urls>,
    /// Expiry of the URLs.
    expires: Timestamp,
}

/// `GET /poll-task-url/:provisionerId/:workerType`
pub fn endpoint() -> Endpoint {
    Endpoint::get("pollTaskUrls", poll_task_urls)
        .scopes(AnyOf(&[
            Scope("queue:poll-task-urls:<taskQueueId>"),
            AllOf(&[Scope("queue:poll-task-urls"), Scope("assume:worker-type:<taskQueueId>")]),
        ]))
        .described("queue", "Get the signed URLs of a queue's messages", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let url = "https://tenure.example.com/api/tenure/v1/messages/queue-1-4/messages";
    let urls = json!({
        "queues": [{
            "signedPollUrl": format!("{url}?visibilitytimeout=300&sv=...&sig=..."),
            "signedDeleteUrl": format!("{url}/{{{{messageId}}}}?popreceipt={{{{popReceipt}}}}&sv=...&sig=..."),
        }],
        "expires": sample.after(30),
    });
    operation
        .about(
            "Seven pairs, one for each priority, highest first, valid for half an hour. A queue whose policy has \
             limits, `fair` or `dispatch: assign` is refused with 409; its earlier URLs find no task.",
        )
        .answers::<Body>("The URLs", &urls)
        .refuses(RequestConflict, "the queue has limits")
}

async fn poll_task_urls(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let key = app.engine.queues.get_or_create_key(&app.engine.pool, &queue).await?;
    if app.engine.is_limited(key).await? {
        return Err(ApiError::from(OpError::Conflict(format!(
            "queue {queue} has limits, so its tasks cannot be polled: call claimWork"
        ))));
    }
    let now = DateTime::from_timestamp_millis(app.intake.now().await?.server_ms).unwrap_or_default();
    let (urls, expires) = app.poll_urls.sign(key, now);
    let queues =
        urls.into_iter().map(|urls| Urls { signed_poll_url: urls.poll, signed_delete_url: urls.delete }).collect();
    ok(&Body { queues, expires: Timestamp::new(expires) })
}
