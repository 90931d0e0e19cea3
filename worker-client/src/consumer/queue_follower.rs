//! Lists the pending runs of a balanced consumer's queue, and follows its events from a position
//! before the list, so that nothing is missed. Every five minutes it lists the next page or starts
//! over; it also starts over if events cannot be followed.

use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::balancer::Offer;
use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::error::chain;
use crate::{Client, Error, RetryPolicy, retry};

const LIST_EVERY: Duration = Duration::from_secs(300);
const REOPEN_AFTER: Duration = Duration::from_millis(500);
const PENDING: &str = "task-pending";
const READY: &str = "task-ready";
const RESUMED: &str = "queue-resumed";

#[derive(Debug)]
pub(super) enum News {
    /// All pending runs, or a page that `more` may follow.
    Listed { offers: Vec<Offer>, is_whole: bool, more: bool },
    /// Runs that became claimable.
    Came(Vec<Offer>),
    /// The queue refuses these credentials.
    Refused(Error),
}

struct QueueFollower {
    client: Client,
    queue: TaskQueueId,
    news: mpsc::Sender<News>,
    answered: bool,
}

enum Over {
    Broken,
    /// Events cannot tell which runs are pending.
    ListAgain,
    Unheard,
}

/// Follows a queue until the receiver is dropped. `list_again` requests a list at once.
pub(super) async fn follow(client: &Client, queue: TaskQueueId, news: mpsc::Sender<News>, list_again: &Notify) {
    let client = client.with_retry_policy(RetryPolicy::never());
    let mut follower = QueueFollower { client, queue, news, answered: false };
    let mut failures = 0;
    loop {
        match follower.list_and_follow(list_again).await {
            Ok(Over::Unheard) => return,
            Ok(Over::Broken | Over::ListAgain) => failures = 0,
            Err(error) if !follower.answered && error.refuses_worker() => {
                // Fails if the consumer has ended.
                drop(follower.news.send(News::Refused(error)).await);
                return;
            }
            Err(error) => {
                failures += 1;
                warning!(
                    failures = failures,
                    error = chain(&error),
                    "the events of the queue could not be read; trying again"
                );
                tokio::time::sleep(follower.client.retry_policy().pause_of(failures, &error, retry::jitter())).await;
            }
        }
    }
}

impl QueueFollower {
    /// Returns when the next list is due, after the last page of this one. Each page is due after
    /// the same interval, so pages wait while more events arrive than are handled.
    async fn list_and_follow(&mut self, list_again: &Notify) -> Result<Over, Error> {
        let mut until = Instant::now() + LIST_EVERY;
        let mut after = self.latest().await?;
        let (listed, mut next_page) = self.list(None).await?;
        self.answered = true;
        if self.news.send(listed).await.is_err() {
            return Ok(Over::Unheard);
        }
        loop {
            let is_due = async {
                tokio::select! {
                    () = list_again.notified() => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            };
            let over = tokio::select! {
                over = self.read(&mut after) => over?,
                () = is_due => match next_page.take() {
                    // Starting over would list the same page again if none of its runs could be
                    // claimed. Runs that return to an earlier page come as events.
                    Some(page) => {
                        let (listed, next) = self.list(Some(page)).await?;
                        next_page = next;
                        if self.news.send(listed).await.is_err() {
                            return Ok(Over::Unheard);
                        }
                        until = Instant::now() + LIST_EVERY;
                        continue;
                    }
                    None => Over::ListAgain,
                },
            };
            match over {
                Over::Broken => tokio::time::sleep(REOPEN_AFTER).await,
                Over::ListAgain | Over::Unheard => return Ok(over),
            }
        }
    }

    /// Position of the newest event.
    async fn latest(&self) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct Page {
            after: u64,
        }
        let call = get(Some(TENURE_API), "/events".to_owned(), Some("after=latest".to_owned()));
        Ok(self.client.call::<Page>(&call).await?.value.after)
    }

    /// Lists a page of a thousand runs, and returns the token of the next page.
    async fn list(&self, page: Option<String>) -> Result<(News, Option<String>), Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Page {
            tasks: Vec<Run>,
            continuation_token: Option<String>,
        }
        let query = page.as_ref().map(|page| format!("continuationToken={}", parameter(page)));
        let call = get(None, format!("/task-queues/{}/pending", parameter(&self.queue)), query);
        let Page { tasks, continuation_token } = self.client.call::<Page>(&call).await?.value;
        let next = continuation_token.filter(|token| !token.is_empty());
        let offers = tasks.into_iter().map(Offer::from).collect();
        let (is_whole, more) = (page.is_none() && next.is_none(), next.is_some());
        Ok((News::Listed { offers, is_whole, more }, next))
    }

    /// Reads events until the stream ends. Fails if none could be opened.
    async fn read(&self, after: &mut u64) -> Result<Over, Error> {
        // A queue's id has one slash; its other characters are safe in a URL and in a pattern.
        let words = self.queue.to_string().replace('/', ".");
        let query =
            format!("after={after}&exchange={PENDING},{READY},{RESUMED}&routingKeyPattern=primary.%23.{words}.%23");
        let mut events = match self.client.open_events(query, Some(*after)).await {
            Ok(events) => events,
            // The events are no longer retained, or belong to another database.
            Err(error) if matches!(error.status(), Some(400 | 410)) => return Ok(Over::ListAgain),
            Err(error) => return Err(error),
        };
        while let Ok(Some(event)) = events.read().await {
            let Some(came) = offers(event, &self.queue) else { return Ok(Over::ListAgain) };
            if !came.is_empty() && self.news.send(News::Came(came)).await.is_err() {
                return Ok(Over::Unheard);
            }
            // After the send: if this future is dropped while it waits, reading resumes here.
            *after = events.position().unwrap_or(*after);
        }
        *after = events.position().unwrap_or(*after);
        tracing::debug!("the event stream ended; reopening it");
        Ok(Over::Broken)
    }
}

fn get(api: Option<&'static str>, path: String, query: Option<String>) -> Call {
    Call { method: Method::GET, path, body: None, timeout: TIMEOUT, own: Own { api, query, ..Own::default() } }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    task_id: TaskId,
    run_id: RunId,
}

impl From<Run> for Offer {
    fn from(Run { task_id, run_id }: Run) -> Self {
        Self { task_id, run_id }
    }
}

/// Returns none if a list is needed.
fn offers(mut event: Value, queue: &TaskQueueId) -> Option<Vec<Offer>> {
    let mut payload = event["payload"].take();
    let of = |value: Value| serde_json::from_value::<Run>(value).ok().map(Offer::from);
    match event["exchange"].as_str().and_then(|exchange| exchange.rsplit('/').next()) {
        Some(PENDING) => {
            let run_id = payload["runId"].take();
            let status = &payload["status"];
            let its = status["taskQueueId"] == queue.as_str();
            let run = serde_json::json!({"taskId": status["taskId"], "runId": run_id});
            Some(of(run).filter(|_| its).into_iter().collect())
        }
        Some(READY) if payload["taskQueueId"] == queue.as_str() => match payload["runs"].take() {
            Value::Array(runs) => Some(runs.into_iter().filter_map(of).collect()),
            _ => None,
        },
        // Runs dropped during the pause are claimable now.
        Some(RESUMED) => None,
        _ => Some(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TASK: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

    fn offer(run: &str) -> Offer {
        Offer { task_id: TASK.parse().unwrap(), run_id: run.parse().unwrap() }
    }

    #[test]
    fn queue_events_are_offers_or_need_a_list() {
        let queue: TaskQueueId = "acme/mail".parse().unwrap();
        let pending = |queue: &str| json!({"payload": {"status": {"taskId": TASK, "taskQueueId": queue}, "runId": 2}});
        let runs =
            json!([{"taskId": TASK, "runId": 0, "priority": "low"}, {"taskId": TASK, "runId": 1, "priority": "low"}]);
        let ready = |runs: Value| json!({"payload": {"taskQueueId": "acme/mail", "runs": runs}});
        for (exchange, data, expected) in [
            ("taskcluster-queue/v1/task-pending", pending("acme/mail"), Some(vec![offer("2")])),
            ("taskcluster-queue/v1/task-pending", pending("other/acme"), Some(vec![])),
            ("tenure/v1/task-ready", ready(runs), Some(vec![offer("0"), offer("1")])),
            ("tenure/v1/task-ready", ready(json!(null)), None),
            ("tenure/v1/queue-resumed", json!({}), None),
            ("taskcluster-queue/v1/task-completed", pending("acme/mail"), Some(vec![])),
        ] {
            let mut event = data.clone();
            event["exchange"] = json!(format!("exchange/{exchange}"));
            assert_eq!(offers(event, &queue), expected, "{exchange} {data}");
        }
    }
}
