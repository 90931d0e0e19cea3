//! Plain URLs of public artifacts: constant, cacheable, and checked at each read.

use serde_json::{Value, json};
use tenure_tests::server::{Launch, Server};

use crate::artifacts::{Worker, put, segment, target};
use crate::objects::upload_object;
use crate::rig::{Raw, RawReply, Rig, minutes_from_now, ok};

const ROLE: &str = "/api/auth/v1/roles/anonymous";

fn s3(minutes: i64) -> Value {
    json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(minutes)})
}

impl Worker {
    async fn stores(&self, name: &str, minutes: i64, bytes: &[u8]) {
        let created = self.created(name, &s3(minutes)).await;
        let reply = put(&self.rig, created["putUrl"].as_str().unwrap(), "text/plain", bytes).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    async fn url_for_root(&self, name: &str) -> String {
        let reply = self.root(&format!("{}/artifacts/{}", self.run, segment(name))).await;
        assert_eq!(reply.status, 303, "{name}: {}", reply.text());
        reply.header("location").unwrap().to_owned()
    }

    fn plain(&self, name: &str) -> String {
        let escaped = segment(name).replace("%2F", "/").replace("%2E", ".");
        format!("{}/artifacts/artifact/{}/0/{escaped}", self.rig.server.root_url(), self.task)
    }

    async fn read(&self, url: &str, headers: &[(&str, &str)]) -> RawReply {
        let raw = Raw::new("GET", target(&self.rig, url));
        self.rig.send(&headers.iter().fold(raw, |raw, (name, value)| raw.header(name, value))).await
    }
}

fn is_plain(url: &str) -> bool {
    !url.contains('?')
}

async fn make_public(rig: &Rig, scope: &str, allowed: bool) {
    let role = rig.call("GET", ROLE, None).await;
    let mut scopes: Vec<Value> = role.body["scopes"].as_array().cloned().unwrap_or_default();
    scopes.retain(|one| one != scope);
    scopes.extend(allowed.then(|| json!(scope)));
    let body = json!({"description": "Every caller", "scopes": scopes});
    let method = if role.status == 404 { "PUT" } else { "POST" };
    ok(rig.call(method, ROLE, Some(&body)).await);
}

async fn beside(worker: &Worker) -> (Server, String) {
    let rig = &worker.rig;
    let first = rig.server.root_url().trim_end_matches('/');
    let port = first.rsplit_once(':').unwrap().1;
    let folder = rig.folder.path().join("server/artifacts");
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key)
        .flag("--artifacts-url", format!("file://{}", folder.display()))
        .flag("--clock", "manual")
        .flag("--root-url", first)
        .listen(format!("127.0.0.2:{port}"));
    (launch.start(rig.folder.path(), "beside").await, format!("http://127.0.0.2:{port}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn public_artifact_has_one_constant_url() {
    let worker = Worker::start().await;
    let name = "public/logs/a b:c@d(e),f%2Fg+h?i#j.log";
    worker.stores(name, 120, b"what was built").await;
    worker
        .created("public/link", &json!({"storageType": "link", "artifact": name, "expires": minutes_from_now(60)}))
        .await;
    let (_server, address) = beside(&worker).await;
    let of_run = |name: &str| format!("{}/artifacts/{}", worker.run, segment(name));
    let mut paths = vec![of_run(name), of_run("public/link"), worker.latest(name), worker.latest("public/link")];
    let mut urls = Vec::new();
    for _ in 0..2 {
        for path in &paths {
            let anonymous = Raw::new("GET", &format!("/api/queue/v1{path}"));
            let other = anonymous.send(&address).await;
            for reply in [worker.anonymous(path).await, worker.root(path).await, other] {
                assert_eq!(reply.status, 303, "{}", reply.text());
                urls.push(reply.header("location").unwrap().to_owned());
            }
        }
        let content = format!("{}/artifact-content/{}", worker.run, segment(name));
        urls.push(worker.anonymous(&content).await.json()["url"].as_str().unwrap().to_owned());
        worker.rig.advance(40 * 60).await;
        // The claim has expired by then, and another run is the last one.
        paths.truncate(2);
    }
    let url = urls[0].clone();
    assert!(is_plain(&url), "{url}");
    assert!(urls.iter().all(|one| *one == url), "{urls:?}");
    // Long after a signed URL would have expired.
    let reply = worker.read(&url, &[]).await;
    assert_eq!((reply.status, reply.body.as_slice()), (200, b"what was built".as_slice()), "{}", reply.text());
    let raw = Raw::new("GET", target(&worker.rig, &url));
    assert_eq!(raw.send(&address).await.body, b"what was built");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_public_name_is_read_by_its_plain_url() {
    let worker = Worker::start().await;
    for name in
        ["public/a/../b", "public/./x", "public//double//", "public/%2e%2e/%2F", "public/100%", "public/~!*'()&=;"]
    {
        worker.stores(name, 60, name.as_bytes()).await;
        let url = worker.url_for_root(name).await;
        let reply = worker.read(&url, &[]).await;
        assert_eq!((is_plain(&url), reply.status), (true, 200), "{url}: {}", reply.text());
        assert_eq!(reply.body, name.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_url_is_cacheable_and_revalidated_by_tag() {
    let worker = Worker::start().await;
    let name = "public/log";
    worker.stores(name, 60, b"0123456789").await;
    let url = worker.url_for_root(name).await;
    assert!(is_plain(&url), "{url}");
    let first = worker.read(&url, &[]).await;
    let tag = first.header("etag").unwrap().to_owned();
    assert_eq!(first.header("cache-control"), Some("public, no-cache"));
    // One cached answer serves every origin.
    assert_eq!(first.header("access-control-allow-origin"), Some("*"));
    assert!(first.header("content-security-policy").unwrap().contains("sandbox"));
    for if_none_match in [tag.as_str(), "*", &format!("\"x\", W/{tag}")] {
        let same = worker.read(&url, &[("If-None-Match", if_none_match)]).await;
        assert_eq!(
            (same.status, same.header("etag"), same.body.len()),
            (304, Some(tag.as_str()), 0),
            "{if_none_match}"
        );
        assert_eq!(same.header("cache-control"), Some("public, no-cache"));
    }
    let part = worker.read(&url, &[("Range", "bytes=2-4"), ("If-Range", &tag)]).await;
    assert_eq!((part.status, part.body.as_slice()), (206, b"234".as_slice()));
    assert_eq!(worker.read(&url, &[("Range", "bytes=10-")]).await.status, 416);
    let head = worker.rig.send(&Raw::new("HEAD", target(&worker.rig, &url))).await;
    assert_eq!(
        (head.status, head.header("content-length"), head.header("etag")),
        (200, Some("10"), Some(tag.as_str()))
    );

    // A replacement during the run keeps the URL and changes the tag. So do equal bytes in another
    // encoding.
    let mut tags = vec![tag];
    let created = worker.created(name, &s3(60)).await;
    let upload = target(&worker.rig, created["putUrl"].as_str().unwrap()).to_owned();
    for (bytes, encoding) in [("other", None), ("other", Some("br")), ("other", Some("zstd")), ("last", None)] {
        let mut raw = Raw::new("PUT", &upload).header("Content-Type", "text/plain");
        if let Some(encoding) = encoding {
            raw = raw.header("Content-Encoding", encoding);
        }
        raw.body = Some(bytes.as_bytes().to_vec());
        let stored = worker.rig.send(&raw).await;
        assert_eq!(stored.status, 200, "{}", stored.text());
        assert_eq!(worker.url_for_root(name).await, url);
        let if_none_match = tags.join(", ");
        let reply = worker.read(&url, &[("If-None-Match", &if_none_match)]).await;
        assert_eq!((reply.status, reply.body.as_slice()), (200, bytes.as_bytes()), "{encoding:?}");
        assert_eq!(reply.header("content-encoding"), encoding);
        let tag = reply.header("etag").unwrap().to_owned();
        assert_eq!(stored.header("etag"), Some(tag.as_str()), "the tag that the uploader was answered");
        assert!(!tags.contains(&tag), "{tags:?} has {tag} already");
        tags.push(tag);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_url_checks_at_each_read_what_is_public() {
    let worker = Worker::start().await;
    let name = "shared/log";
    worker.stores(name, 60, b"shared").await;
    let plain = worker.plain(name);
    let denied = async |reply: RawReply| {
        assert_eq!((reply.status, reply.json()["code"].as_str()), (403, Some("AccessDenied")), "{}", reply.text());
        assert!(reply.header("cache-control").is_some_and(|value| value == "no-store"));
        reply.json()["message"].as_str().unwrap().to_owned()
    };
    for _ in 0..2 {
        // Reading is closed: readers with the scope get a signed URL, and the plain one is refused.
        let signed = worker.url_for_root(name).await;
        assert!(!is_plain(&signed), "{signed}");
        let reply = worker.read(&signed, &[]).await;
        assert_eq!((reply.status, reply.header("cache-control")), (200, Some("private, no-cache")));
        let message = denied(worker.read(&plain, &[]).await).await;
        assert!(message.contains("queue:get-artifact:shared/log"), "{message}");
        // A caller that has the bytes does not learn if they are current.
        denied(worker.read(&plain, &[("If-None-Match", reply.header("etag").unwrap())]).await).await;

        make_public(&worker.rig, "queue:get-artifact:shared/*", true).await;
        assert_eq!(worker.url_for_root(name).await, plain);
        let reply = worker.read(&plain, &[]).await;
        assert_eq!((reply.status, reply.body.as_slice()), (200, b"shared".as_slice()));
        assert_eq!(worker.read(&signed, &[]).await.status, 200);
        make_public(&worker.rig, "queue:get-artifact:shared/*", false).await;
    }
    make_public(&worker.rig, "queue:get-artifact:shared/*", true).await;
    for method in ["PUT", "POST", "DELETE"] {
        let raw = Raw { body: Some(b"x".to_vec()), ..Raw::new(method, target(&worker.rig, &plain)) };
        assert!([403, 405].contains(&worker.rig.send(&raw).await.status), "{method}");
    }
    assert_eq!(worker.read(&plain, &[]).await.body, b"shared");
    denied(worker.read(&format!("{plain}?x=1"), &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_url_gives_only_what_get_artifact_would_lead_to() {
    let worker = Worker::start().await;
    let reference = json!({"storageType": "reference", "contentType": "text/plain", "url": "https://a/", "expires": minutes_from_now(60)});
    worker.created("public/reference", &reference).await;
    worker
        .created("public/link", &json!({"storageType": "link", "artifact": "x", "expires": minutes_from_now(60)}))
        .await;
    worker.stores("public/soon over", 10, b"bytes").await;
    worker.stores("private/x", 60, b"bytes").await;
    worker.created("public/not yet", &s3(60)).await;
    let refused = async |url: &str, status: u16, code: &str| {
        let reply = worker.read(url, &[]).await;
        assert_eq!((reply.status, reply.json()["code"].as_str()), (status, Some(code)), "{url}: {}", reply.text());
    };
    for name in ["public/reference", "public/link", "public/none", "public/not yet"] {
        refused(&worker.plain(name), 404, "NotFound").await;
    }
    // A caller that may not read it does not learn if it exists.
    for name in ["private/x", "private/none"] {
        refused(&worker.plain(name), 403, "AccessDenied").await;
    }
    let other_run = worker.plain("public/soon over").replace("/0/", "/1/");
    refused(&other_run, 404, "NotFound").await;
    for run in ["00", "+0", "0x", "1001", ""] {
        let odd = worker.plain("public/soon over").replace("/0/", &format!("/{run}/"));
        refused(&odd, 403, "AccessDenied").await;
    }
    let object = worker.plain("public/x").replace("/artifact/", "/object/t/");
    refused(&object, 403, "AccessDenied").await;

    let url = worker.url_for_root("public/soon over").await;
    assert_eq!(worker.read(&url, &[]).await.status, 200);
    worker.rig.advance(11 * 60).await;
    refused(&url, 410, "Expired").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_public_object_has_a_plain_url_too() {
    let worker = Worker::start().await;
    let name = "public/object";
    let plain = worker.plain(name);
    let created = upload_object(&worker, name, b"the object").await;
    assert_eq!(worker.read(&plain, &[]).await.status, 404, "its upload is not finished");
    let finish = json!({"uploadId": created["uploadId"]});
    let path = format!("{}/artifacts/{}", worker.run, segment(name));
    assert_eq!(worker.call("PUT", &path, Some(&finish)).await.status, 204);
    assert_eq!(worker.url_for_root(name).await, plain);
    let reply = worker.read(&plain, &[]).await;
    assert_eq!((reply.status, reply.body.as_slice()), (200, b"the object".as_slice()), "{}", reply.text());
    assert!(reply.header("etag").is_some());
}
