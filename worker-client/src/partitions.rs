//! Partition groups: settings and members. Answers stay JSON. [`crate::partition`] is for members.

use reqwest::Method;
use serde::Serialize;
use serde_json::Value;

use crate::client::parameter;
use crate::{Client, Error};

impl Client {
    /// Stores a partition group, or changes the settings of the one of its name.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.set_partition("mail", &serde_json::json!({"interval": 10})).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_partition(&self, name: &str, settings: &impl Serialize) -> Result<Value, Error> {
        let body = serde_json::to_string(settings).map_err(Error::NotJson)?;
        self.own(Method::PUT, of_partition(name, ""), Some(body)).await
    }

    /// Reads a partition group: its settings, and its members with their shares.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.get_partition("mail").await?["members"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_partition(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::GET, of_partition(name, ""), None).await
    }

    /// Deletes a partition group. Its members stop within two intervals.
    ///
    /// # Errors
    /// There is none of this name (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.delete_partition("mail").await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_partition(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::DELETE, of_partition(name, ""), None).await
    }
}

pub(crate) fn of_partition(name: &str, rest: &str) -> String {
    format!("/partitions/{}{rest}", parameter(&name))
}
