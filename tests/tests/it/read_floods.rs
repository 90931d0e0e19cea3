//! Floods of reads without credentials: no claim is lost beside them, and leases expire in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_driver::wire::{Connection, Target, WireError, write_request};
use tenure_tests::http::QUEUE_API;

use crate::rig::{Raw, Rig, call, credentials_of, eventually, minutes_from_now, new_task, run_of, send, stderr};

const OWN_API: &str = "/api/tenure/v1";
const QUEUE: &str = "honest/queue";
const FLOODED: &str = "flooded/queue";
const LEASE: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(1);
const CLAIMS: u16 = 5;
/// Longer than a lease.
const FLOOD: Duration = Duration::from_secs(13);
/// Ten times the 250 ms within which an expired lease ends.
const EXPIRES_WITHIN: Duration = Duration::from_millis(2_500);
/// A stream is closed after this, and another one opened.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// If set, every flood runs; otherwise only the two mixed ones.
const ALL: &str = "TENURE_FLOODS";

/// Number of answers per status; 0 means no answer.
type Statuses = HashMap<u16, usize>;

/// Data that the floods read: a task among 10,000 waiting runs, a group of 1,000 tasks, 500 queues.
struct Ground {
    task: String,
    group: String,
}

impl Ground {
    async fn make(rig: &Rig) -> Self {
        let (group, tasks) = (new_task().to_string(), 10_000);
        for begin in (0..tasks).step_by(1_000) {
            // The first thousand are one group; the others are spread over queues.
            let one = |n: usize| {
                let queue = if n % 20 == 1 { format!("flooded/queue-{n}") } else { FLOODED.to_owned() };
                let mut task = json!({"taskQueueId": queue, "payload": {"command": [["true"]]},
                    "deadline": minutes_from_now(60)});
                if begin == 0 {
                    task["taskGroupId"] = json!(group);
                }
                task
            };
            let body = json!({"tasks": (begin..begin + 1_000).map(one).collect::<Vec<_>>()});
            let answer = send(&rig.server, &rig.root, "POST", &format!("{OWN_API}/tasks"), Some(&body)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let task = rig.create_one(FLOODED).await;
        Self { task: task.to_string(), group }
    }

    /// Value of a path parameter. A new parameter needs a value here.
    fn value(&self, name: &str, path: &str) -> String {
        let escaped = |queue: &str| queue.replace('/', "%2F");
        match name {
            "taskId" => self.task.clone(),
            "taskGroupId" => self.group.clone(),
            "runId" => "0".to_owned(),
            "taskQueueId" | "workerPoolId" => escaped(FLOODED),
            "provisionerId" => "flooded".to_owned(),
            "workerType" => "queue".to_owned(),
            "workerGroup" | "workerId" | "key" | "scheduleName" | "subscriptionName" | "partitionName" | "memberId" => {
                "some".to_owned()
            }
            "name" => "public/some.log".to_owned(),
            "clientId" => "root".to_owned(),
            "roleId" => "anonymous".to_owned(),
            "sessionId" | "jobId" => "yZ3B_2rBS5WUxDDuPPqkqg".to_owned(),
            "service" => "queue".to_owned(),
            "reference" => "api.json".to_owned(),
            "schema" | "common" => "create-task-request.json".to_owned(),
            "queue" => "q".to_owned(),
            "artifact" => format!("{}/0/public%2Fsome.log", self.task),
            "file" => "index.html".to_owned(),
            _ => panic!("the parameter {name} of {path} has no value in this test; add one"),
        }
    }

    async fn every_read(&self, rig: &Rig) -> Vec<String> {
        let document = rig.send(&Raw::new("GET", "/openapi.json")).await.json();
        let paths = document["paths"].as_object().expect("the document has paths");
        let reads = paths.iter().filter(|(_, methods)| methods.get("get").is_some());
        let mut targets: Vec<String> = reads.map(|(path, _)| self.fill(path)).collect();
        assert!(targets.len() > 60, "{}", targets.len());
        let pages = [
            "/",
            "/task/{taskId}",
            "/task/{taskId}/compare",
            "/task/{taskId}/log",
            "/task/{taskId}/log?q=flooded",
            "/group/{taskGroupId}",
            "/queue/flooded/queue",
            "/worker/some/some",
            "/session/{sessionId}",
            "/partitions",
            "/partition/some",
            "/tasks",
            "/workers",
            "/workers?queue=flooded/queue",
            "/access",
            "/access?scope=queue%3Astatus%3Ax",
            "/client/some",
            "/role/anonymous",
            "/system",
            "/jobs",
            "/jobs/{jobId}",
        ];
        targets.extend(pages.map(|page| self.fill(page)));
        targets
    }

    fn fill(&self, path: &str) -> String {
        let mut filled = String::new();
        let mut rest = path;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').expect("a parameter ends");
            filled.push_str(before);
            filled.push_str(&self.value(name, path));
            rest = after;
        }
        filled + rest
    }
}

async fn send_on_one_connection(server: &Target, targets: &[String], first: usize, until: Instant) -> Statuses {
    let (mut statuses, mut connection, mut request) = (Statuses::new(), None, Vec::new());
    for n in first.. {
        if Instant::now() >= until {
            break;
        }
        write_request(&mut request, server, "GET", &targets[n % targets.len()], None, None);
        let asking = async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => Connection::open(server).await?,
            };
            open.send(&request).await?;
            let reply = open.receive().await?;
            Ok::<_, WireError>((open, reply.status))
        };
        let status = match tokio::time::timeout(ANSWER_MAX, asking).await {
            Ok(Ok((open, status))) => {
                connection = Some(open).filter(Connection::is_reusable);
                status
            }
            Ok(Err(_)) | Err(_) => 0,
        };
        *statuses.entry(status).or_default() += 1;
    }
    statuses
}

async fn flood(rig: &Rig, targets: &[String], connections: usize) -> Statuses {
    let (server, until) = (Target::parse(rig.server.root_url()).unwrap(), Instant::now() + FLOOD);
    let targets: Arc<[String]> = targets.into();
    let senders: Vec<_> = (0..connections)
        .map(|n| {
            let (server, targets) = (server.clone(), Arc::clone(&targets));
            tokio::spawn(async move { send_on_one_connection(&server, &targets, n, until).await })
        })
        .collect();
    let mut all = Statuses::new();
    for sender in senders {
        for (status, count) in sender.await.unwrap() {
            *all.entry(status).or_default() += count;
        }
    }
    all
}

async fn renew(rig: &Rig, what: &str, claim: &Value, over: &AtomicBool) -> Duration {
    let (mut client, path, mut longest) = (rig.client(), format!("{}/reclaim", run_of(claim)), Duration::ZERO);
    while !over.load(Ordering::SeqCst) {
        let began = Instant::now();
        let answer = call(&mut client, &credentials_of(claim), "POST", &path, None).await;
        let took = began.elapsed();
        assert_eq!(answer.status, 200, "{what}: a renewal was refused after {took:?}: {}", answer.body);
        longest = longest.max(took);
        tokio::time::sleep(RENEW_EVERY.saturating_sub(took)).await;
    }
    longest
}

async fn lateness(rig: &Rig, claim: &Value) -> Duration {
    let id = claim["status"]["taskId"].as_str().unwrap().parse().unwrap();
    tokio::time::sleep(LEASE).await;
    let began = Instant::now();
    eventually("an expired lease ends", async || {
        let status = rig.status(id).await;
        (status["runs"][0]["reasonResolved"] == "claim-expired").then_some(())
    })
    .await;
    began.elapsed()
}

async fn claims_beside(rig: &Rig, what: &str, targets: &[String], connections: usize) {
    for _ in 0..=CLAIMS {
        rig.create_one(QUEUE).await;
    }
    let claims = rig.claim(QUEUE, CLAIMS + 1).await;
    let (abandoned, claims) = claims.split_first().expect("there are claims");
    assert_eq!(claims.len(), usize::from(CLAIMS), "{what}");
    let (over, before) = (AtomicBool::new(false), rig.server.log().len());
    let flooding = async {
        let statuses = flood(rig, targets, connections).await;
        over.store(true, Ordering::SeqCst);
        statuses
    };
    let renewing = futures_util::future::join_all(claims.iter().map(|claim| renew(rig, what, claim, &over)));
    let (statuses, renewals, late) = tokio::join!(flooding, renewing, lateness(rig, abandoned));
    let (longest, log) = (renewals.into_iter().max().unwrap_or_default(), rig.server.log().split_off(before));
    println!(
        "{what}: {statuses:?}; longest renewal {longest:?}, lease ended {late:?} late, {} bytes of log",
        log.len()
    );
    assert!(statuses.keys().all(|status| *status != 500), "{what}: {statuses:?}");
    assert!(late < EXPIRES_WITHIN, "{what}: a lease ended {late:?} late");
    for claim in claims {
        let answer =
            call(&mut rig.client(), &credentials_of(claim), "POST", &format!("{}/completed", run_of(claim)), None)
                .await;
        assert_eq!(answer.status, 200, "{what}: a claim was lost: {}", answer.body);
    }
    assert!(
        log.lines().count() < 20 * FLOOD.as_secs() as usize,
        "{what}: the flood filled the log:\n{}",
        rig.server.log_tail()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_survive_every_flood_of_reads() {
    let rig = Rig::start_with(|launch| {
        launch.flag("--claim-timeout", format!("{}s", LEASE.as_secs())).env("TENURE_METRICS_LIFE_MS", "1000")
    })
    .await;
    let ground = Ground::make(&rig).await;
    let every = ground.every_read(&rig).await;
    let why = vec![format!("{OWN_API}/tasks/{}/why", ground.task)];
    let group = vec![format!("{QUEUE_API}/task-group/{}/list", ground.group)];
    let both = [why.clone(), group.clone()].concat();
    if std::env::var_os(ALL).is_some() {
        claims_beside(&rig, "metrics", &["/metrics".to_owned()], 2_000).await;
        claims_beside(&rig, "why", &why, 800).await;
        claims_beside(&rig, "a group", &group, 1_500).await;
    }
    claims_beside(&rig, "why and a group", &both, 2_000).await;
    claims_beside(&rig, "every read", &every, 800).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_reads_are_counted_and_may_be_repeated() {
    let rig = Rig::start().await;
    let ground = Ground::make(&rig).await;
    let target = format!("{OWN_API}/tasks/{}/why", ground.task);
    let raw = Raw::new("GET", &target);
    // A lock on the table of tasks keeps reads running, and their slots taken.
    let mut conn = rig.database.connect("lock").await;
    sqlx::raw_sql("BEGIN; LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE").execute(&mut conn).await.unwrap();
    let refused = AtomicUsize::new(0);
    let asking = futures_util::future::join_all((0..6).map(|_| async {
        let reply = rig.send(&raw).await;
        if reply.status == 503 {
            assert_eq!(reply.header("retry-after"), Some("1"));
            refused.fetch_add(1, Ordering::SeqCst);
        }
    }));
    asking.await;
    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.unwrap();
    assert!(refused.load(Ordering::SeqCst) >= 4, "two slots are for callers without credentials");
    let metrics = eventually("the refusals are counted", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        text.lines()
            .find_map(|line| line.strip_prefix("tenure_limits_reached_total{limit=\"reads\"} ")?.parse::<usize>().ok())
            .filter(|count| *count >= 4)
    })
    .await;
    assert_eq!(metrics, 4);
    assert_eq!(rig.send(&raw).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_with_a_token_need_it() {
    let rig = Rig::start_with(|launch| launch.env("TENURE_METRICS_TOKEN", "scrape-me")).await;
    let raw = Raw::new("GET", "/metrics");
    let refused = rig.send(&raw).await;
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    refused.refused(401, "AuthenticationFailed");
    rig.send(&raw.clone().authorization("Bearer scrape")).await.refused(401, "AuthenticationFailed");
    let reply = rig.send(&raw.authorization("Bearer scrape-me")).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("tenure_batch_shed_total"));
    rig.server.stop().await;
    let output = crate::rig::tenure(&["serve", "--metrics-token", "a b"], &[]).await;
    assert!(stderr(&output).contains("--metrics-token"), "{}", stderr(&output));
}
