//! Numbers of queues over time. Answers stay JSON.

use reqwest::Method;
use serde_json::Value;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;

use crate::client::{Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// A time to read numbers of. By default the last hour.
///
/// ```
/// use tenure_client::StatisticsRange;
///
/// # fn example(client: &tenure_client::Client) {
/// let day = chrono::TimeDelta::days(1);
/// let from = client.now().time() - day;
/// let range = StatisticsRange { from: Some(from.into()), to: None, step: Some(600) };
/// # let _ = range;
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatisticsRange {
    /// Start.
    pub from: Option<Timestamp>,
    /// End; now by default.
    pub to: Option<Timestamp>,
    /// Seconds per point: 60, 600 or 3600. By default the smallest that is possible.
    pub step: Option<i64>,
}

impl StatisticsRange {
    fn query(&self) -> Option<String> {
        let times = [("from", self.from), ("to", self.to)];
        let times = times.into_iter().filter_map(|(name, time)| Some(format!("{name}={}", parameter(&time?))));
        let fields: Vec<String> = times.chain(self.step.map(|step| format!("step={step}"))).collect();
        (!fields.is_empty()).then(|| fields.join("&"))
    }
}

impl Client {
    /// Reads the numbers of a queue over time, as `points`: new tasks, claimed and lost runs,
    /// resolved tasks, depths, and percentiles of waits and durations.
    ///
    /// # Errors
    /// The time is empty, too long ago, or too long for the step (400).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let hour = client.get_queue_statistics(&"acme/mail".parse()?, Default::default()).await?;
    /// println!("{}", hour["points"][0]["created"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_queue_statistics(&self, queue: &TaskQueueId, range: StatisticsRange) -> Result<Value, Error> {
        self.statistics(format!("/queues/{}/statistics", parameter(queue)), range).await
    }

    /// Reads the numbers of all queues together over time, as
    /// [`get_queue_statistics`](Self::get_queue_statistics) does of one.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let range = tenure_client::StatisticsRange { step: Some(600), ..Default::default() };
    /// println!("{}", client.get_statistics(range).await?["points"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_statistics(&self, range: StatisticsRange) -> Result<Value, Error> {
        self.statistics("/statistics".to_owned(), range).await
    }

    async fn statistics(&self, path: String, range: StatisticsRange) -> Result<Value, Error> {
        let own = Own { api: Some(TENURE_API), query: range.query(), ..Own::default() };
        self.send_call(Method::GET, path, None, TIMEOUT, own).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_has_given_fields_only() {
        assert_eq!(StatisticsRange::default().query(), None);
        let from = serde_json::from_value("2026-01-31T12:00:00Z".into()).unwrap();
        let range = StatisticsRange { from: Some(from), to: None, step: Some(60) };
        assert_eq!(range.query().as_deref(), Some("from=2026-01-31T12%3A00%3A00.000Z&step=60"));
    }
}
