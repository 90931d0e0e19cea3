//! Row M18: requests about one run at two servers at once. One end wins, and nothing follows it.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tenure_tests::server::{Launch, Server};

use super::*;
use crate::rig::{call_patiently, client_of, status};

const BATCHES: usize = 3;
/// Races of a batch.
const TOGETHER: usize = 20;
/// Most runs of a claim.
const CLAIM_MAX: usize = 32;
/// Requests of a race, alternately to one server and the other. `w1` and `w2` claim the run.
const REQUESTS: [&str; 6] = ["completed", "cancel", "reclaim", "failed", "w1", "w2"];
const ENDS: [&str; 3] = ["task-completed", "task-failed", "task-exception"];

struct Pair {
    other: Server,
    rig: Rig,
}

/// The answers of a race, and the first status of the ended task that a reader saw.
struct Raced {
    task: SlugId,
    answers: BTreeMap<&'static str, Answer>,
    end: Value,
}

impl Pair {
    async fn start() -> Self {
        let settings = |launch: Launch| launch.flag("--claim-work-wait", "0s");
        let rig = Rig::start_with(settings).await;
        let launch = settings(Launch::on_database(rig.database.url(), &rig.secret_key));
        let other = launch.start(rig.folder.path(), "other").await;
        Self { other, rig }
    }

    fn server(&self, number: usize) -> &Server {
        if number.is_multiple_of(2) { &self.rig.server } else { &self.other }
    }

    async fn call(&self, number: usize, path: &str, body: Option<&Value>) -> Answer {
        call_patiently(&mut client_of(self.server(number)), &self.rig.root, "POST", path, body).await
    }

    async fn send(&self, number: usize, task: SlugId, what: &str) -> Answer {
        let run = format!("/task/{task}/runs/0");
        match what {
            "cancel" => self.call(number, &format!("/task/{task}/cancel"), None).await,
            "w1" | "w2" => {
                let body = json!({"workerGroup": "group", "workerId": what});
                self.call(number, &format!("{run}/claim"), Some(&body)).await
            }
            report => self.call(number, &format!("{run}/{report}"), Some(&json!({}))).await,
        }
    }

    /// Claims pending runs. Returns the ids of the tasks.
    async fn claim_work(&self, number: usize, worker: &str) -> Vec<String> {
        let body = json!({"workerGroup": "group", "workerId": worker, "tasks": CLAIM_MAX});
        let claims = ok(self.call(number, &claim_path(QUEUE), Some(&body)).await);
        let ids = claims["tasks"].as_array().unwrap().iter().map(|claim| claim["status"]["taskId"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    }

    /// Sends all requests about a task together, beginning with the one of this number.
    async fn race(&self, task: SlugId, first: usize) -> Raced {
        let mut requests = REQUESTS;
        requests.rotate_left(first % REQUESTS.len());
        let sent = join_all(
            requests
                .into_iter()
                .enumerate()
                .map(|(number, what)| async move { (what, self.send(number, task, what).await) }),
        );
        let read = eventually("the task ends", async || {
            let seen = status(&mut client_of(&self.other), &self.rig.root, task).await;
            let is_open = seen["state"] == "pending" || seen["state"] == "running";
            (!is_open).then_some(seen)
        });
        let (answers, end) = tokio::join!(sent, read);
        Raced { task, answers: answers.into_iter().collect(), end }
    }

    /// Races for new tasks, which worker `w0` has claimed before, or which are pending.
    async fn batch(&self, is_claimed: bool) -> Vec<Raced> {
        let tasks = create(&self.rig, TOGETHER).await;
        let mut held = 0;
        while is_claimed && held < TOGETHER {
            let claims = self.claim_work(0, "w0").await;
            assert!(!claims.is_empty(), "{held} of {TOGETHER} runs are claimed");
            held += claims.len();
        }
        let races = join_all(tasks.iter().enumerate().map(|(number, &task)| self.race(task, number)));
        let (raced, w3, w4) = tokio::join!(races, self.claim_work(0, "w3"), self.claim_work(1, "w4"));
        for one in &raced {
            let id = one.task.to_string();
            let mut workers = if is_claimed { vec!["w0"] } else { Vec::new() };
            workers.extend(w3.contains(&id).then_some("w3"));
            workers.extend(w4.contains(&id).then_some("w4"));
            one.check(workers);
        }
        join_all(raced.iter().map(|one| self.stays(one))).await;
        raced
    }

    /// Repeats the requests. The task stays as it is, at both servers.
    async fn stays(&self, raced: &Raced) {
        let Raced { task, end, .. } = raced;
        let won = &end["runs"][0]["reasonResolved"];
        let requests = REQUESTS.into_iter().enumerate();
        let repeats =
            requests.map(|(number, what)| async move { (what, self.send(number + 1, *task, what).await.status) });
        for (what, answered) in join_all(repeats).await {
            let expected = if what == "cancel" || *won == what { 200 } else { 409 };
            assert_eq!(answered, expected, "{what} after the end: {end}");
        }
        for server in [&self.rig.server, &self.other] {
            assert_eq!(&status(&mut client_of(server), &self.rig.root, *task).await, end, "{task} has changed");
        }
    }

    /// Checks that the last event of each task is its end, and the only one.
    async fn events_agree(&self, raced: &[Raced]) {
        let path =
            format!("{TENURE_API}/events?after=0&limit=1000&exchange=task-pending,task-running,{}", ENDS.join(","));
        let page = ok(self.rig.call("GET", &path, None).await);
        let mut of_tasks: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for event in page["events"].as_array().unwrap() {
            let id = event["payload"]["status"]["taskId"].as_str().unwrap();
            of_tasks.entry(id).or_default().push(event["exchange"].as_str().unwrap().rsplit('/').next().unwrap());
        }
        for Raced { task, end, .. } in raced {
            let names = &of_tasks[task.to_string().as_str()];
            let last = format!("task-{}", end["state"].as_str().unwrap());
            assert_eq!(names.last(), Some(&last.as_str()), "{task}: {names:?}");
            assert_eq!(names.iter().filter(|name| ENDS.contains(*name)).count(), 1, "{task}: {names:?}");
        }
    }
}

impl Raced {
    /// Checks that exactly one end won, and that all answers agree with it. `workers` claimed the run by
    /// claimWork.
    fn check(&self, mut workers: Vec<&'static str>) {
        let Self { task, answers, end } = self;
        let run = &end["runs"][0];
        let reason = run["reasonResolved"].as_str().unwrap();
        let state = match reason {
            "completed" | "failed" => reason,
            "canceled" => "exception",
            other => panic!("{other} is none of the ends: {end}"),
        };
        assert_eq!((&end["state"], &run["state"]), (&json!(state), &json!(state)), "{end}");
        assert_eq!(end["runs"].as_array().unwrap().len(), 1, "{end}");
        for (&what, Answer { status, body }) in answers {
            let possible: &[u16] = match what {
                "cancel" => &[200],
                "completed" | "failed" if what == reason => &[200],
                "completed" | "failed" => &[409],
                _ => &[200, 409],
            };
            assert!(possible.contains(status), "{what}: {status} {body}, and {task} is {end}");
        }
        assert_eq!(answers["cancel"].body["status"]["state"], end["state"]);
        workers.extend(["w1", "w2"].into_iter().filter(|worker| answers[worker].status == 200));
        let holder: Vec<&str> = run["workerId"].as_str().into_iter().collect();
        assert_eq!(workers, holder, "{end}");
        assert!(reason == "canceled" || holder.len() == 1, "only a worker's run is reported: {end}");
    }
}

/// Fails if two ends are accepted, an event follows the end, or a later request changes the task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m18_ended_run_stays_ended_in_races_at_two_servers() {
    let pair = Pair::start().await;
    let mut raced = Vec::new();
    for _ in 0..BATCHES {
        for is_claimed in [true, false] {
            raced.extend(pair.batch(is_claimed).await);
        }
    }
    for number in 0..2 {
        assert_eq!(pair.claim_work(number, "w5").await, Vec::<String>::new(), "nothing is pending");
    }
    pair.events_agree(&raced).await;
    pair.other.stop().await;
}
