//! Explains why a task is in its state, in codes and in words, from one snapshot of facts.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId};
use tenure_api::policy::Failure;
use tenure_api::states::{DelayedBy, EndedBy, NoSession, PartitionState, Requires, RunState, TaskState};
use tenure_api::why::{AwaitedTask, LiveLogSoFar, Reason, SlotHolder, WhyAnswer, WorkerName};

use super::ending::Allowance;
use super::hold::Delayed;
use super::pause::Paused;
use crate::lifecycle::Outcome;
use crate::verdict::{failure_line, span};

pub const AWAITED_SHOWN_MAX: usize = 100;
pub const BEFORE_COUNTED_MAX: u32 = 10_000;
/// Maximum workers named as able to claim a run.
pub const WORKERS_SHOWN_MAX: usize = 10;
/// Maximum runs named as holders of slots.
pub const HOLDERS_SHOWN_MAX: usize = 10;
const NEXT_DECISION: &str = "It waits for the next admission decision of its queue.";
/// How long a request for work counts as recent.
pub const ASKED_WITHIN: TimeDelta = TimeDelta::seconds(60);

#[derive(Debug, Clone)]
pub struct Facts {
    pub task: TaskId,
    pub state: StateFacts,
    pub paused: Option<Paused>,
    /// Of a pending run in a queue that a partition group divides.
    pub share: Option<ShareFacts>,
    pub now: DateTime<Utc>,
}

#[derive(Debug, Clone)]
pub struct ShareFacts {
    pub slot: u32,
    /// None while the group has no map.
    pub index: Option<u16>,
    /// Who has the share.
    pub member: Option<String>,
    pub state: PartitionState,
}

/// A task's state, with the facts that explain it.
#[derive(Debug, Clone)]
pub enum StateFacts {
    Unscheduled {
        unsatisfied: u32,
        /// Those to show; dependencies that can never be satisfied come first.
        awaited: Vec<AwaitedTask>,
        requires: Requires,
        /// Its unique name, if it waits for the tasks that have it.
        name: Option<String>,
    },
    Pending {
        run: RunId,
        held: Held,
        /// Until when a poller has reserved its message; none if held.
        reserved_until: Option<DateTime<Utc>>,
        /// Ready runs claimed first, counted up to [`BEFORE_COUNTED_MAX`].
        before: u32,
        workers: Workers,
    },
    Running {
        run: RunId,
        worker: WorkerName,
        since: DateTime<Utc>,
        /// The end of the claim, unless renewed.
        taken_until: DateTime<Utc>,
        /// The end of the completeTime.
        complete_by: Option<DateTime<Utc>>,
        session: Option<SessionId>,
        live_log: Option<LiveLogSoFar>,
    },
    Resolved {
        run: RunId,
        outcome: Outcome,
        ended_by: Option<EndedBy>,
        /// None if it was not claimed.
        claim: Option<EndedClaim>,
        left: Allowance,
    },
}

#[derive(Debug, Clone)]
pub struct EndedClaim {
    pub worker: WorkerName,
    pub started: DateTime<Utc>,
    pub resolved: DateTime<Utc>,
}

#[derive(Debug, Clone)]
pub enum Held {
    Ready,
    Delayed(Delayed),
    Waiting(Box<Waiting>),
    Assigned(Assigned),
}

impl Held {
    /// True if the next worker to request work gets this run or an earlier one.
    fn may_start(&self) -> bool {
        match self {
            Self::Ready => true,
            Self::Waiting(waiting) => waiting.may_start(),
            Self::Delayed(_) | Self::Assigned(_) => false,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Waiting {
    pub key: Option<String>,
    /// Limit and number of the key's ready, assigned and claimed runs.
    pub slots: Option<(u32, u32)>,
    /// Limit and number of the queue's ready, assigned and claimed runs.
    pub total: Option<(u32, u32)>,
    /// Holders of slots, if all of the key or the queue are taken.
    pub holders: Vec<SlotHolder>,
    /// When the rates allow the next start; none if now.
    pub next_start: Option<DateTime<Utc>>,
    /// The preferred worker, with the end of the wait.
    pub preferred: Option<(WorkerName, DateTime<Utc>)>,
    /// Earlier runs of its key, counted up to [`BEFORE_COUNTED_MAX`].
    pub before: u32,
    /// Other keys served first, counted up to [`BEFORE_COUNTED_MAX`].
    pub keys_before: u32,
    /// True during a refiling.
    pub refiling: bool,
    /// Number of candidates, in an assign queue without a live scheduler.
    pub no_scheduler: Option<u32>,
    pub sessions: Option<Sessions>,
    pub not_accepted: Option<(WorkerName, SessionId)>,
    /// True if the queue's messages were ever requested.
    pub polled: bool,
}

impl Waiting {
    /// True if it starts next and its limits allow that now.
    fn may_start(&self) -> bool {
        let is_full = [self.slots, self.total].iter().flatten().any(|(limit, used)| used >= limit);
        let is_first = self.before == 0 && self.keys_before == 0;
        let is_pulled = self.sessions.is_none() && self.no_scheduler.is_none() && self.preferred.is_none();
        is_pulled && !self.refiling && !is_full && self.next_start.is_none() && is_first
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Sessions {
    /// Counted up to [`BEFORE_COUNTED_MAX`].
    pub live: u32,
    /// Not renewed since an outage of the servers.
    pub extended: u32,
    pub is_free: bool,
    /// True if a worker without a session requested work within [`ASKED_WITHIN`].
    pub asked_without: bool,
}

impl Sessions {
    /// Returns why no session can take a run.
    fn none(&self) -> Option<NoSession> {
        match *self {
            Self { is_free: true, .. } => None,
            Self { live: 0, .. } => Some(NoSession::NoneLive),
            Self { live, extended, .. } if extended >= live => Some(NoSession::AllExtended),
            Self { .. } => Some(NoSession::NoneFree),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Assigned {
    pub to: Option<(WorkerName, SessionId)>,
    pub since: Option<DateTime<Utc>>,
    /// When the run goes to another session.
    pub accept_by: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, Default)]
pub struct Workers {
    /// The last request of any worker, eligible or not.
    pub last_asked: Option<DateTime<Utc>>,
    /// Eligible workers with a request within [`ASKED_WITHIN`].
    pub asking: Vec<WorkerName>,
    /// Quarantined workers with a request within that time.
    pub quarantined: u32,
    /// Others with a request within that time, frozen by their sessions' reports.
    pub frozen: u32,
    /// True if more workers are known than were read. A recent request is then attributed to an
    /// unread worker.
    pub more: bool,
}

impl ShareFacts {
    fn reason(&self, names: Names) -> Reason {
        let Self { slot, index, ref member, state } = *self;
        Reason::Partition { slot, index, member: member.clone().filter(|_| names == Names::Shown), state }
    }
}

impl Facts {
    /// True if no known worker has requested the run, so a new request makes a difference.
    pub fn lacks_workers(&self) -> bool {
        matches!(&self.state, StateFacts::Pending { workers, .. } if workers.none().is_some())
    }
}

impl Workers {
    /// Returns a reason if certainly no eligible worker requests work.
    fn none(&self) -> Option<Reason> {
        let Self { last_asked, ref asking, quarantined, frozen, more } = *self;
        let last_asked = last_asked.map(Timestamp::new);
        (asking.is_empty() && !more).then_some(Reason::NoWorker { last_asked, quarantined, frozen })
    }
}

/// Access of the caller, by scope, to other tasks and workers, and to author and reason of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    Shown,
    Hidden,
}

/// The first reason is the first that must change for the task to run.
pub fn why(facts: &Facts, names: Names) -> WhyAnswer {
    let paused = facts.paused.as_ref().map(|paused| Reason::Paused {
        by: (names == Names::Shown).then(|| paused.by.clone()),
        since: paused.since.into(),
        reason: paused.reason.clone().filter(|_| names == Names::Shown),
        until: paused.until.map(Timestamp::new),
    });
    let answer = |state, run_id, reasons| WhyAnswer {
        task_id: facts.task,
        state,
        run_id,
        ready: false,
        reasons,
        position: None,
        claimable_by: None,
    };
    match &facts.state {
        StateFacts::Unscheduled { unsatisfied, awaited, requires, name } => {
            let name = name.clone().filter(|_| names == Names::Shown);
            let waits = dependencies(facts.task, *unsatisfied, awaited, *requires, names, name);
            answer(TaskState::Unscheduled, None, [Some(waits), paused].into_iter().flatten().collect())
        }
        StateFacts::Pending { run, held, reserved_until, before, workers } => {
            let ready = held.may_start();
            let is_paused = paused.is_some();
            let (hold, sessions) = holding(held, is_paused, names);
            let by_sessions = match held {
                Held::Ready | Held::Delayed(_) => false,
                Held::Waiting(waiting) => waiting.sessions.is_some(),
                Held::Assigned(_) => true,
            };
            let reserved_until = reserved_until.filter(|until| matches!(held, Held::Ready) && *until > facts.now);
            let reserved = reserved_until.map(|until| Reason::Reserved { until: until.into() });
            let no_worker = workers.none().filter(|_| !by_sessions);
            let no_session = sessions.iter().any(|reason| matches!(reason, Reason::NoSession { .. }));
            let is_polled = matches!(held, Held::Waiting(waiting) if waiting.polled);
            let poll_limited = (is_polled && (no_worker.is_some() || no_session)).then_some(Reason::PollLimited);
            let behind = (ready && *before > 0).then_some(Reason::Behind { runs: *before });
            let reasons = [hold, paused].into_iter().flatten().chain(sessions);
            let share = facts.share.as_ref().filter(|_| ready).map(|share| share.reason(names));
            let others = [reserved, no_worker, poll_limited, behind, share];
            let reasons = reasons.chain(others.into_iter().flatten()).collect();
            WhyAnswer {
                ready,
                position: ready.then_some(before.saturating_add(1)),
                claimable_by: (names == Names::Shown && ready && !is_paused)
                    .then(|| workers.asking.iter().take(WORKERS_SHOWN_MAX).cloned().collect()),
                ..answer(TaskState::Pending, Some(*run), reasons)
            }
        }
        StateFacts::Running { run, worker, since, taken_until, complete_by, session, live_log } => {
            let worker = (names == Names::Shown).then_some(worker);
            let running = Reason::Running {
                worker_group: worker.map(|worker| worker.worker_group.clone()),
                worker_id: worker.map(|worker| worker.worker_id.clone()),
                since: (*since).into(),
                taken_until: (*taken_until).into(),
                complete_by: complete_by.map(Timestamp::new),
                session_id: session.filter(|_| names == Names::Shown),
                live_log: *live_log,
            };
            answer(TaskState::Running, Some(*run), vec![running])
        }
        StateFacts::Resolved { run, outcome, ended_by, claim, left } => {
            let ended = ended(*outcome, *ended_by, claim.as_ref(), left, names);
            answer(outcome.state().into(), Some(*run), vec![ended])
        }
    }
}

fn ended(
    outcome: Outcome,
    ended_by: Option<EndedBy>,
    claim: Option<&EndedClaim>,
    left: &Allowance,
    names: Names,
) -> Reason {
    let worker = claim.map(|claim| &claim.worker).filter(|_| names == Names::Shown);
    Reason::Resolved {
        outcome: outcome.state(),
        reason_resolved: outcome.reason(),
        ended_by,
        losses: left.losses,
        free_runs_left: left.free_runs_left(),
        worker_group: worker.map(|worker| worker.worker_group.clone()),
        worker_id: worker.map(|worker| worker.worker_id.clone()),
        started: claim.map(|claim| claim.started.into()),
        resolved: claim.map(|claim| claim.resolved.into()),
        failure: None,
    }
}

/// Adds why the last run failed, for callers who may read results.
#[must_use]
pub fn with_failure(mut answer: WhyAnswer, reported: Option<Failure>) -> WhyAnswer {
    if let Some(Reason::Resolved { failure, .. }) = answer.reasons.first_mut() {
        *failure = reported;
    }
    answer
}

/// The reason of a hold, and the reasons about sessions.
fn holding(held: &Held, is_paused: bool, names: Names) -> (Option<Reason>, Vec<Reason>) {
    let is_shown = names == Names::Shown;
    let shown = |session: &Option<(WorkerName, SessionId)>| session.clone().filter(|_| is_shown).unzip();
    match held {
        Held::Ready => (None, Vec::new()),
        Held::Delayed(Delayed { until, by }) => (Some(Reason::Delay { until: (*until).into(), by: *by }), Vec::new()),
        Held::Assigned(Assigned { to, since, accept_by }) => {
            let (worker, session_id) = shown(to);
            let accept_by = accept_by.filter(|_| !is_paused).map(Timestamp::new);
            (Some(Reason::Assigned { worker, session_id, since: since.map(Timestamp::new), accept_by }), Vec::new())
        }
        Held::Waiting(waiting) if waiting.may_start() => (None, Vec::new()),
        Held::Waiting(waiting) => {
            let Waiting { slots, total, next_start, ref preferred, before, keys_before, refiling, .. } = **waiting;
            let is_full = [slots, total].iter().flatten().any(|(limit, used)| used >= limit);
            let reason = Reason::Waiting {
                key: waiting.key.clone().filter(|_| is_shown),
                limit: slots.map(|(limit, _)| limit),
                used: slots.map(|(_, used)| used),
                total: total.map(|(total, _)| total),
                total_used: total.map(|(_, used)| used),
                holders: (is_shown && is_full)
                    .then(|| waiting.holders.iter().take(HOLDERS_SHOWN_MAX).cloned().collect()),
                next_start: next_start.map(Timestamp::new),
                preferred_until: preferred.as_ref().map(|(_, until)| Timestamp::new(*until)),
                preferred: preferred.as_ref().map(|(worker, _)| worker.clone()).filter(|_| is_shown),
                position: before.saturating_add(1),
                keys_before,
                refiling,
            };
            let no_scheduler = waiting.no_scheduler.map(|candidates| Reason::NoScheduler { candidates });
            let no_session = waiting.sessions.and_then(|sessions| {
                sessions.none().map(|because| Reason::NoSession { because, sessions: sessions.live })
            });
            let in_vain = no_session
                .as_ref()
                .and_then(|_| waiting.sessions.filter(|sessions| sessions.asked_without).map(|_| Reason::AssignQueue));
            let not_accepted = waiting.not_accepted.as_ref().map(|_| {
                let (worker, session_id) = shown(&waiting.not_accepted);
                Reason::NotAccepted { worker, session_id }
            });
            let others = [no_scheduler, no_session, not_accepted, in_vain];
            (Some(reason), others.into_iter().flatten().collect())
        }
    }
}

/// Describes why a run is held by its limits or its assignment.
pub fn held_words(held: &Held, names: Names) -> String {
    let (hold, sessions) = holding(held, false, names);
    let sentences: Vec<String> = hold.iter().chain(&sessions).map(sentence).collect();
    if sentences.is_empty() { NEXT_DECISION.to_owned() } else { sentences.join(" ") }
}

fn dependencies(
    task: TaskId,
    unsatisfied: u32,
    awaited: &[AwaitedTask],
    requires: Requires,
    names: Names,
    name: Option<String>,
) -> Reason {
    let never = |awaited: &AwaitedTask| {
        awaited.task_id == task
            || match awaited.state {
                None => true,
                Some(TaskState::Failed | TaskState::Exception) => requires == Requires::AllCompleted,
                Some(TaskState::Unscheduled | TaskState::Pending | TaskState::Running | TaskState::Completed) => false,
            }
    };
    Reason::Dependencies {
        unsatisfied,
        tasks: (names == Names::Shown).then(|| awaited.iter().take(AWAITED_SHOWN_MAX).cloned().collect()),
        never: awaited.iter().any(never),
        name,
    }
}

/// Returns at least one sentence for people.
pub fn words(answer: &WhyAnswer) -> Vec<String> {
    if answer.reasons.is_empty() {
        return vec!["Nothing holds it back: the next worker that asks for work gets it.".to_owned()];
    }
    answer.reasons.iter().map(sentence).collect()
}

pub fn sentence(reason: &Reason) -> String {
    match reason {
        Reason::Dependencies { unsatisfied: 0, .. } => {
            "Its dependencies have ended; it is about to become pending.".to_owned()
        }
        Reason::Dependencies { unsatisfied, tasks, never, name } => {
            let named: Vec<String> = tasks.iter().flatten().map(awaited).collect();
            let names = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
            let hopeless = if *never {
                " One of them can never be satisfied: schedule this task by hand, rerun that dependency, or cancel \
                 this task."
            } else {
                ""
            };
            let unique = name.as_ref().map_or_else(String::new, |name| format!(" Its unique name {name:?} is in use."));
            format!("It waits for {}{names}.{unique}{hopeless}", count(*unsatisfied, "task"))
        }
        Reason::Delay { until, by } => format!("It is delayed until {until}, {}.", delayed_by(*by)),
        Reason::Waiting { .. } => waiting(reason),
        Reason::Assigned { worker, session_id: _, since, accept_by } => {
            let to = worker.as_ref().map_or_else(|| "a worker".to_owned(), |worker| format!("worker {}", name(worker)));
            let since = since.map_or_else(String::new, |since| format!(" at {since}"));
            let by = accept_by
                .map_or_else(String::new, |by| format!(" If it is not accepted by {by}, another worker gets it."));
            format!("It was assigned to the session of {to}{since}, which has not accepted it yet.{by}")
        }
        Reason::NoScheduler { candidates: 0 } => {
            "No server schedules its queue: start a server with a --scheduler-weight above 0.".to_owned()
        }
        Reason::NoScheduler { .. } => {
            "The server that scheduled its queue is silent or has stopped; another one takes over within seconds."
                .to_owned()
        }
        Reason::NoSession { because, sessions } => no_session(*because, *sessions),
        Reason::NotAccepted { worker, session_id: _ } => {
            let worker =
                worker.as_ref().map_or_else(|| "A worker".to_owned(), |worker| format!("Worker {}", name(worker)));
            format!("{worker} did not accept it in time.")
        }
        Reason::AssignQueue => {
            "Workers without a session ask for work and receive none: its queue assigns runs to sessions only."
                .to_owned()
        }
        Reason::PollLimited => {
            "Its queue was polled for messages, but a queue with limits has none: its workers must call claimWork, \
             or start a session if it assigns runs."
                .to_owned()
        }
        Reason::Paused { by, since, reason, until } => {
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
            let by = by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
            let until = until.map_or_else(|| "until it is resumed".to_owned(), |until| format!("until {until}"));
            format!("Its queue was paused{by} at {since}{reason}, {until}.")
        }
        Reason::Reserved { until } => {
            format!("A poller has received its message and may claim it until {until}; after that any worker may.")
        }
        Reason::NoWorker { last_asked, quarantined, frozen } => no_worker(*last_asked, *quarantined, *frozen),
        Reason::Behind { runs } => {
            format!("{} of its queue {} claimed first.", counted(*runs, "other run"), are(*runs))
        }
        Reason::Partition { .. } => partition(reason),
        Reason::Running { .. } => running(reason),
        Reason::Resolved { .. } => resolved(reason),
    }
}

fn partition(reason: &Reason) -> String {
    let Reason::Partition { slot, index, member, state } = reason else { return String::new() };
    let share = match (index, member) {
        (Some(index), Some(member)) => format!("in share {index}, of member {member}"),
        (Some(index), None) => format!("in share {index}"),
        (None, _) => "in no share yet".to_owned(),
    };
    let moves = if *state == PartitionState::Draining { " Shares are about to move." } else { "" };
    format!("Its queue is divided by a partition group: slot {slot} is {share}.{moves}")
}

fn running(reason: &Reason) -> String {
    let Reason::Running { worker_group, worker_id, since, taken_until, complete_by, session_id, live_log } = reason
    else {
        return String::new();
    };
    let worker = worker_group.as_ref().zip(worker_id.as_ref());
    let worker = worker.map_or_else(|| "A worker".to_owned(), |(group, id)| format!("Worker {group}/{id}"));
    let latest = complete_by.map_or_else(String::new, |time| format!(", and at {time} at the latest"));
    let session = session_id.map_or_else(String::new, |id| format!(" It ends with session {id}."));
    let log = live_log.map_or_else(String::new, |log| format!(" Its log has {} bytes so far.", log.bytes));
    format!(
        "{worker} has held it since {since}; the claim expires at {taken_until} unless it is \
         renewed{latest}.{session}{log}"
    )
}

fn resolved(reason: &Reason) -> String {
    let Reason::Resolved {
        outcome,
        reason_resolved,
        ended_by,
        losses,
        free_runs_left: _,
        worker_group,
        worker_id,
        started,
        resolved,
        failure,
    } = reason
    else {
        return String::new();
    };
    let by = ended_by.map_or_else(String::new, |by| format!(", ended by {by}"));
    let lost = match losses {
        0 => String::new(),
        1 => " Its worker was lost with it.".to_owned(),
        losses => format!(" {losses} workers in a row were lost while they held it."),
    };
    let Some(failure) = failure else {
        return format!("It has ended as {outcome} ({reason_resolved}{by}).{lost}");
    };
    let ended = match outcome {
        RunState::Failed => "failed".to_owned(),
        RunState::Pending | RunState::Running | RunState::Completed | RunState::Exception => {
            format!("has ended as {outcome} ({reason_resolved}{by})")
        }
    };
    let worker = worker_group.as_ref().zip(worker_id.as_ref());
    let on = worker.map_or_else(String::new, |(group, id)| format!(" on {group}/{id}"));
    let took = started.zip(*resolved).map(|(from, to)| span(to.time() - from.time()));
    let after = took.map_or_else(String::new, |took| format!(" after {took}"));
    format!("It {ended}{on}{after}: {}.{lost}", failure_line(failure).trim_end_matches('.'))
}

fn no_session(because: NoSession, sessions: u32) -> String {
    let sessions = count(sessions, "session");
    match because {
        NoSession::NoneLive => {
            "Its queue assigns runs to sessions, and no worker has one: its workers must start sessions.".to_owned()
        }
        NoSession::NoneFree => format!(
            "Its queue assigns runs to sessions, and none of {sessions} is free: each is full, frozen or quarantined."
        ),
        NoSession::AllExtended => format!(
            "Its queue assigns runs to sessions, and none of {sessions} has been renewed since the servers were away."
        ),
    }
}

/// The first that applies of key slot, queue slot, preferred worker and order; then the rate,
/// earlier runs and a refiling.
fn waiting(reason: &Reason) -> String {
    let Reason::Waiting {
        key,
        limit,
        used,
        total,
        total_used,
        holders,
        next_start,
        preferred_until,
        preferred,
        position,
        keys_before,
        refiling,
    } = reason
    else {
        return String::new();
    };
    let full = |limit: &Option<u32>, used: &Option<u32>| limit.zip(*used).filter(|(limit, used)| used >= limit);
    let its_key = key.as_ref().map_or_else(|| "its key".to_owned(), |key| format!("its key {key:?}"));
    let mut sentences = Vec::new();
    if let Some((limit, _)) = full(limit, used) {
        sentences.push(format!("It waits for a slot of {its_key}, which has {limit}{}.", taken_by(holders.as_deref())));
    } else if let Some((total, _)) = full(total, total_used) {
        sentences.push(format!("It waits for a slot of its queue, which has {total}{}.", taken_by(holders.as_deref())));
    } else if let Some(until) = preferred_until {
        let worker = preferred
            .as_ref()
            .map_or_else(|| "the worker that its task names".to_owned(), |worker| format!("worker {}", name(worker)));
        sentences.push(format!("It waits for {worker} until {until}; then any worker may have it."));
    } else if next_start.is_none() {
        sentences.push(NEXT_DECISION.to_owned());
    }
    if let Some(next) = next_start {
        sentences.push(format!("The rate allows the next start at {next}."));
    }
    if *position > 1 {
        let (runs, are) = (counted(position - 1, "run"), are(position - 1));
        sentences.push(format!("{runs} of {its_key} {are} before it."));
    }
    if *keys_before > 0 {
        sentences.push(format!("{} {} before it.", counted(*keys_before, "other key"), are(*keys_before)));
    }
    if *refiling {
        sentences.push("The policy of its queue was changed and is still being applied to its runs.".to_owned());
    }
    sentences.join(" ")
}

fn are(number: u32) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

fn counted(number: u32, what: &str) -> String {
    if number >= BEFORE_COUNTED_MAX { format!("At least {BEFORE_COUNTED_MAX} {what}s") } else { count(number, what) }
}

fn taken_by(holders: Option<&[SlotHolder]>) -> String {
    let Some(holders) = holders.filter(|holders| !holders.is_empty()) else { return String::new() };
    let one = |holder: &SlotHolder| match &holder.worker {
        Some(worker) => format!("{}/{} (worker {})", holder.task_id, holder.run_id, name(worker)),
        None => format!("{}/{}", holder.task_id, holder.run_id),
    };
    format!(": taken by {}", holders.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn name(worker: &WorkerName) -> String {
    format!("{}/{}", worker.worker_group, worker.worker_id)
}

fn no_worker(last_asked: Option<Timestamp>, quarantined: u32, frozen: u32) -> String {
    let others = [(quarantined, "quarantined worker"), (frozen, "frozen worker")];
    let others: Vec<String> = others.iter().filter(|(n, _)| *n > 0).map(|(n, what)| count(*n, what)).collect();
    let asked = match last_asked {
        _ if !others.is_empty() => format!("; {} did", others.join(" and ")),
        Some(last) => format!("; the last one did at {last}"),
        None => String::new(),
    };
    format!("No eligible worker has asked for work in the last minute{asked}.")
}

fn awaited(task: &AwaitedTask) -> String {
    match task.state {
        Some(state) => format!("{} ({state})", task.task_id),
        None => format!("{} (expired)", task.task_id),
    }
}

fn delayed_by(by: DelayedBy) -> &'static str {
    match by {
        DelayedBy::Delay => "by its own options or the policy of its queue",
        DelayedBy::RetryDelay => "as its retry after a failure is delayed",
        DelayedBy::Backoff => "because several workers in a row were lost while they held it",
        DelayedBy::Release => "as the worker that released it asked",
        DelayedBy::RetryAfter => "as the worker that reported it asked",
    }
}

fn count(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
