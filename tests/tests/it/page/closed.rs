//! What pages hide when the role `anonymous` has fewer scopes than at the start.

use serde_json::{Value, json};

use super::{QUEUE, get, hides, log_in, shows, sql, without_clock};
use crate::rig::{Raw, Rig, eventually};

const NAME: &str = "known-to-few";
const WORKER: &str = "/worker/group/worker";
const NO_WORKER: &str = "/worker/group/missing";

async fn close(rig: &Rig, scopes: &[&str], read: &str) {
    let body = json!({"scopes": scopes, "description": ""});
    assert_eq!(rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&body)).await.status, 200);
    eventually("reading is closed", async || {
        let reply = rig.send(&Raw::new("GET", read)).await;
        (reply.status == 403).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_task_is_shown_to_who_may_read_its_definition() {
    let rig = Rig::start().await;
    let named = |body: &mut Value| body["metadata"]["name"] = NAME.into();
    let (failed, held) = (rig.create_with(QUEUE, named).await, rig.create_with(QUEUE, named).await);
    let claims = rig.claim(QUEUE, 2).await;
    rig.report(&claims[0], "failed", None).await;
    let pages = [("/queue/page/queue", vec![failed]), (WORKER, vec![failed, held])];
    for (path, _) in &pages {
        shows(&get(&rig, path, None).await, &[NAME]);
    }
    let scopes = ["queue:status:*", "queue:get-worker:*", "queue:get-worker-type:*"];
    close(&rig, &scopes, &format!("/api/queue/v1/task/{failed}")).await;
    let reader = format!("queue:get-task:{failed}");
    let reader = log_in(&rig, &rig.make_client("reader", &[&reader]).await).await;
    for (path, tasks) in &pages {
        let page = get(&rig, path, None).await;
        for task in tasks {
            shows(&page, &[&format!("/task/{task}")]);
        }
        hides(&page, &[NAME]);
        let page = get(&rig, path, Some(&reader)).await;
        assert_eq!(page.text().matches(NAME).count(), 1, "{path}: {}", page.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existence_of_worker_needs_the_scope_to_see_workers() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    shows(&get(&rig, WORKER, None).await, &["State"]);
    shows(&get(&rig, NO_WORKER, None).await, &["No worker of this name"]);
    close(&rig, &[], WORKER).await;
    let denied = async |path: &str, name: &str| {
        let reply = get(&rig, path, None).await;
        assert_eq!(reply.status, 403, "{path}");
        without_clock(&reply.text())
            .replace(&format!("group/{name}"), "NAME")
            .replace(&format!("group%2F{name}"), "NAME")
    };
    assert_eq!(denied(WORKER, "worker").await, denied(NO_WORKER, "missing").await);
    let one = log_in(&rig, &rig.make_client("one", &["queue:get-worker:page/queue/group/worker"]).await).await;
    shows(&get(&rig, WORKER, Some(&one)).await, &["State"]);
    assert_eq!(get(&rig, NO_WORKER, Some(&one)).await.status, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_tell_no_more_than_pages() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    rig.create_with(QUEUE, |body| body["dependencies"] = json!([task])).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let (cancel, end) = (format!("/task/{task}/cancel"), format!("/session/{session}/end"));
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, &cancel, Some(&root)).await, &["group/worker", "1 task needs it."]);
    shows(&get(&rig, &end, Some(&root)).await, &["Its 0 running"]);
    close(&rig, &[], &format!("/api/queue/v1/task/{task}/status")).await;
    let scopes = ["tenure:cancel-task:page/queue", "queue:claim-work:page/queue", "queue:worker-id:group/*"];
    let stranger = log_in(&rig, &rig.make_client("stranger", &scopes).await).await;
    let page = get(&rig, &cancel, Some(&stranger)).await;
    shows(&page, &["A worker holds it.", "Tasks that need it completed cannot run"]);
    hides(&page, &["group/worker", "needs it."]);
    let page = get(&rig, &end, Some(&stranger)).await;
    shows(&page, &["Its running and assigned runs leave it."]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_numbers_and_queues_are_not_none() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    sql(&rig, "INSERT INTO task_queues (name) SELECT 'a/queue-' || n FROM generate_series(1, 40) n").await;
    close(&rig, &["queue:list-task-queues"], &format!("/api/queue/v1/task/{task}/status")).await;
    shows(&get(&rig, "/", None).await, &["needs queue:pending-count", "needs queue:claimed-count"]);
    close(&rig, &[], "/").await;
    let stranger = log_in(&rig, &rig.make_client("stranger", &[]).await).await;
    let page = get(&rig, "/queues?order=name", Some(&stranger)).await;
    shows(&page, &["You may list none of the queues of this page.", "Next queues"]);
    let last = get(&rig, "/queues?order=name&after=zz", Some(&stranger)).await;
    shows(&last, &["No queue that you may list has a later name."]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_login_form_waits_for_no_page_of_others() {
    let rig = Rig::start().await;
    rig.create_one(QUEUE).await;
    let (mut holder, mut looker) = (rig.database.connect("holder").await, rig.database.connect("looker").await);
    sqlx::raw_sql("BEGIN; LOCK TABLE claims, pending").execute(&mut holder).await.unwrap();
    let url = rig.server.root_url().to_owned();
    // As many as visitors without a session have slots.
    let pages: Vec<_> = (0..2)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { Raw::new("GET", "/").send(&url).await.status })
        })
        .collect();
    eventually("both pages wait for the table", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- page_%'";
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut looker).await.unwrap();
        (waiting == 2).then_some(())
    })
    .await;
    assert_eq!(get(&rig, "/login", None).await.status, 200);
    assert!(pages.iter().all(|page| !page.is_finished()), "it waited for them");
    drop(holder);
}
