//! The passes that runs depend on, and settling.

use tenure_api::states::SchedulerEnd;
use tenure_engine::background::election;
use tenure_store::schedulers;

use super::steps::Taken;
use super::world::{ASSIGN, World};
use crate::support::*;

/// Maximum rounds until passes are idle.
const SETTLED_WITHIN: u64 = 300;
const PASSES_RUN: [&str; 12] = [
    "claims",
    "slow",
    "sessions",
    "deadlines",
    "holds",
    "accept",
    "pauses",
    "refile",
    "counters",
    "sequence",
    "low_water_marks",
    "admission",
];

/// A pass waits for no foreign locks, and fails only when killed.
pub fn failed(error: sqlx::Error) -> OpError {
    OpError::Internal(Arc::new(error))
}

/// A killed session fails its next user from the pool.
pub async fn despite_kills<T, E, F: Future<Output = Result<T, E>>>(world: &World, act: impl Fn() -> F) -> Result<T, E> {
    for _ in 0..world.dead_sessions {
        if let done @ Ok(_) = act().await {
            return done;
        }
    }
    act().await
}

pub async fn run_pass(world: &World, name: &'static str, server: usize) -> Taken {
    let ran = despite_kills(world, || world.servers[server].run_pass(name)).await;
    Ok((name, ran.map_err(failed)?.done as u64))
}

/// Gives each assign queue a scheduler.
pub async fn beat(world: &World) {
    for server in &world.servers {
        let mut conn = world.database.pool().acquire().await.unwrap();
        election::beat(&server.engine, &mut conn, Duration::ZERO).await.unwrap();
    }
}

/// Both servers run concurrently. Returns the work of each.
pub async fn run_passes(world: &World) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    beat(world).await;
    for name in PASSES_RUN {
        let (one, other) = tokio::join!(run_pass(world, name, 0), run_pass(world, name, 1));
        let done = one.unwrap().1 + other.unwrap().1;
        all.extend((done > 0 && name != "low_water_marks").then_some((name, done)));
    }
    all
}

/// Runs passes until they are idle and all runs follow the policies.
pub async fn settle(world: &World) {
    let (mut quiet, mut done, mut open) = (0, Vec::new(), Vec::new());
    for _ in 0..SETTLED_WITHIN {
        done = run_passes(world).await;
        // Nobody processes announcements while a scheduler is replaced.
        let sql = "SELECT 'queue ' || queue || ' in stage ' || refile_stage FROM queue_policies WHERE refile_stage <> 0
                   UNION ALL SELECT DISTINCT 'announced in queue ' || w.queue
                   FROM admission_work w JOIN task_queues q ON q.id = w.queue JOIN admission_queues a ON a.queue = w.queue
                   WHERE q.paused IS NULL
                   UNION ALL SELECT 'queue ' || queue || ' without a scheduler'
                   FROM admission_queues WHERE assigns AND server IS NULL";
        open = sqlx::query_scalar::<_, String>(sql).fetch_all(world.database.pool()).await.unwrap();
        quiet = if done.is_empty() && open.is_empty() { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
    }
    let sql = "SELECT application_name || ' ' || state || ': ' || query FROM pg_stat_activity
               WHERE datname = current_database() AND xact_start IS NOT NULL";
    open.extend(sqlx::query_scalar::<_, String>(sql).fetch_all(world.database.pool()).await.unwrap());
    panic!("the passes go on and on: {done:?}, {open:?}");
}

/// Replaces a scheduler without its knowledge: its further actions must change nothing.
pub async fn depose(world: &mut World) -> Vec<String> {
    let queue = world.queues[ASSIGN].id;
    let mut conn = world.database.pool().acquire().await.unwrap();
    let Some(seen) = schedulers::lock(&mut conn, queue).await.unwrap().map(|scheduled| scheduled.active) else {
        return Vec::new();
    };
    let Some(deposed) = world.servers.iter().position(|server| {
        let leader = server.engine.schedulers.leader(queue);
        Some(leader.server) == seen.server && leader.term == Some(seen.term)
    }) else {
        return Vec::new();
    };
    let next = Some(world.servers[1 - deposed].engine.schedulers.member().id);
    schedulers::change(&mut conn, seen, next, SchedulerEnd::Lost).await.unwrap().expect("nothing else changes it");
    let before = given(world, queue).await;
    if world.servers[deposed].run_pass("admission").await.is_err() {
        assert!(world.dead_sessions > 0, "a pass failed");
        world.dead_sessions -= 1;
    }
    let after = given(world, queue).await;
    world.count("deposed", 1);
    let mut wrong = Vec::new();
    // Claims with a lost response are requeued and announced meanwhile.
    wrong.extend(before.work.iter().find(|id| !after.work.contains(id)).map(|id| format!("took announcement {id}")));
    wrong.extend(after.runs.iter().find(|run| !before.runs.contains(run)).map(|run| format!("assigned {run:?}")));
    wrong.iter().map(|what| format!("a scheduler that was replaced {what}")).collect()
}

struct Given {
    runs: Vec<(i64, Option<i64>)>,
    work: Vec<i64>,
}

async fn given(world: &World, queue: i32) -> Given {
    let runs = sqlx::query_as("SELECT seq, session FROM pending WHERE queue = $1 AND hold = 3").bind(queue);
    let work = sqlx::query_scalar("SELECT id FROM admission_work WHERE queue = $1").bind(queue);
    let pool = world.database.pool();
    Given { runs: runs.fetch_all(pool).await.unwrap(), work: work.fetch_all(pool).await.unwrap() }
}
