//! Dead letters: failed tasks that wait to be run again. Answers stay JSON.

use reqwest::Method;
use serde_json::Value;
use tenure_api::dates::Timestamp;
use tenure_api::dead_letters::RedriveRequest;
use tenure_api::ids::TaskQueueId;
use tenure_api::states::ReasonResolved;

use crate::client::{Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// Conditions of [`Client::list_dead_letters`]. The default accepts every dead letter.
///
/// ```
/// use tenure_client::{DeadLetterFilter, ReasonResolved};
///
/// let lost = DeadLetterFilter { reason: Some(ReasonResolved::ClaimExpired), ..DeadLetterFilter::default() };
/// # let _ = lost;
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct DeadLetterFilter {
    /// Accepts only tasks that ended for this reason.
    pub reason: Option<ReasonResolved>,
    /// Accepts only tasks that failed before this time.
    pub before: Option<Timestamp>,
    /// Maximum number of tasks; 1,000 by default.
    pub limit: Option<u16>,
}

impl DeadLetterFilter {
    fn query(&self, continuation: Option<&str>) -> String {
        let texts = [
            ("reason", self.reason.map(|reason| reason.to_string())),
            ("before", self.before.map(|before| before.to_string())),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("continuationToken", continuation.map(str::to_owned)),
        ];
        let given = texts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", parameter(&value?))));
        given.collect::<Vec<_>>().join("&")
    }
}

impl Client {
    /// Lists the dead letters of a queue, oldest first. The answer's `continuationToken` fetches the
    /// next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let page = client.list_dead_letters(&"acme/mail".parse()?, Default::default(), None).await?;
    /// println!("{}", page["deadLetters"][0]["taskId"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_dead_letters(
        &self,
        queue: &TaskQueueId,
        filter: DeadLetterFilter,
        continuation: Option<&str>,
    ) -> Result<Value, Error> {
        let query = Some(filter.query(continuation)).filter(|query| !query.is_empty());
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, path(queue, "dead-letters"), None, TIMEOUT, own).await
    }

    /// Runs dead letters of a queue again: by default up to 1,000, the oldest first. The answer has
    /// their number and the refused tasks. Its `continuationToken` continues after the tried tasks.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let request = tenure_client::RedriveRequest { limit: Some(100), ..Default::default() };
    /// let answer = client.redrive_queue(&"acme/mail".parse()?, &request).await?;
    /// println!("{} tasks run again", answer["redriven"]);
    /// # Ok(()) }
    /// ```
    pub async fn redrive_queue(&self, queue: &TaskQueueId, request: &RedriveRequest) -> Result<Value, Error> {
        let body = serde_json::to_string(request).expect("texts, numbers and dates");
        self.own(Method::POST, path(queue, "redrive"), Some(body)).await
    }
}

fn path(queue: &TaskQueueId, rest: &str) -> String {
    format!("/queues/{}/{rest}", parameter(queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_has_given_fields_only() {
        assert_eq!(DeadLetterFilter::default().query(None), "");
        let before = serde_json::from_value("2026-01-31T12:00:00Z".into()).unwrap();
        let filter =
            DeadLetterFilter { reason: Some(ReasonResolved::ClaimExpired), before: Some(before), limit: Some(5) };
        let expected = "reason=claim-expired&before=2026-01-31T12%3A00%3A00.000Z&limit=5&continuationToken=x%2Fy";
        assert_eq!(filter.query(Some("x/y")), expected);
    }
}
