//! One connection of the generator and the calls that modes use.

mod sessions;

use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tokio::time::{Instant, sleep};

use super::BenchError;
use super::messages::{self, QueueUrls, SignedUrls};
use super::run::Run;
use super::service::Service;
use tenure_driver::clock::unix_millis;
use tenure_driver::definition::Definition;
use tenure_driver::http::{Client, QUEUE_API, TENURE_API, queue_segment};
use tenure_driver::random::Random;
use tenure_driver::wire::Reply;

/// Random digits in every payload, for definitions of about 1.5 kB.
const PAYLOAD_DIGITS: usize = 900;
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;
const RETRIES: u32 = 5;
/// Pause after a failure, so that a server that sheds load can recover.
const REST: Duration = Duration::from_millis(50);
/// A lane gives up after this many consecutive failures.
const FAILURES_IN_A_ROW: u32 = 200;
const QUOTED: usize = 200;
const PRIORITIES: usize = 7;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    status: ClaimStatus,
    run_id: u16,
    credentials: Credentials,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimStatus {
    task_id: SlugId,
}

#[derive(Debug, Deserialize)]
struct Claims {
    tasks: Vec<Claim>,
}

#[derive(Debug, Deserialize)]
struct Worked {
    results: Vec<ResultOf>,
    tasks: Vec<Claim>,
}

#[derive(Debug, Deserialize)]
struct ResultOf {
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Renewed {
    credentials: Credentials,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pending {
    pending_tasks: u64,
}

#[derive(Debug, Deserialize)]
struct PollUrls {
    queues: Vec<SignedUrls>,
}

impl Claim {
    pub(crate) fn is_of(&self, task: SlugId) -> bool {
        self.status.task_id == task
    }
}

#[derive(Debug)]
pub(crate) struct Creation {
    task: SlugId,
    body: String,
}

#[derive(Debug)]
pub(crate) struct Lane {
    run: Rc<Run>,
    client: Client,
    random: Random,
    number: u64,
    worker: String,
    queue: String,
    group: Option<String>,
    /// Number of keys of the lane's tasks; `None` for tasks without a key.
    keys: Option<u64>,
    put_url: Option<String>,
    failures_in_a_row: u32,
}

impl Lane {
    pub(crate) fn new(run: Rc<Run>, number: u64) -> Result<Self, BenchError> {
        let client = Client::new(run.service().url())?;
        let random = Random::fork(run.seed(), number);
        let queue = run.queue().to_owned();
        let worker = format!("bench-{number}");
        Ok(Self {
            run,
            client,
            random,
            number,
            worker,
            queue,
            group: None,
            keys: None,
            put_url: None,
            failures_in_a_row: 0,
        })
    }

    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Position of the lane among all, from 0 to just below 1.
    pub(crate) fn place(&self) -> f64 {
        self.number as f64 / self.run.connections() as f64
    }

    /// True for the workers of a shift; its other lanes are producers.
    pub(crate) fn is_worker(&self) -> bool {
        self.number < self.run.workers()
    }

    pub(crate) fn use_queue_of_its_own(&mut self) {
        self.queue = format!("{}-{}", self.run.queue(), self.number);
    }

    pub(crate) fn use_the_common_group(&mut self) {
        self.group = Some(self.run.group().to_owned());
    }

    pub(crate) fn use_keys(&mut self, keys: u64) {
        self.keys = Some(keys);
    }

    pub(crate) fn use_a_new_group(&mut self) {
        self.group = Some(self.random.task_id().to_string());
    }

    pub(crate) fn share_task_queues(&mut self) {
        self.queue = format!("{}-{}", self.run.queue(), self.number % self.run.task_queues() as u64);
    }

    pub(crate) fn another_client(&self) -> Result<Client, BenchError> {
        Ok(Client::new(self.run.service().url())?)
    }

    pub(crate) fn root(&self) -> Result<Credentials, BenchError> {
        self.run.service().credentials().cloned()
    }

    /// Returns the URLs of the lane's message queues, highest priority first. Creates missing
    /// queues.
    pub(crate) async fn queues(&mut self) -> Result<Vec<QueueUrls>, BenchError> {
        let run = Rc::clone(&self.run);
        let queues = match run.service() {
            Service::Tenure(_) => {
                let path = format!("{QUEUE_API}/poll-task-url/{}", self.queue);
                let answer = self.call(None, "pollTaskUrls", None, "GET", &path, None).await?;
                let urls: PollUrls = parse("pollTaskUrls", &answer)?;
                urls.queues.into_iter().map(SignedUrls::into_paths).collect::<Option<Vec<_>>>()
            }
            Service::Azure(azure) => {
                let mut queues = Vec::with_capacity(PRIORITIES);
                for priority in (1..=PRIORITIES).rev() {
                    let name = format!("{}-{priority}", self.queue.replace('/', "-"));
                    // Recorded once the queue exists: other lanes may create it concurrently, but
                    // none may record it too early.
                    let created = run.made().contains(&name);
                    if !created {
                        messages::make_queue(&mut self.client, &azure.queue_resource(&name)?).await?;
                        run.made().insert(name.clone());
                    }
                    queues.push(azure.urls(&name)?);
                }
                Some(queues)
            }
            Service::Rabbit(_) => return Err(BenchError::NotOnAzure),
        };
        let reason = "an address without a path".to_owned();
        queues.ok_or(BenchError::Answer { what: "pollTaskUrls", reason })
    }

    pub(crate) async fn lowest_queue(&mut self) -> Result<QueueUrls, BenchError> {
        let reason = "no queue".to_owned();
        let lowest = self.queues().await?.pop().ok_or(BenchError::Answer { what: "pollTaskUrls", reason })?;
        self.put_url.clone_from(&lowest.put);
        Ok(lowest)
    }

    /// Puts a message into the lane's lowest queue without measuring it: creates a task, or puts an
    /// equal message on Azure. Returns the message's text.
    pub(crate) async fn put(&mut self) -> Result<String, BenchError> {
        let task = match self.put_url.take() {
            None => self.create_task().await?,
            Some(url) => {
                let task = self.random.task_id();
                let put = messages::put(&mut self.client, &url, &messages::text_of(task)).await;
                self.put_url = Some(url);
                put?;
                task
            }
        };
        Ok(messages::text_of(task))
    }

    pub(crate) fn count(&mut self, tasks: u64) {
        self.failures_in_a_row = 0;
        let now = Instant::now();
        if self.run.counts(now, now) {
            self.run.figures().tasks += tasks;
        }
    }

    pub(crate) fn note_empty(&self) {
        let now = Instant::now();
        if self.run.counts(now, now) {
            self.run.figures().empty += 1;
        }
    }

    /// Counts a failed turn and pauses.
    pub(crate) async fn note_failure(&mut self, error: &BenchError) -> Result<(), BenchError> {
        self.failures_in_a_row += 1;
        self.note_failed(error.to_string());
        if self.failures_in_a_row >= FAILURES_IN_A_ROW {
            return Err(BenchError::Hopeless(error.to_string()));
        }
        sleep(REST).await;
        Ok(())
    }

    pub(crate) fn note_failed(&self, what: String) {
        let now = Instant::now();
        if self.run.counts(now, now) {
            *self.run.figures().failures.entry(what).or_default() += 1;
        }
    }

    /// Records a step's duration, if it lies entirely inside the window.
    pub(crate) fn record(&self, step: usize, began: Instant, ended: Instant) {
        if self.run.counts(began, ended) {
            self.run.figures().record(step, ended - began);
        }
    }

    /// Creates a task without measuring it.
    pub(crate) async fn create_task(&mut self) -> Result<SlugId, BenchError> {
        self.create(None).await
    }

    /// Creates a task, measured as `step`.
    pub(crate) async fn create(&mut self, step: impl Into<Option<usize>>) -> Result<SlugId, BenchError> {
        self.create_after(step, &[]).await
    }

    pub(crate) async fn create_after(
        &mut self,
        step: impl Into<Option<usize>>,
        dependencies: &[SlugId],
    ) -> Result<SlugId, BenchError> {
        let creation = self.new_creation_after(dependencies);
        self.send_creation(step, &creation).await?;
        Ok(creation.task)
    }

    pub(crate) async fn send_creation(
        &mut self,
        step: impl Into<Option<usize>>,
        creation: &Creation,
    ) -> Result<(), BenchError> {
        let path = format!("{QUEUE_API}/task/{}", creation.task);
        self.call(step.into(), "createTask", None, "PUT", &path, Some(creation.body.as_bytes())).await?;
        self.run.note_created(1);
        Ok(())
    }

    pub(crate) fn new_creation(&mut self) -> Creation {
        self.new_creation_after(&[])
    }

    fn new_creation_after(&mut self, dependencies: &[SlugId]) -> Creation {
        let task = self.random.task_id();
        let created = unix_millis();
        let definition = Definition {
            queue: &self.queue,
            priority: "lowest",
            retries: RETRIES,
            created,
            deadline: created + DAY_MILLIS,
            group: self.group.as_deref(),
            note: "",
            dependencies,
            any_end: false,
        };
        let mut body = definition.body(PAYLOAD_DIGITS, &mut self.random);
        if let Some(keys) = self.keys {
            let key = self.random.below(keys);
            body.insert_str(1, &format!(r#""extra":{{"tenure":{{"key":"key-{key}"}}}},"#));
        }
        Creation { task, body }
    }

    pub(crate) async fn create_many(&mut self, step: usize, tasks: usize) -> Result<(), BenchError> {
        let mut body = String::from(r#"{"tasks":["#);
        for number in 0..tasks {
            let creation = self.new_creation();
            body.push_str(if number > 0 { "," } else { "" });
            body.push_str(&creation.body);
        }
        body.push_str("]}");
        let path = format!("{TENURE_API}/tasks");
        self.call(Some(step), "createTasks", None, "POST", &path, Some(body.as_bytes())).await?;
        self.run.note_created(tasks as u64);
        Ok(())
    }

    /// Reports `done` as completed and claims up to `limit` tasks, in one request that waits a second
    /// at most. Returns the number of accepted reports, and the claims.
    pub(crate) async fn work(
        &mut self,
        step: usize,
        done: &[Claim],
        limit: usize,
    ) -> Result<(u64, Vec<Claim>), BenchError> {
        let (queue, worker) = (&self.queue, &self.worker);
        let result = |claim: &Claim| {
            format!(r#"{{"taskId":"{}","runId":{},"outcome":"completed"}}"#, claim.status.task_id, claim.run_id)
        };
        let results: Vec<String> = done.iter().map(result).collect();
        let body = format!(
            r#"{{"taskQueueId":"{queue}","workerGroup":"bench","workerId":"{worker}","results":[{}],"claim":{limit},"wait":1}}"#,
            results.join(",")
        );
        let path = format!("{TENURE_API}/work");
        let answer = self.call(Some(step), "work", None, "POST", &path, Some(body.as_bytes())).await?;
        let Worked { results, tasks } = parse("work", &answer)?;
        let mut taken = 0;
        for result in results {
            match result.error {
                None => taken += 1,
                Some(error) => self.note_failed(format!("a result was answered with {}", error["code"])),
            }
        }
        self.run.note_reported(taken);
        Ok((taken, tasks))
    }

    pub(crate) fn claim_request(&self, limit: u8) -> (String, String) {
        let path = format!("{QUEUE_API}/claim-work/{}", queue_segment(&self.queue));
        (path, format!(r#"{{"workerGroup":"bench","workerId":"{}","tasks":{limit}}}"#, self.worker))
    }

    /// Claims up to `limit` tasks; the server waits before it gives an empty answer.
    pub(crate) async fn claim(&mut self, step: usize, limit: u8) -> Result<Vec<Claim>, BenchError> {
        let (path, body) = self.claim_request(limit);
        let answer = self.call(Some(step), "claimWork", None, "POST", &path, Some(body.as_bytes())).await?;
        read_claims(&answer)
    }

    /// Reports a claim as completed, with the claim's own credentials.
    pub(crate) async fn complete(&mut self, step: usize, claim: &Claim) -> Result<(), BenchError> {
        let path = format!("{QUEUE_API}/task/{}/runs/{}/completed", claim.status.task_id, claim.run_id);
        self.call(Some(step), "reportCompleted", Some(&claim.credentials), "POST", &path, None).await?;
        self.run.note_reported(1);
        Ok(())
    }

    /// Renews a claim, whose next call uses the new credentials.
    pub(crate) async fn renew(&mut self, step: usize, claim: &mut Claim) -> Result<(), BenchError> {
        let path = format!("{QUEUE_API}/task/{}/runs/{}/reclaim", claim.status.task_id, claim.run_id);
        let answer = self.call(Some(step), "reclaimTask", Some(&claim.credentials), "POST", &path, None).await?;
        let renewed: Renewed = parse("reclaimTask", &answer)?;
        claim.credentials = renewed.credentials;
        Ok(())
    }

    pub(crate) async fn pending(&mut self) -> Result<u64, BenchError> {
        let path = format!("{QUEUE_API}/pending/{}", queue_segment(&self.queue));
        let answer = self.call(None, "pendingTasks", None, "GET", &path, None).await?;
        Ok(parse::<Pending>("pendingTasks", &answer)?.pending_tasks)
    }

    pub(crate) async fn put_policy(&mut self, policy: &str) -> Result<(), BenchError> {
        let path = format!("{TENURE_API}/queues/{}/policy", queue_segment(&self.queue));
        self.call(None, "putQueuePolicy", None, "PUT", &path, Some(policy.as_bytes())).await?;
        Ok(())
    }

    pub(crate) async fn status(&mut self, step: usize, task: SlugId) -> Result<(), BenchError> {
        self.call(Some(step), "status", None, "GET", &format!("{QUEUE_API}/task/{task}/status"), None).await?;
        Ok(())
    }

    /// Makes one call. Defaults to the credentials of the run's client; measures only with a step.
    async fn call(
        &mut self,
        step: Option<usize>,
        what: &'static str,
        credentials: Option<&Credentials>,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Vec<u8>, BenchError> {
        let began = Instant::now();
        let credentials = match credentials {
            Some(credentials) => credentials,
            None => self.run.service().credentials()?,
        };
        let reply = self.client.exchange(credentials, method, path, body).await?;
        if !matches!(reply.status, 200 | 201) {
            return Err(refusal(what, &reply));
        }
        if let Some(step) = step {
            self.record(step, began, Instant::now());
        }
        Ok(reply.body)
    }
}

pub(crate) fn refusal(what: &'static str, reply: &Reply) -> BenchError {
    let body = String::from_utf8_lossy(&reply.body[..reply.body.len().min(QUOTED)]).replace('\n', " ");
    BenchError::Refused { what, status: reply.status, body }
}

pub(crate) fn read_claims(answer: &[u8]) -> Result<Vec<Claim>, BenchError> {
    Ok(parse::<Claims>("claimWork", answer)?.tasks)
}

fn parse<T: DeserializeOwned>(what: &'static str, answer: &[u8]) -> Result<T, BenchError> {
    serde_json::from_slice(answer).map_err(|error| BenchError::Answer { what, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_keeps_only_fields_for_reporting() {
        let answer = br#"{"tasks":[{"status":{"taskId":"f47ac10bTcKlZw4CssPUeQ","state":"running","runs":[]},"runId":3,
            "workerGroup":"g","workerId":"w","takenUntil":"2026-01-01T00:00:00.000Z","task":{"payload":{}},
            "credentials":{"clientId":"c","accessToken":"t","certificate":"{\"version\":1}"}}]}"#;
        let claims = read_claims(answer).unwrap();
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].run_id, 3);
        assert!(claims[0].is_of("f47ac10bTcKlZw4CssPUeQ".parse().unwrap()));
        assert!(!claims[0].is_of("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap()));
        assert_eq!(claims[0].credentials.certificate.as_deref(), Some(r#"{"version":1}"#));
        assert!(read_claims(b"{}").is_err());
    }
}
