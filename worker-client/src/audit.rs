//! The audit: who changed what. Answers stay JSON.

use reqwest::Method;
use serde_json::Value;
use tenure_api::dates::Timestamp;

use crate::client::{Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// Conditions of [`Client::list_audit`]. The default accepts every change.
///
/// ```
/// use tenure_client::AuditFilter;
///
/// let of_queue = AuditFilter {
///     kind: Some("queue".to_owned()),
///     object: Some("acme/mail".to_owned()),
///     limit: Some(20),
///     ..AuditFilter::default()
/// };
/// # drop(of_queue);
/// ```
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// The client that made the change.
    pub client_id: Option<String>,
    /// Kind of the object, such as `task`, `queue` or `client`.
    pub kind: Option<String>,
    /// Id of the object.
    pub object: Option<String>,
    /// Name of the operation, such as `cancelTask`.
    pub action: Option<String>,
    /// Accepts only later changes.
    pub after: Option<Timestamp>,
    /// Maximum number of changes; 1,000 by default.
    pub limit: Option<u16>,
}

impl AuditFilter {
    fn query(&self, continuation: Option<&str>) -> String {
        let texts = [
            ("client", self.client_id.clone()),
            ("kind", self.kind.clone()),
            ("object", self.object.clone()),
            ("action", self.action.clone()),
            ("after", self.after.map(|after| after.to_string())),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("continuationToken", continuation.map(str::to_owned)),
        ];
        let given = texts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", parameter(&value?))));
        given.collect::<Vec<_>>().join("&")
    }
}

impl Client {
    /// Lists who changed what, newest first. The answer's `continuationToken` fetches the next page;
    /// a page with one may have no changes.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// use tenure_client::AuditFilter;
    ///
    /// let cancels = AuditFilter { action: Some("cancelTask".to_owned()), ..AuditFilter::default() };
    /// println!("{}", client.list_audit(&cancels, None).await?["audit"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_audit(&self, filter: &AuditFilter, continuation: Option<&str>) -> Result<Value, Error> {
        let query = Some(filter.query(continuation)).filter(|query| !query.is_empty());
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, "/audit".to_owned(), None, TIMEOUT, own).await
    }
}
