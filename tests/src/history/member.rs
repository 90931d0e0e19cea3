//! A worker with sessions: it begins them, claims for them and reads their inboxes. Sometimes it
//! ends a session while it holds runs, or falls silent. Sometimes a second process takes its
//! session over while the first continues for a while.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tenure_api::checkpoints::CommandOfTask;
use tenure_api::ids::SessionId;
use tenure_api::sessions::{CommandSent, Inbox, SessionRenewed, SessionReturned, SessionStarted};

use super::record::{Answer, Event, Verdict};
use super::sessions::{Act, Begun, Item, Items, SessionCall};
use super::worker::{Exchanged, HeldClaim, Worker, read_claims};
use super::worker_id;
use super::world::Actor;
use crate::http::{QUEUE_API, TENURE_API, queue_segment};

/// Queues of members: few, so that processes of one name meet.
const QUEUES: u64 = 2;
/// Session TTLs, in seconds of the server's clock; claims last 60.
const TTL: [i64; 4] = [15, 20, 60, 300];
const LIMIT_MAX: u64 = 5;
const TAKEOVER_PERCENT: u64 = 60;
const WAIT_PERCENT: u64 = 5;
const READ_AGAIN_PERCENT: u64 = 20;
const CLOSE_AGAIN_PERCENT: u64 = 40;
const PAUSE: Duration = Duration::from_millis(50);
const PAST_MAX: usize = 6;

#[derive(Debug)]
pub(super) struct Membership {
    id: SessionId,
    queue: usize,
    read: i64,
    claims: Vec<HeldClaim>,
}

impl Membership {
    pub(super) fn holds_some(&self) -> bool {
        !self.claims.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Member {
    worker: Worker,
    current: Option<Membership>,
    past: Vec<Membership>,
}

impl Member {
    pub(super) fn new(actor: Actor, number: usize) -> Self {
        Self { worker: Worker::new(actor, number), current: None, past: Vec::new() }
    }

    pub(super) async fn work(mut self) {
        while self.worker.actor.world.take_operation() {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let Some(mut mine) = self.current.take() else {
            return self.begin_somewhere().await;
        };
        let goes_on = match self.below(100) {
            0..41 => self.claim_and_work(&mut mine).await,
            41..51 => self.report_one(&mut mine).await,
            51..59 => self.renew(&mine).await,
            59..74 => self.read_inbox(&mut mine).await,
            74..76 => self.command(&mine).await,
            76..82 => self.command_task(&mut mine).await,
            82..86 => self.leave(&mut mine).await,
            86..90 => false,
            90..94 => {
                // A second process of its name.
                self.current = self.begin(mine.queue, true).await;
                false
            }
            _ => {
                self.use_past().await;
                true
            }
        };
        if goes_on {
            self.current = Some(mine);
        } else {
            self.past.push(mine);
            let surplus = self.past.len().saturating_sub(PAST_MAX);
            self.past.drain(..surplus);
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.worker.actor.random.below(limit)
    }

    fn percent(&mut self, share: u64) -> bool {
        self.worker.actor.random.percent(share)
    }

    async fn begin_somewhere(&mut self) {
        let queue = self.below(QUEUES) as usize;
        let takeover = self.percent(TAKEOVER_PERCENT);
        self.current = self.begin(queue, takeover).await;
        if self.current.is_none() {
            // Another session exists, or began too recently: both are over when the clock has
            // moved.
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn begin(&mut self, queue: usize, takeover: bool) -> Option<Membership> {
        let ttl = self.worker.actor.random.pick(&TTL).copied().unwrap_or(TTL[0]);
        self.begin_for(queue, takeover, ttl).await
    }

    pub(super) async fn begin_for(&mut self, queue: usize, takeover: bool, ttl: i64) -> Option<Membership> {
        let body = json!({
            "taskQueueId": self.worker.actor.world.queues[queue],
            "workerGroup": "storm",
            "workerId": worker_id(self.worker.number),
            "ttl": ttl,
            "takeover": takeover,
        });
        let (start, answer) = self.call("POST", format!("{TENURE_API}/sessions"), Some(&body)).await;
        let answer = read(answer, |started: SessionStarted| Begun {
            session: started.session_id,
            epoch: started.epoch,
            expires: started.expires.time().timestamp_millis(),
        });
        let begun = answer.done().copied();
        self.write(start, queue, Act::Start { takeover, answer });
        begun.map(|begun| Membership { id: begun.session, queue, read: 0, claims: Vec::new() })
    }

    /// Claims some runs, then ends, renews or abandons them. Returns true if the session continues.
    async fn claim_and_work(&mut self, mine: &mut Membership) -> bool {
        let limit = 1 + self.below(LIMIT_MAX);
        let before = mine.claims.len();
        if !self.claim(mine, limit).await {
            return false;
        }
        let claimed = mine.claims.split_off(before);
        match self.below(100) {
            0..55 => self.end_all(mine, claimed).await,
            55..75 => {
                mine.claims.extend(claimed);
                true
            }
            end => {
                mine.claims.extend(claimed);
                match end {
                    75..88 => self.leave(mine).await,
                    88..94 => {
                        self.current = self.begin(mine.queue, true).await;
                        false
                    }
                    _ => false,
                }
            }
        }
    }

    /// Ends these runs, sometimes by a request that claims more. Returns true if the session
    /// continues.
    async fn end_all(&mut self, mine: &mut Membership, claims: Vec<HeldClaim>) -> bool {
        let mut goes_on = true;
        for held in claims {
            match self.below(100) {
                0..15 => goes_on &= self.exchange(mine, &held).await,
                15..23 => self.worker.release(&held).await,
                _ => self.worker.end(held).await,
            }
        }
        goes_on
    }

    /// Reports a run and claims more in one request. Returns true if the session continues.
    async fn exchange(&mut self, mine: &mut Membership, held: &HeldClaim) -> bool {
        let Exchanged { claims, claim } = self.worker.exchange(held, Some(mine.id)).await;
        mine.claims.extend(claims);
        let Some((start, answer)) = claim else { return true };
        let goes_on = answer.may_be_done();
        self.write(start, mine.queue, Act::Claim { session: mine.id, answer });
        goes_on
    }

    pub(super) async fn claim(&mut self, mine: &mut Membership, limit: u64) -> bool {
        let path = format!("{QUEUE_API}/claim-work/{}", queue_segment(&self.worker.actor.world.queues[mine.queue]));
        let worker = worker_id(self.worker.number);
        let body = json!({"workerGroup": "storm", "workerId": worker, "tasks": limit, "sessionId": mine.id});
        let (start, answer) = self.call("POST", path, Some(&body)).await;
        let (queue, worker) = (mine.queue, self.worker.number);
        let answer = answer.map(|answer| {
            let claims = read_claims(&answer);
            let runs = claims.iter().map(|held| held.run).collect();
            mine.claims.extend(claims);
            runs
        });
        self.write(start, queue, Act::Claim { session: mine.id, answer: answer.clone() });
        let goes_on = answer.may_be_done();
        self.worker.actor.world.write(start, Event::ClaimWork { queue, worker, answer });
        goes_on
    }

    async fn report_one(&mut self, mine: &mut Membership) -> bool {
        let index = self.below(mine.claims.len() as u64) as usize;
        if index < mine.claims.len() {
            let held = mine.claims.swap_remove(index);
            if self.percent(30) {
                self.worker.reclaim(&held).await;
            }
            self.worker.end(held).await;
        }
        true
    }

    pub(super) async fn renew(&mut self, mine: &Membership) -> bool {
        let (start, answer) = self.call("POST", path_of(mine, "/renew"), Some(&json!({}))).await;
        let answer = read(answer, |renewed: SessionRenewed| renewed.expires.time().timestamp_millis());
        let goes_on = answer.may_be_done();
        self.write(start, mine.queue, Act::Renew { session: mine.id, answer });
        goes_on
    }

    async fn read_inbox(&mut self, mine: &mut Membership) -> bool {
        let (wait, after) = (u8::from(self.percent(WAIT_PERCENT)), mine.read);
        let path = path_of(mine, &format!("/inbox?after={after}&wait={wait}"));
        let (start, answer) = self.call("GET", path, None).await;
        let answer = read(answer, |inbox: Inbox| Items::from(inbox));
        let goes_on = answer.may_be_done();
        let again = self.percent(READ_AGAIN_PERCENT);
        for (id, item) in answer.done().map(|read| read.items.as_slice()).unwrap_or_default() {
            if !again {
                mine.read = *id;
            }
            if let Item::RunEnded(run, ..) = item {
                mine.claims.retain(|held| held.run != *run);
            }
        }
        self.write(start, mine.queue, Act::Inbox { session: mine.id, after, answer });
        goes_on
    }

    async fn command(&mut self, mine: &Membership) -> bool {
        let body = json!({"command": "freeze"});
        let (start, answer) = self.call("POST", path_of(mine, "/commands"), Some(&body)).await;
        let answer = read(answer, |sent: CommandSent| sent.id);
        self.write(start, mine.queue, Act::Command { session: mine.id, answer });
        true
    }

    /// Commands the task of a held run, claiming one if necessary, and reads the inbox. Returns
    /// true if the session continues.
    async fn command_task(&mut self, mine: &mut Membership) -> bool {
        if !mine.holds_some() && !self.claim(mine, 1).await {
            return false;
        }
        let Some(run) = mine.claims.last().map(|held| held.run) else { return true };
        let body = json!({"command": "checkpoint"});
        let (start, answer) = self.call("PUT", format!("{TENURE_API}/tasks/{}/command", run.0), Some(&body)).await;
        let answer = read(answer, |sent: CommandOfTask| sent.id);
        self.write(start, mine.queue, Act::TaskCommand { session: mine.id, run, answer });
        self.read_inbox(mine).await
    }

    /// Ends the session with its runs, and perhaps repeats that or reports a returned run.
    pub(super) async fn leave(&mut self, mine: &mut Membership) -> bool {
        self.close(mine).await;
        if self.percent(CLOSE_AGAIN_PERCENT) {
            self.close(mine).await;
        }
        if self.percent(50) {
            self.report_late(mine).await;
        }
        false
    }

    pub(super) async fn close(&mut self, mine: &Membership) {
        let (start, answer) = self.call("DELETE", path_of(mine, ""), None).await;
        let answer = read(answer, |returned: SessionReturned| returned.returned);
        self.write(start, mine.queue, Act::Close { session: mine.id, answer });
    }

    async fn report_late(&mut self, mine: &mut Membership) {
        if let Some(held) = mine.claims.pop() {
            if self.percent(30) {
                self.worker.reclaim(&held).await;
            }
            self.worker.report(&held, Verdict::Completed, None).await;
        }
    }

    /// Acts as a process that has not noticed its session's end, or that resumes a silent session.
    async fn use_past(&mut self) {
        let index = self.below(self.past.len() as u64) as usize;
        if index >= self.past.len() {
            return;
        }
        let mut mine = self.past.swap_remove(index);
        match self.below(5) {
            0 => {
                self.renew(&mine).await;
            }
            1 => {
                self.read_inbox(&mut mine).await;
            }
            2 => {
                self.claim(&mut mine, 1).await;
            }
            3 => self.close(&mine).await,
            _ => self.report_late(&mut mine).await,
        }
        self.past.push(mine);
    }

    async fn call(&mut self, method: &str, path: String, body: Option<&Value>) -> (u64, Answer<Value>) {
        let start = self.worker.actor.world.stamp();
        let body = body.map(Value::to_string);
        (start, self.worker.actor.call(method, &path, body.as_deref()).await)
    }

    fn write(&self, start: u64, queue: usize, act: Act) {
        let world = &self.worker.actor.world;
        let call = SessionCall { queue, worker: self.worker.number, act, clock: world.server_millis_max() };
        world.write(start, Event::Session(call));
    }
}

fn path_of(mine: &Membership, rest: &str) -> String {
    format!("{TENURE_API}/sessions/{}{rest}", mine.id)
}

fn read<A: DeserializeOwned, T>(answer: Answer<Value>, part: impl FnOnce(A) -> T) -> Answer<T> {
    answer.map(|body| part(serde_json::from_value(body).expect("calls about sessions answer in their form")))
}
