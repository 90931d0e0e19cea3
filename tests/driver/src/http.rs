//! Signed API calls over the caller's own connection.

use serde::Deserialize;
use serde_json::Value;
use tenure_api::credentials::Credentials;
use tenure_api::hawk::{SignRequest, authorization_header};

use crate::clock::unix_seconds;
use crate::random::Random;
use crate::wire::{Connection, JSON, Reply, Target, WireError, write_request};

pub const QUEUE_API: &str = "/api/queue/v1";
pub const TENURE_API: &str = "/api/tenure/v1";

/// A client's credentials and server: the format of `root-credentials.json` and of `tenure client
/// create --json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    #[serde(flatten)]
    pub credentials: Credentials,
    pub root_url: String,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// The JSON of the body; null if it is not JSON.
    pub body: Value,
}

impl Answer {
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    #[must_use]
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { status: reply.status, body: serde_json::from_slice(&reply.body).unwrap_or(Value::Null) }
    }
}

/// Calls one server over one connection, which it opens when needed and reopens after an error. It
/// never retries: the number of calls must equal the number that the server may have seen.
#[derive(Debug)]
pub struct Client {
    target: Target,
    connection: Option<Connection>,
    nonces: Random,
    request: Vec<u8>,
}

impl Client {
    pub fn new(root_url: &str) -> Result<Self, WireError> {
        let target = Target::parse(root_url)?;
        let nonces = Random::from_seed(Random::fresh_seed());
        Ok(Self { target, connection: None, nonces, request: Vec::with_capacity(4096) })
    }

    /// Makes a call and returns its answer.
    ///
    /// # Errors
    ///
    /// If there was no answer; the server may still have acted on the call.
    pub async fn call(
        &mut self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, WireError> {
        self.exchange(credentials, method, path, body).await.map(Answer::from)
    }

    /// Makes a call and returns the raw reply.
    ///
    /// # Errors
    ///
    /// If there was no reply.
    pub async fn exchange(
        &mut self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Reply, WireError> {
        self.start(credentials, method, path, body).await?;
        self.finish().await
    }

    /// Waits for the reply to the call sent by [`Self::start`].
    ///
    /// # Errors
    ///
    /// If there was no reply.
    pub async fn finish(&mut self) -> Result<Reply, WireError> {
        // Taken out first: a cancelled caller must not leave a partial reply on the connection.
        let Some(mut connection) = self.connection.take() else { return Err(WireError::Closed) };
        let reply = connection.receive().await?;
        self.connection = connection.is_reusable().then_some(connection);
        Ok(reply)
    }

    /// Sends a call without waiting. [`Self::finish`] waits for the answer, [`Self::hang_up`]
    /// abandons it.
    pub async fn start(
        &mut self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<(), WireError> {
        let resource = format!("{}{path}", self.target.prefix);
        let body = body.map(|body| (JSON, body));
        let mut nonce = String::with_capacity(8);
        self.nonces.push_hex(&mut nonce, 8);
        let authorization = authorization_header(
            credentials,
            &SignRequest {
                method,
                resource: &resource,
                host: &self.target.host,
                port: self.target.port,
                timestamp: unix_seconds(),
                nonce: &nonce,
                payload: body,
            },
        );
        self.send(method, &resource, Some(&authorization), body).await
    }

    /// Sends a call to a signed URL and returns the reply. The resource is the whole path with its
    /// query; a body comes with its content type.
    ///
    /// # Errors
    ///
    /// If there was no reply.
    pub async fn exchange_unsigned(
        &mut self,
        method: &str,
        resource: &str,
        body: Option<(&str, &[u8])>,
    ) -> Result<Reply, WireError> {
        self.send(method, resource, None, body).await?;
        self.finish().await
    }

    async fn send(
        &mut self,
        method: &str,
        resource: &str,
        authorization: Option<&str>,
        body: Option<(&str, &[u8])>,
    ) -> Result<(), WireError> {
        write_request(&mut self.request, &self.target, method, resource, authorization, body);
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_reusable() => connection,
            _ => Connection::open(&self.target).await?,
        };
        connection.send(&self.request).await?;
        self.connection = Some(connection);
        Ok(())
    }

    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Closes the connection, and waits until the server has closed its side.
    pub async fn hang_up_and_wait(&mut self) -> std::io::Result<()> {
        match self.connection.take() {
            Some(connection) => connection.close().await,
            None => Ok(()),
        }
    }
}

/// A task queue's id as one path segment, as API clients send it.
#[must_use]
pub fn queue_segment(queue: &str) -> String {
    queue.replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_as_the_server_writes_it() {
        let text = r#"{"clientId":"root","accessToken":"secret","rootUrl":"http://127.0.0.1:1"}"#;
        let account: Account = serde_json::from_str(text).unwrap();
        assert_eq!(account.credentials.client_id, "root");
        assert_eq!(account.credentials.access_token.expose(), "secret");
        assert_eq!(account.root_url, "http://127.0.0.1:1");
        assert_eq!(account.credentials.certificate, None);
    }

    #[test]
    fn a_queue_is_one_path_segment() {
        assert_eq!(queue_segment("p/w"), "p%2Fw");
    }
}
