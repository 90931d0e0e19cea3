//! Signed URLs (bewits): what they open, for how long, and what they do not.

use serde_json::json;
use tenure_api::credentials::{Credentials, Grant, issue, seed};
use tenure_api::hawk::bewit::{SignUrl, bewit};
use tenure_tests::clock::{unix_millis, unix_seconds};
use tenure_tests::http::QUEUE_API;
use tenure_tests::wire::Target;

use crate::rig::{Raw, RawReply, Rig, Signature, credentials_of, definition, new_task};

const QUEUE: &str = "signed/queue";
/// Needs a scope that no caller has without credentials.
const COUNTS: &str = "/api/queue/v1/task-queues/signed%2Fqueue/counts";
const FAILED: &str = "AuthenticationFailed";

fn sign(rig: &Rig, who: &Credentials, target: &str, seconds: i64) -> String {
    let Target { host, port, .. } = Target::parse(rig.server.root_url()).unwrap();
    let url = SignUrl { resource: target, host: &host, port, expires: unix_seconds() + seconds };
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}bewit={}", bewit(who, &url))
}

async fn send(rig: &Rig, method: &str, target: &str) -> RawReply {
    rig.send(&Raw::new(method, target)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_url_opens_every_endpoint_that_reads() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let targets = [
        COUNTS.to_owned(),
        format!("{QUEUE_API}/task/{task}"),
        format!("{QUEUE_API}/task/{task}/status"),
        format!("{QUEUE_API}/pending/signed%2Fqueue"),
        format!("{QUEUE_API}/ping"),
        "/api/tenure/v1/events?after=0&limit=1".to_owned(),
        "/api/tenure/v1/clock".to_owned(),
        "/api/auth/v1/clients/?limit=1".to_owned(),
        "/api/auth/v1/clients/root".to_owned(),
        "/api/auth/v1/roles/".to_owned(),
        "/api/auth/v1/scopes/current".to_owned(),
    ];
    for target in targets {
        let url = sign(&rig, &rig.root, &target, 60);
        let reply = send(&rig, "GET", &url).await;
        assert_eq!(reply.status, 200, "{target}: {}", reply.text());
        let head = send(&rig, "HEAD", &url).await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{target}");
    }
    // The bewit may stand before other parameters, and handlers see those alone.
    let url = sign(&rig, &rig.root, "/api/auth/v1/clients/?limit=1", 60);
    let (path, query) = url.split_once('?').unwrap();
    let turned = query.split('&').rev().collect::<Vec<_>>().join("&");
    assert_eq!(send(&rig, "GET", &format!("{path}?{turned}")).await.status, 200);
    send(&rig, "GET", &sign(&rig, &rig.root, &format!("{COUNTS}?limit=1"), 60))
        .await
        .refused(400, "InvalidRequestArguments");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_url_may_do_what_its_signer_may() {
    let rig = Rig::start().await;
    let small = rig.make_client("small", &["queue:claimed-count:signed/*"]).await;
    assert_eq!(send(&rig, "GET", &sign(&rig, &small, COUNTS, 60)).await.status, 200);
    let other = COUNTS.replace("signed", "other");
    send(&rig, "GET", &sign(&rig, &small, &other, 60)).await.refused(403, "InsufficientScopes");
    let now = unix_millis();
    let grant = |scope: &str| Grant {
        name: None,
        scopes: vec![scope.to_owned()],
        start_ms: now,
        expiry_ms: now + 60_000,
        seed: seed([7; 33]),
    };
    let lend = |scope: &str| issue("small", &small.access_token.key(), grant(scope));
    let lent = lend("queue:claimed-count:signed/queue");
    assert_eq!(send(&rig, "GET", &sign(&rig, &lent, COUNTS, 60)).await.status, 200);
    send(&rig, "GET", &sign(&rig, &lend("*"), COUNTS, 60)).await.refused(401, FAILED);

    let mut body = definition(QUEUE);
    body["scopes"] = json!(["queue:claimed-count:signed/queue"]);
    assert_eq!(rig.create(new_task(), &body).await.status, 200);
    let of_a_task = credentials_of(&rig.claim(QUEUE, 1).await[0]);
    assert_eq!(send(&rig, "GET", &sign(&rig, &of_a_task, COUNTS, 60)).await.status, 200);

    assert!(rig.administrate(&["delete", "small"]).await.status.success());
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    for who in [&small, &lent] {
        send(&rig, "GET", &sign(&rig, who, COUNTS, 60)).await.refused(401, FAILED);
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_url_opens_nothing_else() {
    let rig = Rig::start().await;
    let url = sign(&rig, &rig.root, COUNTS, 60);
    let refused = async |target: &str, say: &str| {
        let reply = send(&rig, "GET", target).await;
        let message = reply.refused(401, FAILED);
        assert_eq!(reply.header("www-authenticate"), Some("hawk"));
        assert!(message.contains(say), "{target}: {message}");
    };
    refused(&sign(&rig, &rig.root, COUNTS, 0), "expired").await;
    refused(&sign(&rig, &rig.root, COUNTS, -60), "expired").await;
    refused(&url.replace("signed", "other"), "mac").await;
    refused(&format!("{url}&limit=1"), "mac").await;
    refused(&format!("{COUNTS}?bewit="), "bewit").await;
    refused(&format!("{COUNTS}?bewit=%25"), "bewit").await;
    let unknown = Credentials { client_id: "unknown".to_owned(), ..rig.root.clone() };
    refused(&sign(&rig, &unknown, COUNTS, 60), "mac").await;

    let task = new_task();
    let create = format!("{QUEUE_API}/task/{task}");
    let body = definition(QUEUE).to_string().into_bytes();
    let put = Raw::new("PUT", &sign(&rig, &rig.root, &create, 60)).json(Some(&body));
    assert!(rig.send(&put).await.refused(401, FAILED).contains("GET"));
    assert_eq!(rig.call("GET", &format!("/task/{task}"), None).await.status, 404);
    // Signed twice, although each signature is good.
    let header = Signature { who: &rig.root, target: &url, ..Signature::of(&rig.server) }.header();
    let both = Raw::new("GET", &url).authorization(&header);
    assert!(rig.send(&both).await.refused(401, FAILED).contains("not by both"));
    rig.server.stop().await;
}
