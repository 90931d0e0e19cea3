//! Calls about queue policies and their decisions. Answers stay JSON.

use reqwest::Method;
use serde_json::Value;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::policy::{PauseRequest, ReleaseRequest};
use tenure_api::queue_keys::KeyRules;

use crate::client::{Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

impl Client {
    /// Reads the policy of a queue.
    ///
    /// # Errors
    /// The queue has none (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = client.get_queue_policy(&"acme/mail".parse()?).await?;
    /// println!("{}", policy["policy"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_queue_policy(&self, queue: &TaskQueueId) -> Result<Value, Error> {
        self.own(Method::GET, of_queue(queue, "policy"), None).await
    }

    /// Replaces the policy of a queue.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = serde_json::json!({"retryFailed": true, "claimTimeout": 120});
    /// client.set_queue_policy(&"acme/mail".parse()?, &policy).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_queue_policy(&self, queue: &TaskQueueId, policy: &Value) -> Result<Value, Error> {
        self.own(Method::PUT, of_queue(queue, "policy"), Some(policy.to_string())).await
    }

    /// Replaces the policy of a queue if it still has this version.
    ///
    /// # Errors
    /// The policy has another version (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let queue = "acme/mail".parse()?;
    /// let mut current = client.get_queue_policy(&queue).await?;
    /// current["policy"]["claimTimeout"] = 120.into();
    /// let version = current["version"].as_i64().unwrap_or_default();
    /// client.change_queue_policy(&queue, &current["policy"], version).await?;
    /// # Ok(()) }
    /// ```
    pub async fn change_queue_policy(&self, queue: &TaskQueueId, policy: &Value, version: i64) -> Result<Value, Error> {
        let own = Own { api: Some(TENURE_API), if_match: Some(version), ..Own::default() };
        let body = Some(policy.to_string().into_bytes());
        self.send_call(Method::PUT, of_queue(queue, "policy"), body, TIMEOUT, own).await
    }

    /// Removes the policy of a queue, if any.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.delete_queue_policy(&"acme/mail".parse()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_queue_policy(&self, queue: &TaskQueueId) -> Result<Value, Error> {
        self.own(Method::DELETE, of_queue(queue, "policy"), None).await
    }

    /// Lists keys of a queue. The answer's `continuationToken` fetches the next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let page = client.list_queue_keys(&"acme/mail".parse()?, None).await?;
    /// println!("{page}");
    /// # Ok(()) }
    /// ```
    pub async fn list_queue_keys(&self, queue: &TaskQueueId, continuation: Option<&str>) -> Result<Value, Error> {
        let query = continuation.map(|token| format!("continuationToken={}", parameter(&token)));
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, of_queue(queue, "keys"), None, TIMEOUT, own).await
    }

    /// Reads the rules that override a queue's policy for one key.
    ///
    /// # Errors
    /// The key has no rules of its own (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = client.get_queue_key(&"acme/mail".parse()?, "customer-7").await?;
    /// println!("{rules}");
    /// # Ok(()) }
    /// ```
    pub async fn get_queue_key(&self, queue: &TaskQueueId, key: &str) -> Result<Value, Error> {
        self.own(Method::GET, of_key(queue, key), None).await
    }

    /// Replaces the rules that override a queue's policy for one key.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = tenure_client::KeyRules { concurrency: Some(2), ..Default::default() };
    /// client.set_queue_key(&"acme/mail".parse()?, "customer-7", &rules).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_queue_key(&self, queue: &TaskQueueId, key: &str, rules: &KeyRules) -> Result<Value, Error> {
        self.own(Method::PUT, of_key(queue, key), Some(text(rules))).await
    }

    /// Deletes the rules that override a queue's policy for one key, if any.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.delete_queue_key(&"acme/mail".parse()?, "customer-7").await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_queue_key(&self, queue: &TaskQueueId, key: &str) -> Result<Value, Error> {
        self.own(Method::DELETE, of_key(queue, key), None).await
    }

    /// Pauses a queue: workers receive none of its tasks until it is resumed.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let pause = tenure_client::PauseRequest { reason: Some("the mail server moves".into()), until: None };
    /// client.pause_queue(&"acme/mail".parse()?, &pause).await?;
    /// # Ok(()) }
    /// ```
    pub async fn pause_queue(&self, queue: &TaskQueueId, pause: &PauseRequest) -> Result<Value, Error> {
        self.own(Method::POST, of_queue(queue, "pause"), Some(text(pause))).await
    }

    /// Resumes a queue, if it is paused.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.resume_queue(&"acme/mail".parse()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn resume_queue(&self, queue: &TaskQueueId) -> Result<Value, Error> {
        self.own(Method::POST, of_queue(queue, "resume"), None).await
    }

    /// Ends the term of a queue's scheduler, as if its server were lost.
    ///
    /// # Errors
    /// The queue does not assign its tasks (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.replace_scheduler(&"acme/mail".parse()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn replace_scheduler(&self, queue: &TaskQueueId) -> Result<Value, Error> {
        self.own(Method::POST, of_queue(queue, "scheduler/replace"), None).await
    }

    /// Lists the servers and the queues that each schedules.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.list_servers().await?);
    /// # Ok(()) }
    /// ```
    pub async fn list_servers(&self) -> Result<Value, Error> {
        self.own(Method::GET, "/servers".to_owned(), None).await
    }

    /// Lists what needs somebody: problems of queues, servers and the database.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.list_problems().await?["problems"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_problems(&self) -> Result<Value, Error> {
        self.own(Method::GET, "/problems".to_owned(), None).await
    }

    /// Explains the state of a task.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.why("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await?);
    /// # Ok(()) }
    /// ```
    pub async fn why(&self, id: TaskId) -> Result<Value, Error> {
        self.own(Method::GET, format!("/tasks/{}/why", parameter(&id)), None).await
    }

    /// Gives a claimed run back. Another run follows, now or later, without using up a retry.
    ///
    /// # Errors
    /// The run is not claimed or was given back too often (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let in_a_minute = tenure_client::ReleaseRequest { delay: Some(60), ..Default::default() };
    /// client.release_run("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, "0".parse()?, &in_a_minute).await?;
    /// # Ok(()) }
    /// ```
    pub async fn release_run(&self, id: TaskId, run: RunId, release: &ReleaseRequest) -> Result<Value, Error> {
        let path = format!("/tasks/{}/runs/{}/release", parameter(&id), parameter(&run));
        self.own(Method::POST, path, Some(text(release))).await
    }

    /// Reads the result and the failure that a worker reported for a run, by default the last one.
    ///
    /// # Errors
    /// There is neither (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let last = client.get_result("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, None).await?;
    /// println!("{} {}", last["result"], last["failure"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_result(&self, id: TaskId, run: Option<RunId>) -> Result<Value, Error> {
        let query = run.map(|run| format!("runId={run}"));
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, format!("/tasks/{}/result", parameter(&id)), None, TIMEOUT, own).await
    }

    pub(crate) async fn own(&self, method: Method, path: String, body: Option<String>) -> Result<Value, Error> {
        let own = Own { api: Some(TENURE_API), ..Own::default() };
        self.send_call(method, path, body.map(String::into_bytes), TIMEOUT, own).await
    }
}

fn of_queue(queue: &TaskQueueId, rest: &str) -> String {
    format!("/queues/{}/{rest}", parameter(queue))
}

fn of_key(queue: &TaskQueueId, key: &str) -> String {
    of_queue(queue, &format!("keys/{}", parameter(&key)))
}

fn text(body: &impl serde::Serialize) -> String {
    serde_json::to_string(body).expect("texts, numbers and dates")
}
