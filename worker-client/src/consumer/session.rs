//! The consumer's session: started, renewed by reading its inbox, given up in time when
//! unreachable, and closed at the end.
//!
//! **Unreachable**: at `ttl` less the grace after sending the last answered request, all jobs are
//! asked to stop and nothing is claimed. When the server answers again, the session continues if it
//! was not ended; otherwise a new one is started. **Ended**: all its runs are lost at once.
//!
//! A session is started with takeover, so that a restarted worker resumes under its name at once. A
//! consumer whose session was taken over ends; otherwise two processes of one name would end each
//! other forever.

use std::time::Duration;

use tenure_api::dates::Timestamp;
use tenure_api::ids::SessionId;
use tenure_api::states::{SessionEnd, WorkerCommand};
use tokio::time::Instant;
use tracing::field::display;

use super::balancer::Offer;
use super::inner::{Inner, Orders};
use super::membership::Membership;
use super::settings::{CAPACITY_MAX, LAST_REPORT, Settings};
use super::stop::{EndedRun, HowLost, StopReason};
use crate::error::chain;
use crate::{
    Client, Error, Inbox, InboxEvent, InboxItem, RenewSessionRequest, RetryPolicy, StartSessionRequest, WorkerName,
    retry,
};

/// For calls without a wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// During a shutdown, for a start in progress and the first attempt to close; leaves time for a
/// second attempt.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);
/// The grace is at most a third of the time to live.
const GRACE_SHARE: u32 = 3;
/// Timeout of the inbox beyond its wait, as a share of the time to live.
const ANSWER_SHARE: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE_TO_START: Duration = Duration::from_secs(5);

struct Begun {
    id: SessionId,
    renewed: Instant,
    ttl: Duration,
    /// State known to the server. None if the session started without capacity only because the
    /// worker is frozen.
    said: Option<Said>,
}

/// State that a worker reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Said {
    frozen: bool,
    /// Maximum number of assigned runs.
    capacity: Option<i64>,
}

impl Said {
    /// A worker that shuts down counts as frozen: runs assigned to it would wait for its jobs.
    fn now(inner: &Inner) -> Self {
        // A consumer with a source may exceed the limit of a session.
        let places = CAPACITY_MAX.min(*inner.jobs.places.borrow());
        Self { frozen: inner.orders.takes_none(), capacity: i64::try_from(places).ok() }
    }
}

enum Left {
    Ended { taken_over: bool },
    Closing,
}

/// Maintains sessions until the consumer is closing, if it has any and the server supports them.
///
/// # Errors
/// The server refused the first session, or another process took one over.
pub(super) async fn run(inner: &Inner) -> Result<(), Error> {
    let Some(ttl) = inner.settings.session else {
        inner.orders.closing.cancelled().await;
        return Ok(());
    };
    let client = inner.settings.client.with_retry_policy(RetryPolicy::never());
    let mut answered = false;
    loop {
        let begun = match begin(inner, &client, ttl, answered).await {
            Ok(Some(begun)) => begun,
            Ok(None) => return Ok(()),
            Err(error) if has_no_sessions(&error) => {
                tracing::info!(
                    error = chain(&error),
                    "the server does not support sessions: claims are kept by renewals alone"
                );
                inner.membership.send_replace(Membership::Alone);
                inner.orders.closing.cancelled().await;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        answered = true;
        let id = begun.id;
        tracing::info!(session.id = %id, "session started");
        let said = begun.said;
        let member = Member { inner, client: &client, begun, read: 0, failures: 0, said };
        let left = member.attend().await;
        inner.membership.send_replace(Membership::Waiting);
        inner.given.forget();
        match left {
            Left::Closing => {
                close(&client, id).await;
                return Ok(());
            }
            Left::Ended { taken_over } => {
                for job in inner.jobs.all() {
                    job.lose(StopReason::Lost, Some(HowLost::SessionEnded));
                }
                if taken_over {
                    return Err(name_is_taken(&inner.settings.name));
                }
            }
        }
    }
}

/// True if the server does not know the call.
fn has_no_sessions(error: &Error) -> bool {
    matches!(error.status(), Some(404 | 405))
}

/// True after a takeover. The error names the kind of end in parentheses.
fn was_taken_over(ended: &Error) -> bool {
    matches!(ended, Error::SessionEnded(message) if message.contains(&format!("({})", SessionEnd::Takeover)))
}

fn name_is_taken(WorkerName { group, id }: &WorkerName) -> Error {
    Error::SessionEnded(format!(
        "another process with the name {group}/{id} took over the session: give each process a worker id of its own"
    ))
}

/// Starts a session, retrying without limit. Each attempt takes over the session of an unanswered
/// one. None if the consumer is closing; a session of the attempt in progress is then closed.
async fn begin(inner: &Inner, client: &Client, ttl: Duration, answered: bool) -> Result<Option<Begun>, Error> {
    let Settings { queue, name, .. } = &inner.settings;
    let ttl_s = i64::try_from(ttl.as_secs()).ok();
    let mut request = StartSessionRequest { ttl: ttl_s, takeover: true, ..name.session(queue) };
    let mut failures = 0;
    loop {
        if inner.orders.closing.is_cancelled() {
            return Ok(None);
        }
        // Only a renewal can report a freeze; until then runs would be assigned.
        inner.jobs.count_places();
        let now = Said::now(inner);
        request.capacity = if now.frozen { Some(0) } else { now.capacity };
        let renewed = Instant::now();
        let mut starting = std::pin::pin!(tokio::time::timeout(ANSWER_WITHIN, client.start_session(&request)));
        let started = tokio::select! {
            started = &mut starting => started,
            () = inner.orders.closing.cancelled() => {
                // The server may start the session anyway.
                if let Ok(Ok(Ok(started))) = tokio::time::timeout(CLOSED_WITHIN, starting).await {
                    close(client, started.session_id).await;
                }
                return Ok(None);
            }
        };
        match started {
            Ok(Ok(started)) => {
                let ttl = (started.expires.time() - started.server_time.time()).to_std().unwrap_or(ttl);
                return Ok(Some(Begun { id: started.session_id, renewed, ttl, said: (!now.frozen).then_some(now) }));
            }
            Ok(Err(error)) if !answered && error.refuses_worker() => return Err(error),
            Ok(Err(error)) => {
                warning!(error = chain(&error), "no session could be started; trying again");
            }
            Err(_elapsed) => warning!("no answer to the start of a session in time; trying again"),
        }
        failures += 1;
        let pause = client.retry_policy().backoff(failures, retry::jitter()).min(LONGEST_PAUSE_TO_START);
        tokio::select! {
            () = inner.orders.closing.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Closes a session. Otherwise the next worker of this name would wait until it expires.
async fn close(client: &Client, id: SessionId) {
    match tokio::time::timeout(LAST_REPORT, close_at_last(client, id)).await {
        Ok(Ok(returned)) => tracing::info!(session.id = %id, returned, "session closed"),
        Ok(Err(error)) => warning!(session.id = display(id), error = chain(&error), "the session could not be closed"),
        Err(_elapsed) => warning!(session.id = display(id), "the session could not be closed in time"),
    }
}

/// A repeat gets the same answer.
async fn close_at_last(client: &Client, id: SessionId) -> Result<i64, Error> {
    let mut failures = 0;
    loop {
        let within = if failures == 0 { CLOSED_WITHIN } else { LAST_REPORT };
        match tokio::time::timeout(within, client.close_session(id)).await {
            Ok(Err(error)) if error.is_transient() || error.is_unclear() => {
                warning!(
                    session.id = display(id),
                    error = chain(&error),
                    "the session could not be closed; trying again"
                );
            }
            Ok(answer) => return answer,
            Err(_elapsed) => {
                warning!(session.id = display(id), "no answer to the end of a session in time; trying again");
            }
        }
        failures += 1;
        let pause = client.retry_policy().backoff(failures, retry::jitter());
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
}

/// True if the session has ended. A proxy may answer 404 without the code.
fn has_ended(error: &Error) -> bool {
    match error {
        Error::SessionEnded(_) | Error::Refused { status: 410, .. } => true,
        Error::Refused { status: 404, code, .. } => code == "ResourceNotFound",
        _ => false,
    }
}

/// How long before a session may expire all jobs are asked to stop.
fn grace_of(ttl: Duration, grace: Duration) -> Duration {
    grace.min(ttl / GRACE_SHARE)
}

/// Wait of an inbox request. Before all jobs must stop there must be time for two waits, a late
/// answer and a further request after an unanswered one, counted from the last answered request.
fn wait_of(ttl: Duration, grace: Duration) -> Duration {
    (ttl - grace_of(ttl, grace) - 2 * (ttl / ANSWER_SHARE)) / 2
}

struct Member<'a> {
    inner: &'a Inner,
    client: &'a Client,
    begun: Begun,
    /// Id of the last processed item.
    read: i64,
    failures: u32,
    /// State known to the server; none if perhaps outdated.
    said: Option<Said>,
}

impl Member<'_> {
    async fn attend(mut self) -> Left {
        let Inner { membership, orders, jobs, .. } = self.inner;
        let Orders { shutdown, closing, .. } = orders;
        let (mut frozen, mut places) = (orders.frozen.subscribe(), jobs.places.subscribe());
        membership.send_replace(Membership::Live(self.begun.id));
        loop {
            let is_live = *membership.borrow() != Membership::Waiting;
            let shuts_down = shutdown.is_cancelled();
            frozen.mark_unchanged();
            places.mark_unchanged();
            let now = Said::now(self.inner);
            if self.said != Some(now) {
                // Reported until there is an answer: an unanswered renewal may have been stored.
                self.said = None;
            }
            let asked = Instant::now();
            let answer = tokio::select! {
                biased;
                () = closing.cancelled() => return Left::Closing,
                answer = self.ask(now) => answer,
                // The inbox repeats its items. A second inbox request need not renew the session,
                // although its answer would count as a renewal, so the next request is a renewal.
                Ok(()) = frozen.changed() => {
                    self.said = None;
                    continue;
                }
                () = shutdown.cancelled(), if !shuts_down => {
                    self.said = None;
                    continue;
                }
                // Await the answer to the report in progress: many jobs may end in a row.
                Ok(()) = places.changed(), if self.said.is_some() => {
                    self.said = None;
                    continue;
                }
                () = tokio::time::sleep_until(self.stop_at()), if is_live => {
                    self.give_up();
                    continue;
                }
            };
            match answer {
                Ok((server_time, items)) => {
                    (self.begun.renewed, self.failures) = (asked, 0);
                    self.said = Some(now);
                    if !is_live {
                        tracing::info!(session.id = %self.begun.id, "the session goes on");
                        membership.send_replace(Membership::Live(self.begun.id));
                    }
                    items.into_iter().for_each(|item| self.receive(item, server_time));
                }
                Err(Some(error)) if has_ended(&error) => {
                    warning!(session.id = display(self.begun.id), error = chain(&error), "the session has ended");
                    return Left::Ended { taken_over: was_taken_over(&error) };
                }
                Err(error) => {
                    self.failures += 1;
                    let error = error.as_ref().map_or_else(|| "no answer in time".to_owned(), |error| chain(error));
                    warning!(failures = self.failures, error = error, "the session could not be renewed; trying again");
                }
            }
        }
    }

    /// When all jobs are asked to stop without an answer.
    fn stop_at(&self) -> Instant {
        let Begun { renewed, ttl, .. } = self.begun;
        renewed + ttl - grace_of(ttl, self.inner.settings.grace)
    }

    /// Renews the session once, after a backoff if the last attempt failed. Returns the server's
    /// time and items; no error means a timeout.
    async fn ask(&self, now: Said) -> Result<(Timestamp, Vec<InboxItem>), Option<Error>> {
        let Begun { id, ttl, .. } = self.begun;
        let (mut wait, answer_within) = (wait_of(ttl, self.inner.settings.grace), ttl / ANSWER_SHARE);
        if self.failures > 0 {
            let pause = self.client.retry_policy().backoff(self.failures, retry::jitter());
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            wait = Duration::ZERO;
        }
        let asked = async {
            if self.said == Some(now) {
                let inbox = self.client.inbox(id, self.read, wait).await;
                return inbox.map(|Inbox { server_time, items, .. }| (server_time, items));
            }
            // The session may have started without capacity.
            let Said { frozen, capacity } = now;
            let change = RenewSessionRequest { frozen: Some(frozen), capacity, ..RenewSessionRequest::default() };
            self.client.renew_session(id, &change).await.map(|renewed| (renewed.server_time, Vec::new()))
        };
        match tokio::time::timeout(wait + answer_within, asked).await {
            Ok(answer) => answer.map_err(Some),
            Err(_elapsed) => Err(None),
        }
    }

    /// Jobs must stop before another worker may start their runs.
    fn give_up(&self) {
        warning!(session.id = display(self.begun.id), "the session cannot be reached: all jobs stop");
        self.inner.membership.send_replace(Membership::Waiting);
        let ends = self.begun.renewed + self.begun.ttl;
        for job in self.inner.jobs.all() {
            job.stop_renewing(ends, HowLost::SessionUnanswered);
        }
    }

    /// Processes each item once. `server_time` is the time of the answer.
    fn receive(&mut self, InboxItem { id, what }: InboxItem, server_time: Timestamp) {
        if id <= self.read {
            return;
        }
        self.read = id;
        match what {
            Some(InboxEvent::RunEnded { task_id, run_id, state, reason_resolved, ended_by, result_counts }) => {
                let ended = EndedRun { task_id, run_id, state, reason_resolved, ended_by };
                let Inner { jobs, settings, .. } = self.inner;
                if result_counts && settings.keep_late { jobs.keep_late(ended) } else { jobs.end(ended) }
            }
            Some(InboxEvent::Command { command, task_id }) => {
                tracing::info!(?command, task.id = task_id.map(display), "command received");
                match (command, task_id) {
                    (WorkerCommand::Freeze, _) => self.inner.orders.freeze(true),
                    (WorkerCommand::Unfreeze, _) => self.inner.orders.freeze(false),
                    (WorkerCommand::Shutdown, _) => self.inner.orders.shutdown.cancel(),
                    (WorkerCommand::StopTask, Some(task_id)) => {
                        if !self.inner.jobs.stop_task(task_id) {
                            tracing::info!(task.id = %task_id, "the command names no running job");
                        }
                    }
                    (WorkerCommand::StopTask, None) => warning!("a command to stop a task names no task"),
                    (WorkerCommand::Balance, _) => self.inner.orders.balance.notify_one(),
                }
            }
            // The job reads the command itself, perhaps a second time.
            Some(InboxEvent::TaskCommand { task_id, run_id, command, .. }) => {
                tracing::info!(%command, task.id = %task_id, run.id = run_id.number(), "command for a task received");
                if let Some(job) = self.inner.jobs.find(task_id, run_id) {
                    job.commanded.send_modify(|times| *times += 1);
                }
            }
            Some(InboxEvent::Assigned { task_id, run_id, accept_by, .. }) => {
                let left = accept_by.map(|by| (by.time() - server_time.time()).to_std().unwrap_or_default());
                let until = left.map(|left| Instant::now() + left);
                self.inner.given.assign(Offer { task_id, run_id }, until);
            }
            None => warning!(item.id = id, "an inbox item has a kind unknown to this version"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_inbox_answer_leaves_time_for_another_request() {
        let second = Duration::from_secs(1);
        for ttl in [15, 20, 60, 90, 120, 3_600].map(Duration::from_secs) {
            for grace in [Duration::ZERO, second, 30 * second, Duration::MAX] {
                let (wait, answer) = (wait_of(ttl, grace), ttl / ANSWER_SHARE);
                let asked_again = wait + (wait + answer);
                assert!(asked_again + answer <= ttl - grace_of(ttl, grace), "{ttl:?} {grace:?}");
                // The limit of a server.
                assert!(wait >= ttl / 6 && wait.as_secs() <= (ttl / 3).as_secs(), "{ttl:?} {grace:?}: {wait:?}");
            }
        }
    }

    #[test]
    fn only_takeover_gives_name_away() {
        let ended = |by: SessionEnd| Error::SessionEnded(format!("the session has ended ({by}): start another one"));
        for by in [SessionEnd::Expired, SessionEnd::Closed, SessionEnd::WorkerRemoved] {
            assert!(!was_taken_over(&ended(by)), "{by}");
        }
        assert!(was_taken_over(&ended(SessionEnd::Takeover)));
    }

    #[test]
    fn only_unknown_call_means_no_sessions() {
        let refused =
            |status| Error::Refused { status, code: String::new(), message: String::new(), retry_after: None };
        assert_eq!(
            [404, 405, 400, 403, 503].map(|status| has_no_sessions(&refused(status))),
            [true, true, false, false, false]
        );
    }
}
