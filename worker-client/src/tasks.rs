//! Lists of tasks by conditions. Answers stay JSON.

use reqwest::Method;
use serde_json::Value;
use tenure_api::tasks::TaskFilter;

use crate::client::{Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// Each field of a filter is a text, and has the name of its query parameter.
fn query(filter: &TaskFilter, limit: Option<u16>, continuation: Option<&str>) -> String {
    let filter = serde_json::to_value(filter).expect("a filter has texts");
    let fields = filter.as_object().into_iter().flatten();
    let mut pairs: Vec<(&str, String)> =
        fields.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.to_owned()))).collect();
    pairs.extend(limit.map(|limit| ("limit", limit.to_string())));
    pairs.extend(continuation.map(|token| ("continuationToken", token.to_owned())));
    let given = pairs.into_iter().map(|(name, value)| format!("{name}={}", parameter(&value)));
    given.collect::<Vec<_>>().join("&")
}

impl Client {
    /// Lists tasks that meet all conditions of a filter. The answer's `continuationToken` fetches the
    /// next page; a page with one may have few tasks or none.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// use tenure_client::{ListState, TaskFilter};
    ///
    /// let failed = TaskFilter {
    ///     task_queue_id: Some("acme/mail".to_owned()),
    ///     state: Some(ListState::Failed),
    ///     ..TaskFilter::default()
    /// };
    /// println!("{}", client.list_tasks(&failed, Some(100), None).await?["tasks"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_tasks(
        &self,
        filter: &TaskFilter,
        limit: Option<u16>,
        continuation: Option<&str>,
    ) -> Result<Value, Error> {
        let query = Some(query(filter, limit, continuation)).filter(|query| !query.is_empty());
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, "/tasks".to_owned(), None, TIMEOUT, own).await
    }

    /// Lists the tasks among the newest 10,000 whose ids begin with these 8 characters. The answer
    /// has the form of [`Client::list_tasks`].
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.find_tasks("Wm2jLBRd").await?["tasks"][0]["taskId"]);
    /// # Ok(()) }
    /// ```
    pub async fn find_tasks(&self, short_id: &str) -> Result<Value, Error> {
        let query = Some(format!("shortId={}", parameter(&short_id)));
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, "/tasks".to_owned(), None, TIMEOUT, own).await
    }
}

#[cfg(test)]
mod tests {
    use tenure_api::tasks::ListState;

    use super::*;

    #[test]
    fn query_has_given_conditions_only() {
        assert_eq!(query(&TaskFilter::default(), None, None), "");
        let filter = TaskFilter {
            task_queue_id: Some("acme/mail".to_owned()),
            state: Some(ListState::Failed),
            tag: Some("kind=a&b".to_owned()),
            ..TaskFilter::default()
        };
        let written = query(&filter, Some(5), Some("x/y"));
        let pairs: Vec<&str> = written.split('&').collect();
        for expected in
            ["taskQueueId=acme%2Fmail", "state=failed", "tag=kind%3Da%26b", "limit=5", "continuationToken=x%2Fy"]
        {
            assert!(pairs.contains(&expected), "{written}");
        }
        assert_eq!(pairs.len(), 5);
    }
}
