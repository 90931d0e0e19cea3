//! Authorization over real connections: what is accepted, and the status of everything that is not.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure_api::credentials::{AccessToken, Credentials, Grant, issue, seed};
use tenure_tests::clock::{unix_millis, unix_seconds};
use tenure_tests::http::QUEUE_API;

use crate::rig::{
    LOOK_EVERY, Raw, RawReply, Rig, Signature, body_hash, call, claim_path, credentials_of, definition, new_task,
    run_of, stderr, worker,
};

const QUEUE: &str = "auth/queue";
/// Needs a scope that no caller has without credentials.
const COUNTS_PATH: &str = "/task-queues/auth%2Fqueue/counts";
const DENIED: &str = "InsufficientScopes";
const FAILED: &str = "AuthenticationFailed";
/// Ten times what is promised.
const REJECTED_WITHIN: Duration = Duration::from_secs(10);

/// A GET of this path with a signature that the closure has spoiled.
async fn get_signed(
    rig: &Rig,
    who: &Credentials,
    path: &str,
    spoil: impl for<'a> FnOnce(Signature<'a>) -> Signature<'a>,
) -> RawReply {
    let target = format!("{QUEUE_API}{path}");
    let signature = spoil(Signature { who, target: &target, ..Signature::of(&rig.server) });
    rig.send(&Raw::new("GET", &target).authorization(&signature.header())).await
}

#[track_caller]
fn unauthenticated(reply: &RawReply) -> String {
    let message = reply.refused(401, FAILED);
    assert_eq!(reply.header("www-authenticate"), Some("hawk"));
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_credentials_is_forbidden_and_never_unauthenticated() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let public = ["/ping", "/__heartbeat__", "/__lbheartbeat__", "/__version__", "/pending/auth%2Fqueue"];
    let of_the_task = [format!("/task/{task}"), format!("/task/{task}/status")];
    for open in public.into_iter().chain(of_the_task.iter().map(String::as_str)) {
        assert_eq!(rig.send(&Raw::new("GET", &format!("{QUEUE_API}{open}"))).await.status, 200, "{open}");
    }
    let create = definition(QUEUE).to_string();
    let (claim, claim_one) = (worker(1).to_string(), json!({"workerGroup": "g", "workerId": "w"}).to_string());
    let run = format!("/task/{task}/runs/0");
    let cases = [
        ("GET", COUNTS_PATH.to_owned(), None, "queue:claimed-count:auth/queue".to_owned()),
        ("GET", "/api/tenure/v1/clock".to_owned(), None, "tenure:clock".to_owned()),
        ("GET", "/api/tenure/v1/events".to_owned(), None, "tenure:list-events".to_owned()),
        ("PUT", format!("/task/{}", new_task()), Some(&create), "queue:create-task:lowest:auth/queue".to_owned()),
        ("POST", claim_path(QUEUE), Some(&claim), "queue:claim-work:auth/queue".to_owned()),
        ("POST", format!("{run}/claim"), Some(&claim_one), "queue:claim-task:auth/queue".to_owned()),
        ("POST", format!("{run}/reclaim"), None, format!("queue:reclaim-task:{task}/0")),
        ("POST", format!("{run}/completed"), None, format!("queue:resolve-task:{task}/0")),
    ];
    for (method, path, body, scope) in cases {
        let target = if path.starts_with("/api") { path.clone() } else { format!("{QUEUE_API}{path}") };
        let raw = Raw::new(method, &target).json(body.map(String::as_bytes));
        let reply = rig.send(&raw).await;
        let message = reply.refused(403, DENIED);
        assert!(message.contains(&scope), "{method} {path}: {message}");
        assert_eq!(reply.header("www-authenticate"), None);
    }
    assert_eq!(rig.status(task).await["state"], "pending");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signature_that_is_not_right_is_unauthenticated() {
    let rig = Rig::start().await;
    let (root, path) = (&rig.root, COUNTS_PATH);
    assert_eq!(get_signed(&rig, root, path, |signature| signature).await.status, 200);
    let wrong = Credentials { access_token: AccessToken::new("wrong".to_owned()), ..root.clone() };
    let unknown = Credentials { client_id: "unknown/at all".to_owned(), ..root.clone() };
    for credentials in [&wrong, &unknown] {
        assert!(unauthenticated(&get_signed(&rig, credentials, path, |signature| signature).await).contains("mac"));
    }
    let spoilers: [fn(Signature<'_>) -> String; 12] = [
        |mut signature| {
            signature.method = "POST";
            signature.header()
        },
        |mut signature| {
            signature.target = "/api/queue/v1/task-queues/auth%2fqueue/counts";
            signature.header()
        },
        |mut signature| {
            signature.host = "elsewhere".to_owned();
            signature.header()
        },
        |mut signature| {
            signature.port = 1;
            signature.header()
        },
        |signature| signature.header().replace("nonce=\"abcdef\"", "nonce=\"abcdeg\""),
        |signature| signature.header().replace("mac=", "mac=\"x\", mac="),
        |signature| signature.header().replace("nonce=\"abcdef\", ", ""),
        |signature| signature.header().replace("nonce=\"abcdef\"", "nonce=\"abcdef\", unheard=\"1\""),
        |_| "Hawk".to_owned(),
        |_| "Hawk id=\"root\"".to_owned(),
        |_| "Bearer abc".to_owned(),
        |_| "\u{e9}".to_owned(),
    ];
    for spoil in spoilers {
        let target = format!("{QUEUE_API}{path}");
        let header = spoil(Signature { who: root, target: &target, ..Signature::of(&rig.server) });
        unauthenticated(&rig.send(&Raw::new("GET", &target).authorization(&header)).await);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signature_is_good_for_fifteen_minutes_either_way() {
    let rig = Rig::start().await;
    let path = COUNTS_PATH;
    for (seconds, good) in [(-880, true), (880, true), (-920, false), (920, false), (-1_000_000, false)] {
        let ts = unix_seconds() + seconds;
        let reply = get_signed(&rig, &rig.root, path, |signature| Signature { ts, ..signature }).await;
        if good {
            assert_eq!(reply.status, 200, "{seconds}: {}", reply.text());
        } else {
            assert!(unauthenticated(&reply).contains("stale"), "{seconds}");
        }
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_was_changed_on_the_way_is_unauthenticated() {
    let rig = Rig::start().await;
    let body = definition(QUEUE).to_string();
    let other = body.replace("true", "evil");
    for (sent, status) in [(&other, 401), (&body, 200)] {
        let task = new_task();
        let target = format!("{QUEUE_API}/task/{task}");
        let hash = Some(body_hash(body.as_bytes()));
        let of = Signature { who: &rig.root, method: "PUT", target: &target, hash, ..Signature::of(&rig.server) };
        let raw = Raw::new("PUT", &target).authorization(&of.header()).json(Some(sent.as_bytes()));
        let reply = rig.send(&raw).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        if status == 401 {
            assert!(unauthenticated(&reply).contains("payload hash"));
            assert_eq!(rig.call("GET", &format!("/task/{task}"), None).await.status, 404);
        }
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_id_and_token_may_be_sent_by_basic() {
    let rig = Rig::start().await;
    let target = format!("{QUEUE_API}{COUNTS_PATH}");
    let token = rig.root.access_token.expose();
    let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
    let get = async |header: String| rig.send(&Raw::new("GET", &target).authorization(&header)).await;
    assert_eq!(get(basic(&format!("root:{token}"))).await.status, 200);
    for wrong in [
        basic("root:wrong"),
        basic(&format!("nobody:{token}")),
        basic("a\0b:x"),
        basic("root"),
        basic(":"),
        "Basic ???".to_owned(),
        "Basic".to_owned(),
    ] {
        unauthenticated(&get(wrong).await);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_do_what_its_scopes_say_and_a_refusal_names_the_one_it_lacks() {
    let rig = Rig::start().await;
    let submitter = rig
        .make_client(
            "ci/submitter",
            &["queue:create-task:high:auth/*", "queue:scheduler-id:-", "queue:create-task:project:none"],
        )
        .await;
    let mut client = rig.client();
    let body = |changes: Value| {
        let mut body = definition(QUEUE);
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        body
    };
    // The scope of a priority is good for the lower ones too.
    for (changes, missing) in [
        (json!({"priority": "high"}), None),
        (json!({"priority": "lowest"}), None),
        (json!({"priority": "highest"}), Some("queue:create-task:highest:auth/queue")),
        (json!({"taskQueueId": "other/queue"}), Some("queue:create-task:lowest:other/queue")),
        (json!({"schedulerId": "other"}), Some("queue:scheduler-id:other")),
        (json!({"projectId": "other"}), Some("queue:create-task:project:other")),
        (json!({"routes": ["index.x"]}), Some("queue:route:index.x")),
        (json!({"scopes": ["secrets:get:x"]}), Some("secrets:get:x")),
    ] {
        let task = new_task();
        let answer = call(&mut client, &submitter, "PUT", &format!("/task/{task}"), Some(&body(changes.clone()))).await;
        match missing {
            None => assert_eq!(answer.status, 200, "{changes}: {}", answer.body),
            Some(scope) => {
                assert_eq!((answer.status, answer.code()), (403, DENIED), "{changes}: {}", answer.body);
                let message = answer.body["message"].as_str().unwrap();
                assert!(message.contains(scope) && message.contains("ci/submitter"), "{message}");
                assert_eq!(rig.call("GET", &format!("/task/{task}"), None).await.status, 404);
            }
        }
    }
    let another_worker = rig.make_client("w", &["queue:claim-work:auth/queue", "queue:worker-id:group/other"]).await;
    let answer = call(&mut client, &another_worker, "POST", &claim_path(QUEUE), Some(&worker(1))).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert!(answer.body["message"].as_str().unwrap().contains("queue:worker-id:group/worker"));
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_a_claim_are_good_for_that_run_until_it_has_ended() {
    let rig = Rig::start().await;
    for _ in 0..2 {
        assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    }
    let claims = rig.claim(QUEUE, 2).await;
    let [one, two] = claims.as_slice() else { panic!("two runs were pending: {claims:?}") };
    let (mine, path) = (credentials_of(one), run_of(one));
    assert!(mine.client_id.starts_with("task-client/"), "{}", mine.client_id);
    let mut client = rig.client();
    let mut post = async |who: &Credentials, path: &str| call(&mut client, who, "POST", path, None).await;
    for action in ["reclaim", "completed", "failed"] {
        let answer = post(&mine, &format!("{}/{action}", run_of(two))).await;
        assert_eq!((answer.status, answer.code()), (403, DENIED), "{}", answer.body);
    }
    // A run of the same task that is not the claimed one.
    let answer = post(&mine, &path.replace("runs/0", "runs/1/completed")).await;
    assert_eq!(answer.status, 403, "{}", answer.body);

    let renewed = post(&mine, &format!("{path}/reclaim")).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    assert_eq!(post(&credentials_of(&renewed.body), &format!("{path}/completed")).await.status, 200);
    assert_eq!(post(&mine, &format!("{path}/completed")).await.status, 200, "a repeat");
    for action in ["failed", "reclaim"] {
        let answer = post(&mine, &format!("{path}/{action}")).await;
        assert_eq!((answer.status, answer.code()), (409, "RequestConflict"), "{action}: {}", answer.body);
    }
    rig.server.stop().await;
}

/// Temporary credentials of an issuer, over this time in milliseconds from now.
fn lend(issuer: &Credentials, name: Option<&str>, scopes: &[&str], from_ms: i64, until_ms: i64) -> Credentials {
    let now = unix_millis();
    let grant = Grant {
        name: name.map(str::to_owned),
        scopes: scopes.iter().map(|&scope| scope.to_owned()).collect(),
        start_ms: now + from_ms,
        expiry_ms: now + until_ms,
        seed: seed([7; 33]),
    };
    issue(&issuer.client_id, &issuer.access_token.key(), grant)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_credentials_lend_what_their_issuer_has() {
    const MINUTE: i64 = 60_000;
    const COUNTS: &[&str] = &["queue:claimed-count:auth/queue"];
    let rig = Rig::start().await;
    let path = COUNTS_PATH;
    let get = async |who: &Credentials, path: &str| get_signed(&rig, who, path, |signature| signature).await;
    let small = rig.make_client("small", &["queue:claimed-count:auth/*", "auth:create-client:small/*"]).await;

    for name in [None, Some("someone/temporary")] {
        let lent = lend(&rig.root, name, COUNTS, 0, 60 * MINUTE);
        assert_eq!(get(&lent, path).await.status, 200, "{name:?}");
        // Other things than those that were lent are forbidden, although the issuer may do them.
        get(&lent, &COUNTS_PATH.replace("auth", "other")).await.refused(403, DENIED);
    }
    let named = lend(&small, Some("small/one"), COUNTS, 0, MINUTE);
    assert_eq!(get(&named, path).await.status, 200);

    let tampered = |lent: &Credentials, from: &str, to: &str| {
        let certificate = lent.certificate.as_deref().unwrap();
        assert!(certificate.contains(from), "{certificate}");
        Credentials { certificate: Some(certificate.replace(from, to)), ..lent.clone() }
    };
    let lent = lend(&rig.root, Some("someone/temporary"), COUNTS, 0, MINUTE);
    let refused = [
        ("more than the issuer has", lend(&small, None, &["queue:claimed-count:*"], 0, MINUTE)),
        ("a name that the issuer may not give", lend(&small, Some("other/one"), COUNTS, 0, MINUTE)),
        ("over", lend(&rig.root, None, COUNTS, -60 * MINUTE, -6 * MINUTE)),
        ("not yet", lend(&rig.root, None, COUNTS, 6 * MINUTE, 60 * MINUTE)),
        ("too long", lend(&rig.root, None, COUNTS, 0, 32 * 24 * 60 * MINUTE)),
        ("more scopes than were signed", tampered(&lent, "queue:claimed-count:auth", "queue:claimed-count:other")),
        ("another issuer", tampered(&lent, "\"issuer\":\"root\"", "\"issuer\":\"small\"")),
        ("an issuer that does not exist", tampered(&lent, "\"issuer\":\"root\"", "\"issuer\":\"nobody\"")),
        ("another name", Credentials { client_id: "someone/else".to_owned(), ..lent.clone() }),
        ("the server's own name", tampered(&lent, "\"issuer\":\"root\"", "\"issuer\":\"tenure~task-credentials\"")),
        ("credentials that were lent themselves", lend(&lent, None, COUNTS, 0, MINUTE)),
    ];
    for (what, who) in refused {
        let reply = get(&who, path).await;
        assert_eq!(reply.status, 401, "{what}: {}", reply.text());
        unauthenticated(&reply);
    }
    rig.server.stop().await;
}

/// Only the last star is a pattern, so that two of them are a prefix that ends in a star.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorized_scopes_may_end_in_two_stars_and_a_task_may_not_have_such_scopes() {
    let rig = Rig::start().await;
    let small = rig.make_client("small", &["queue:claimed-count:*"]).await;
    let path = "/api/auth/v1/scopes/current";
    let current = async |scopes: Value| {
        let ext = Some(json!({"authorizedScopes": scopes}));
        let of = Signature { who: &small, target: path, ext, ..Signature::of(&rig.server) };
        rig.send(&Raw::new("GET", path).authorization(&of.header())).await
    };
    let reply = current(json!(["queue:claimed-count:a**"])).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.json()["scopes"].as_array().unwrap().contains(&json!("queue:claimed-count:a**")));
    // `*` precludes everything that does not begin with a star.
    let stars = json!({"authorizedScopes": ["queue:claimed-count:**", "queue:pending-count:auth/queue"]});
    get_signed(&rig, &rig.root, COUNTS_PATH, |signature| Signature { ext: Some(stars), ..signature })
        .await
        .refused(403, DENIED);
    for wider in [json!(["queue:claimed**"]), json!(["**"])] {
        unauthenticated(&current(wider).await);
    }

    for scope in ["a**", "**", "a***"] {
        let (task, mut body) = (new_task(), definition(QUEUE));
        body["scopes"] = json!([scope]);
        let body = body.to_string();
        let target = format!("{QUEUE_API}/task/{task}");
        let ext = Some(json!({"authorizedScopes": ["queue:*", "a**", "**", "a*"]}));
        let hash = Some(body_hash(body.as_bytes()));
        let of = Signature { who: &rig.root, method: "PUT", target: &target, hash, ext, ..Signature::of(&rig.server) };
        let raw = Raw::new("PUT", &target).authorization(&of.header()).json(Some(body.as_bytes()));
        let message = rig.send(&raw).await.refused(400, "InputError");
        assert!(message.contains("`scopes`") && message.contains("**"), "{message}");
        assert_eq!(rig.call("GET", &format!("/task/{task}"), None).await.status, 404);
    }
    rig.server.stop().await;
}

/// A caller that guesses learns neither which clients exist nor how they are: disabled, expired, or in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_basic_gives_one_answer_for_every_client_and_token_that_do_not_fit_together() {
    let rig = Rig::start().await;
    let disabled = rig.make_client("disabled", &["queue:claimed-count:*"]).await;
    assert!(rig.administrate(&["disable", "disabled"]).await.status.success());
    rig.make_client("expired", &[]).await;
    let mut conn = rig.database.connect("authentication-test").await;
    sqlx::raw_sql("UPDATE clients SET expires = now() - interval '1 day' WHERE client_id = 'expired'")
        .execute(&mut conn)
        .await
        .unwrap();
    let ask = async |id: &str, token: &str| {
        let header = format!("Basic {}", STANDARD.encode(format!("{id}:{token}")));
        rig.send(&Raw::new("GET", &format!("{QUEUE_API}{COUNTS_PATH}")).authorization(&header)).await
    };
    let right = rig.root.access_token.expose();
    assert_eq!(ask("root", right).await.status, 200);
    let mut answers = Vec::new();
    for id in
        ["root", "disabled", "expired", "nobody", "no body \u{e9}", "task-client/x/0", "tenure~task-credentials", ""]
    {
        for token in ["wrong", "", &"x".repeat(right.len()), &"x".repeat(10_000), "\u{e9}"] {
            let reply = ask(id, token).await;
            let message = unauthenticated(&reply);
            let mut body = reply.json();
            body["requestInfo"]["time"] = json!("");
            // A message ends with the time of the request.
            body["message"] = json!(message.lines().filter(|line| !line.contains("time")).collect::<Vec<_>>());
            answers.push(body);
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
    // A caller that has the token may know.
    assert!(unauthenticated(&ask("disabled", disabled.access_token.expose()).await).contains("disabled"));
    // By Hawk it is the same: the signature comes first.
    let guess = Credentials { access_token: AccessToken::new("wrong".to_owned()), ..disabled.clone() };
    let unknown = Credentials { client_id: "unknown".to_owned(), ..guess.clone() };
    let wrong = "the mac does not match";
    for (who, word) in [(&disabled, "disabled"), (&guess, wrong), (&unknown, wrong)] {
        let message = unauthenticated(&get_signed(&rig, who, COUNTS_PATH, |signature| signature).await);
        assert!(message.contains(word) && message.contains("is disabled") == (word == "disabled"), "{message}");
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorized_scopes_narrow_a_request_and_never_widen_it() {
    let rig = Rig::start().await;
    let path = COUNTS_PATH;
    let small = rig.make_client("small", &["queue:claimed-count:auth/*", "secrets:get:*"]).await;
    let get = async |who: &Credentials, ext: Value| {
        get_signed(&rig, who, path, |signature| Signature { ext: Some(ext), ..signature }).await
    };
    assert_eq!(get(&small, json!({})).await.status, 200);
    assert_eq!(get(&small, json!({"authorizedScopes": ["queue:claimed-count:auth/queue"]})).await.status, 200);
    for narrowed in [json!(["secrets:get:x"]), json!([])] {
        get(&small, json!({"authorizedScopes": narrowed})).await.refused(403, DENIED);
    }
    for wrong in [json!(["queue:claimed-count:*"]), json!(["*"]), json!("secrets:get:x"), json!([1]), json!(["\u{e9}"])]
    {
        unauthenticated(&get(&small, json!({"authorizedScopes": wrong})).await);
    }
    unauthenticated(&get(&small, json!([])).await);
    // On top of a certificate, which must not be narrowed to more than it lends.
    let lent = lend(&small, None, &["queue:claimed-count:auth/queue"], 0, 60_000);
    let certificate: Value = serde_json::from_str(lent.certificate.as_deref().unwrap()).unwrap();
    let both = |scopes: Value| json!({"certificate": certificate, "authorizedScopes": scopes});
    assert_eq!(get(&lent, both(json!(["queue:claimed-count:auth/queue"]))).await.status, 200);
    unauthenticated(&get(&lent, both(json!(["secrets:get:x"]))).await);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_may_be_longer_than_four_kilobytes() {
    let rig = Rig::start().await;
    let scopes: Vec<String> = (0..300).map(|n| format!("queue:claimed-count:auth/queue-number-{n}")).collect();
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let lent = lend(&rig.root, None, &scopes, 0, 60_000);
    let target = format!("{QUEUE_API}/task-queues/auth%2Fqueue-number-299/counts");
    let header = Signature { who: &lent, target: &target, ..Signature::of(&rig.server) }.header();
    assert!(header.len() > 4_096, "{}", header.len());
    let reply = rig.send(&Raw::new("GET", &target).authorization(&header)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    // A task with as many scopes, or as long ones as may be: its worker gets credentials that can be used.
    let longest: Vec<String> = (10..30).map(|n| format!("{n}{}", "x".repeat(4_090))).collect();
    for scopes in [json!(scopes), json!(longest)] {
        let mut body = definition(QUEUE);
        body["scopes"] = scopes;
        assert_eq!(rig.create(new_task(), &body).await.status, 200);
        let claims = rig.claim(QUEUE, 1).await;
        let who = credentials_of(&claims[0]);
        let answer = call(&mut rig.client(), &who, "POST", &format!("{}/completed", run_of(&claims[0])), None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let mut body = definition(QUEUE);
    body["scopes"] = json!([longest, vec!["x".to_owned()]].concat());
    let refused = rig.create(new_task(), &body).await;
    assert_eq!((refused.status, &refused.body["code"]), (400, &json!("InputValidationError")), "{}", refused.body);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_client_or_an_old_token_is_shut_out_within_a_second() {
    let rig = Rig::start().await;
    let path = COUNTS_PATH;
    for change in ["delete", "reset-token"] {
        let id = format!("leaver/{change}");
        let who = rig.make_client(&id, &["queue:claimed-count:*"]).await;
        let get = async || get_signed(&rig, &who, path, |signature| signature).await;
        assert_eq!(get().await.status, 200);
        let output = rig.administrate(&[change, &id]).await;
        assert!(output.status.success(), "{}", stderr(&output));
        let changed = Instant::now();
        while get().await.status != 401 {
            assert!(changed.elapsed() < REJECTED_WITHIN, "still accepted after {change}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        unauthenticated(&get().await);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_in_the_path_may_be_escaped_or_not_and_both_are_signed_as_sent() {
    let rig = Rig::start().await;
    let path = |queue: &str| [format!("/pending/{queue}"), format!("/task-queues/{queue}/counts")];
    assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    for spelling in ["auth%2Fqueue", "auth%2fqueue", "auth/queue", "%61uth/queue"] {
        for path in path(spelling) {
            let reply = get_signed(&rig, &rig.root, &path, |signature| signature).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            let body = reply.json();
            assert_eq!((&body["taskQueueId"], &body["pendingTasks"]), (&json!(QUEUE), &json!(1)), "{path}");
        }
        let body = worker(1).to_string();
        // Each spelling claims; the first gets the task.
        let claim = rig.signed(&rig.root, "POST", &format!("/claim-work/{spelling}"), Some(body.as_bytes()));
        let reply = rig.send(&claim).await;
        assert_eq!((reply.status, reply.json()["tasks"].as_array().unwrap().len()), (200, 1), "{spelling}");
        assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    }
    // One spelling's signature is not good for the other.
    let target = format!("{QUEUE_API}/pending/auth%2Fqueue");
    let header = Signature { who: &rig.root, target: &target, ..Signature::of(&rig.server) }.header();
    unauthenticated(
        &rig.send(&Raw::new("GET", &format!("{QUEUE_API}/pending/auth/queue")).authorization(&header)).await,
    );
    rig.server.stop().await;
}
