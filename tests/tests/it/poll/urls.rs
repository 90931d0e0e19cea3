//! Signed URLs: who gets them, their permissions, and the answer to changed ones.

use super::*;
use crate::rig::Signature;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_are_for_those_who_may_poll_the_queue() {
    let rig = Rig::start().await;
    let path = format!("/poll-task-url/{QUEUE}");
    let poll = format!("queue:poll-task-urls:{QUEUE}");
    let role = format!("assume:worker-type:{QUEUE}");
    let cases: [(&str, Vec<&str>, u16); 4] = [
        ("modern", vec![&poll], 200),
        ("legacy", vec!["queue:poll-task-urls", &role], 200),
        ("half", vec!["queue:poll-task-urls"], 403),
        ("other", vec!["queue:poll-task-urls:poll/other", "queue:claim-work:*"], 403),
    ];
    for (name, scopes, status) in cases {
        let who = rig.make_client(name, &scopes).await;
        let answer = call(&mut rig.client(), &who, "GET", &path, None).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
    }
    assert_eq!(rig.call("GET", "/poll-task-url/poll/Not_A_Type", None).await.code(), "InvalidRequestArguments");
    assert_eq!(rig.call("GET", &format!("{path}?x=1"), None).await.code(), "InvalidRequestArguments");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_from_before_root_urls_find_the_api_below_v1() {
    let rig = Rig::start().await;
    let target = format!("/v1/poll-task-url/{QUEUE}");
    let signature = Signature { who: &rig.root, method: "GET", target: &target, ..Signature::of(&rig.server) };
    let reply = rig.send(&Raw::new("GET", &target).authorization(&signature.header())).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(Urls::read(&reply.json(), rig.server.root_url()).0.len(), 7);
    assert_eq!(send(&rig.server, "GET", "/v1/ping").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_serves_its_queue_and_its_operation_only() {
    let rig = Rig::start().await;
    let urls = Urls::ask(&rig).await;
    create(&rig, "lowest").await;
    let message = messages(&get(&rig, urls.poll()).await).remove(0);
    let mismatch = "AuthorizationPermissionMismatch";
    for method in ["POST", "PUT", "DELETE", "HEAD"] {
        let reply = send(&rig.server, method, urls.poll()).await;
        assert_eq!((reply.status, reply.header("x-ms-error-code")), (403, Some(mismatch)), "{method}");
    }
    for method in ["GET", "POST", "PUT", "HEAD"] {
        let reply = send(&rig.server, method, &urls.delete(&message)).await;
        assert_eq!((reply.status, reply.header("x-ms-error-code")), (403, Some(mismatch)), "{method}");
    }
    assert_error(&send(&rig.server, "PATCH", urls.poll()).await, 405, "UnsupportedHttpVerb");
    let delete_query = urls.0[6].1.split_once("&sv=").unwrap().1;
    let base = urls.poll().split_once('?').unwrap().0;
    assert_error(&get(&rig, &format!("{base}?peekonly=true&sv={delete_query}")).await, 403, mismatch);
    let other = &urls.0[5].0.split_once('?').unwrap().1;
    assert_error(&get(&rig, &format!("{base}?{other}")).await, 403, "AuthenticationFailed");
    let elsewhere = urls.poll().replace("/queue-", "/queue-1");
    assert_error(&get(&rig, &elsewhere).await, 403, "AuthenticationFailed");
    for (from, to) in [("sp=rup", "sp=raup"), ("sp=rup", "sp=p"), ("&sp=rup", ""), ("&sv=2015-04-05", "")] {
        assert_error(&get(&rig, &urls.poll().replace(from, to)).await, 403, "AuthenticationFailed");
    }
    for name in ["se=", "st="] {
        let at = urls.poll().find(name).unwrap() + name.len();
        let (before, after) = urls.poll().split_at(at);
        let target = format!("{before}2099{}", &after[4..]);
        assert_error(&get(&rig, &target).await, 403, "AuthenticationFailed");
    }
    assert_error(&get(&rig, base).await, 403, "AuthenticationFailed");
    // Clients choose the order of parameters, and a proxy may have decoded needless escapes.
    let mut parts: Vec<&str> = urls.poll().split_once('?').unwrap().1.split('&').collect();
    parts.reverse();
    let target = format!("{base}?{}", parts.join("&").replace("%3A", ":").replace("%2F", "/").replace("%3D", "="));
    assert!(messages(&get(&rig, &target).await).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q6_url_with_any_changed_byte_is_refused_without_server_error() {
    let rig = Rig::start().await;
    let urls = Urls::ask(&rig).await;
    create(&rig, "lowest").await;
    let message = messages(&get(&rig, &urls.poll_for(300)).await).remove(0);
    // Clients may choose the visibility timeout.
    let free = urls.poll().find("visibilitytimeout=300&").unwrap();
    let free = free..free + "visibilitytimeout=300".len();
    let decoded = |target: &str| percent_encoding::percent_decode_str(target).collect::<Vec<u8>>();
    for (method, target, free) in [("GET", urls.poll().to_owned(), free), ("DELETE", urls.delete(&message), 0..0)] {
        for at in (0..target.len()).filter(|at| !free.contains(at)) {
            for flip in [0x01, 0x10, 0x20] {
                let mut bytes = target.clone().into_bytes();
                bytes[at] ^= flip;
                let Ok(changed) = String::from_utf8(bytes) else { continue };
                let is_target = changed.starts_with('/') && changed.parse::<http::Uri>().is_ok();
                // An escape in lower case means the same.
                if !is_target || decoded(&changed) == decoded(&target) {
                    continue;
                }
                let reply = send(&rig.server, method, &changed).await;
                assert!((400..500).contains(&reply.status), "{} for {method} {changed}", reply.status);
            }
        }
    }
    assert_eq!(send(&rig.server, "DELETE", &urls.delete(&message)).await.status, 204);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_ends_after_half_an_hour_and_has_its_end() {
    let rig = Rig::manual().await;
    let answer = rig.call("GET", &format!("/poll-task-url/{QUEUE}"), None).await;
    let urls = Urls::read(&answer.body, rig.server.root_url());
    let clock = rig.call("GET", &format!("{TENURE_API}/clock"), None).await.body["now"].clone();
    let at = |text: &Value| chrono::DateTime::parse_from_rfc3339(text.as_str().unwrap()).unwrap();
    let left = at(&answer.body["expires"]) - at(&clock);
    assert!((1790..=1800).contains(&left.num_seconds()), "{left}");
    rig.advance(1780).await;
    assert!(messages(&get(&rig, urls.poll()).await).is_empty());
    rig.advance(21).await;
    let reply = get(&rig, urls.poll()).await;
    assert_error(&reply, 403, "AuthenticationFailed");
    assert_eq!(element(&reply.text(), "AuthenticationErrorDetail"), Some("the signature has expired"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_of_the_previous_key_live_on_and_those_of_no_key_do_not() {
    let rig = Rig::start().await;
    let urls = Urls::ask(&rig).await;
    let start = async |name: &str, keys: String| {
        Launch::on_database(rig.database.url(), &keys).start(rig.folder.path(), name).await
    };
    let new = fresh_secret_key();
    let rotated = start("rotated", format!("{new},{}", rig.secret_key)).await;
    assert!(messages(&send(&rotated, "GET", urls.poll()).await).is_empty());
    let answer = call(&mut client_of(&rotated), &rig.root, "GET", &format!("/poll-task-url/{QUEUE}"), None).await;
    let renewed = Urls::read(&answer.body, rotated.root_url());
    assert_error(&get(&rig, renewed.poll()).await, 403, "AuthenticationFailed");
    // The previous key may be removed when no token needs it.
    reset_root_token(rig.database.url(), &format!("{new},{}", rig.secret_key));
    let without_old_key = start("without-old-key", new).await;
    assert_error(&send(&without_old_key, "GET", urls.poll()).await, 403, "AuthenticationFailed");
    assert!(messages(&send(&without_old_key, "GET", renewed.poll()).await).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_tls_urls_are_for_https_only() {
    // Free at this moment; the server prints its root URL, not its address.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let public = "https://queue.example.com";
    let rig = Rig::start_with(|launch| launch.listen(free.to_string()).flag("--root-url", public)).await;
    let local = format!("http://{free}");
    let basic = STANDARD.encode(format!("{}:{}", rig.root.client_id, rig.root.access_token.expose()));
    let asked = Raw::new("GET", &format!("{QUEUE_API}/poll-task-url/{QUEUE}"));
    let answer = asked.authorization(&format!("Basic {basic}")).send(&local).await;
    let urls = Urls::read(&answer.json(), public);
    assert!(urls.poll().contains("&spr=https&"), "{}", urls.poll());
    assert!(messages(&Raw::new("GET", urls.poll()).send(&local).await).is_empty());
    let forwarded =
        async |proto: &str| Raw::new("GET", urls.poll()).header("x-forwarded-proto", proto).send(&local).await;
    // The first value is the client's protocol; the others come from proxies.
    for plain in ["http", "http, https"] {
        assert_error(&forwarded(plain).await, 403, "AuthorizationProtocolMismatch");
    }
    assert!(messages(&forwarded("https, http").await).is_empty());
}
