//! A caller with its connection. It notes every answer that a client should not see.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure_api::credentials::Credentials;

use super::accounts::Accounts;
use crate::history::record::{Answer, Event};
use crate::http::{Answer as Reply, Client};
use crate::random::Random;

const MOVE_PERCENT: u64 = 10;
/// Least pause between a failure and the next attempt, plus up to as much at random. Shorter than
/// the servers ask for, to see the first success after a fault soon.
const PAUSE_MILLIS: u64 = 100;
/// A server gives up a request after at most one minute.
const ANSWERED_WITHIN: Duration = Duration::from_secs(90);
const UNAVAILABLE: u16 = 503;

#[derive(Debug)]
pub(super) struct Caller {
    pub(super) accounts: Arc<Accounts>,
    pub(super) random: Random,
    client: Client,
}

impl Caller {
    pub(super) fn new(accounts: Arc<Accounts>, number: u64) -> Self {
        let mut random = Random::fork(Random::fresh_seed(), number);
        let client = client_of_any_server(&accounts, &mut random);
        Self { accounts, random, client }
    }

    pub(super) async fn call(&mut self, method: &str, path: &str, body: Option<&str>) -> Answer<Value> {
        let root = self.accounts.root.clone();
        self.call_as(&root, method, path, body).await
    }

    /// Makes a call: done, refused, or unknown after "try again" with a time. Everything else is an
    /// error.
    pub(super) async fn call_as(
        &mut self,
        credentials: &Credentials,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Answer<Value> {
        if self.random.percent(MOVE_PERCENT) {
            self.client = client_of_any_server(&self.accounts, &mut self.random);
        }
        let start = self.accounts.stamp();
        let exchange = self.client.exchange(credentials, method, path, body.map(str::as_bytes));
        let reply = match tokio::time::timeout(ANSWERED_WITHIN, exchange).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return self.unknown(start, Some(format!("{method} {path}: {error}"))),
            Err(_) => {
                return self.unknown(start, Some(format!("{method} {path}: no answer within {ANSWERED_WITHIN:?}")));
            }
        };
        let (retry_after, answer) = (reply.retry_after, Reply::from(reply));
        match answer.status {
            200..300 => Answer::Done(answer.body),
            UNAVAILABLE if retry_after.is_some_and(|seconds| seconds > 0) => self.unknown(start, None),
            status if status < 500 => Answer::Refused(status),
            _ => self.unknown(start, Some(format!("{method} {path}: {answer:?}, Retry-After {retry_after:?}"))),
        }
    }

    fn unknown(&mut self, start: u64, error: Option<String>) -> Answer<Value> {
        if let Some(error) = error {
            self.client.hang_up();
            self.accounts.note_error(error);
        }
        self.accounts.write(start, Event::DatabaseFault);
        Answer::Unknown
    }

    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(Duration::from_millis(PAUSE_MILLIS + self.random.below(PAUSE_MILLIS))).await;
    }
}

fn client_of_any_server(accounts: &Accounts, random: &mut Random) -> Client {
    let root_url = random.pick(&accounts.root_urls).expect("there are servers");
    Client::new(root_url).expect("a server prints a root URL")
}
