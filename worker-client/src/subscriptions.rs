//! Subscriptions: the server sends events to a webhook. Answers stay JSON.

use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tenure_api::subscriptions::After;

use crate::client::parameter;
use crate::{Client, Error};

impl Client {
    /// Stores a subscription with every field of the API, in place of the one of its name. Without
    /// a `secret`, the answer to the first request has a generated one, which is not shown again.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let ends = serde_json::json!({
    ///     "to": {"webhook": {"url": "https://example.com/tenure"}},
    ///     "exchange": ["task-completed", "task-failed"],
    /// });
    /// let stored = client.set_subscription("billing", &ends).await?;
    /// println!("{}", stored["to"]["webhook"]["secret"]);
    /// # Ok(()) }
    /// ```
    pub async fn set_subscription(&self, name: &str, subscription: &impl Serialize) -> Result<Value, Error> {
        let body = serde_json::to_string(subscription).map_err(Error::NotJson)?;
        self.own(Method::PUT, of_subscription(name, ""), Some(body)).await
    }

    /// Reads a subscription: its definition, its state, and how far it is behind.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let billing = client.get_subscription("billing").await?;
    /// println!("{} {}", billing["state"], billing["lagSeconds"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_subscription(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::GET, of_subscription(name, ""), None).await
    }

    /// Lists all subscriptions.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.list_subscriptions().await?["subscriptions"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_subscriptions(&self) -> Result<Value, Error> {
        self.own(Method::GET, "/subscriptions".to_owned(), None).await
    }

    /// Sends a test message to the receiver of a subscription, and returns the answer.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let result = client.test_subscription("billing").await?;
    /// println!("{} {}", result["delivered"], result["error"]);
    /// # Ok(()) }
    /// ```
    pub async fn test_subscription(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::POST, of_subscription(name, "/test"), None).await
    }

    /// Lets a suspended subscription continue where it stopped, or after a position of the event
    /// log.
    ///
    /// # Errors
    /// The events after the position are no longer retained (410).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.resume_subscription("billing", None).await?;
    /// # Ok(()) }
    /// ```
    pub async fn resume_subscription(&self, name: &str, after: Option<After>) -> Result<Value, Error> {
        let body = after.map(|after| json!({ "after": after }).to_string());
        self.own(Method::POST, of_subscription(name, "/resume"), body).await
    }

    /// Deletes a subscription.
    ///
    /// # Errors
    /// There is none of this name (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.delete_subscription("billing").await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_subscription(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::DELETE, of_subscription(name, ""), None).await
    }
}

fn of_subscription(name: &str, rest: &str) -> String {
    format!("/subscriptions/{}{rest}", parameter(&name))
}
