//! Calls about clients and roles. Answers stay JSON.

use reqwest::Method;
use serde_json::Value;

use crate::client::{Own, TIMEOUT, parameter};
use crate::{Client, Error};

const AUTH_API: &str = "/api/auth/v1";

impl Client {
    /// Lists clients. The answer's `continuationToken` fetches the next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.list_clients(None).await?["clients"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_clients(&self, continuation: Option<&str>) -> Result<Value, Error> {
        self.auth_page("/clients", continuation).await
    }

    /// Reads a client, without its token.
    ///
    /// # Errors
    /// The client does not exist (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.get_client("ci").await?["scopes"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_client(&self, id: &str) -> Result<Value, Error> {
        self.auth(Method::GET, of_client(id, ""), None).await
    }

    /// Creates a client. Only this answer has its `accessToken`.
    ///
    /// # Errors
    /// A client of this name exists (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let ci = serde_json::json!({"description": "CI", "expires": "2030-01-01T00:00:00Z", "scopes": []});
    /// let created = client.create_client("ci", &ci).await?;
    /// # drop(created);
    /// # Ok(()) }
    /// ```
    pub async fn create_client(&self, id: &str, definition: &Value) -> Result<Value, Error> {
        self.auth(Method::PUT, of_client(id, ""), Some(definition)).await
    }

    /// Replaces the description and the expiry of a client, and its scopes if they are given.
    ///
    /// # Errors
    /// The client does not exist (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let ci = serde_json::json!({"description": "CI", "expires": "2031-01-01T00:00:00Z"});
    /// client.update_client("ci", &ci).await?;
    /// # Ok(()) }
    /// ```
    pub async fn update_client(&self, id: &str, definition: &Value) -> Result<Value, Error> {
        self.auth(Method::POST, of_client(id, ""), Some(definition)).await
    }

    /// Refuses the requests of a client, or accepts them again.
    ///
    /// # Errors
    /// The client does not exist (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.set_client_disabled("ci", true).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_client_disabled(&self, id: &str, disabled: bool) -> Result<Value, Error> {
        let verb = if disabled { "/disable" } else { "/enable" };
        self.auth(Method::POST, of_client(id, verb), None).await
    }

    /// Gives a client a new token, which only this answer has as `accessToken`.
    ///
    /// # Errors
    /// The client does not exist (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let answer = client.reset_access_token("ci").await?;
    /// let token = answer["accessToken"].as_str();
    /// # let _ = token;
    /// # Ok(()) }
    /// ```
    pub async fn reset_access_token(&self, id: &str) -> Result<Value, Error> {
        self.auth(Method::POST, of_client(id, "/reset"), None).await
    }

    /// Deletes a client, if it exists.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.delete_client("ci").await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_client(&self, id: &str) -> Result<(), Error> {
        self.auth(Method::DELETE, of_client(id, ""), None).await.map(drop)
    }

    /// Lists roles. The answer's `continuationToken` fetches the next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.list_roles(None).await?["roles"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_roles(&self, continuation: Option<&str>) -> Result<Value, Error> {
        self.auth_page("/roles2", continuation).await
    }

    /// Reads a role.
    ///
    /// # Errors
    /// The role does not exist (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.get_role("submitter").await?["scopes"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_role(&self, id: &str) -> Result<Value, Error> {
        self.auth(Method::GET, of_role(id), None).await
    }

    /// Creates a role.
    ///
    /// # Errors
    /// A role of this name exists with another definition (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let submitter = serde_json::json!({"description": "Submits tasks.", "scopes": ["queue:create-task:*"]});
    /// client.create_role("submitter", &submitter).await?;
    /// # Ok(()) }
    /// ```
    pub async fn create_role(&self, id: &str, definition: &Value) -> Result<Value, Error> {
        self.auth(Method::PUT, of_role(id), Some(definition)).await
    }

    /// Replaces the description and the scopes of a role.
    ///
    /// # Errors
    /// The role does not exist (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let scopes = ["queue:create-task:acme/*"];
    /// let submitter = serde_json::json!({"description": "Submits mail.", "scopes": scopes});
    /// client.update_role("submitter", &submitter).await?;
    /// # Ok(()) }
    /// ```
    pub async fn update_role(&self, id: &str, definition: &Value) -> Result<Value, Error> {
        self.auth(Method::POST, of_role(id), Some(definition)).await
    }

    /// Deletes a role, if it exists.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.delete_role("submitter").await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_role(&self, id: &str) -> Result<(), Error> {
        self.auth(Method::DELETE, of_role(id), None).await.map(drop)
    }

    async fn auth_page(&self, path: &str, continuation: Option<&str>) -> Result<Value, Error> {
        let query = continuation.map(|token| format!("continuationToken={}", parameter(&token)));
        let own = Own { api: Some(AUTH_API), query, ..Own::default() };
        self.send_call(Method::GET, path.to_owned(), None, TIMEOUT, own).await
    }

    async fn auth(&self, method: Method, path: String, body: Option<&Value>) -> Result<Value, Error> {
        let own = Own { api: Some(AUTH_API), ..Own::default() };
        let body = body.map(|body| body.to_string().into_bytes());
        self.send_call(method, path, body, TIMEOUT, own).await
    }
}

fn of_client(id: &str, rest: &str) -> String {
    format!("/clients/{}{rest}", parameter(&id))
}

fn of_role(id: &str) -> String {
    format!("/roles/{}", parameter(&id))
}
