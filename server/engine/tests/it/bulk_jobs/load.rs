//! A large job beside the life of other tasks.

use super::*;

/// More with `TENURE_JOB_TASKS=100000`.
const TASKS: usize = 1_000;
const CHUNK: usize = 500;
const OTHER: &str = "proj/live";
/// Life cycles at the same time.
const LANES: usize = 4;

fn amount() -> usize {
    std::env::var("TENURE_JOB_TASKS").map_or(TASKS, |text| text.parse().expect("TENURE_JOB_TASKS is a number"))
}

/// Creates, claims and completes tasks until `until` is true. Returns the completed tasks per second.
async fn live(queue: &Queue, until: impl AsyncFn() -> bool) -> f64 {
    let began = Instant::now();
    let mut done = 0_u32;
    loop {
        let lane = async || {
            queue.create_one(OTHER).await;
            let claim = queue.claim_one(OTHER).await;
            queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
        };
        join_all((0..LANES).map(|_| lane())).await;
        done += LANES as u32;
        if until().await {
            return f64::from(done) / began.elapsed().as_secs_f64();
        }
    }
}

/// Prints the rates. The passes run as on a server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_job_ends_beside_life_cycles() {
    let (database, queue) = start().await;
    let amount = amount();
    let mut conn = database.connect().await;
    for begin in (0..amount).step_by(CHUNK) {
        let size = CHUNK.min(amount - begin);
        let tasks: Vec<NewTask> = (0..size).map(|_| new_task(QUEUE, &json!({}))).collect();
        create_on(&mut conn, &queue, &tasks).await;
    }
    run_sql(&mut conn, "ANALYZE").await;
    queue.run_passes(database.options());
    let quiet = Instant::now();
    let before = live(&queue, async || quiet.elapsed() > Duration::from_secs(1)).await;
    let job = start_job(&queue, &pending()).await;
    assert!(job.more || job.found as usize == amount, "{job:?}");
    let beside = live(&queue, async || stored(&queue, &job).await.state() != JobState::Running).await;
    let ended = stored(&queue, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Completed, (amount, 0, 0)));
    assert_eq!(recorded(&database, "cancelTask").await, amount as i64);
    println!("{before:.0} life cycles per second alone, {beside:.0} beside a job of {amount} tasks");
    finish(database, queue).await;
}
