//! Logs in the page: their end on the task's page, and a page that streams until the run ends.

use serde_json::json;
use tenure_tests::http::TENURE_API;

use super::{HOSTILE, POLICY, get, hides, log_in, shows};
use crate::artifacts::{Worker, put};
use crate::rig::{Raw, Rig, call, client_of, minutes_from_now, ok};

const BACKING_LOG: &str = "public/logs/live_backing.log";

async fn append(worker: &Worker, offset: u64, bytes: &[u8]) -> u64 {
    let path = format!("{TENURE_API}/tasks/{}/runs/0/live-log?offset={offset}", worker.task);
    let answer = client_of(&worker.rig.server).call(&worker.credentials, "PUT", &path, Some(bytes)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["next"].as_u64().unwrap()
}

async fn complete(worker: &Worker) {
    let path = format!("{}/completed", worker.run);
    ok(call(&mut worker.rig.client(), &worker.credentials, "POST", &path, None).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_streams_log_as_escaped_text() {
    let worker = Worker::of(Rig::start().await).await;
    let (rig, task) = (&worker.rig, worker.task.to_string());
    let page = format!("/task/{task}/log");
    hides(&get(rig, &format!("/task/{task}"), None).await, &["Log</h2>"]);
    let lines: String = (0..60).map(|n| format!("line {n}.\n")).collect();
    let next = append(&worker, 0, format!("{lines}{HOSTILE}\n").as_bytes()).await;
    let shown = get(rig, &format!("/task/{task}"), None).await;
    shows(&shown, &["Log</h2>", "line 59.", "line 11.", "&lt;script&gt;alert(1)", &format!("href=\"{page}?run=0\"")]);
    hides(&shown, &["line 10.", "<script>", "<img"]);
    // The answer ends with the run, and contains later writes.
    let finish = async {
        append(&worker, next, b"the last line\n").await;
        complete(&worker).await;
    };
    let (reply, ()) = tokio::join!(get(rig, &page, None), finish);
    shows(&reply, &["line 0.", "line 59.", "&lt;script&gt;alert(1)", "the last line", "This is the end", "</html>"]);
    shows(
        &reply,
        &["<span id=\"L60\"><a href=\"#L60\">60</a>line 59.\n</span>", "<a href=\"#L62\">62</a>the last line"],
    );
    hides(&reply, &["<script>", "<img", "http-equiv=\"refresh\"", "refresh.js"]);
    assert_eq!(reply.header("content-security-policy"), Some(POLICY));
    for (path, status) in [
        (format!("{page}?run=0"), 200),
        (format!("{page}?run=1"), 404),
        ("/task/nonsense/log".to_owned(), 404),
        (format!("/task/{}/log", crate::rig::new_task()), 404),
    ] {
        assert_eq!(get(rig, &path, None).await.status, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_uploaded_is_the_one_that_is_shown() {
    let worker = Worker::of(Rig::start().await).await;
    let (rig, task) = (&worker.rig, worker.task.to_string());
    append(&worker, 0, b"a part\n").await;
    let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
    let created = worker.created(BACKING_LOG, &body).await;
    let stored = put(rig, created["putUrl"].as_str().unwrap(), "text/plain", b"the whole\nwith its end\n").await;
    assert_eq!(stored.status, 200, "{}", stored.text());
    complete(&worker).await;
    let shown = get(rig, &format!("/task/{task}"), None).await;
    shows(&shown, &["the whole\nwith its end"]);
    hides(&shown, &["a part"]);
    let root = log_in(rig, &rig.root).await;
    for cookie in [None, Some(root.as_str())] {
        let reply = get(rig, &format!("/task/{task}/log"), cookie).await;
        shows(&reply, &["<span id=\"L2\"><a href=\"#L2\">2</a>with its end\n</span>", "23 B", "This is the end"]);
        let reply = get(rig, &format!("/task/{task}/log?download=1"), cookie).await;
        assert_eq!(reply.status, 303, "{}", reply.text());
        let log = rig.send(&Raw::new("GET", crate::artifacts::target(rig, reply.header("location").unwrap()))).await;
        assert_eq!((log.status, log.text()), (200, "the whole\nwith its end\n".to_owned()));
    }
}

/// Compressed, as workers upload logs, and longer than a piece.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_stored_log_are_found_and_linked() {
    let worker = Worker::of(Rig::start().await).await;
    let (rig, task) = (&worker.rig, worker.task.to_string());
    let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
    let created = worker.created(BACKING_LOG, &body).await;
    let log: String =
        (1..=5_000).map(|n| format!("step {n} of the build{}\n", if n == 4_321 { ": ERROR" } else { "" })).collect();
    let log = format!("{log}{HOSTILE}");
    let stored = put(rig, created["putUrl"].as_str().unwrap(), "text/plain", log.as_bytes()).await;
    assert_eq!(stored.status, 200, "{}", stored.text());
    complete(&worker).await;
    let page = format!("/task/{task}/log");
    let whole = get(rig, &page, None).await;
    shows(&whole, &["4321</a>step 4321 of the build: ERROR<i></i>\n</span>", "5001</a>&quot;", "5000</a>step 5000 of"]);
    hides(&whole, &["<script>", "<img", "class=\"marked\""]);
    // The hostile line has the word, too.
    assert_eq!(whole.text().matches("<i></i>").count(), 2);
    let found = get(rig, &format!("{page}?q=STEP+4321"), None).await;
    shows(
        &found,
        &["1 of 5\u{202f}001 lines", &format!("<a href=\"{page}?run=0#L4321\">4321</a>step 4321 of the build")],
    );
    hides(&found, &["step 1 of"]);
    shows(&get(rig, &format!("{page}?q=nothing+like+it"), None).await, &["0 of 5\u{202f}001 lines"]);
    shows(&get(rig, &format!("{page}?q=step"), None).await, &["The first 200 of "]);
    hides(&get(rig, &format!("{page}?q=%3Cscript%3E"), None).await, &["<script>"]);
    let linked = get(rig, &format!("{page}?run=0&from=120&to=140"), None).await;
    let address = format!("{page}?run=0&lines=120-140#L120");
    assert_eq!((linked.status, linked.header("location")), (303, Some(address.as_str())));
    let marked = get(rig, &format!("{page}?run=0&lines=120-140"), None).await;
    assert_eq!(marked.text().matches("class=\"marked\"").count(), 21);
    shows(&marked, &["<span id=\"L120\" class=\"marked\">", "<span id=\"L140\" class=\"marked\">"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_log_is_searched_and_downloaded_as_it_is() {
    let worker = Worker::of(Rig::start().await).await;
    let (rig, task) = (&worker.rig, worker.task.to_string());
    let page = format!("/task/{task}/log");
    for query in ["q=x", "download=1"] {
        assert_eq!(get(rig, &format!("{page}?{query}"), None).await.status, 404, "{query}");
    }
    append(&worker, 0, format!("first\n{HOSTILE}\n").as_bytes()).await;
    let found = get(rig, &format!("{page}?q=FIRST"), None).await;
    shows(&found, &["1 of 2 lines", ">1</a>first", " so far"]);
    let whole = get(rig, &format!("{page}?download=1"), None).await;
    assert_eq!((whole.status, whole.text()), (200, format!("first\n{HOSTILE}\n")));
    assert_eq!(whole.header("content-type"), Some("text/plain; charset=utf-8"));
    let name = format!("attachment; filename=\"{task}-0.log\"");
    assert_eq!(whole.header("content-disposition"), Some(name.as_str()));
    assert_eq!(whole.header("content-security-policy"), Some(POLICY));
    complete(&worker).await;
}

/// The worker was killed between the two steps of its upload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_without_upload_is_shown_as_far_as_written() {
    let worker = Worker::of(Rig::start().await).await;
    let (rig, task) = (&worker.rig, worker.task.to_string());
    append(&worker, 0, b"as far as it came\n").await;
    let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
    worker.created(BACKING_LOG, &body).await;
    complete(&worker).await;
    let reply = get(rig, &format!("/task/{task}/log"), None).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    shows(&reply, &["as far as it came"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_with_a_log_ends_when_the_session_of_its_reader_does() {
    let worker = Worker::of(Rig::start().await).await;
    let (rig, task) = (&worker.rig, worker.task.to_string());
    let reader = rig.make_client("reader", &["*"]).await;
    let cookie = log_in(rig, &reader).await;
    append(&worker, 0, b"a line\n").await;
    let page = format!("/task/{task}/log");
    let leave = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let removed = rig.administrate(&["delete", "reader"]).await;
        assert!(removed.status.success(), "{}", crate::rig::stderr(&removed));
    };
    let (reply, ()) = tokio::join!(get(rig, &page, Some(&cookie)), leave);
    shows(&reply, &["a line", "This is the end"]);
    assert_eq!(rig.status(worker.task).await["state"], "running");
}
