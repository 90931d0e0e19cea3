//! A backup during a history of operations: the restored state is a prefix of the acknowledged
//! operations.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::rig::{claim_path, definition, eventually, new_task, report, worker};

const WRITERS: usize = 4;
/// Lives of tasks before the backup begins.
const LIVES_BEFORE: usize = 24;

struct Step {
    began: Instant,
    acknowledged: Instant,
}

/// Steps of one task, in the order of [`Level`].
struct Life {
    task: SlugId,
    steps: Vec<Step>,
}

/// Number of steps after which a task looks like this.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Absent,
    Created,
    Claimed,
    Uploaded,
    Completed,
}

#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    lives: AtomicUsize,
}

async fn timed<T>(steps: &mut Vec<Step>, step: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let result = step.await;
    steps.push(Step { began, acknowledged: Instant::now() });
    result
}

/// Each task has its own queue, since some are left pending.
async fn write(server: &Server, root: &Credentials, writer: usize, progress: &Progress) -> Vec<Life> {
    let mut client = client_of(server);
    let mut lives = Vec::new();
    while !progress.stop.load(Ordering::SeqCst) {
        let number = lives.len();
        let (task, queue, mut steps) = (new_task(), format!("backup/w{writer}-{number}"), Vec::new());
        let end = [Level::Completed, Level::Uploaded, Level::Claimed, Level::Created][number % 4];
        timed(&mut steps, create(&mut client, root, task, &queue)).await;
        if end >= Level::Claimed {
            let claimed = timed(&mut steps, claim_one(&mut client, root, &queue)).await;
            if end >= Level::Uploaded {
                timed(&mut steps, upload(server, &claimed)).await;
            }
            if end >= Level::Completed {
                let (path, who) = (format!("{}/completed", run_of(&claimed)), credentials_of(&claimed));
                timed(&mut steps, until_answered(&mut client, &who, "POST", &path, &json!({}))).await;
            }
        }
        lives.push(Life { task, steps });
        progress.lives.fetch_add(1, Ordering::SeqCst);
    }
    lives
}

async fn until_lives(progress: &Progress, least: usize) {
    eventually("tasks were written", async || (progress.lives.load(Ordering::SeqCst) >= least).then_some(())).await;
}

async fn create(client: &mut Client, root: &Credentials, task: SlugId, queue: &str) {
    let (path, body) = (format!("/task/{task}"), definition(queue));
    ok(until_answered(client, root, "PUT", &path, &body).await);
}

async fn claim_one(client: &mut Client, root: &Credentials, queue: &str) -> Value {
    loop {
        let mut answer = ok(until_answered(client, root, "POST", &claim_path(queue), &worker(1)).await);
        if let Some(claim) = answer["tasks"].as_array_mut().and_then(Vec::pop) {
            return claim;
        }
    }
}

async fn level(server: &Server, root: &Credentials, task: SlugId) -> Level {
    let found = until_read(server, root, &format!("/task/{task}/status")).await;
    if found.status == 404 {
        return Level::Absent;
    }
    assert_eq!(found.status, 200, "{}", found.text());
    let state = found.json()["status"]["state"].as_str().unwrap().to_owned();
    if state == "pending" {
        return Level::Created;
    }
    let artifact = download(server, root, task).await;
    assert!(artifact.as_ref().is_none_or(|text| *text == text_of(task)), "{artifact:?}");
    match (state.as_str(), artifact) {
        ("running", None) => Level::Claimed,
        ("running", Some(_)) => Level::Uploaded,
        ("completed", Some(_)) => Level::Completed,
        (state, artifact) => panic!("task {task} is {state} with the artifact {artifact:?}"),
    }
}

/// Compares the restored server with the history around a backup.
async fn assert_prefix(server: &Server, root: &Credentials, lives: &[Life], backup: (Instant, Instant)) {
    let (mut present, mut absent): (Vec<&Step>, Vec<&Step>) = (Vec::new(), Vec::new());
    for life in lives {
        let reached = level(server, root, life.task).await as usize;
        assert!(reached <= life.steps.len(), "task {} was never in this state", life.task);
        present.extend(&life.steps[..reached]);
        absent.extend(&life.steps[reached..]);
    }
    assert!(present.len() >= LIVES_BEFORE, "only {} steps were restored", present.len());
    let last_begun = present.iter().map(|step| step.began).max().unwrap();
    assert!(last_begun < backup.1, "a step that began after the backup was restored");
    let first_lost = absent.iter().map(|step| step.acknowledged).min().expect("the history goes on after the backup");
    assert!(first_lost > backup.0, "a step that was acknowledged before the backup is lost");
    assert!(first_lost > last_begun, "a step is lost, but one that began after its acknowledgement is not");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_state_is_prefix_of_history() {
    let (data, restored) = (DataFolder::new(), DataFolder::new());
    let (server, root) = data.start(&embedded()).await;
    let (dir, progress) = (data.folder.path().join("backup"), Progress::default());
    let back_up = async |dir: &Path| {
        run(&["backup".as_ref(), dir.as_ref(), "--data-dir".as_ref(), data.data_dir().as_ref()]).await
    };
    let operator = async {
        until_lives(&progress, LIVES_BEFORE).await;
        let began = Instant::now();
        let made = back_up(&dir).await;
        let ended = Instant::now();
        // Each writer may finish one task that it began before the end of the backup.
        until_lives(&progress, progress.lives.load(Ordering::SeqCst) + WRITERS + 1).await;
        progress.stop.store(true, Ordering::SeqCst);
        succeeded(&made);
        (began, ended)
    };
    let writers = futures_util::future::join_all((0..WRITERS).map(|writer| write(&server, &root, writer, &progress)));
    let (lives, backup) = tokio::join!(writers, operator);
    let lives: Vec<Life> = lives.into_iter().flatten().collect();
    assert!(server.stop().await.success());

    is_private(&dir);
    succeeded(&verify(&dir).await);
    succeeded(&restore_into(&dir, &restored.data_dir()).await);
    let (server, again) = restored.start(&embedded()).await;
    assert_eq!(again, root);
    assert_prefix(&server, &root, &lives, backup).await;
    let next = run_task(&server, &root).await;
    assert_eq!(level(&server, &root, next).await, Level::Completed);
    assert!(server.stop().await.success());

    // Without a server.
    let stopped = data.folder.path().join("stopped");
    succeeded(&back_up(&stopped).await);
    succeeded(&verify(&stopped).await);
}

/// Runs a task on the restored server.
async fn run_task(server: &Server, root: &Credentials) -> SlugId {
    let (mut client, task) = (client_of(server), new_task());
    create(&mut client, root, task, QUEUE).await;
    let claimed = claim_one(&mut client, root, QUEUE).await;
    upload(server, &claimed).await;
    report(server, &claimed, "completed", None).await;
    task
}
