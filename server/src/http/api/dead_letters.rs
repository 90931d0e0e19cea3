//! Dead letters of a queue: listDeadLetters, redriveQueue.

use tenure_api::bodies::Metadata;
use tenure_api::dead_letters::{DeadLetter, DeadLetters, RedriveRequest, Redriven, RefusedRedrive};
use tenure_api::states::ReasonResolved;

use super::create_task;
use super::queue_policy::CHANGING;
use crate::http::api::prelude::*;
use tenure_domain::create::NewTask;
use tenure_domain::dead_letter::{Cursor, Filter, Place, Redrive};
use tenure_engine::ops::OpError;
use tenure_engine::ops::redrive::{Outcome, redrive};
use tenure_store::dead_letters::{self as store, EXAMINED_MAX};

/// `GET /queues/:taskQueueId/dead-letters`
pub fn list_dead_letters() -> Endpoint {
    Endpoint::get("listDeadLetters", handle_list_dead_letters)
        .scopes(Scope("tenure:get-queue:<taskQueueId>"))
        .large_answer()
        .described("tenure", "List the failed tasks of a queue that wait to be run again", describe_list_dead_letters)
}

fn describe_list_dead_letters(operation: Operation, sample: &Sample) -> Operation {
    let reasons: Vec<&str> = ReasonResolved::ALL.iter().map(|reason| reason.as_str()).collect();
    paged(operation)
        .about(&format!(
            "Oldest first. With `deadLetters` in its policy, a queue lists tasks that end as `failed` or `exception`, \
             except cancelled ones, until they are run again, copied or purged. A task is purged by its `expires` or \
             by `retain.failed` of the policy, and leaves the list with that. With `reason`, a page examines up to \
             {EXAMINED_MAX} tasks, so a page with a token is not the last one, even if it has few or no entries."
        ))
        .query(
            "reason",
            "Only tasks that ended for this reason",
            &json!({"type": "string", "enum": reasons}),
            &Value::Null,
        )
        .query(
            "before",
            "Only tasks that failed before this time",
            &json!({"type": "string", "format": "date-time"}),
            &Value::Null,
        )
        .answers::<DeadLetters>(
            "A page; with a token if there may be more",
            &json!({"deadLetters": [{
                "taskId": sample.task,
                "runId": 0,
                "name": "build",
                "state": "failed",
                "reasonResolved": "failed",
                "resolved": sample.after(1),
                "deadline": sample.after(60),
            }]}),
        )
}

async fn handle_list_dead_letters(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let query = call.query(&["reason", "before", "limit", "continuationToken"])?;
    let page = Page::read(&query)?;
    let filter = filter(&query)?;
    let after = page.after.as_deref().map(|text| Place::parse(text).ok_or_else(ApiError::unknown_token)).transpose()?;
    let limit = i64::try_from(page.limit.unwrap_or(PAGE_MAX)).unwrap_or(i64::MAX);
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&DeadLetters { dead_letters: Vec::new(), continuation_token: None });
    };
    let mut conn = tenure_store::page::begin(&app.engine.pool).await?;
    let found = store::list(&mut conn, key, filter, after.unwrap_or(Place::START), limit).await?;
    let seqs: Vec<i64> = found.rows.iter().map(|row| row.seq).collect();
    let definitions = store::list_definitions(&mut conn, &seqs).await?;
    conn.commit().await?;
    let shown = |row: store::DeadLetter| DeadLetter {
        task_id: row.task,
        run_id: row.run,
        name: definitions.get(&row.seq).and_then(|definition| name(definition)),
        state: row.state,
        reason_resolved: row.reason,
        ended_by: row.ended_by,
        resolved: row.resolved.into(),
        deadline: row.deadline.into(),
    };
    ok(&DeadLetters {
        dead_letters: found.rows.into_iter().map(shown).collect(),
        continuation_token: found.next.map(|next| Page::token(&next.text())),
    })
}

fn filter(query: &[(String, String)]) -> Result<Filter, ApiError> {
    let (mut reason, mut before) = (None, None);
    for (name, value) in query {
        let wrong = |rule: &str| ApiError::arguments(format!("the query parameter `{name}` {rule}"));
        match name.as_str() {
            "reason" => {
                let known = ReasonResolved::ALL.iter().copied().find(|reason| reason.as_str() == value);
                let words: Vec<&str> = ReasonResolved::ALL.iter().map(|reason| reason.as_str()).collect();
                reason = Some(known.ok_or_else(|| wrong(&format!("must be one of {}", words.join(", "))))?);
            }
            "before" => before = Some(query_time(name, value)?),
            _ => {}
        }
    }
    Ok(Filter::new(reason, before))
}

fn name(definition: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Definition {
        metadata: Metadata,
    }
    serde_json::from_str::<Definition>(definition).ok().map(|definition| definition.metadata.name)
}

/// `POST /queues/:taskQueueId/redrive`
pub fn redrive_queue() -> Endpoint {
    Endpoint::post("redriveQueue", handle_redrive_queue).scopes(CHANGING).described(
        "tenure",
        "Run failed tasks of a queue again",
        describe_redrive_queue,
    )
}

fn describe_redrive_queue(operation: Operation, sample: &Sample) -> Operation {
    let refused = json!({
        "taskId": sample.task,
        "code": "RequestConflict",
        "message": "the deadline has passed",
    });
    operation
        .about(
            "For tasks in listDeadLetters, oldest first. A task before its deadline gets a new run, as rerunTask gives \
             it. Of a task behind its deadline `copy` creates a new one, with the same definition except for its id, \
             dates, group and dependencies, and the tag `tenure-copy-of`; that needs the scopes of createTask for the \
             copy. A refused task stays in the list and stops no other one. The token continues behind the tasks that \
             were tried, and leaves out tasks that failed after the first request. A repeat of the request is safe: \
             tasks that were run again or copied are no longer in the list. With `taskIds`, a task that is not in the \
             list is refused with `ResourceNotFound`.",
        )
        .may_take_json::<RedriveRequest>(&json!({"reason": "failed", "limit": 100, "copy": {"deadlineAfter": 86_400}}))
        .checks_body()
        .answers::<Redriven>(
            "Numbers of tasks, and the refused ones",
            &json!({"redriven": 98, "copied": 1, "refusedCount": 1, "refused": [refused]}),
        )
        .refuses(InputError, "a number is out of its range, or `taskIds` is sent with another condition")
}

async fn handle_redrive_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let sent: RedriveRequest = call.json_or_default()?;
    let from = sent.continuation_token.as_deref().map(cursor).transpose()?;
    let request = Redrive::from_request(&sent, from)?;
    let may_create = |copy: &NewTask| {
        let held = call.authorize_with(&create_task::SCOPES, &create_task::values(copy));
        held.map_err(|error| OpError::Forbidden(error.into_message()))
    };
    let outcome = redrive(app.engine.queue_parts(), &call.actor()?, &queue, &request, &may_create).await?;
    ok(&shown(outcome))
}

fn cursor(token: &str) -> Result<Cursor, ApiError> {
    let decoded = Page::read(&[("continuationToken".to_owned(), token.to_owned())]).ok().and_then(|page| page.after);
    decoded.and_then(|text| Cursor::parse(&text)).ok_or_else(|| {
        ApiError::new(
            InputError,
            "`continuationToken` is invalid: send the token of the previous answer unchanged, or none to begin with \
             the oldest task",
        )
    })
}

fn shown(outcome: Outcome) -> Redriven {
    let Outcome { redriven, copied, refused_count, refused, next } = outcome;
    let refused = refused.into_iter().map(|(task_id, refusal)| {
        let error = ApiError::from(refusal);
        RefusedRedrive { task_id, code: error.code(), message: error.into_message() }
    });
    Redriven {
        redriven,
        copied,
        refused_count,
        refused: refused.collect(),
        continuation_token: next.map(|next| Page::token(&next.text())),
    }
}
