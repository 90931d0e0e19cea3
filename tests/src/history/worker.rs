//! Claims tasks and reports them: mostly correctly, sometimes twice, late, contradicting itself or
//! never.

use std::sync::atomic::Ordering;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::errors::ErrorCode;
use tenure_api::ids::{SessionId, SlugId};

use super::policy::{invent_release, release_json};
use super::record::{Answer, Event, RunKey, Stamp, Verdict};
use super::world::Actor;
use super::{poller, worker_id};
use crate::http::{QUEUE_API, TENURE_API, queue_segment};

/// claimTask concerns one of this many last tasks.
const RECENT: usize = 30;
const CLAIM_TASK_PERCENT: u64 = 8;
const LATE_PERCENT: u64 = 5;
const POLL_PERCENT: u64 = 15;
const AS_ROOT_PERCENT: u64 = 10;
const WORK_PERCENT: u64 = 15;
const RESULT_PERCENT: u64 = 40;
/// Percentage of claims that are released, by a separate request or with further claims.
const RELEASE_PERCENT: u64 = 8;
const REPEAT_PERCENT: u64 = 10;
const GONE: u16 = 410;
const LIMIT_MAX: u64 = 5;
const DRAIN_LIMIT: u64 = 32;

#[derive(Debug, Clone)]
pub(crate) struct HeldClaim {
    pub(crate) run: RunKey,
    queue: String,
    pub(crate) credentials: Credentials,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    status: ClaimStatus,
    run_id: u16,
    credentials: Credentials,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimStatus {
    task_id: SlugId,
    task_queue_id: String,
}

impl From<Claim> for HeldClaim {
    fn from(claim: Claim) -> Self {
        let ClaimStatus { task_id, task_queue_id } = claim.status;
        Self { run: (task_id, claim.run_id), queue: task_queue_id, credentials: claim.credentials }
    }
}

#[derive(Debug, Default)]
pub(super) struct Exchanged {
    pub(super) claims: Vec<HeldClaim>,
    /// Start and answer of the claim, if the request made one.
    pub(super) claim: Option<(Stamp, Answer<Vec<RunKey>>)>,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) actor: Actor,
    pub(super) number: usize,
    unreported: Vec<HeldClaim>,
}

impl Worker {
    pub(super) fn new(actor: Actor, number: usize) -> Self {
        Self { actor, number, unreported: Vec::new() }
    }

    pub(super) async fn work(mut self) {
        while self.actor.world.take_operation() {
            let roll = self.actor.random.below(100);
            if roll < CLAIM_TASK_PERCENT {
                self.ask_for_one().await;
            } else if roll < CLAIM_TASK_PERCENT + LATE_PERCENT && !self.unreported.is_empty() {
                let index = self.actor.random.below(self.unreported.len() as u64) as usize;
                let late = self.unreported.swap_remove(index);
                let result = self.draw_result(Verdict::Completed);
                self.report(&late, Verdict::Completed, result).await;
            } else if roll >= 100 - POLL_PERCENT {
                for run in poller::poll(&mut self.actor).await {
                    let held = self.claim_task(run).await;
                    self.live(held).await;
                }
            } else {
                let queue = self.actor.random.below(self.actor.world.queues.len() as u64) as usize;
                let limit = 1 + self.actor.random.below(LIMIT_MAX);
                let held = self.claim(queue, limit).await;
                self.live(held).await;
            }
        }
    }

    pub(super) async fn drain(&mut self, queue: usize) -> usize {
        let mut completed = 0;
        loop {
            let claims = self.claim(queue, DRAIN_LIMIT).await;
            if claims.is_empty() {
                return completed;
            }
            completed += claims.len();
            for held in claims {
                self.report(&held, Verdict::Completed, None).await;
            }
        }
    }

    fn draw_result(&mut self, verdict: Verdict) -> Option<u64> {
        let may = matches!(verdict, Verdict::Completed | Verdict::Failed | Verdict::FailedForGood);
        // JSON parsers agree on integers up to 2^53.
        (may && self.actor.random.percent(RESULT_PERCENT)).then(|| self.actor.random.below(1 << 53))
    }

    async fn claim(&mut self, queue: usize, limit: u64) -> Vec<HeldClaim> {
        let path = format!("{QUEUE_API}/claim-work/{}", queue_segment(&self.actor.world.queues[queue]));
        let worker = worker_id(self.number);
        let body = format!(r#"{{"workerGroup":"storm","workerId":"{worker}","tasks":{limit}}}"#);
        let start = self.actor.world.stamp();
        let answer = self.actor.call("POST", &path, Some(&body)).await;
        let mut claims = Vec::new();
        let answer = answer.map(|answer| {
            claims = read_claims(&answer);
            claims.iter().map(|held| held.run).collect()
        });
        self.actor.world.write(start, Event::ClaimWork { queue, worker: self.number, answer });
        claims
    }

    async fn ask_for_one(&mut self) {
        let Some(tried) = self.actor.world.pick_tried(&mut self.actor.random, RECENT) else { return };
        let run = (tried.spec.task, 0);
        let Some(held) = self.claim_task(run).await else { return };
        if self.actor.random.percent(20) {
            self.claim_task(run).await;
        }
        self.live([held]).await;
    }

    async fn claim_task(&mut self, run: RunKey) -> Option<HeldClaim> {
        let worker = worker_id(self.number);
        let body = format!(r#"{{"workerGroup":"storm","workerId":"{worker}"}}"#);
        let start = self.actor.world.stamp();
        let answer = self.actor.call("POST", &run_path(run, "claim"), Some(&body)).await;
        let mut held = None;
        let answer = answer.map(|answer| held = serde_json::from_value::<Claim>(answer).ok().map(HeldClaim::from));
        self.actor.world.write(start, Event::ClaimTask { run, worker: self.number, answer });
        held
    }

    async fn live(&mut self, claims: impl IntoIterator<Item = HeldClaim>) {
        let mut claims: Vec<HeldClaim> = claims.into_iter().collect();
        while let Some(held) = claims.pop() {
            if self.actor.random.percent(RELEASE_PERCENT) {
                self.release(&held).await;
            } else if self.actor.random.percent(WORK_PERCENT) {
                claims.extend(self.exchange(&held, None).await.claims);
            } else {
                self.end(held).await;
            }
        }
    }

    pub(super) async fn end(&mut self, held: HeldClaim) {
        let verdict = match self.actor.random.below(100) {
            0..65 => Verdict::Completed,
            65..75 => Verdict::Failed,
            _ => self.actor.random.pick(&Verdict::ALL).copied().unwrap_or(Verdict::Completed),
        };
        let result = self.draw_result(verdict);
        match self.actor.random.below(100) {
            0..75 => self.report(&held, verdict, result).await,
            75..83 => {
                self.reclaim(&held).await;
                self.report(&held, verdict, result).await;
            }
            83..88 => {
                self.report(&held, verdict, result).await;
                self.report(&held, verdict, result).await;
            }
            88..94 => {
                let other = self.actor.random.pick(&Verdict::ALL).copied().unwrap_or(Verdict::Failed);
                let other_result = self.draw_result(other);
                self.report(&held, verdict, result).await;
                self.report(&held, other, other_result).await;
            }
            _ => self.unreported.push(held),
        }
    }

    pub(super) async fn release(&mut self, held: &HeldClaim) {
        let begin = invent_release(&mut self.actor.random, self.actor.world.server_millis());
        let body = serde_json::Value::Object(release_json(begin)).to_string();
        let path = format!("{TENURE_API}/tasks/{}/runs/{}/release", held.run.0, held.run.1);
        let times = if self.actor.random.percent(REPEAT_PERCENT) { 2 } else { 1 };
        for _ in 0..times {
            let start = self.actor.world.stamp();
            let answer = self.actor.call_as(&held.credentials, "POST", &path, Some(&body)).await;
            let event = Event::Release { run: held.run, start: begin, answer: answer.without_content() };
            self.actor.world.write(start, event);
        }
    }

    pub(super) async fn reclaim(&mut self, held: &HeldClaim) {
        let start = self.actor.world.stamp();
        let answer = self.actor.call_as(&held.credentials, "POST", &run_path(held.run, "reclaim"), None).await;
        self.actor.world.write(start, Event::Reclaim { run: held.run, answer: answer.without_content() });
    }

    /// Reports a run by the worker's name and claims more in the same request, perhaps for a
    /// session.
    pub(super) async fn exchange(&mut self, held: &HeldClaim, session: Option<SessionId>) -> Exchanged {
        let verdict = self.actor.random.pick(&Verdict::ALL).copied().unwrap_or(Verdict::Completed);
        let (outcome, reason) = verdict.wire();
        let mut result = json!({"taskId": held.run.0, "runId": held.run.1, "outcome": outcome});
        if outcome == "exception" {
            result["reason"] = reason.into();
        }
        if verdict == Verdict::FailedForGood {
            result["retry"] = false.into();
        }
        let returned = self.draw_result(verdict);
        if let Some(returned) = returned {
            result["result"] = returned.into();
        }
        let limit = if verdict == Verdict::WorkerShutdown { 0 } else { self.actor.random.below(LIMIT_MAX) };
        let mut body = json!({
            "taskQueueId": held.queue,
            "workerGroup": "storm",
            "workerId": worker_id(self.number),
            "results": [result],
            "claim": limit,
            "wait": self.actor.random.below(2),
        });
        if let Some(session) = session {
            body["sessionId"] = json!(session);
        }
        let start = self.actor.world.stamp();
        let answer = self.actor.call("POST", &format!("{TENURE_API}/work"), Some(&body.to_string())).await;
        let (reported, claims) = match &answer {
            Answer::Done(answer) => (verdict_of(&answer["results"][0]), Answer::Done(read_claims(answer))),
            // The session has ended, but the report may have been stored.
            Answer::Refused(GONE) => (Answer::Unknown, Answer::Refused(GONE)),
            Answer::Refused(status) => (Answer::Refused(*status), Answer::Refused(*status)),
            Answer::Unknown => (Answer::Unknown, Answer::Unknown),
        };
        if reported.done().is_some() && !verdict.retries() {
            self.actor.world.backlog.fetch_sub(1, Ordering::Relaxed);
        }
        self.note_report(start, held.run, verdict, returned, reported);
        let Some(queue) = self.actor.world.queues.iter().position(|queue| *queue == held.queue) else {
            return Exchanged::default();
        };
        let (claims, answer) = match claims {
            Answer::Done(claims) => {
                let runs = claims.iter().map(|held: &HeldClaim| held.run).collect();
                (claims, Answer::Done(runs))
            }
            Answer::Refused(status) => (Vec::new(), Answer::Refused(status)),
            Answer::Unknown => (Vec::new(), Answer::Unknown),
        };
        if limit == 0 {
            return Exchanged::default();
        }
        self.actor.world.write(start, Event::ClaimWork { queue, worker: self.number, answer: answer.clone() });
        Exchanged { claims, claim: Some((start, answer)) }
    }

    pub(super) async fn report(&mut self, held: &HeldClaim, verdict: Verdict, result: Option<u64>) {
        let (state, reason) = verdict.wire();
        let fields = [
            ("result", result.map(Value::from)),
            ("reason", (state == "exception").then(|| reason.into())),
            ("retry", (verdict == Verdict::FailedForGood).then(|| false.into())),
        ];
        let fields: Map<String, Value> =
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let body = (!fields.is_empty()).then(|| Value::Object(fields).to_string());
        let as_root = self.actor.random.percent(AS_ROOT_PERCENT);
        let credentials = if as_root { self.actor.world.root.clone() } else { held.credentials.clone() };
        let start = self.actor.world.stamp();
        let path = run_path(held.run, state);
        let answer = self.actor.call_as(&credentials, "POST", &path, body.as_deref()).await.without_content();
        if answer.done().is_some() && !verdict.retries() {
            self.actor.world.backlog.fetch_sub(1, Ordering::Relaxed);
        }
        self.note_report(start, held.run, verdict, result, answer);
    }

    fn note_report(&self, start: Stamp, run: RunKey, verdict: Verdict, result: Option<u64>, answer: Answer<()>) {
        if let Some(result) = result {
            self.actor.world.write(start, Event::Returned { run, result, answer: answer.clone() });
        }
        self.actor.world.write(start, Event::Report { run, verdict, answer });
    }
}

fn verdict_of(result: &Value) -> Answer<()> {
    if result["status"].is_object() {
        return Answer::Done(());
    }
    match serde_json::from_value(result["error"]["code"].clone()).expect("a result has a status or an error") {
        ErrorCode::ServiceUnavailable => Answer::Unknown,
        code => Answer::Refused(code.status()),
    }
}

fn run_path(run: RunKey, what: &str) -> String {
    format!("{QUEUE_API}/task/{}/runs/{}/{what}", run.0, run.1)
}

pub(crate) fn read_claims(answer: &Value) -> Vec<HeldClaim> {
    let claims: Vec<Claim> =
        serde_json::from_value(answer["tasks"].clone()).expect("claimWork answers with a list of claims");
    claims.into_iter().map(HeldClaim::from).collect()
}
