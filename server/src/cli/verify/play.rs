//! Plays a cell: a worker that exits or is slow, and another one that asks for work all the while.

use std::cell::Cell as Shared;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId, TaskQueueId};
use tenure_api::states::TaskState;
use tenure_domain::policy::cells::{NoticedBy, Situation};
use tokio::time::{Instant, sleep, timeout};

use super::calls::{Calls, OK};
use super::judge::{FIRST, LATE_MAX, SECOND};
use super::part::{COMPLETE_TIME, Part, TTL};
use super::seen::{Began, Claimed, Seen};
use crate::cli::http::CommandError;

/// The first half of the names of all queues that are played.
pub const PROVISIONER: &str = "tenure-verify";
/// How long a worker that is to be waited for is slow: longer than the lease and than the completeTime.
const SLOW_FOR: Duration = Duration::from_secs(15);
/// How often it renews, well within the lease.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How long the first worker asks for its task, which is pending.
const CLAIM_WITHIN: Duration = Duration::from_secs(10);
/// How much longer than the latest time for it the end of a run is waited for.
const MARGIN: Duration = Duration::from_secs(2);
/// How long the second worker goes on asking once the task has ended.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// Between two requests that were answered at once with nothing.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one request waits for the end of the task.
const WAIT_S: u32 = 5;
/// The task's deadline and expiry: nothing is left of it for long, even if this program is killed.
const DEADLINE: TimeDelta = TimeDelta::minutes(10);
const EXPIRES: TimeDelta = TimeDelta::hours(1);

/// A queue with one task, in which a cell is played.
pub struct Stage {
    /// What is played.
    pub part: Part,
    /// Its queue.
    pub queue: TaskQueueId,
    /// Its task.
    pub task: TaskId,
    retries: Shared<u16>,
    session: Shared<Option<SessionId>>,
    is_set_up: Shared<bool>,
}

impl Stage {
    /// One of a name that nothing else has.
    #[must_use]
    pub fn new(part: Part) -> Self {
        let name = format!("{PROVISIONER}/v{}", uuid::Uuid::new_v4().simple());
        let queue = name.parse().expect("a letter and 32 digits are a worker type");
        let task = TaskId::from_random(uuid::Uuid::new_v4().into_bytes());
        Self { part, queue, task, retries: Shared::default(), session: Shared::default(), is_set_up: Shared::default() }
    }

    /// Sets the policy and creates the task.
    pub async fn set_up(&self, calls: &Calls<'_>, now: Timestamp) -> Result<(), CommandError> {
        self.is_set_up.set(true);
        calls.set_policy(&self.queue, &policy(&self.part)).await?;
        let task = json!({
            "taskId": self.task,
            "taskQueueId": self.queue,
            "deadline": Timestamp::new(now.time() + DEADLINE),
            "expires": Timestamp::new(now.time() + EXPIRES),
            "metadata": {"name": self.part.name(), "description": "Made by `tenure verify delivery`, which cancels it."},
        });
        self.retries.set(calls.create(&task).await?.retries_left);
        Ok(())
    }

    /// Ends the session, cancels the task, if it is not resolved, and deletes the policy.
    pub async fn clean_up(&self, calls: &Calls<'_>) -> Result<(), CommandError> {
        if !self.is_set_up.get() {
            return Ok(());
        }
        let cancelled = calls.cancel(self.task).await;
        let closed = match self.session.get() {
            Some(session) => calls.close_session(session).await,
            None => Ok(()),
        };
        calls.delete_policy(&self.queue).await.and(cancelled).and(closed)
    }

    /// Plays the cell. What the event log has is not looked for.
    pub async fn play(&self, calls: &Calls<'_>) -> Result<Seen, CommandError> {
        let scene = Scene { stage: self, calls, start: Instant::now() };
        let session = match self.part.by {
            NoticedBy::Lease => None,
            NoticedBy::Session => Some(scene.begin_session().await?),
        };
        let first = timeout(CLAIM_WITHIN, scene.next_claim(FIRST, self.session.get())).await.ok().transpose()?;
        let watched = match first {
            Some(first) => scene.watch(first).await?,
            None => Watched::default(),
        };
        scene.end(session, first, watched).await
    }
}

fn policy(part: &Part) -> Value {
    let complete_time = if part.cell.has_complete_time { COMPLETE_TIME } else { TimeDelta::zero() };
    json!({
        "delivery": part.cell.delivery,
        "completeTime": complete_time.num_seconds(),
        "claimTimeout": part.lease().num_seconds(),
    })
}

/// For how long a run is watched: until what is to follow must have, or as long as its worker is slow.
fn watch_for(part: &Part) -> Duration {
    let latest = part.end().and_then(|(after, _)| (after + LATE_MAX).to_std().ok());
    latest.map_or(SLOW_FOR, |latest| latest + MARGIN)
}

#[derive(Default)]
struct Watched {
    second: Option<Claimed>,
    ended: Option<Duration>,
    silence: Duration,
    last_word: Option<Instant>,
}

/// A cell that is played.
struct Scene<'a> {
    stage: &'a Stage,
    calls: &'a Calls<'a>,
    start: Instant,
}

/// When the server last heard of the first worker.
struct Renewals {
    last_sent: Shared<Instant>,
    silence: Shared<Duration>,
}

impl Renewals {
    /// A word of the worker that was sent then has been answered: the server had it at the latest now.
    fn answered(&self, sent: Instant) {
        self.silence.set(self.silence.get().max(self.last_sent.get().elapsed()));
        self.last_sent.set(sent);
    }
}

impl Scene<'_> {
    /// Starts a session for the first worker.
    async fn begin_session(&self) -> Result<Began, CommandError> {
        let sent = self.start.elapsed();
        let started = self.calls.start_session(&self.stage.queue, FIRST, TTL.num_seconds()).await?;
        self.stage.session.set(Some(started.session_id));
        Ok(Began { expires: started.expires, sent })
    }

    /// Asks for work until there is some.
    async fn next_claim(&self, worker: &str, session: Option<SessionId>) -> Result<Claimed, CommandError> {
        loop {
            let sent = self.start.elapsed();
            if let Some((run, taken_until)) = self.calls.claim(&self.stage.queue, worker, session).await? {
                return Ok(Claimed { run, taken_until, sent, received: self.start.elapsed() });
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until the task is resolved.
    async fn end_of_task(&self) -> Result<Duration, CommandError> {
        while !self.calls.is_resolved(self.stage.task, WAIT_S).await? {
            sleep(PAUSE).await;
        }
        Ok(self.start.elapsed())
    }

    /// Does what the first worker does until its run has ended; never ends itself but by an error.
    async fn hold(&self, run: RunId, renewals: &Renewals) -> CommandError {
        match self.stage.part.cell.situation {
            Situation::Exit => std::future::pending().await,
            Situation::Slow => self.renew(run, renewals).await,
        }
    }

    /// Renews a claim as long as it can be.
    async fn renew(&self, run: RunId, renewals: &Renewals) -> CommandError {
        loop {
            sleep(RENEW_EVERY).await;
            let sent = Instant::now();
            let status = match self.calls.reclaim(self.stage.task, run).await {
                Ok(status) => status,
                Err(error) => return error,
            };
            renewals.answered(sent);
            if status != OK {
                return std::future::pending().await;
            }
        }
    }

    /// What follows the first claim.
    async fn watch(&self, first: Claimed) -> Result<Watched, CommandError> {
        let sent = self.start + first.sent;
        let renewals = Renewals { last_sent: Shared::new(sent), silence: Shared::default() };
        let second = self.next_claim(SECOND, None);
        tokio::pin!(second);
        let mut watched = Watched::default();
        tokio::select! {
            claim = &mut second => watched.second = Some(claim?),
            ended = self.end_of_task() => {
                watched.ended = Some(ended?);
                watched.second = timeout(AFTERWARDS, second).await.ok().transpose()?;
            }
            error = self.hold(first.run, &renewals) => return Err(error),
            () = sleep(watch_for(&self.stage.part)) => {}
        }
        watched.silence = renewals.silence.get();
        watched.last_word = Some(renewals.last_sent.get());
        Ok(watched)
    }

    /// Both workers report, and the task is looked at.
    async fn end(
        &self,
        session: Option<Began>,
        first: Option<Claimed>,
        watched: Watched,
    ) -> Result<Seen, CommandError> {
        let Watched { second, ended, mut silence, last_word } = watched;
        let (calls, task) = (self.calls, self.stage.task);
        let watched = first.map_or(Duration::ZERO, |first| self.start.elapsed().saturating_sub(first.received));
        let (mut first_report, mut second_report) = (None, None);
        if let Some(first) = first {
            first_report = Some(calls.complete(task, first.run).await?);
        }
        if let Some(last_word) = last_word {
            silence = silence.max(last_word.elapsed());
        }
        if let Some(second) = second {
            second_report = Some(calls.complete(task, second.run).await?);
        }
        let status = calls.status(task).await?;
        let ended_by = if status.state == TaskState::Exception { calls.ended_by(task).await? } else { None };
        Ok(Seen {
            session,
            first,
            second,
            ended,
            watched,
            silence,
            first_report,
            second_report,
            retries: self.stage.retries.get(),
            status,
            ended_by,
            resolutions: Vec::new(),
        })
    }
}
