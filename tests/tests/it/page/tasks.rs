//! The list of tasks and the search, on the pages.

use serde_json::json;

use super::{HOSTILE, QUEUE, form_token, get, hides, log_in, shows};
use crate::rig::{Rig, new_task};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_keeps_its_conditions_in_the_address() {
    let rig = Rig::start().await;
    let first = rig.create_with(QUEUE, |body| body["metadata"]["name"] = "wanted".into()).await;
    for _ in 0..101 {
        rig.create_with(QUEUE, |body| body["metadata"]["name"] = "long ".repeat(20).into()).await;
    }
    let found = get(&rig, "/tasks?queue=page%2Fqueue&state=pending&name=WANTED", None).await;
    shows(&found, &[&format!("/task/{first}"), "value=\"WANTED\"", "state=pending"]);
    hides(&found, &["type=\"checkbox\"", "action=\"/jobs\""]);
    let list = "/tasks?queue=page%2Fqueue&state=pending";
    let (mut rows, mut next) = (0, list.to_owned());
    loop {
        let page = get(&rig, &next, None).await;
        let text = page.text();
        rows += text.matches("href=\"/task/").count();
        assert_eq!(text.contains("from the beginning"), next != list, "{next}");
        let Some((before, _)) = text.split_once("\">go on</a>") else { break };
        next = before.rsplit('"').next().unwrap().replace("&amp;", "&");
        assert!(next.starts_with(&format!("{list}&after=")), "{next}");
    }
    assert_eq!(rows, 102);
    let root = log_in(&rig, &rig.root).await;
    let full = get(&rig, "/tasks", Some(&root)).await;
    assert!(full.body.len() <= 60_000, "{} bytes", full.body.len());
    for wrong in ["state=done", "since=soon", "after=x", "short=x", "queue=a%20b", "state=held"] {
        shows(&get(&rig, &format!("/tasks?{wrong}"), None).await, &["role=\"alert\""]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_start_jobs_of_selected_tasks_or_of_all_that_match() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, "/tasks?queue=page%2Fqueue&since=2h", Some(&root)).await;
    let (selects, token) = (format!("name=\"task_id\" value=\"{task}\""), form_token(&page.text()).to_owned());
    let queue = "<input type=\"hidden\" name=\"queue\" value=\"page/queue\">";
    let action = "name=\"action\" value=\"cancel\"";
    shows(&page, &[&selects, queue, action, "action=\"/jobs\"", "name=\"since\" value=\"20"]);
    assert!(page.text().matches(&token).count() >= 3, "each form has the token");
    let all = get(&rig, "/tasks", Some(&root)).await;
    shows(&all, &[&selects]);
    hides(&all, &["All that match"]);
    let looker = log_in(&rig, &rig.make_client("looker", &["queue:status:*"]).await).await;
    let seen = get(&rig, "/tasks?queue=page%2Fqueue", Some(&looker)).await;
    shows(&seen, &[&format!("/task/{task}"), "disabled", "needs <code>tenure:start-job</code>"]);
    hides(&seen, &["type=\"checkbox\"", "action=\"/jobs\""]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn search_leads_to_what_is_named() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let group = new_task();
    rig.create_with(QUEUE, |body| body["taskGroupId"] = json!(group)).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let root = log_in(&rig, &rig.root).await;
    let (id, short, in_group) = (task.to_string(), task.to_string()[..8].to_owned(), group.to_string());
    for (text, place) in [
        ("", "/tasks".to_owned()),
        (id.as_str(), format!("/task/{id}")),
        (short.as_str(), format!("/task/{id}")),
        (in_group.as_str(), format!("/group/{group}")),
        ("page%2Fqueue", "/queue/page/queue".to_owned()),
        ("group%2Fworker", "/worker/group/worker".to_owned()),
        ("no%2Fqueue", "/tasks?name=no%2Fqueue".to_owned()),
        ("a+b", "/tasks?name=a%20b".to_owned()),
        ("%00", "/tasks?name=%00".to_owned()),
    ] {
        let reply = get(&rig, &format!("/search?q={text}"), Some(&root)).await;
        assert_eq!((reply.status, reply.header("location")), (303, Some(place.as_str())), "{text}");
    }
    shows(&get(&rig, "/tasks?name=%00", Some(&root)).await, &["role=\"alert\""]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_texts_are_escaped_in_conditions() {
    let rig = Rig::start().await;
    rig.create_with(QUEUE, |body| body["metadata"]["name"] = HOSTILE.into()).await;
    let escaped: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let root = log_in(&rig, &rig.root).await;
    for field in ["name", "owner", "tag", "queue", "group", "reason", "worker", "project", "since", "state", "short"] {
        let page = get(&rig, &format!("/tasks?{field}={escaped}"), Some(&root)).await;
        assert_eq!(page.status, 200, "{field}");
        hides(&page, &["<script>", "<img", "javascript:"]);
    }
    shows(&get(&rig, &format!("/tasks?name={escaped}"), Some(&root)).await, &["&lt;script&gt;alert(1)&lt;/script&gt;"]);
}
