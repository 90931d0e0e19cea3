//! Learning that runs have ended which this worker holds, without a session: one request that waits for all of them.
//!
//! [`Client::watch_claims`] is the request; a [`Watch`] sends it for as long as there are runs to watch.

mod runs;

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::watch::{EndedClaim, WATCH_WAIT_MAX, WATCHED_MAX, WatchClaimsRequest, WatchedRun};

pub use runs::{InWords, Watch, Watching};

use crate::client::{Call, Own, TENURE_API, TIMEOUT};
use crate::{Claim, Client, Error};

#[derive(Deserialize)]
struct WatchAnswer {
    ended: Vec<EndedAnswer>,
}

/// A run that has ended, perhaps for a reason that this client does not know.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndedAnswer {
    task_id: TaskId,
    run_id: RunId,
    #[serde(default)]
    state: Value,
    #[serde(default)]
    reason_resolved: Value,
    #[serde(default)]
    ended_by: Value,
}

impl From<EndedAnswer> for EndedClaim {
    fn from(EndedAnswer { task_id, run_id, state, reason_resolved, ended_by }: EndedAnswer) -> Self {
        fn known<T: DeserializeOwned>(word: Value) -> Option<T> {
            serde_json::from_value(word).ok()
        }
        Self {
            task_id,
            run_id,
            state: known(state),
            reason_resolved: known(reason_resolved),
            ended_by: known(ended_by),
        }
    }
}

impl Client {
    /// Waits until one of these runs is held by no worker: this long, at most 30 s. Those are answered that are known by then; none if the
    /// wait was over first. It takes one request for every thousand runs, which change nothing and may be given up at any time. Without
    /// runs it is answered at once.
    ///
    /// # Errors
    /// The server refused, or could not be reached. 404: it is another server than Tenure, or an older one.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure_client::{Claim, Client};
    /// # async fn example(client: &Client, claim: &Claim) -> Result<(), tenure_client::Error> {
    /// for ended in client.watch_claims(&[claim.watched()], Duration::from_secs(30)).await? {
    ///     println!("stop working on {}", ended.task_id);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn watch_claims(&self, runs: &[WatchedRun], wait: Duration) -> Result<Vec<EndedClaim>, Error> {
        let mut answers: FuturesUnordered<_> =
            runs.chunks(WATCHED_MAX).map(|runs| self.watch_some(runs.to_vec(), wait)).collect();
        while let Some(answer) = answers.next().await {
            let ended = answer?;
            if !ended.is_empty() {
                return Ok(ended);
            }
        }
        Ok(Vec::new())
    }

    async fn watch_some(&self, runs: Vec<WatchedRun>, wait: Duration) -> Result<Vec<EndedClaim>, Error> {
        let wait = i64::try_from(wait.as_secs()).unwrap_or(WATCH_WAIT_MAX).min(WATCH_WAIT_MAX);
        let call = Call {
            method: Method::POST,
            path: "/claims/watch".to_owned(),
            body: Some(serde_json::to_vec(&WatchClaimsRequest { runs, wait }).expect("texts and numbers")),
            timeout: TIMEOUT + Duration::from_secs(wait.unsigned_abs()),
            own: Own { api: Some(TENURE_API), ..Own::default() },
        };
        let answer: WatchAnswer = self.call(&call).await?.value;
        Ok(answer.ended.into_iter().map(EndedClaim::from).collect())
    }
}

impl Claim {
    /// What [`Client::watch_claims`] takes.
    ///
    /// ```
    /// # fn example(claim: &tenure_client::Claim) { assert_eq!(claim.watched().run_id, claim.run_id()); }
    /// ```
    #[must_use]
    pub fn watched(&self) -> WatchedRun {
        WatchedRun { task_id: self.task_id(), run_id: self.run_id() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_api::states::{EndedBy, ReasonResolved, RunState};

    use super::*;

    #[test]
    fn a_run_that_ended_for_an_unknown_reason_has_ended() {
        let task = "9HrBC1jMQ3KlZw4CssPUeQ";
        let answer = json!({"serverTime": "2026-01-31T12:00:00.000Z", "ended": [
            {"taskId": task, "runId": 0, "state": "exception", "reasonResolved": "claim-expired", "endedBy": "lease"},
            {"taskId": task, "runId": 1, "state": "exception", "reasonResolved": "moon-phase", "endedBy": "moon"},
            {"taskId": task, "runId": 2}]});
        let answer: WatchAnswer = serde_json::from_value(answer).unwrap();
        let ended: Vec<EndedClaim> = answer.ended.into_iter().map(EndedClaim::from).collect();
        let words: Vec<_> = ended.iter().map(|claim| (claim.state, claim.reason_resolved, claim.ended_by)).collect();
        let exception = Some(RunState::Exception);
        let lease = (exception, Some(ReasonResolved::ClaimExpired), Some(EndedBy::Lease));
        assert_eq!(words, [lease, (exception, None, None), (None, None, None)]);
        assert_eq!(ended[2].run_id.number(), 2);
    }
}
