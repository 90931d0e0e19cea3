//! Steps of a round, executed concurrently by both servers.

use futures_util::future::{BoxFuture, FutureExt};
use tenure_api::policy::PauseRequest;
use tenure_api::sessions::StartSessionRequest;
use tenure_domain::policy::document::Match;
use tenure_domain::policy::hold::Start as Starts;
use tenure_domain::session::{Start, Stated};
use tenure_engine::ops::queue_policy::{self, Put};
use tenure_engine::ops::report::RunReport;
use tenure_engine::ops::{change_priority, change_task, claim_task, sessions};

use super::passes::{beat, despite_kills, failed, run_pass, settle};
use super::world::{ASSIGN, World, parsed};
use crate::support::*;

/// Concurrent steps; many concern several tasks.
const AT_ONCE: u64 = 12;
const KILLS_TRIED: u64 = 10;
/// Decisions and passes share some statements.
#[derive(Clone, Copy)]
enum Victim {
    Pass,
    Claim,
}

impl Victim {
    fn statements(self) -> &'static str {
        match self {
            Self::Pass => {
                "name_admission_keys|look_at_keys|load_heads|load_keys|load_sessions|count_used\
                 |lock_waiting|assign_runs|store_decision|lock_admission_or_skip|read_admission"
            }
            Self::Claim => {
                "claim_work|claim_work_of_one|claim_task|lock_admission|claim_decided|find_waiting\
                 |lock_admission_for_start|take_turn"
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Answers {
    Delivered,
    /// The responses are lost; their claims are requeued.
    Lost,
    /// The workers disconnect after these microseconds.
    HungUp(u64),
}

/// Concurrent requests to a server.
struct Requests {
    queue: usize,
    runs: Vec<u16>,
    wait: Duration,
    answers: Answers,
}

enum Step {
    Create(Vec<NewTask>),
    Claim(Requests),
    /// claimTask by the workers of their sessions.
    Accept(Vec<ClaimTask>),
    /// claimTask of ready or waiting runs.
    ClaimByName(Vec<ClaimTask>),
    End(Vec<RunReport>),
    Renew(Vec<(TaskId, RunId)>),
    Change(TaskId, Change),
    Reprioritise(TaskId, Priority),
    Put {
        queue: usize,
        policy: usize,
    },
    Pause(usize),
    Resume(usize),
    Begin(Start),
    Restate {
        session: usize,
        stated: Stated,
    },
    Close {
        session: usize,
    },
    Admit,
    /// A pass whose future is dropped after these microseconds.
    Abandon(u64),
    /// Database sessions are killed after these microseconds.
    Kill(Victim, u64),
    Refile,
}

#[derive(Clone)]
struct Run {
    task: TaskId,
    run: RunId,
    session: Option<i64>,
}

struct Runs {
    claimed: Vec<Run>,
    assigned: Vec<Run>,
    /// Pending runs, assigned or not.
    waiting: Vec<Run>,
    unassigned: Vec<Run>,
    ended: Vec<TaskId>,
}

impl Runs {
    async fn read(world: &World) -> Self {
        type Row = (Uuid, i16, Option<i16>, Option<i64>, bool);
        let sql = "SELECT id, run, hold, session, false FROM (SELECT * FROM pending ORDER BY seq LIMIT 60) p
                   UNION ALL SELECT id, run, hold, session, false FROM pending WHERE hold = 3
                   UNION ALL SELECT id, run, NULL, session, true FROM claims";
        let rows: Vec<Row> = sqlx::query_as(sql).fetch_all(world.database.pool()).await.unwrap();
        let of = |(id, run, _, session, _): &Row| Run {
            task: TaskId::from_uuid(*id).unwrap(),
            run: RunId::new(run.unsigned_abs()).unwrap(),
            session: *session,
        };
        let some = |which: fn(&Row) -> bool| rows.iter().filter(|row| which(row)).map(of).collect();
        let ended = "SELECT id FROM tasks WHERE state > 1 ORDER BY seq DESC LIMIT 20";
        let ended: Vec<Uuid> = sqlx::query_scalar(ended).fetch_all(world.database.pool()).await.unwrap();
        Self {
            claimed: some(|row| row.4),
            assigned: some(|row| row.2 == Some(3)),
            waiting: some(|row| !row.4),
            unassigned: some(|row| !row.4 && row.2.is_none_or(|hold| hold == 2)),
            ended: ended.into_iter().map(|id| TaskId::from_uuid(id).unwrap()).collect(),
        }
    }
}

pub async fn begin(world: &mut World) {
    for place in 0..world.queues.len() {
        let queue = &world.queues[place];
        put(&world.servers[0], &queue.name, &queue.policies[0]).await.unwrap();
        let policy = parsed(&queue.policies[0]).1;
        world.queues[place].changed(policy);
    }
    settle(world).await;
}

/// Returns the number of executed steps.
pub async fn round(world: &mut World) -> u64 {
    let mut runs = Runs::read(world).await;
    let mut steps = Vec::new();
    for _ in 0..AT_ONCE {
        steps.extend(pick(world, &mut runs, &steps));
    }
    let servers: Vec<usize> = steps.iter().map(|_| world.random.index(2)).collect();
    let killed = steps.iter().any(|step| matches!(step, Step::Kill(..)));
    let taken = join_all(steps.iter().zip(&servers).map(|(step, server)| take(world, step, *server))).await;
    let mut all = 0;
    let mut met = Vec::new();
    for ((step, taken), server) in steps.iter().zip(taken).zip(servers) {
        let kind = (std::mem::discriminant(step), server);
        let (what, done) = match taken {
            Ok(taken) => taken,
            // A killed session cannot respond otherwise.
            Err(OpError::Unavailable | OpError::Internal(_)) if killed => continue,
            // Steps of a kind may share a statement, and thus the killed session.
            Err(OpError::Unavailable | OpError::Internal(_)) if met.contains(&kind) => continue,
            // A session killed after its work fails its next user.
            Err(OpError::Unavailable | OpError::Internal(_)) if world.dead_sessions > 0 => {
                world.dead_sessions -= 1;
                met.push(kind);
                continue;
            }
            Err(error) => panic!("a step failed: {kind:?}: {error:?}"),
        };
        world.count(what, done);
        if matches!(step, Step::Kill(..)) {
            world.dead_sessions += done;
        }
        all += if matches!(step, Step::Admit | Step::Refile) { 1 } else { done.max(1) };
        if let (Step::Put { queue, policy }, 1..) = (step, done) {
            let queue = &mut world.queues[*queue];
            let policy = parsed_or_none(&queue.policies[*policy].clone());
            queue.changed(policy);
        }
    }
    let live: Vec<i64> = sqlx::query_scalar("SELECT epoch FROM worker_sessions WHERE ended IS NULL")
        .fetch_all(world.database.pool())
        .await
        .unwrap();
    world.sessions.append(world.begun.get_mut().unwrap());
    world.sessions.retain(|session| live.contains(&session.epoch));
    all
}

fn parsed_or_none(policy: &serde_json::Value) -> Policy {
    if policy.is_null() { Policy::none() } else { parsed(policy).1 }
}

/// Avoids runs, queues and sessions of concurrent steps.
fn pick(world: &mut World, runs: &mut Runs, others: &[Step]) -> Option<Step> {
    let queue = world.random.index(world.queues.len());
    let session = world.random.index(world.sessions.len());
    let is_changed = others.iter().any(|step| match step {
        Step::Put { queue: other, .. } | Step::Pause(other) | Step::Resume(other) => *other == queue,
        _ => false,
    });
    let is_in_use = others.iter().any(|step| match step {
        Step::Restate { session: other, .. } | Step::Close { session: other } => *other == session,
        _ => false,
    });
    Some(match world.random.below(100) {
        0..16 => Step::Create(world.tasks()),
        16..30 => Step::Claim(requests(world, queue)),
        30..38 => Step::Accept(accepts(world, runs)),
        38..54 => Step::End(ends(world, runs)),
        54..57 => Step::Renew(
            (0..4).filter_map(|_| world.random.take(&mut runs.claimed)).map(|run| (run.task, run.run)).collect(),
        ),
        57..61 => Step::Change(either(world, runs)?.task, Change::Cancel),
        61..63 => Step::Change(world.random.take(&mut runs.ended)?, Change::Rerun),
        63..67 => {
            let priority = Priority::ALL[world.random.index(Priority::ALL.len())];
            Step::Reprioritise(world.random.take(&mut runs.waiting)?.task, priority)
        }
        67..70 if !is_changed => Step::Put { queue, policy: world.random.index(world.queues[queue].policies.len()) },
        70..72 if !is_changed => {
            if world.random.chance(50) {
                Step::Pause(queue)
            } else {
                Step::Resume(queue)
            }
        }
        72..75 if world.sessions.len() < 8 => Step::Begin(start(world)),
        75..78 if !is_in_use && session < world.sessions.len() => Step::Restate { session, stated: stated(world) },
        78 if !is_in_use && session < world.sessions.len() => Step::Close { session },
        79..82 => Step::Abandon(world.random.below(4_000)),
        82 => Step::Kill(if world.random.chance(60) { Victim::Pass } else { Victim::Claim }, world.random.below(3_000)),
        83..88 => Step::Refile,
        88..92 => Step::ClaimByName(by_name(world, runs)),
        _ => Step::Admit,
    })
}

fn requests(world: &mut World, queue: usize) -> Requests {
    let random = &mut world.random;
    let count = if random.chance(50) { 1 } else { 2 + random.below(4) };
    let runs = (0..count).map(|_| 1 + random.below(10) as u16).collect();
    let wait = if random.chance(65) { 0 } else { 5 + random.below(60) };
    let answers = match random.below(100) {
        0..12 => Answers::Lost,
        12..20 => Answers::HungUp(random.below(5_000)),
        _ => Answers::Delivered,
    };
    Requests { queue, runs, wait: Duration::from_millis(wait), answers }
}

fn either(world: &mut World, runs: &mut Runs) -> Option<Run> {
    let claimed = world.random.chance(30);
    world.random.take(if claimed { &mut runs.claimed } else { &mut runs.waiting })
}

fn accepts(world: &mut World, runs: &mut Runs) -> Vec<ClaimTask> {
    let some = (0..6).filter_map(|_| world.random.take(&mut runs.assigned)).collect::<Vec<_>>();
    let accept = |run: Run| {
        let session = world.sessions.iter().find(|session| Some(session.epoch) == run.session)?;
        Some(ClaimTask {
            task: run.task,
            run: run.run,
            worker_group: session.worker_group.to_string(),
            worker_id: session.worker_id.to_string(),
            session: run.session,
        })
    };
    some.into_iter().filter_map(accept).collect()
}

fn by_name(world: &mut World, runs: &mut Runs) -> Vec<ClaimTask> {
    let some = (0..6).filter_map(|_| world.random.take(&mut runs.unassigned));
    let claim = |Run { task, run, .. }| ClaimTask {
        task,
        run,
        worker_group: "group".to_owned(),
        worker_id: "w".to_owned(),
        session: None,
    };
    some.map(claim).collect()
}

fn ends(world: &mut World, runs: &mut Runs) -> Vec<RunReport> {
    let count = 1 + world.random.below(10);
    let some = (0..count).filter_map(|_| world.random.take(&mut runs.claimed)).collect::<Vec<_>>();
    let end = |run: Run| {
        let retried = Report::Exception(ExceptionReason::IntermittentTask);
        let (ending, delay) = match world.random.below(100) {
            0..55 => (Ending::Reported(Report::Completed), None),
            55..65 => (Ending::Reported(Report::Failed), None),
            65..75 => (Ending::Reported(retried), None),
            75..80 => (Ending::Reported(retried), Some(world.random.below(9))),
            80..85 => (Ending::Reported(Report::Exception(ExceptionReason::WorkerShutdown)), None),
            85..95 => (Ending::Released, None),
            _ => (Ending::Released, Some(world.random.below(9))),
        };
        let start = delay.map(|seconds| Starts::After(chrono::TimeDelta::seconds(seconds.cast_signed())));
        RunReport { ending, start, ..RunReport::plain(run.task, run.run, Report::Completed) }
    };
    some.into_iter().map(end).collect()
}

fn start(world: &mut World) -> Start {
    // Sometimes it already has a session.
    let worker = if world.random.chance(80) { world.workers } else { world.random.below(world.workers.max(1)) };
    world.workers = world.workers.max(worker + 1);
    Start::from_request(StartSessionRequest {
        task_queue_id: world.queues[ASSIGN].name.clone(),
        worker_group: "g".parse().unwrap(),
        worker_id: format!("s{worker}").parse().unwrap(),
        ttl: Some(60),
        weight: Some(1 + i64::try_from(world.random.below(3)).unwrap()),
        capacity: Some(1 + i64::try_from(world.random.below(5)).unwrap()),
        takeover: world.random.chance(50),
        policy_version: None,
    })
    .unwrap()
}

fn stated(world: &mut World) -> Stated {
    Stated {
        weight: None,
        capacity: world.random.chance(70).then(|| i32::try_from(world.random.below(7)).unwrap()),
        frozen: world.random.chance(20).then(|| world.random.chance(30)),
    }
}

/// The kind and the amount; refused actions are not counted.
pub type Taken = Result<(&'static str, u64), OpError>;

fn take<'a>(world: &'a World, step: &'a Step, server: usize) -> BoxFuture<'a, Taken> {
    let queue = &world.servers[server];
    let pool = &queue.engine.pool;
    let notifiers = &queue.engine.notifiers;
    match step {
        Step::Create(tasks) => all("created", tasks, |task| queue.create(task).boxed()).boxed(),
        Step::Claim(requests) => claim_all(queue, world.queues[requests.queue].name.as_str(), requests).boxed(),
        Step::Accept(claims) => claim_by_name(queue, "accepted", claims).boxed(),
        Step::ClaimByName(claims) => claim_by_name(queue, "claimed by name", claims).boxed(),
        Step::End(reports) => {
            all("ended", reports, |report| queue.engine.report.submit(report.clone()).boxed()).boxed()
        }
        Step::Renew(claims) => all("renewed", claims, |(task, run)| queue.reclaim(*task, *run).boxed()).boxed(),
        Step::Change(task, change) => {
            let what = if *change == Change::Cancel { "cancelled" } else { "rerun" };
            one(what, change_task::change(pool, notifiers, &ANN, *task, *change)).boxed()
        }
        Step::Reprioritise(task, priority) => {
            one("reprioritised", change_priority::change_task(pool, notifiers, &ANN, *task, *priority)).boxed()
        }
        Step::Put { queue: of, policy } => {
            let watched = &world.queues[*of];
            put(queue, &watched.name, &watched.policies[*policy]).boxed()
        }
        Step::Pause(of) => one("paused", async move {
            queue_policy::pause(queue.engine.queue_parts(), &ANN, &world.queues[*of].name, &PauseRequest::default())
                .await
        })
        .boxed(),
        Step::Resume(of) => {
            one("resumed", queue_policy::resume(queue.engine.queue_parts(), &ANN, &world.queues[*of].name)).boxed()
        }
        Step::Begin(start) => one("begun", async move {
            let begun = sessions::start(queue.engine.session_parts(), start, "ann").await?;
            world.begun.lock().unwrap().push(begun.identity);
            Ok(())
        })
        .boxed(),
        Step::Restate { session, stated } => {
            one("restated", sessions::renew(queue.engine.session_parts(), &world.sessions[*session], *stated)).boxed()
        }
        Step::Close { session } => {
            one("closed", sessions::close(queue.engine.session_parts(), &ANN, &world.sessions[*session])).boxed()
        }
        Step::Admit => async move {
            beat(world).await;
            let (one, other) =
                tokio::join!(world.servers[0].run_pass("admission"), world.servers[1].run_pass("admission"));
            Ok(("admitted", (one.map_err(failed)?.done + other.map_err(failed)?.done) as u64))
        }
        .boxed(),
        Step::Abandon(micros) => async move {
            let abandoned = tokio::time::timeout(Duration::from_micros(*micros), queue.run_pass("admission")).await;
            abandoned.unwrap_or_else(|_| Ok(Default::default())).map_err(failed)?;
            Ok(("abandoned", 1))
        }
        .boxed(),
        Step::Kill(victim, micros) => kill(world, *victim, *micros).boxed(),
        Step::Refile => run_pass(world, "refile", server).boxed(),
    }
}

/// Returns 0 if it was refused or must be retried.
fn done<T>(answer: Result<T, OpError>) -> Result<u64, OpError> {
    match answer {
        Ok(_) => Ok(1),
        Err(error @ OpError::Internal(_)) => Err(error),
        Err(_) => Ok(0),
    }
}

async fn one<T>(what: &'static str, answer: impl Future<Output = Result<T, OpError>>) -> Taken {
    Ok((what, done(answer.await)?))
}

/// Applies `take` to all members concurrently.
async fn all<'a, M, T>(
    what: &'static str,
    members: &'a [M],
    take: impl Fn(&'a M) -> BoxFuture<'a, Result<T, OpError>>,
) -> Taken {
    let answers = join_all(members.iter().map(take)).await;
    let mut sum = 0;
    for answer in answers {
        sum += done(answer)?;
    }
    Ok((what, sum))
}

async fn claim_all(queue: &Queue, name: &str, requests: &Requests) -> Taken {
    let Requests { runs, wait, answers, .. } = requests;
    let mut claimed = 0;
    for answer in join_all(runs.iter().map(|most| claim(queue, name, *most, *wait, *answers))).await {
        claimed += answer?;
    }
    let what = match answers {
        Answers::Delivered if wait.is_zero() => "claimed",
        Answers::Delivered => "claimed by long polls",
        Answers::Lost => "undelivered",
        Answers::HungUp(_) => "hung up",
    };
    Ok((what, claimed))
}

/// Returns the number of runs; 1 if the worker has disconnected.
async fn claim(queue: &Queue, name: &str, runs: u16, wait: Duration, answers: Answers) -> Result<u64, OpError> {
    let answer = queue.claim_work(name, "w", runs, wait);
    if let Answers::HungUp(micros) = answers {
        if let Ok(answer) = tokio::time::timeout(Duration::from_micros(micros), answer).await {
            drop(answer?);
        }
        return Ok(1);
    }
    let answer = answer.await?;
    let claimed = answer.claims.len() as u64;
    if matches!(answers, Answers::Delivered) {
        answer.delivery.delivered();
    }
    Ok(claimed)
}

async fn claim_by_name(queue: &Queue, what: &'static str, claims: &[ClaimTask]) -> Taken {
    let lease = queue.engine.settings.claim_timeout;
    let mut claimed = 0;
    for claim in claims {
        let answer = claim_task::claim_task(queue.engine.why_parts(), lease, claim).await.map_err(OpError::from)?;
        claimed += done(answer)?;
    }
    Ok((what, claimed))
}

pub async fn put(queue: &Queue, name: &tenure_api::ids::TaskQueueId, policy: &serde_json::Value) -> Taken {
    let parts = queue.engine.queue_parts();
    let replaces = Match::from_header(None).unwrap();
    if policy.is_null() {
        return match queue_policy::delete(parts, &ANN, name, replaces).await {
            Ok(()) => Ok(("deleted", 1)),
            Err(OpError::NotFound(_)) => Ok(("deleted", 0)),
            Err(error) => Err(error),
        };
    }
    let (sent, policy) = parsed(policy);
    queue_policy::put(parts, &ANN, name, Put { policy, sent, replaces }).await?;
    Ok(("put", 1))
}

async fn kill(world: &World, victim: Victim, micros: u64) -> Taken {
    tokio::time::sleep(Duration::from_micros(micros)).await;
    let sql = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND state <> 'idle' AND query ~ '^-- ({})\\n'",
        victim.statements()
    );
    let mut killed: i64 = 0;
    for _ in 0..KILLS_TRIED {
        let query = sqlx::query_scalar(AssertSqlSafe(sql.clone()));
        killed = query.fetch_one(world.database.pool()).await.unwrap();
        if killed > 0 {
            break;
        }
    }
    Ok((
        match victim {
            Victim::Pass => "killed passes",
            Victim::Claim => "killed claims",
        },
        killed.unsigned_abs(),
    ))
}

pub async fn resume_all(world: &World) {
    for (of, watched) in world.queues.iter().enumerate() {
        let queue = &world.servers[of % 2];
        let resume = || queue_policy::resume(queue.engine.queue_parts(), &ANN, &watched.name);
        despite_kills(world, resume).await.unwrap();
    }
}

/// Lets two workers exhaust each limited pull queue.
pub async fn demand(world: &World, wait: Duration) {
    let limited = world.queues.iter().filter(|watched| watched.limits().any && !watched.limits().assign);
    let workers = limited.flat_map(|watched| world.servers.iter().map(move |server| (server, watched.name.as_str())));
    join_all(workers.map(|(server, name)| claim_until_empty(world, server, name, wait))).await;
}

async fn claim_until_empty(world: &World, server: &Queue, name: &str, wait: Duration) {
    while despite_kills(world, || claim(server, name, 32, wait, Answers::Delivered)).await.unwrap() > 0 {}
}

pub async fn work_off(world: &mut World) {
    resume_all(world).await;
    let shared: &World = world;
    let claims = shared.queues.iter().enumerate().map(|(of, watched)| {
        let (server, name) = (&shared.servers[of % 2], watched.name.as_str());
        despite_kills(shared, move || claim(server, name, 32, Duration::ZERO, Answers::Delivered))
    });
    for claimed in join_all(claims).await {
        claimed.unwrap();
    }
    let mut runs = Runs::read(world).await;
    while !runs.assigned.is_empty() {
        let accepts = Step::Accept(accepts(world, &mut runs));
        despite_kills(world, || take(world, &accepts, 0)).await.unwrap();
    }
    let claimed = Runs::read(world).await.claimed;
    let reports: Vec<RunReport> =
        claimed.iter().map(|run| RunReport::plain(run.task, run.run, Report::Completed)).collect();
    let end = Step::End(reports);
    despite_kills(world, || take(world, &end, 1)).await.unwrap();
}

/// Starts a session with capacity for all runs.
pub async fn begin_a_large_session(world: &mut World) {
    let start = Start { capacity: 100, ..start(world) };
    drop(take(world, &Step::Begin(start), 0).await);
    world.sessions.append(world.begun.get_mut().unwrap());
}
