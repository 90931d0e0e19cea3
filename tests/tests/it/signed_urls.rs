//! Signed URLs (bewits) over HTTP. What they do not open is in `server/src/auth/tests/roles_and_urls.rs`.

use tenure_api::credentials::Credentials;
use tenure_api::hawk::bewit::{SignUrl, bewit};
use tenure_tests::clock::unix_seconds;
use tenure_tests::http::QUEUE_API;
use tenure_tests::wire::Target;

use crate::rig::{Raw, RawReply, Rig, definition, new_task};

const QUEUE: &str = "signed/queue";
/// Needs a scope that no caller has without credentials.
const COUNTS: &str = "/api/queue/v1/task-queues/signed%2Fqueue/counts";

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
}
