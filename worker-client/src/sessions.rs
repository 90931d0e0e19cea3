//! Sessions of workers: a membership that is renewed as a whole. Its end gives back all its claims.
//!
//! A worker starts a session with [`Client::start_session`], claims with [`Client::with_session`],
//! and reads its inbox, which also renews the session. After its end each of these calls fails with
//! [`Error::SessionEnded`].

use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{SessionId, TaskQueueId};
use tenure_api::sessions::{
    CommandRequest, CommandSent, InboxEvent, QueueWorkers, RenewSessionRequest, Session, SessionRenewed,
    SessionReturned, SessionStarted, StartSessionRequest,
};

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error, WorkerName};

/// In seconds.
const INBOX_WAIT_MAX: u64 = 30;

/// Messages for a session.
///
/// ```no_run
/// # use std::time::Duration;
/// # use tenure_client::{Client, Inbox, SessionId};
/// # async fn example(client: &Client, session: SessionId) -> Result<(), tenure_client::Error> {
/// let Inbox { items, expires, .. } = client.inbox(session, 0, Duration::ZERO).await?;
/// println!("{} items; the session ends at {expires} unless renewed", items.len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    /// End of the session without renewal. Reading the inbox renews it.
    pub expires: Timestamp,
    pub server_time: Timestamp,
    /// 0 if the queue never had a policy.
    pub policy_version: i64,
    /// Oldest first. An item is repeated until its id or a higher one is acknowledged.
    pub items: Vec<InboxItem>,
}

/// A message for a session.
///
/// ```
/// use tenure_client::{InboxEvent, InboxItem};
///
/// fn handle(item: &InboxItem) {
///     match &item.what {
///         Some(InboxEvent::Command { command, .. }) => println!("{command}"),
///         Some(InboxEvent::RunEnded { task_id, .. }) => println!("stop working on {task_id}"),
///         _ => println!("item {} is ignored", item.id),
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxItem {
    /// Increases within the session. Acknowledges all earlier items too.
    pub id: i64,
    /// None if unknown here, from a newer server. Acknowledge it too.
    pub what: Option<InboxEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InboxAnswer {
    expires: Timestamp,
    server_time: Timestamp,
    policy_version: i64,
    items: Vec<ItemAnswer>,
}

#[derive(Deserialize)]
struct ItemAnswer {
    id: i64,
    #[serde(flatten)]
    what: Value,
}

impl From<ItemAnswer> for InboxItem {
    fn from(ItemAnswer { id, what }: ItemAnswer) -> Self {
        Self { id, what: serde_json::from_value(what).ok() }
    }
}

impl Client {
    /// Starts a session. After a lost answer, a repeat is refused as if another process had started
    /// one; `takeover` ends that session.
    ///
    /// # Errors
    /// [`Error::SessionExists`]: the worker has a live session. The queue has another policy
    /// version (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let me = tenure_client::WorkerName { group: "eu".parse()?, id: "mail-1".parse()? };
    /// let session = client.start_session(&me.session(&"acme/mail".parse()?)).await?;
    /// println!("{} until {}", session.session_id, session.expires);
    /// # Ok(()) }
    /// ```
    pub async fn start_session(&self, start: &StartSessionRequest) -> Result<SessionStarted, Error> {
        self.of_sessions(Method::POST, "/sessions".to_owned(), Some(text(start))).await
    }

    /// Renews a session and reports changes of its worker. Succeeds after the expiry too, if the
    /// session was not ended yet.
    ///
    /// # Errors
    /// [`Error::SessionEnded`].
    ///
    /// ```no_run
    /// # use tenure_client::{Client, SessionId};
    /// # async fn example(client: &Client, session: SessionId) -> Result<(), tenure_client::Error> {
    /// let change = tenure_client::RenewSessionRequest { frozen: Some(true), ..Default::default() };
    /// client.renew_session(session, &change).await?;
    /// # Ok(()) }
    /// ```
    pub async fn renew_session(
        &self,
        session: SessionId,
        changed: &RenewSessionRequest,
    ) -> Result<SessionRenewed, Error> {
        self.of_sessions(Method::POST, of_session(session, "/renew"), Some(text(changed))).await
    }

    /// Renews a session, acknowledges the items of its inbox up to `after` (0: none), and waits for
    /// others. `wait` is limited to 30 s and a third of the session's time to live.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], also during the wait.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure_client::{Client, InboxEvent, SessionId};
    /// # async fn example(client: &Client, session: SessionId) -> Result<(), tenure_client::Error> {
    /// let mut read = 0;
    /// loop {
    ///     for item in client.inbox(session, read, Duration::from_secs(30)).await?.items {
    ///         if let Some(InboxEvent::RunEnded { task_id, .. }) = item.what {
    ///             println!("stop working on {task_id}");
    ///         }
    ///         read = item.id;
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn inbox(&self, session: SessionId, after: i64, wait: Duration) -> Result<Inbox, Error> {
        let wait = wait.as_secs().min(INBOX_WAIT_MAX);
        let query = Some(format!("after={after}&wait={wait}"));
        let call = Call {
            method: Method::GET,
            path: of_session(session, "/inbox"),
            body: None,
            timeout: TIMEOUT + Duration::from_secs(wait),
            own: Own { api: Some(TENURE_API), query, ..Own::default() },
        };
        let InboxAnswer { expires, server_time, policy_version, items } = self.call(&call).await?.value;
        Ok(Inbox { expires, server_time, policy_version, items: items.into_iter().map(InboxItem::from).collect() })
    }

    /// Ends a session, releases all its runs and returns their number. A repeat returns the same
    /// number.
    ///
    /// ```no_run
    /// # use tenure_client::{Client, SessionId};
    /// # async fn example(client: &Client, session: SessionId) -> Result<(), tenure_client::Error> {
    /// println!("{} claims were given back", client.close_session(session).await?);
    /// # Ok(()) }
    /// ```
    pub async fn close_session(&self, session: SessionId) -> Result<i64, Error> {
        let answer: SessionReturned = self.of_sessions(Method::DELETE, of_session(session, ""), None).await?;
        Ok(answer.returned)
    }

    /// Reads a session, until a day after its end.
    ///
    /// ```no_run
    /// # use tenure_client::{Client, SessionId};
    /// # async fn example(client: &Client, session: SessionId) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.get_session(session).await?.running);
    /// # Ok(()) }
    /// ```
    pub async fn get_session(&self, session: SessionId) -> Result<Session, Error> {
        self.of_sessions(Method::GET, of_session(session, ""), None).await
    }

    /// Lists the live sessions of a queue in one snapshot.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for worker in client.list_workers(&"proj/linux".parse()?).await?.workers {
    ///     println!("{}/{} holds {}", worker.worker_group, worker.worker_id, worker.running);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list_workers(&self, queue: &TaskQueueId) -> Result<QueueWorkers, Error> {
        self.of_sessions(Method::GET, format!("/queues/{}/workers", parameter(queue)), None).await
    }

    /// Puts a command into the inbox of a session and returns the item's id.
    ///
    /// # Errors
    /// The session has ended or does not exist (404), or has 100 unacknowledged commands (409).
    ///
    /// ```no_run
    /// # use tenure_client::{Client, CommandRequest, SessionId, WorkerCommand};
    /// # async fn example(client: &Client, session: SessionId) -> Result<(), tenure_client::Error> {
    /// let freeze = CommandRequest { command: WorkerCommand::Freeze, task_id: None };
    /// client.command_session(session, &freeze).await?;
    /// # Ok(()) }
    /// ```
    pub async fn command_session(&self, session: SessionId, command: &CommandRequest) -> Result<i64, Error> {
        let path = of_session(session, "/commands");
        let answer: CommandSent = self.of_sessions(Method::POST, path, Some(text(command))).await?;
        Ok(answer.id)
    }

    async fn of_sessions<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<Vec<u8>>,
    ) -> Result<T, Error> {
        let own = Own { api: Some(TENURE_API), ..Own::default() };
        Ok(self.call(&Call { method, path, body, timeout: TIMEOUT, own }).await?.value)
    }
}

impl WorkerName {
    /// Returns a request to start a session, with the server's defaults.
    ///
    /// ```
    /// # use tenure_client::WorkerName;
    /// let me = WorkerName { group: "home".parse()?, id: "worker-1".parse()? };
    /// assert!(!me.session(&"proj/linux".parse()?).takeover);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn session(&self, queue: &TaskQueueId) -> StartSessionRequest {
        StartSessionRequest {
            task_queue_id: queue.clone(),
            worker_group: self.group.clone(),
            worker_id: self.id.clone(),
            ttl: None,
            weight: None,
            capacity: None,
            takeover: false,
            policy_version: None,
        }
    }
}

fn of_session(session: SessionId, rest: &str) -> String {
    format!("/sessions/{}{rest}", parameter(&session))
}

fn text(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("texts and numbers")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_api::states::WorkerCommand;

    use super::*;

    #[test]
    fn unknown_item_keeps_its_id() {
        let answer = json!({"expires": "2026-01-31T12:02:00.000Z", "serverTime": "2026-01-31T12:00:00.000Z",
            "policyVersion": 3, "items": [
                {"id": 4, "kind": "command", "command": "freeze"},
                {"id": 5, "kind": "assigned", "taskId": "9HrBC1jMQ3KlZw4CssPUeQ"},
                {"id": 6, "kind": "command", "command": "dance"}]});
        let answer: InboxAnswer = serde_json::from_value(answer).unwrap();
        let items: Vec<InboxItem> = answer.items.into_iter().map(InboxItem::from).collect();
        let freeze = InboxEvent::Command { command: WorkerCommand::Freeze, task_id: None };
        let expected = [(4, Some(freeze)), (5, None), (6, None)].map(|(id, what)| InboxItem { id, what });
        assert_eq!(items, expected);
    }
}
