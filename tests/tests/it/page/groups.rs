//! The page of a task group: states, tasks that can never run, and the graph.

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;

use super::{HOSTILE, QUEUE, get, hides, in_order, log_in, shows};
use crate::rig::{Rig, new_task};

/// Of a page, in bytes.
const PAGE_MAX: usize = 60_000;

async fn create(rig: &Rig, group: SlugId, name: &str, needs: &[SlugId]) -> SlugId {
    let change = |body: &mut Value| {
        body["taskGroupId"] = json!(group);
        body["metadata"]["name"] = name.into();
        body["dependencies"] = json!(needs);
    };
    rig.create_with(QUEUE, change).await
}

/// Creates tasks with these names and dependencies, by index, in one request.
async fn submit(rig: &Rig, group: SlugId, tasks: impl Iterator<Item = (String, Vec<usize>)>) {
    let ids: Vec<SlugId> = (0..1_000).map(|_| new_task()).collect();
    let tasks: Vec<Value> = tasks
        .zip(&ids)
        .map(|((name, needs), id)| {
            let metadata = json!({"name": name, "description": "d", "owner": "o@example.com", "source": "https://example.com/"});
            let needs: Vec<SlugId> = needs.into_iter().map(|index| ids[index]).collect();
            json!({"taskId": id, "taskGroupId": group, "taskQueueId": QUEUE, "payload": {}, "metadata": metadata, "dependencies": needs})
        })
        .collect();
    let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({"tasks": tasks}))).await;
    assert!(answer.is_success(), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_page_shows_failures_first() {
    let rig = Rig::start().await;
    let group = new_task();
    let build = create(&rig, group, "build", &[]).await;
    let test = create(&rig, group, "test", &[build]).await;
    let report = create(&rig, group, HOSTILE, &[test]).await;
    let path = format!("/group/{group}");
    let page = get(&rig, &path, None).await;
    shows(
        &page,
        &[
            "Open: 0 of 3 tasks have ended, 1 waits for a worker",
            "Waiting for other tasks</h2>",
            "Graph</h2>",
            "Open for",
        ],
    );
    hides(&page, &["Can never run", "<script>"]);
    let claims = rig.claim(QUEUE, 1).await;
    shows(&get(&rig, &path, None).await, &["1 is running", "Running</h2>", "group/worker"]);
    rig.report(&claims[0], "failed", None).await;
    let lint = create(&rig, group, "lint", &[]).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", None).await;
    let page = get(&rig, &path, None).await;
    shows(
        &page,
        &[
            "Stuck: 1 of 4 tasks completed, 1 failed, 2 can never run",
            "aria-label=\"1 completed; 1 failed; 2 unscheduled\"",
            "Because of",
            "<a class=\"failed\" href=\"/task/",
            "✗ build",
            "&lt;script&gt;alert(1)",
        ],
    );
    hides(&page, &["<script>", "<img"]);
    in_order(&page, &["Failed</h2>", "Can never run</h2>", "Completed</h2>"]);
    let never = get(&rig, &format!("{path}?show=never"), None).await;
    shows(&never, &[&test.to_string(), &report.to_string(), &build.to_string(), "The whole group"]);
    hides(&never, &[&format!("href=\"/task/{lint}\""), "refresh.js", "Graph</h2>"]);
    let next = get(&rig, &format!("{path}?show=never&after={test}"), None).await;
    shows(&next, &[&report.to_string()]);
    hides(&next, &[&format!("href=\"/task/{test}\"")]);
    // The task at fault runs again.
    let rerun = rig.call("POST", &format!("/task/{build}/rerun"), None).await;
    assert!(rerun.is_success(), "{}", rerun.body);
    hides(&get(&rig, &path, None).await, &["Can never run", "Stuck"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_of_another_group_at_fault_is_named_to_its_readers() {
    let rig = Rig::start().await;
    let other = create(&rig, new_task(), "secret-name", &[]).await;
    let group = new_task();
    create(&rig, group, "blocked", &[other]).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "failed", None).await;
    let scopes = format!("queue:list-task-group:{group}");
    let reader = log_in(&rig, &rig.make_client("reader", &[&scopes]).await).await;
    let path = format!("/group/{group}");
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, &path, Some(&root)).await, &["Can never run</h2>", "secret-name"]);
    let body = json!({"scopes": [], "description": ""});
    assert_eq!(rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&body)).await.status, 200);
    crate::rig::eventually("reading is closed", async || {
        (get(&rig, &format!("/task/{other}"), None).await.status == 403).then_some(())
    })
    .await;
    let page = get(&rig, &path, Some(&reader)).await;
    shows(&page, &["Can never run</h2>", "blocked", &format!("/task/{other}")]);
    hides(&page, &["secret-name"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graph_of_200_tasks_fits_the_page() {
    let rig = Rig::start().await;
    let group = new_task();
    let needs = |index: usize| match index {
        0 => vec![],
        1 | 2 => vec![0],
        _ => vec![0, index / 2],
    };
    submit(&rig, group, (0..200).map(|index| (format!("test-integration-{index}"), needs(index)))).await;
    let page = get(&rig, &format!("/group/{group}"), None).await;
    shows(&page, &["Open: 0 of 200 tasks have ended", "test-integration-199", "199 unscheduled", "11 of 199"]);
    assert_eq!(page.text().matches("<rect></rect>").count(), 200);
    assert!(page.text().len() < PAGE_MAX, "{} bytes", page.text().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn larger_group_is_drawn_by_prefixes() {
    let rig = Rig::start().await;
    let group = new_task();
    let tasks = (0..300).map(|index| match index {
        0 => ("decision".to_owned(), vec![]),
        index if index % 2 == 0 => (format!("build-linux-{index}"), vec![0]),
        index => (format!("test-<i>-{index}"), vec![0, 2]),
    });
    submit(&rig, group, tasks).await;
    let page = get(&rig, &format!("/group/{group}"), None).await;
    shows(&page, &["by the beginning of their names", "build-linux- ×149", "test-&lt;i&gt; ×150", "299 unscheduled"]);
    hides(&page, &["<i>"]);
    assert!(page.text().len() < PAGE_MAX, "{} bytes", page.text().len());
    // Pages of one section reach every task.
    let (mut path, mut rows) = (format!("/group/{group}?show=unscheduled"), 0);
    loop {
        let page = get(&rig, &path, None).await.text();
        assert!(page.len() < PAGE_MAX, "{} bytes", page.len());
        rows += page.matches("<tr><td").count();
        let Some((before, _)) = page.split_once("\">the next</a>") else { break };
        path = before.rsplit_once("href=\"").unwrap().1.replace("&amp;", "&");
    }
    assert_eq!(rows, 299);
}
