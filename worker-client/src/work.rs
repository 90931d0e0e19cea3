//! Tenure's own call for workers: reports results and claims runs in one request.

use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskQueueId;
use tenure_api::work::{CLAIM_MAX, RunResult, WAIT_MAX, WorkRequest};

use crate::claim::WorkerName;
use crate::client::{Answer, Call, Own, TENURE_API, TIMEOUT, refusal_in_words};
use crate::wire::{ClaimAnswer, TaskStatus};
use crate::{Claim, Client, Error};

/// A fault of the server.
const UNKNOWN_CODE: u16 = 500;

/// Outcome of [`Client::work`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use tenure_client::{Client, Worked, WorkerName};
/// # async fn example(client: &Client, me: &WorkerName) -> Result<(), Box<dyn std::error::Error>> {
/// let worked: Worked = client.work(&"proj/linux".parse()?, me, &[], 10, Duration::from_secs(20)).await?;
/// for claim in worked.claims {
///     println!("working on {}", claim.task_id());
///     claim.complete().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Worked {
    /// In the order of the request. Pass each to [`Claim::settle`].
    pub results: Vec<Result<TaskStatus, Error>>,
    pub claims: Vec<Claim>,
}

#[derive(Deserialize)]
struct WorkAnswer {
    results: Vec<ResultAnswer>,
    tasks: Vec<ClaimAnswer>,
}

#[derive(Deserialize)]
struct ResultAnswer {
    status: Option<TaskStatus>,
    error: Option<ResultError>,
}

#[derive(Deserialize)]
struct ResultError {
    code: String,
    message: String,
}

impl Client {
    /// Reports results of this worker's claims, and claims up to `most` tasks (at most 100). Waits
    /// up to `wait` (at most 20 s) for the first task. Results are stored even if claiming fails.
    ///
    /// # Errors
    /// On any error, results may have been stored. Not Tenure: 404.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure_client::{Claim, Client, RunOutcome, WorkerName};
    /// # async fn example(client: &Client, me: &WorkerName, claim: Claim) -> Result<(), Box<dyn std::error::Error>> {
    /// let results = [claim.result(RunOutcome::Completed, None)];
    /// let mut worked = client.work(&"proj/linux".parse()?, me, &results, 1, Duration::ZERO).await?;
    /// claim.settle(worked.results.remove(0))?;
    /// println!("{} to do next", worked.claims.len());
    /// # Ok(()) }
    /// ```
    pub async fn work(
        &self,
        queue: &TaskQueueId,
        me: &WorkerName,
        results: &[RunResult],
        most: usize,
        wait: Duration,
    ) -> Result<Worked, Error> {
        let body = WorkRequest {
            task_queue_id: queue.clone(),
            worker_group: me.group.clone(),
            worker_id: me.id.clone(),
            results: results.to_vec(),
            claim: u16::try_from(most).unwrap_or(CLAIM_MAX).min(CLAIM_MAX),
            session_id: self.session(),
            partition: None,
            wait: u16::try_from(wait.as_secs()).unwrap_or(WAIT_MAX).min(WAIT_MAX),
        };
        let call = Call {
            method: Method::POST,
            path: "/work".to_owned(),
            body: Some(serde_json::to_vec(&body).expect("texts and numbers")),
            timeout: TIMEOUT + Duration::from_secs(body.wait.into()),
            own: Own { api: Some(TENURE_API), ..Own::default() },
        };
        let Answer { value, date, received, .. } = self.call::<WorkAnswer>(&call).await?;
        Ok(Worked {
            results: value.results.into_iter().map(verdict).collect(),
            claims: value.tasks.into_iter().map(|answer| self.claimed_at(answer, date, received)).collect(),
        })
    }
}

fn verdict(answer: ResultAnswer) -> Result<TaskStatus, Error> {
    if let Some(status) = answer.status {
        return Ok(status);
    }
    let ResultError { code, message } =
        answer.error.unwrap_or_else(|| ResultError { code: String::new(), message: String::new() });
    let known: Option<ErrorCode> = serde_json::from_value(code.as_str().into()).ok();
    Err(refusal_in_words(known.map_or(UNKNOWN_CODE, ErrorCode::status), code, &message, None))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn result_error_equals_report_error() {
        for (code, status, transient) in [
            ("RequestConflict", 409, false),
            ("InsufficientScopes", 403, false),
            ("ServiceUnavailable", 503, true),
            ("Unheard", UNKNOWN_CODE, true),
        ] {
            let answer = json!({"error": {"code": code, "message": "no\nmore"}});
            let error = verdict(serde_json::from_value(answer).unwrap()).unwrap_err();
            assert_eq!((error.status(), error.is_transient()), (Some(status), transient), "{code}");
            assert!(error.to_string().ends_with(": no"), "{error}");
        }
    }
}
