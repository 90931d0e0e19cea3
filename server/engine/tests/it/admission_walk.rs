//! Limits are never exceeded: a random walk over queues with limits, turns, sessions and rates. Two
//! servers do everything concurrently, passes and decisions are abandoned or killed, and policies
//! change. After each round a snapshot is compared with the limits. From time to time the servers
//! settle: no startable run may then be left waiting.
//!
//! `TENURE_ADMISSION_SEED` and `TENURE_ADMISSION_STEPS` set its course and length. It must detect
//! each defect of `TENURE_BREAK` (`server/store/src/breakage.rs`), in a process of its own because
//! the variable is read once.

mod check;
mod passes;
mod steps;
mod turns;
mod world;

use self::world::World;
use crate::support::*;

/// Each created, claimed or ended task is a step.
const STEPS: u64 = 2_500;
/// Then the walk restarts with an empty database, to stay fast.
const STEPS_OF_ONE: u64 = 5_000;
/// Rounds until the servers settle.
const ROUNDS: u64 = 50;
/// Until all pauses end: a queue paused most of the time would prove nothing.
const PAUSED_ROUNDS: u64 = 10;
/// Servers search for lost announcements every second.
const PATIENCE: Duration = Duration::from_secs(2);
/// The manual clock moves by ten seconds each time.
const WORKED_OFF_MAX: u64 = 400;
const WALKS_MAX: usize = 4;
/// Steps that each walk of that length must have taken.
const STEPS_MADE: [&str; 18] = [
    "created",
    "claimed",
    "claimed by long polls",
    "claimed by name",
    "hung up",
    "ended",
    "renewed",
    "cancelled",
    "rerun",
    "reprioritised",
    "put",
    "paused",
    "begun",
    "restated",
    "accepted",
    "abandoned",
    "undelivered",
    "deposed",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_and_no_run_starves_in_random_walk() {
    let seed = number("TENURE_ADMISSION_SEED").unwrap_or_else(|| u64::from_le_bytes(tenure_store::secrets::random()));
    let all = number("TENURE_ADMISSION_STEPS").unwrap_or(STEPS);
    println!("TENURE_ADMISSION_SEED={seed} TENURE_ADMISSION_STEPS={all}");
    let (started, mut taken, mut walks) = (Instant::now(), 0, 0);
    while taken < all {
        let seed = seed.wrapping_add(walks);
        let (steps, wrong) = walk(seed, STEPS_OF_ONE.min(all - taken)).await;
        assert!(wrong.is_empty(), "TENURE_ADMISSION_SEED={seed}, after {steps} steps:\n{}", wrong.join("\n"));
        (taken, walks) = (taken + steps, walks + 1);
    }
    println!("{taken} steps in {walks} walks, {:?}", started.elapsed());
}

/// Returns the number of steps and the violations.
async fn walk(seed: u64, steps: u64) -> (u64, Vec<String>) {
    let mut world = World::new(seed).await;
    steps::begin(&mut world).await;
    let (mut taken, mut rounds, mut wrong) = (0, 0, check::look(&mut world).await);
    while taken < steps && wrong.is_empty() {
        taken += steps::round(&mut world).await;
        rounds += 1;
        if rounds % PAUSED_ROUNDS == 0 {
            steps::resume_all(&world).await;
        }
        wrong.extend(check::look(&mut world).await);
        if wrong.is_empty() && world.random.chance(15) {
            let seconds = [1, 2, 5, 12, 35, 70][world.random.index(6)];
            world.advance(seconds).await;
            taken += 1;
            passes::run_passes(&world).await;
            wrong.extend(check::look(&mut world).await);
        }
        if wrong.is_empty() && world.random.chance(10) {
            wrong.extend(passes::depose(&mut world).await);
            taken += 1;
            wrong.extend(check::look(&mut world).await);
        }
        if wrong.is_empty() && rounds % ROUNDS == 0 {
            wrong.extend(rest(&mut world).await);
        }
    }
    if wrong.is_empty() {
        wrong.extend(work_off(&mut world).await);
    }
    println!("{taken} steps: {:?}", world.done);
    if wrong.is_empty() && taken >= STEPS {
        wrong.extend(
            STEPS_MADE
                .iter()
                .filter(|what| world.done.get(*what).is_none_or(|done| *done == 0))
                .map(|what| format!("the walk has {what} nothing, so that it proves nothing of that")),
        );
    }
    let World { database, servers, .. } = world;
    for server in servers {
        server.stop().await;
    }
    if wrong.is_empty() {
        database.finish().await;
    }
    (taken, wrong)
}

/// Settles the servers, and has workers request all startable runs.
async fn rest(world: &mut World) -> Vec<String> {
    passes::settle(world).await;
    let mut wrong = check::look(world).await;
    wrong.extend(check::settled(world).await);
    steps::demand(world, Duration::ZERO).await;
    if !check::stuck_in_pull_queues(world).await.is_empty() {
        // The run was locked, or a claim was just requeued: waiting requests get it.
        steps::demand(world, PATIENCE).await;
        wrong.extend(check::stuck_in_pull_queues(world).await);
    }
    wrong.extend(check::look(world).await);
    wrong.extend(check::rates(world).await);
    wrong
}

/// Completes all tasks. Returns violations and remaining runs.
async fn work_off(world: &mut World) -> Vec<String> {
    let mut left = None;
    for n in 0..WORKED_OFF_MAX {
        if n % 5 == 0 {
            steps::begin_a_large_session(world).await;
        }
        steps::work_off(world).await;
        world.advance(10).await;
        let wrong = rest(world).await;
        if !wrong.is_empty() {
            return wrong;
        }
        left = check::left(world).await;
        if left.is_none() {
            return wrong;
        }
    }
    left.into_iter().collect()
}

/// Returns the output of the first walk that finds the defect. The course is random, so several may
/// be needed.
async fn broken(breakage: &str) -> String {
    let test = "admission_walk::no_limit_is_exceeded_and_no_run_starves_in_random_walk";
    let mut said = String::new();
    for _ in 0..WALKS_MAX {
        let mut walk = tokio::process::Command::new(std::env::current_exe().unwrap());
        walk.args(["--exact", test]).env("TENURE_BREAK", breakage).env("TENURE_ADMISSION_STEPS", STEPS.to_string());
        let output = walk.output().await.unwrap();
        said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if said.contains("1 failed") {
            return said;
        }
    }
    panic!("none of {WALKS_MAX} walks found anything: {said}");
}

#[tokio::test]
async fn walk_catches_leaked_slot() {
    let said = broken("leak-slot").await;
    assert!(said.contains("waits and nothing will find it"), "{said}");
}

#[tokio::test]
async fn walk_catches_start_beyond_limit() {
    let said = broken("double-admit").await;
    assert!(said.contains("assigned or claimed runs, at most"), "{said}");
}

#[tokio::test]
async fn walk_catches_lost_announcement() {
    let said = broken("lose-work").await;
    assert!(said.contains("waits and nothing will find it"), "{said}");
}

#[tokio::test]
async fn walk_catches_replaced_scheduler_that_continues() {
    let said = broken("stale-term").await;
    assert!(said.contains("a scheduler that was replaced "), "{said}");
}
