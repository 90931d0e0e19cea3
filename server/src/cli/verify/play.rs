//! Plays a case: the first worker exits, accepts nothing or is slow, or its scheduler is replaced;
//! a second worker requests work all the time.

use std::cell::Cell;
use std::time::Duration;

use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId};
use tenure_api::states::TaskState;
use tenure_domain::policy::cells::{By, Situation};
use tokio::time::{Instant, sleep, timeout};

use super::calls::{Calls, OK};
use super::judge::{FIRST, LATE_MAX, SECOND};
use super::observations::{Assigned, Began, Claimed, Observations, Replaced};
use super::part::Part;
use super::stage::Stage;
use crate::cli::http::CommandError;

/// Longer than the lease and the completeTime.
const SLOW_FOR: Duration = Duration::from_secs(15);
/// Well within the lease.
const RENEW_EVERY: Duration = Duration::from_secs(2);
const CLAIM_WITHIN: Duration = Duration::from_secs(10);
/// Delay after the claim. It shows at which of both events the completeTime starts.
const REPLACE_AFTER: Duration = Duration::from_secs(1);
/// Added to the latest allowed end of a run.
const MARGIN: Duration = Duration::from_secs(2);
/// How long the second worker requests work after the task's end.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// Pause after an empty answer.
const PAUSE: Duration = Duration::from_millis(100);
/// Wait of one request for the task's end or an inbox item.
const WAIT_S: u32 = 5;
/// The first worker is assigned runs before the second.
const WEIGHT_FIRST: i64 = 2;
const WEIGHT_SECOND: i64 = 1;

/// The caller adds the observations from the event log.
pub async fn play(stage: &Stage, calls: &Calls<'_>) -> Result<Observations, CommandError> {
    let scene = Scene { stage, calls };
    let opening = if stage.part.assigns() { scene.open_by_assigning().await? } else { scene.open_by_claim().await? };
    let watched = if opening.has_begun() { scene.watch(&opening).await? } else { Watched::default() };
    scene.end(opening, watched).await
}

/// Until the successor must have come, or while the worker is slow.
fn watch_for(part: &Part) -> Duration {
    let latest = part.end().and_then(|(after, _)| (after + LATE_MAX).to_std().ok());
    latest.map_or(SLOW_FOR, |latest| latest + MARGIN)
}

#[derive(Default)]
struct Opening {
    session: Option<Began>,
    assigned: Option<Assigned>,
    first: Option<Claimed>,
    replaced: Option<Replaced>,
}

impl Opening {
    fn has_begun(&self) -> bool {
        self.assigned.is_some() || self.first.is_some()
    }
}

#[derive(Default)]
struct Watched {
    second: Option<Claimed>,
    ended: Option<Duration>,
    lasted: Duration,
    silence: Duration,
    last_word: Option<Instant>,
}

struct Scene<'a> {
    stage: &'a Stage,
    calls: &'a Calls<'a>,
}

/// When the server last heard of the first worker.
struct Renewals {
    last_sent: Cell<Instant>,
    silence: Cell<Duration>,
}

impl Renewals {
    /// The server had received the request sent at `sent` by now at the latest.
    fn answered(&self, sent: Instant) {
        self.silence.set(self.silence.get().max(self.last_sent.get().elapsed()));
        self.last_sent.set(sent);
    }
}

impl Scene<'_> {
    fn elapsed(&self) -> Duration {
        self.stage.start.elapsed()
    }

    async fn begin_first(&self, weight: i64) -> Result<(SessionId, Began), CommandError> {
        let (sent, ttl) = (self.elapsed(), self.stage.part.ttl().num_seconds());
        let started = self.calls.start_session(&self.stage.queue, FIRST, ttl, weight).await?;
        self.stage.first_session.set(Some(started.session_id));
        Ok((started.session_id, Began { expires: started.expires, sent }))
    }

    async fn begin_second(&self) -> Result<(), CommandError> {
        let ttl = self.stage.part.ttl().num_seconds();
        let started = self.calls.start_session(&self.stage.queue, SECOND, ttl, WEIGHT_SECOND).await?;
        self.stage.second_session.set(Some(started.session_id));
        Ok(())
    }

    async fn open_by_claim(&self) -> Result<Opening, CommandError> {
        let session = match self.stage.part.by {
            By::Session => Some(self.begin_first(WEIGHT_FIRST).await?),
            By::Lease | By::AcceptTime | By::Scheduler | By::SchedulerUnaccepted => None,
        };
        let claim = self.next_claim(FIRST, session.map(|(session, _)| session));
        let first = timeout(CLAIM_WITHIN, claim).await.ok().transpose()?;
        Ok(Opening { session: session.map(|(_, began)| began), first, ..Opening::default() })
    }

    /// The first worker is assigned the task, and accepts it or not. Then the scheduler is
    /// replaced, in cases with a replacement.
    async fn open_by_assigning(&self) -> Result<Opening, CommandError> {
        let part = &self.stage.part;
        let (session, began) = self.begin_first(WEIGHT_FIRST).await?;
        self.begin_second().await?;
        let sent = self.elapsed();
        let mut opening = Opening { session: Some(began), ..Opening::default() };
        // Reads the inbox before the task exists: a later request may miss the acceptTime.
        let given = async {
            if part.is_claimed() {
                opening.first = Some(self.next_accepted(FIRST, session).await?);
            } else {
                let (_, accept_by) = self.next_assigned(session).await?;
                opening.assigned = Some(Assigned { accept_by, sent });
            }
            Ok(())
        };
        let (created, given) = tokio::join!(self.stage.create_task(self.calls), timeout(CLAIM_WITHIN, given));
        created?;
        given.unwrap_or(Ok(()))?;
        if part.is_replaced() && opening.has_begun() {
            opening.replaced = Some(self.replace_scheduler(session).await?);
        }
        Ok(opening)
    }

    /// Replaces the scheduler. The first worker accepts no more, so that the second gets its lost
    /// runs.
    async fn replace_scheduler(&self, first: SessionId) -> Result<Replaced, CommandError> {
        self.calls.take_no_more(first).await?;
        sleep(REPLACE_AFTER).await;
        let sent = self.elapsed();
        let since = self.calls.replace_scheduler(&self.stage.queue).await?;
        Ok(Replaced { since, sent, received: self.elapsed() })
    }

    async fn next_claim(&self, worker: &str, session: Option<SessionId>) -> Result<Claimed, CommandError> {
        loop {
            let sent = self.elapsed();
            if let Some((run, taken_until)) = self.calls.claim(&self.stage.queue, worker, session).await? {
                return Ok(Claimed { run, taken_until, sent, received: self.elapsed() });
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits for an assignment. Returns the run and its acceptance deadline.
    async fn next_assigned(&self, session: SessionId) -> Result<(RunId, Option<Timestamp>), CommandError> {
        let wait = Duration::from_secs(WAIT_S.into());
        loop {
            if let Some(assigned) = self.calls.assigned(session, self.stage.task, wait).await? {
                return Ok(assigned);
            }
            sleep(PAUSE).await;
        }
    }

    /// Accepts an assigned run, unless it is withdrawn before.
    async fn next_accepted(&self, worker: &str, session: SessionId) -> Result<Claimed, CommandError> {
        loop {
            let (run, _) = self.next_assigned(session).await?;
            let sent = self.elapsed();
            if let Ok(taken_until) = self.calls.accept(self.stage.task, run, worker, session).await? {
                return Ok(Claimed { run, taken_until, sent, received: self.elapsed() });
            }
            sleep(PAUSE).await;
        }
    }

    async fn second_claim(&self) -> Result<Claimed, CommandError> {
        match self.stage.second_session.get() {
            Some(session) => self.next_accepted(SECOND, session).await,
            None => self.next_claim(SECOND, None).await,
        }
    }

    async fn end_of_task(&self) -> Result<Duration, CommandError> {
        while !self.calls.is_resolved(self.stage.task, WAIT_S).await? {
            sleep(PAUSE).await;
        }
        Ok(self.elapsed())
    }

    /// Acts as the first worker; returns only on an error.
    async fn hold(&self, renewals: &Renewals) -> CommandError {
        match self.stage.part.cell.situation {
            // Where a scheduler is replaced, lease and session outlast the case.
            Situation::Exit | Situation::NotAccepted | Situation::SchedulerReplaced => std::future::pending().await,
            Situation::Slow => self.renew(RunId::FIRST, renewals).await,
        }
    }

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

    async fn watch(&self, opening: &Opening) -> Result<Watched, CommandError> {
        let began = Instant::now();
        let sent = opening.first.map_or(began, |first| self.stage.start + first.sent);
        let renewals = Renewals { last_sent: Cell::new(sent), silence: Cell::default() };
        let second = self.second_claim();
        tokio::pin!(second);
        let mut watched = Watched::default();
        tokio::select! {
            claim = &mut second => watched.second = Some(claim?),
            ended = self.end_of_task() => {
                watched.ended = Some(ended?);
                watched.second = timeout(AFTERWARDS, second).await.ok().transpose()?;
            }
            error = self.hold(&renewals) => return Err(error),
            () = sleep(watch_for(&self.stage.part)) => {}
        }
        watched.lasted = began.elapsed();
        watched.silence = renewals.silence.get();
        watched.last_word = Some(renewals.last_sent.get());
        Ok(watched)
    }

    /// Sends the first worker's late acceptance or report. Returns the response status.
    async fn late_word(&self, opening: &Opening) -> Result<Option<u16>, CommandError> {
        let (calls, task) = (self.calls, self.stage.task);
        if !opening.has_begun() {
            return Ok(None);
        }
        if let (Some(_), Some(session)) = (opening.assigned, self.stage.first_session.get())
            && let Err(refused) = calls.accept(task, RunId::FIRST, FIRST, session).await?
        {
            return Ok(Some(refused));
        }
        calls.complete(task, opening.first.map_or(RunId::FIRST, |first| first.run)).await.map(Some)
    }

    async fn end(&self, opening: Opening, watched: Watched) -> Result<Observations, CommandError> {
        let Watched { second, ended, lasted, mut silence, last_word } = watched;
        let (calls, task) = (self.calls, self.stage.task);
        let first_report = self.late_word(&opening).await?;
        if let Some(last_word) = last_word {
            silence = silence.max(last_word.elapsed());
        }
        let second_report = match second {
            Some(second) => Some(calls.complete(task, second.run).await?),
            None => None,
        };
        let status = calls.status(task).await?;
        let ended_by = if status.state == TaskState::Exception { calls.ended_by(task).await? } else { None };
        let Opening { session, assigned, first, replaced } = opening;
        Ok(Observations {
            session,
            assigned,
            first,
            replaced,
            second,
            ended,
            watched: lasted,
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
