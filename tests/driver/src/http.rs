//! Signed calls of the API over a connection of one's own.

use serde::Deserialize;
use serde_json::Value;
use tenure_api::credentials::Credentials;
use tenure_api::hawk::{SignRequest, authorization_header};

use crate::clock::unix_seconds;
use crate::random::Random;
use crate::wire::{Connection, JSON, Reply, Target, WireError, write_request};

/// Where the Queue API is mounted below the root URL.
pub const QUEUE_API: &str = "/api/queue/v1";
/// Where Tenure's own API is mounted below the root URL.
pub const TENURE_API: &str = "/api/tenure/v1";

/// The credentials of a client together with the server they belong to, as the server writes them into
/// `root-credentials.json` and as `tenure client create --json` prints them.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Who the client is and how it proves that.
    #[serde(flatten)]
    pub credentials: Credentials,
    /// The server.
    pub root_url: String,
}

/// An answer of the API, with whatever status.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The JSON of the body, or null where it is not JSON.
    pub body: Value,
}

impl Answer {
    /// Whether the server did what was asked.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The error code of the body, or nothing.
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

/// Calls one server over one connection, which it opens when needed and again after an error. It never repeats a call
/// by itself: what a test did and what the server may have seen must stay the same number.
#[derive(Debug)]
pub struct Client {
    target: Target,
    connection: Option<Connection>,
    nonces: Random,
    request: Vec<u8>,
}

impl Client {
    /// A client of the server at this root URL.
    ///
    /// # Errors
    ///
    /// If that is not a root URL.
    pub fn new(root_url: &str) -> Result<Self, WireError> {
        let target = Target::parse(root_url)?;
        let nonces = Random::from_seed(Random::fresh_seed());
        Ok(Self { target, connection: None, nonces, request: Vec::with_capacity(4096) })
    }

    /// Sends the call and returns its answer.
    ///
    /// # Errors
    ///
    /// If there was no answer; the server may have acted on the call all the same.
    pub async fn call(
        &mut self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, WireError> {
        self.exchange(credentials, method, path, body).await.map(Answer::from)
    }

    /// Like [`Self::call`], with the reply's bytes as they came.
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

    /// Waits for the reply to the call that [`Self::start`] sent.
    ///
    /// # Errors
    ///
    /// If there was no reply.
    pub async fn finish(&mut self) -> Result<Reply, WireError> {
        // Taken out first: a caller that gives up waiting must not leave half a reply on the connection.
        let Some(mut connection) = self.connection.take() else { return Err(WireError::Closed) };
        let reply = connection.receive().await?;
        self.connection = connection.is_reusable().then_some(connection);
        Ok(reply)
    }

    /// Sends the call and does not wait for the answer: [`Self::finish`] does, and [`Self::hang_up`] will never.
    ///
    /// # Errors
    ///
    /// If it could not be sent.
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

    /// Sends a call whose URL is its own proof, and returns the reply. The resource is the whole path with its query;
    /// a body comes with its content type.
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

    /// Closes the connection, whatever was going on.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Closes the connection, and waits until the server has noticed and closed its side.
    ///
    /// # Errors
    ///
    /// If the connection fails, or the server keeps it for a minute.
    pub async fn hang_up_and_wait(&mut self) -> std::io::Result<()> {
        match self.connection.take() {
            Some(connection) => connection.close().await,
            None => Ok(()),
        }
    }
}

/// A task queue's id as one path segment, the way the API's clients send it.
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
