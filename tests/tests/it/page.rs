//! The operator's page as a browser requests it: who may log in, which data a visitor sees, and
//! that no text of a submitter becomes markup.

mod access;
mod actions;
mod changes;
mod closed;
mod groups;
mod logs;
mod outcomes;
mod overview;
mod partitions;
mod problems;
mod queues;
mod sizes;
mod subscriptions;
mod system;
mod tasks;
mod unread;
mod workers;

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_api::credentials::Credentials;

use crate::rig::{LOOK_EVERY, Raw, RawReply, Rig, eventually, new_task, stderr};

const QUEUE: &str = "page/queue";
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const COOKIE: &str = "tenure-session";
const OUT_WITHIN: Duration = Duration::from_secs(10);
/// Ends an attribute, a text, a comment and a script, and starts new elements.
const HOSTILE: &str = "\"'`><script>alert(1)</script><img src=x onerror=alert(2)>--></pre></textarea>&lt;";

async fn get(rig: &Rig, path: &str, cookie: Option<&str>) -> RawReply {
    let raw = Raw::new("GET", path);
    rig.send(&match cookie {
        Some(cookie) => raw.header("Cookie", cookie),
        None => raw,
    })
    .await
}

fn form(path: &str, fields: &[(&str, &str)]) -> Raw {
    let escape = |text: &str| {
        let bytes = text.bytes().map(|byte| {
            if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
        });
        bytes.collect::<String>()
    };
    let body: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    let mut raw = Raw::new("POST", path).header("Content-Type", "application/x-www-form-urlencoded");
    raw.body = Some(body.join("&").into_bytes());
    raw
}

fn own_form(rig: &Rig, path: &str, fields: &[(&str, &str)]) -> Raw {
    form(path, fields).header("Origin", rig.server.root_url()).header("Sec-Fetch-Site", "same-origin")
}

fn login(rig: &Rig, client: &str, token: &str) -> Raw {
    own_form(rig, "/login", &[("client", client), ("token", token), ("next", "/")])
}

async fn log_in(rig: &Rig, who: &Credentials) -> String {
    let reply = rig.send(&login(rig, &who.client_id, who.access_token.expose())).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/")), "{}", reply.text());
    let cookie = reply.header("set-cookie").expect("a login sets a cookie");
    cookie.split(';').next().expect("a cookie has a value").to_owned()
}

fn form_token(page: &str) -> &str {
    let (_, rest) = page.split_once("name=\"token\" value=\"").expect("the page has a form to log out");
    rest.split('"').next().expect("the value ends")
}

#[track_caller]
fn shows(reply: &RawReply, words: &[&str]) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    for word in words {
        assert!(reply.text().contains(word), "not there: {word}\n{}", reply.text());
    }
}

/// Between two reads of a page a second may pass.
fn without_clock(page: &str) -> String {
    let (before, clock) = page.split_once("<time class=\"clock\"").expect("a page has a clock");
    let (_, after) = clock.split_once("</time>").expect("it ends");
    format!("{before}{after}")
}

#[track_caller]
fn hides(reply: &RawReply, words: &[&str]) {
    for word in words {
        assert!(!reply.text().contains(word), "there: {word}\n{}", reply.text());
    }
}

/// The first occurrences of these words follow each other.
#[track_caller]
fn in_order(reply: &RawReply, words: &[&str]) {
    let text = reply.text();
    let places: Vec<Option<usize>> = words.iter().map(|word| text.find(*word)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{words:?}: {places:?}\n{text}");
}

/// Runs statements for states that HTTP cannot create.
async fn sql(rig: &Rig, statement: &str) {
    let mut conn = rig.database.connect("page-test").await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut conn).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_shows_what_to_do_and_every_page_has_its_headers() {
    let rig = Rig::start().await;
    let page = get(&rig, "/", None).await;
    shows(
        &page,
        &["There is no queue yet", rig.server.root_url(), "/api/tenure/v1/tasks", "tenure-worker run", "Log in"],
    );
    let paths = [
        ("/", 200),
        ("/tasks", 200),
        ("/queues", 200),
        ("/login", 200),
        ("/task/nonsense", 404),
        ("/group/x", 404),
        ("/queue/a/b", 404),
        ("/worker/g/%00", 404),
    ];
    for (path, status) in paths {
        let reply = get(&rig, path, None).await;
        assert_eq!(reply.status, status, "{path}");
        for (name, value) in [
            ("content-type", "text/html; charset=utf-8"),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{path}");
        }
        hides(&reply, &["<script>", "style=", "javascript:"]);
    }
    for (file, kind) in [("style.css", "text/css; charset=utf-8"), ("refresh.js", "text/javascript; charset=utf-8")] {
        let text = page.text();
        let address = text.split('"').find(|part| part.contains(file)).expect("the page names its file");
        let reply = get(&rig, address, None).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_path_is_a_page_for_browsers_only() {
    let rig = Rig::start().await;
    let root = log_in(&rig, &rig.root).await;
    let browser = Raw::new("GET", "/nowhere/b").header("Accept", "text/html,*/*;q=0.8").header("Cookie", &root);
    let page = rig.send(&browser).await;
    assert_eq!((page.status, page.header("content-type")), (404, Some("text/html; charset=utf-8")), "{}", page.text());
    assert_eq!(page.header("content-security-policy"), Some(POLICY));
    assert!(page.text().contains("<h1>Not found</h1>") && page.text().contains("Log out"), "{}", page.text());
    hides(&page, &["refresh.js"]);
    for (method, accept) in [("GET", "application/json"), ("GET", "*/*"), ("POST", "text/html")] {
        let reply = rig.send(&Raw::new(method, "/nowhere").header("Accept", accept)).await;
        assert_eq!((reply.status, reply.header("content-type")), (404, Some("application/json")), "{method} {accept}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_loads_again_until_it_is_stopped() {
    let rig = Rig::start().await;
    let (script, meta) = ("/page/refresh.js", "http-equiv=\"refresh\"");
    let page = get(&rig, "/", None).await;
    shows(&page, &[script, "data-every=\"5\"", "every 5 s", "<noscript><a href=\"\">load again</a>"]);
    hides(&page, &[meta, "data-whole"]);
    let by_browser = get(&rig, "/?refresh=5", None).await;
    shows(&by_browser, &[meta, "every 5 s"]);
    hides(&by_browser, &[script]);
    let stopped = get(&rig, "/?refresh=off", None).await;
    shows(&stopped, &["stopped"]);
    hides(&stopped, &[script, meta]);
    // An error that does not pass.
    hides(&get(&rig, "/task/nonsense", None).await, &[script, meta]);
    // The database is away, as far as this page can tell.
    let mut holder = rig.database.connect("holder").await;
    sqlx::raw_sql("BEGIN; LOCK TABLE counters").execute(&mut holder).await.unwrap();
    let away = get(&rig, "/", None).await;
    assert_eq!(away.status, 503, "{}", away.text());
    assert!(away.text().contains(script) && away.text().contains("data-whole"), "{}", away.text());
    drop(holder);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_cookie_is_hidden_from_scripts_and_other_sites() {
    let rig = Rig::start().await;
    let reply = rig.send(&login(&rig, "root", rig.root.access_token.expose())).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/")));
    let cookie = reply.header("set-cookie").unwrap();
    let (pair, flags) = cookie.split_once(';').unwrap();
    assert_eq!(flags, " Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
    assert!(!cookie.contains(rig.root.access_token.expose()));
    assert_eq!(reply.header("content-security-policy"), Some(POLICY));
    assert_eq!(reply.header("access-control-allow-origin"), None);
    shows(&get(&rig, "/", Some(&format!("other=1; {pair}; more=2"))).await, &[">root</span>", "Log out"]);
    shows(&get(&rig, "/", Some(&pair.replace('.', "x"))).await, &["Log in"]);
    let spoiled = format!("{}x", &pair[..pair.len() - 1]);
    shows(&get(&rig, "/", Some(&spoiled)).await, &["Log in"]);
    // Another server with the same keys accepts the session without communication.
    let another = rig.another("another").await;
    let page = Raw::new("GET", "/").header("Cookie", pair).send(another.root_url()).await;
    shows(&page, &["Log out"]);
    another.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_tls_the_cookie_is_for_this_host_and_tls_only() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let root_url = "https://tenure.example.com/ci";
    let rig = Rig::start_with(|launch| launch.listen(free.clone()).flag("--root-url", root_url)).await;
    let behind = format!("http://{free}");
    let token = rig.root.access_token.expose();
    let raw = form("/login", &[("client", "root"), ("token", token), ("next", "/task/x")]);
    let reply = raw.header("Origin", "https://tenure.example.com").send(&behind).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/ci/task/x")), "{}", reply.text());
    let cookie = reply.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("__Host-tenure-session=")
            && cookie.ends_with("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"),
        "{cookie}"
    );
    let session = cookie.split(';').next().unwrap();
    let page = Raw::new("GET", "/login").header("Cookie", session).send(&behind).await.text();
    let resume = form("/queue/page/queue/resume", &[("token", form_token(&page))]);
    let resume = resume.header("Origin", "https://tenure.example.com").header("Cookie", session);
    let done = resume.send(&behind).await;
    assert_eq!(done.status, 303, "{}", done.text());
    let line = done.header("set-cookie").unwrap();
    assert!(
        line.starts_with("__Host-tenure-done=")
            && line.ends_with("; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure"),
        "{line}"
    );
    // Under another name of the server, too, a form must come from a page over TLS.
    for (scheme, status) in [("http", 403), ("https", 303)] {
        let raw = form("/login", &[("client", "root"), ("token", token), ("next", "/")]);
        let reply = raw.header("Origin", &format!("{scheme}://{free}")).send(&behind).await;
        assert_eq!(reply.status, status, "{scheme}: {}", reply.text());
    }
    let page = Raw::new("GET", "/").send(&behind).await;
    shows(&page, &["href=\"/ci/page/style.css", "href=\"/ci/login?next=%2F\""]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_client_and_wrong_token_get_same_delayed_answer() {
    let rig = Rig::start().await;
    rig.make_client("known", &["*"]).await;
    rig.make_client("shut", &["*"]).await;
    sql(&rig, "UPDATE clients SET disabled = true WHERE client_id = 'shut'").await;
    let mut answers = Vec::new();
    for (client, token) in [("known", "wrong"), ("nobody", "wrong"), ("shut", "wrong"), ("", ""), (HOSTILE, HOSTILE)] {
        let began = Instant::now();
        let reply = rig.send(&login(&rig, client, token)).await;
        assert!(began.elapsed() >= Duration::from_millis(500), "{client}");
        assert_eq!((reply.status, reply.header("set-cookie"), reply.header("www-authenticate")), (401, None, None));
        assert!(reply.text().contains("There is no such client, or the access token is wrong."));
        hides(&reply, &["<script>", "<img"]);
        assert_eq!(reply.header("content-security-policy"), Some(POLICY));
        if !client.is_empty() && client != HOSTILE {
            answers.push(without_clock(&reply.text()).replace(client, "CLIENT"));
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
    for raw in [Raw::new("POST", "/login"), own_form(&rig, "/login", &[("client", "root")])] {
        let reply = rig.send(&raw.header("Origin", rig.server.root_url())).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
    }
    let large = "x".repeat(20_000);
    assert_eq!(rig.send(&login(&rig, "root", &large)).await.status, 400);
}

/// From the same address, as behind a proxy, and for the same client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_logins_never_lock_out_the_right_token() {
    let rig = Rig::start().await;
    let over = std::sync::atomic::AtomicBool::new(false);
    let guess = async |client: &'static str| {
        let mut statuses = Vec::new();
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            let reply = rig.send(&login(&rig, client, "wrong")).await;
            assert_eq!(reply.header("set-cookie"), None);
            statuses.push((reply.status, reply.header("retry-after").is_some()));
        }
        statuses
    };
    let guessing = futures_util::future::join_all((0..48).map(|n| guess(if n % 2 == 0 { "root" } else { "other" })));
    let right = async {
        let ours = login(&rig, "root", rig.root.access_token.expose());
        let until = Instant::now() + Duration::from_secs(3);
        let mut statuses = Vec::new();
        while Instant::now() < until {
            statuses.push(rig.send(&ours).await.status);
        }
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        statuses
    };
    let (guesses, right) = tokio::join!(guessing, right);
    assert!(right.iter().all(|status| *status == 303), "{right:?}");
    let guesses = guesses.concat();
    // A client that continues to guess is refused.
    assert!(guesses.contains(&(401, false)) && guesses.contains(&(429, true)), "{guesses:?}");
    assert!(guesses.iter().all(|guess| [(401, false), (429, true)].contains(guess)), "{guesses:?}");
    // Excess attempts are not logged individually.
    let few = guesses.iter().filter(|(status, _)| *status == 401).count();
    let lines = || rig.server.log().matches("a login to the page was refused").count();
    eventually("the first are logged", async || (lines() > 0).then_some(())).await;
    assert!(lines() <= few, "{} lines for {few} of {} wrong logins", lines(), guesses.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_from_another_site_changes_nothing() {
    let rig = Rig::start().await;
    let token = rig.root.access_token.expose().to_owned();
    let fields = [("client", "root"), ("token", token.as_str()), ("next", "/")];
    let own = rig.server.root_url().to_owned();
    let foreign: [&[(&str, &str)]; 6] = [
        &[],
        &[("Origin", "https://evil.example.com")],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site"), ("Origin", &own)],
        &[("Sec-Fetch-Site", "same-origin"), ("Origin", "https://evil.example.com")],
    ];
    let cookie = log_in(&rig, &rig.root).await;
    let page = get(&rig, "/", Some(&cookie)).await.text();
    let right = form_token(&page);
    for headers in foreign {
        let with = |raw: Raw| headers.iter().fold(raw, |raw, (name, value)| raw.header(name, value));
        let reply = rig.send(&with(form("/login", &fields))).await;
        assert_eq!((reply.status, reply.header("set-cookie")), (403, None), "{headers:?}");
        let reply = rig.send(&with(form("/logout", &[("token", right)])).header("Cookie", &cookie)).await;
        assert_eq!((reply.status, reply.header("set-cookie")), (403, None), "{headers:?}");
    }
    let other = log_in(&rig, &rig.root).await;
    let others_page = get(&rig, "/", Some(&other)).await.text();
    for wrong in ["", "x", form_token(&others_page)] {
        let reply = rig.send(&own_form(&rig, "/logout", &[("token", wrong)]).header("Cookie", &cookie)).await;
        assert_eq!((reply.status, reply.header("set-cookie")), (403, None), "{wrong}");
    }
    let reply = rig.send(&own_form(&rig, "/logout", &[("token", right)]).header("Cookie", &cookie)).await;
    let gone = format!("{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
    assert_eq!((reply.status, reply.header("set-cookie")), (303, Some(gone.as_str())));
    assert_eq!(get(&rig, "/logout", Some(&cookie)).await.status, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_disabled_or_reset_client_is_out_within_a_second() {
    let rig = Rig::start().await;
    for command in ["delete", "disable", "reset-token"] {
        let who = rig.make_client(command, &["*"]).await;
        let cookie = log_in(&rig, &who).await;
        shows(&get(&rig, "/", Some(&cookie)).await, &["Log out"]);
        if command == "disable" {
            sql(&rig, "UPDATE clients SET disabled = true WHERE client_id = 'disable'").await;
        } else {
            let output = rig.administrate(&[command, command]).await;
            assert!(output.status.success(), "{}", stderr(&output));
        }
        let deadline = Instant::now() + OUT_WITHIN;
        while get(&rig, "/", Some(&cookie)).await.text().contains("Log out") {
            assert!(Instant::now() < deadline, "still in after {command}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_section_needs_the_scopes_of_its_endpoint() {
    let rig = Rig::start().await;
    let (first, second) = (rig.create_one(QUEUE).await, rig.create_one(QUEUE).await);
    let claims = rig.claim(QUEUE, 1).await;
    assert_eq!(claims[0]["status"]["taskId"], first.to_string());
    let (queue, waits) = ("/queue/page/queue", second.to_string());
    let (holds, worker) = (first.to_string(), "/worker/group/worker");
    let anonymous = get(&rig, "/", None).await;
    shows(&anonymous, &["page/queue", "needs queue:claimed-count", "needs tenure:get-queue:*"]);
    hides(&anonymous, &[&holds]);
    let page = get(&rig, queue, None).await;
    shows(&page, &["queue:claimed-list:page/queue", "queue:pending-list:page/queue"]);
    hides(&page, &[&holds, &waits]);
    shows(&get(&rig, worker, None).await, &[&holds]);
    shows(&get(&rig, &format!("/task/{first}"), None).await, &["running", "Definition", "group/worker"]);
    shows(&get(&rig, &format!("/group/{first}"), None).await, &[&holds]);
    let scopes = ["queue:claimed-list:page/queue", "queue:claimed-count:page/queue", "queue:pending-list:page/queue"];
    for (index, scope) in scopes.into_iter().enumerate() {
        let cookie = log_in(&rig, &rig.make_client(&format!("one-{index}"), &[scope]).await).await;
        let (overview, page) = (get(&rig, "/", Some(&cookie)).await, get(&rig, queue, Some(&cookie)).await);
        assert_eq!(page.text().contains(&holds), index == 0, "{scope}");
        assert_eq!(overview.text().contains("needs queue:claimed-count"), index != 1, "{scope}");
        assert_eq!(page.text().contains(&waits), index == 2, "{scope}");
    }
    let elsewhere = log_in(&rig, &rig.make_client("elsewhere", &["queue:claimed-list:other/queue"]).await).await;
    hides(&get(&rig, queue, Some(&elsewhere)).await, &[&holds]);
    let root = log_in(&rig, &rig.root).await;
    hides(&get(&rig, "/", Some(&root)).await, &["needs tenure:", "needs queue:"]);
    shows(&get(&rig, queue, Some(&root)).await, &[&holds, &waits, "group/worker"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_show_reasons_and_link_to_pages() {
    let rig = Rig::start().await;
    let tasks = [
        rig.create_one(QUEUE).await,
        rig.create_one(QUEUE).await,
        rig.create_one(QUEUE).await,
        rig.create_one(QUEUE).await,
    ];
    let claims = rig.claim(QUEUE, 4).await;
    rig.report(&claims[0], "failed", None).await;
    rig.report(&claims[1], "exception", Some(&json!({"reason": "malformed-payload"}))).await;
    rig.report(&claims[2], "exception", Some(&json!({"reason": "worker-shutdown"}))).await;
    rig.report(&claims[3], "completed", None).await;
    let page = get(&rig, "/queue/page/queue", None).await;
    let [failed, malformed, shut, completed] = tasks.map(|task| format!("/task/{task}"));
    shows(
        &page,
        &[
            &failed,
            &malformed,
            &shut,
            "malformed-payload",
            "worker-shutdown",
            "tried again",
            "/worker/group/worker",
            "/queue/page/queue",
        ],
    );
    hides(&page, &[&completed]);
    shows(&get(&rig, &shut, None).await, &["exception", "worker-shutdown", "made by retry", "pending"]);
    shows(&get(&rig, &completed, None).await, &["completed"]);
    shows(&get(&rig, "/worker/group/worker", None).await, &["It holds no task now", "Ended lately", &completed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_of_submitter_is_escaped_on_every_page() {
    let rig = Rig::start().await;
    let group = new_task();
    let task = rig.create_with(QUEUE, |body| {
        body["taskGroupId"] = json!(group);
        body["metadata"] =
            json!({"name": HOSTILE, "description": HOSTILE, "owner": HOSTILE, "source": format!("https://{HOSTILE}")});
        body["tags"] = json!({HOSTILE: HOSTILE});
        body["payload"] = json!({HOSTILE: [HOSTILE]});
        body["extra"] = json!({HOSTILE: {HOSTILE: HOSTILE}});
        body["routes"] = json!([HOSTILE]);
    })
    .await;
    let script = rig.create_one(QUEUE).await;
    // createTask refuses such a source; a row with one must not become a link either.
    let id = script.uuid();
    sql(&rig, &format!("UPDATE task_definitions SET definition = replace(definition, 'https://example.com/', 'javascript:alert(1)') WHERE id = '{id}'")).await;
    let claims = rig.claim(QUEUE, 2).await;
    let root = log_in(&rig, &rig.root).await;
    let pages = [
        format!("/task/{task}"),
        format!("/group/{group}"),
        "/queue/page/queue".to_owned(),
        "/worker/group/worker".to_owned(),
        "/tasks".to_owned(),
    ];
    for ended in [false, true] {
        if ended {
            rig.report(&claims[0], "failed", None).await;
        }
        for path in &pages {
            let page = get(&rig, path, Some(&root)).await;
            shows(&page, &["&lt;script&gt;alert(1)&lt;/script&gt;"]);
            hides(&page, &["<script>", "<img", "</textarea>", "javascript:"]);
        }
    }
    let page = get(&rig, &format!("/task/{script}"), None).await;
    shows(&page, &["javascript:alert(1)"]);
    hides(&page, &["href=\"javascript:"]);
    for path in [
        "/task/%22%3E%3Cscript%3E",
        "/queue/%3Cscript%3E/x",
        "/worker/%3Cimg/x",
        "/?refresh=%22%3E%3Cscript%3E",
        "/search?q=%22%3E%3Cscript%3E",
        "/group/%3Cscript%3E?after=%3Cscript%3E",
        &format!("/group/{group}?show=%3Cscript%3E&from=%3Cscript%3E&after=%22%3E%3Cscript%3E"),
        &format!("/task/{task}/compare?run=%22%3E%3Cscript%3E"),
        &format!("/task/{task}/log?run=%22%3E%3Cscript%3E"),
        &format!("/task/{task}/log?q=%22%3E%3Cscript%3E&lines=%3Cscript%3E"),
        &format!("/task/{task}/log?from=%3Cscript%3E&to=%22%3E"),
    ] {
        hides(&get(&rig, path, None).await, &["<script>", "<img"]);
    }
}
