//! One connection of the generator, the calls that modes are made of, and the window in which they count.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::BenchError;
use super::figures::Figures;
use crate::clock::unix_millis;
use crate::definition::Definition;
use crate::http::{Account, Client, QUEUE_API, queue_segment};
use crate::random::Random;

/// Random digits in every payload; with them a definition is about 1.5 kB.
const PAYLOAD_DIGITS: usize = 900;
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;
const RETRIES: u32 = 5;
/// How long a lane rests after a failure, so that a server that sheds load can recover.
const REST: Duration = Duration::from_millis(50);
/// A lane that fails this often in a row gives up.
const FAILURES_IN_A_ROW: u32 = 200;
/// How much of a refusal an error quotes, in bytes.
const QUOTED: usize = 200;

/// What all lanes of a run share. They live on one thread.
#[derive(Debug)]
pub(crate) struct Run {
    root: Credentials,
    root_url: String,
    seed: u64,
    queue: String,
    group: String,
    figures: RefCell<Figures>,
    start: Cell<Option<Instant>>,
    end: Cell<Option<Instant>>,
    to_create: Cell<u64>,
    to_claim: Cell<u64>,
    exhausted: Notify,
}

impl Run {
    pub(crate) fn new(account: &Account, seed: u64, steps: usize) -> Self {
        // A queue of its own: what an earlier run has left must not be claimed in this one.
        let mut queue = "bench/load-".to_owned();
        Random::from_seed(seed).push_hex(&mut queue, 12);
        let group = Random::from_seed(!seed).task_id().to_string();
        Self {
            root: account.credentials.clone(),
            root_url: account.root_url.clone(),
            seed,
            queue,
            group,
            figures: RefCell::new(Figures::new(steps)),
            start: Cell::new(None),
            end: Cell::new(None),
            to_create: Cell::new(0),
            to_claim: Cell::new(0),
            exhausted: Notify::new(),
        }
    }

    /// How many tasks the lanes are to create before measuring.
    pub(crate) fn expect_tasks(&self, tasks: u64) {
        self.to_create.set(tasks);
        self.to_claim.set(tasks);
    }

    /// How many tasks the lanes are to create, or claim, while measuring; with the last one the run ends.
    pub(crate) fn end_after(&self, tasks: u64) {
        self.to_claim.set(tasks);
    }

    /// Whether the caller is to create one of those tasks.
    pub(crate) fn take_prefill(&self) -> bool {
        let left = self.to_create.get();
        self.to_create.set(left.saturating_sub(1));
        left > 0
    }

    /// For modes with a number of tasks: so many are done, and with the last one the run ends.
    pub(crate) fn note_claimed(&self, tasks: u64) {
        self.to_claim.set(self.to_claim.get().saturating_sub(tasks));
        if self.to_claim.get() == 0 {
            self.exhausted.notify_one();
        }
    }

    pub(crate) fn open_window(&self, start: Instant, end: Instant) {
        self.start.set(Some(start));
        self.end.set(Some(end));
    }

    /// Whether lanes are to go on.
    pub(crate) fn is_open(&self) -> bool {
        self.end.get().is_some_and(|end| Instant::now() < end)
    }

    /// Waits until time is up, the tasks are used up or a lane has failed.
    pub(crate) async fn wait_for_the_end(&self, lanes: &mut JoinSet<Result<(), BenchError>>) -> Option<BenchError> {
        let end = self.end.get()?;
        loop {
            tokio::select! {
                () = sleep_until(end) => return None,
                () = self.exhausted.notified() => return None,
                Some(finished) = lanes.join_next() => {
                    if let Some(failure) = failure_of(finished) {
                        return Some(failure);
                    }
                }
            }
        }
    }

    /// Ends the window now, if it has not ended by itself, and says how long it was.
    pub(crate) fn close_window(&self) -> Duration {
        let now = Instant::now();
        let end = self.end.get().unwrap_or(now).min(now);
        self.end.set(Some(end));
        end.saturating_duration_since(self.start.get().unwrap_or(end))
    }

    pub(crate) fn figures(&self) -> std::cell::RefMut<'_, Figures> {
        self.figures.borrow_mut()
    }

    fn counts(&self, began: Instant, ended: Instant) -> bool {
        let window = self.start.get().zip(self.end.get());
        window.is_some_and(|(start, end)| began >= start && ended <= end)
    }
}

/// Why a lane ended, if not because time was up.
pub(crate) fn failure_of(finished: Result<Result<(), BenchError>, JoinError>) -> Option<BenchError> {
    match finished {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(error) => Some(BenchError::Generator(error.to_string())),
    }
}

/// A claimed run: as much of a claim as reporting needs.
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
struct Renewed {
    credentials: Credentials,
}

/// One connection and its worker's identity.
#[derive(Debug)]
pub(crate) struct Lane {
    run: Rc<Run>,
    client: Client,
    random: Random,
    worker: String,
    queue: String,
    group: Option<String>,
    failures_in_a_row: u32,
}

impl Lane {
    pub(crate) fn new(run: Rc<Run>, number: u64) -> Result<Self, BenchError> {
        let client = Client::new(&run.root_url)?;
        let random = Random::fork(run.seed, number);
        let queue = run.queue.clone();
        Ok(Self { run, client, random, worker: format!("bench-{number}"), queue, group: None, failures_in_a_row: 0 })
    }

    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Leaves the common queue for one that no other lane uses.
    pub(crate) fn use_queue_of_its_own(&mut self) {
        self.queue = format!("{}-{}", self.run.queue, self.worker.trim_start_matches("bench-"));
    }

    /// Puts what the lane creates into the group that all lanes share.
    pub(crate) fn use_the_common_group(&mut self) {
        self.group = Some(self.run.group.clone());
    }

    /// Another connection to the same server, and the credentials to use on it.
    pub(crate) fn second_client(&self) -> Result<(Client, Credentials), BenchError> {
        Ok((Client::new(&self.run.root_url)?, self.run.root.clone()))
    }

    /// Notes that a turn went well and how many tasks it was worth.
    pub(crate) fn count(&mut self, tasks: u64) {
        self.failures_in_a_row = 0;
        let now = Instant::now();
        if self.run.counts(now, now) {
            self.run.figures().tasks += tasks;
        }
    }

    /// Notes a turn that failed and rests.
    pub(crate) async fn note_failure(&mut self, error: &BenchError) -> Result<(), BenchError> {
        self.failures_in_a_row += 1;
        let now = Instant::now();
        if self.run.counts(now, now) {
            *self.run.figures().failures.entry(error.to_string()).or_default() += 1;
        }
        if self.failures_in_a_row >= FAILURES_IN_A_ROW {
            return Err(BenchError::Hopeless(error.to_string()));
        }
        sleep(REST).await;
        Ok(())
    }

    /// Adds a duration to a step's figures, if all of it was inside the window.
    pub(crate) fn record(&self, step: usize, began: Instant, ended: Instant) {
        if self.run.counts(began, ended) {
            self.run.figures().record(step, ended - began);
        }
    }

    /// Creates a task without measuring it.
    pub(crate) async fn create_task(&mut self) -> Result<SlugId, BenchError> {
        self.create(None).await
    }

    /// Creates a task as this step of the mode.
    pub(crate) async fn create(&mut self, step: impl Into<Option<usize>>) -> Result<SlugId, BenchError> {
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
            dependencies: &[],
            any_end: false,
        };
        let body = definition.body(PAYLOAD_DIGITS, &mut self.random);
        let path = format!("{QUEUE_API}/task/{task}");
        self.call(step.into(), "createTask", None, "PUT", &path, Some(body.as_bytes())).await?;
        Ok(task)
    }

    /// Path and body of the claim of up to `limit` tasks.
    pub(crate) fn claim_request(&self, limit: u8) -> (String, String) {
        let path = format!("{QUEUE_API}/claim-work/{}", queue_segment(&self.queue));
        (path, format!(r#"{{"workerGroup":"bench","workerId":"{}","tasks":{limit}}}"#, self.worker))
    }

    /// Claims up to `limit` tasks; the server waits a while before it answers with none.
    pub(crate) async fn claim(&mut self, step: usize, limit: u8) -> Result<Vec<Claim>, BenchError> {
        let (path, body) = self.claim_request(limit);
        let answer = self.call(Some(step), "claimWork", None, "POST", &path, Some(body.as_bytes())).await?;
        read_claims(&answer)
    }

    /// Reports a claim as completed, with the claim's own credentials.
    pub(crate) async fn complete(&mut self, step: usize, claim: &Claim) -> Result<(), BenchError> {
        let path = format!("{QUEUE_API}/task/{}/runs/{}/completed", claim.status.task_id, claim.run_id);
        self.call(Some(step), "reportCompleted", Some(&claim.credentials), "POST", &path, None).await?;
        Ok(())
    }

    /// Renews a claim; the next call under it uses the new credentials.
    pub(crate) async fn renew(&mut self, step: usize, claim: &mut Claim) -> Result<(), BenchError> {
        let path = format!("{QUEUE_API}/task/{}/runs/{}/reclaim", claim.status.task_id, claim.run_id);
        let answer = self.call(Some(step), "reclaimTask", Some(&claim.credentials), "POST", &path, None).await?;
        let renewed: Renewed = parse("reclaimTask", &answer)?;
        claim.credentials = renewed.credentials;
        Ok(())
    }

    /// Reads a task's status.
    pub(crate) async fn status(&mut self, step: usize, task: SlugId) -> Result<(), BenchError> {
        self.call(Some(step), "status", None, "GET", &format!("{QUEUE_API}/task/{task}/status"), None).await?;
        Ok(())
    }

    /// One call, as the run's client where no credentials are given; measured where a step is given.
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
        let credentials = credentials.unwrap_or(&self.run.root);
        let reply = self.client.exchange(credentials, method, path, body).await?;
        if reply.status != 200 {
            let body = String::from_utf8_lossy(&reply.body[..reply.body.len().min(QUOTED)]).replace('\n', " ");
            return Err(BenchError::Refused { what, status: reply.status, body });
        }
        if let Some(step) = step {
            self.record(step, began, Instant::now());
        }
        Ok(reply.body)
    }
}

/// The claims in an answer to claimWork.
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
    fn of_a_claim_only_what_reporting_needs_is_read() {
        let answer = br#"{"tasks":[{"status":{"taskId":"f47ac10bTcKlZw4CssPUeQ","state":"running","runs":[]},"runId":3,
            "workerGroup":"g","workerId":"w","takenUntil":"2026-01-01T00:00:00.000Z","task":{"payload":{}},
            "credentials":{"clientId":"c","accessToken":"t","certificate":"{\"version\":1}"}}]}"#;
        let claims = read_claims(answer).unwrap();
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].run_id, 3);
        assert_eq!(claims[0].credentials.certificate.as_deref(), Some(r#"{"version":1}"#));
        assert!(read_claims(b"{}").is_err());
    }
}
