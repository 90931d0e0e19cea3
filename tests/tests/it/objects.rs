//! The object service over HTTP, by itself and as a store of artifacts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_api::credentials::Credentials;
use tenure_tests::http::Answer;

use crate::artifacts::{Worker, get, put, segment};
use crate::rig::{call, minutes_from_now};

const OBJECT_API: &str = "/api/object/v1";

pub async fn object(worker: &Worker, name: &str) -> Value {
    let body = json!({"storageType": "object", "contentType": "text/plain", "expires": minutes_from_now(60)});
    worker.created(name, &body).await
}

async fn service(worker: &Worker, who: &Value, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let who: Credentials = serde_json::from_value(who.clone()).unwrap();
    call(&mut worker.rig.client(), &who, method, &format!("{OBJECT_API}{path}"), body).await
}

fn upload_body(created: &Value, methods: &Value) -> Value {
    json!({
        "projectId": created["projectId"],
        "uploadId": created["uploadId"],
        "expires": created["expires"],
        "proposedUploadMethods": methods,
    })
}

fn end_body(created: &Value, bytes: &[u8]) -> Value {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"projectId": created["projectId"], "uploadId": created["uploadId"], "hashes": {"sha256": digest}})
}

pub async fn put_url_of(worker: &Worker, created: &Value, length: usize) -> String {
    let methods = json!({"putUrl": {"contentType": "text/plain", "contentLength": length}});
    let path = format!("/upload/{}", segment(created["name"].as_str().unwrap()));
    let begun = service(worker, &created["credentials"], "PUT", &path, Some(&upload_body(created, &methods))).await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    begun.body["uploadMethod"]["putUrl"]["url"].as_str().unwrap().to_owned()
}

pub async fn end_object(worker: &Worker, created: &Value, bytes: &[u8]) {
    let path = format!("/finish-upload/{}", segment(created["name"].as_str().unwrap()));
    let ended = service(worker, &created["credentials"], "POST", &path, Some(&end_body(created, bytes))).await;
    assert_eq!(ended.status, 200, "{}", ended.body);
}

pub async fn upload_object(worker: &Worker, name: &str, bytes: &[u8]) -> Value {
    let created = object(worker, name).await;
    let url = put_url_of(worker, &created, bytes.len()).await;
    assert_eq!(put(&worker.rig, &url, "text/plain", bytes).await.status, 200);
    end_object(worker, &created, bytes).await;
    created
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_goes_through_the_object_service_inline_or_by_a_url() {
    let worker = Worker::start().await;
    for (name, inline) in [("public/small one", true), ("public/large", false)] {
        let created = object(&worker, name).await;
        assert_eq!(created["name"], json!(format!("t/{}/0/{name}", worker.task)));
        assert_eq!(created["projectId"], "none");
        let path = segment(created["name"].as_str().unwrap());
        let bytes = b"the bytes".repeat(if inline { 10 } else { 10_000 });
        let data = json!({"contentType": "text/plain", "objectData": STANDARD.encode(&bytes)});
        let by_url = json!({"contentType": "text/plain", "contentLength": bytes.len()});
        let methods = if inline { json!({"dataInline": data, "putUrl": by_url}) } else { json!({"putUrl": by_url}) };
        let credentials = &created["credentials"];
        let begun =
            service(&worker, credentials, "PUT", &format!("/upload/{path}"), Some(&upload_body(&created, &methods)))
                .await;
        assert_eq!(begun.status, 200, "{}", begun.body);
        if inline {
            assert_eq!(begun.body["uploadMethod"], json!({"dataInline": true}));
        } else {
            let method = &begun.body["uploadMethod"]["putUrl"];
            let content_type = method["headers"]["Content-Type"].as_str().unwrap();
            assert_eq!(put(&worker.rig, method["url"].as_str().unwrap(), content_type, &bytes).await.status, 200);
        }
        worker.anonymous(&worker.latest(name)).await.refused(404, "ResourceNotFound");
        let finish = json!({"uploadId": created["uploadId"]});
        let finish_path = format!("{}/artifacts/{}", worker.run, segment(name));
        let early = worker.call("PUT", &finish_path, Some(&finish)).await;
        Worker::refused(&early, 400, "InputError", "finishUpload");
        let wrong = end_body(&created, b"other bytes");
        let end = format!("/finish-upload/{path}");
        let refused = service(&worker, credentials, "POST", &end, Some(&wrong)).await;
        Worker::refused(&refused, 400, "InputError", "hashes.sha256");
        for _ in 0..2 {
            let ended = service(&worker, credentials, "POST", &end, Some(&end_body(&created, &bytes))).await;
            assert_eq!((ended.status, ended.body), (200, json!({})));
        }
        let raw = worker.rig.signed(&worker.credentials, "PUT", &finish_path, Some(finish.to_string().as_bytes()));
        for _ in 0..2 {
            let reply = worker.rig.send(&raw).await;
            assert_eq!((reply.status, reply.body.len()), (204, 0), "{}", reply.text());
        }
        let reply = worker.anonymous(&worker.latest(name)).await;
        assert_eq!(reply.header("x-taskcluster-artifact-storage-type"), Some("object"));
        assert!(get(&worker.rig, reply.header("location").unwrap()).await.body == bytes);

        let content =
            worker.anonymous(&format!("/task/{}/artifact-content/{}", worker.task, segment(name))).await.json();
        assert_eq!((&content["storageType"], &content["name"]), (&json!("object"), &created["name"]));
        let start = json!({"acceptDownloadMethods": {"getUrl": true, "simple": true}});
        let reading = &content["credentials"];
        let download = service(&worker, reading, "PUT", &format!("/start-download/{path}"), Some(&start)).await;
        assert_eq!((download.status, &download.body["method"]), (200, &json!("getUrl")), "{}", download.body);
        assert_eq!(download.body["hashes"], end_body(&created, &bytes)["hashes"]);
        assert!(get(&worker.rig, download.body["url"].as_str().unwrap()).await.body == bytes);
        // Each pair of credentials is for its own purpose and this object only.
        let upload = upload_body(&created, &methods);
        for (who, path, body) in [
            (reading, format!("/upload/{path}"), &upload),
            (credentials, format!("/start-download/{path}"), &start),
            (reading, format!("/start-download/{path}x"), &start),
            (credentials, format!("/upload/{path}x"), &upload),
        ] {
            let refused = service(&worker, who, "PUT", &path, Some(body)).await;
            Worker::refused(&refused, 403, "InsufficientScopes", "object:");
        }
        let again = service(&worker, credentials, "PUT", &format!("/upload/{path}"), Some(&upload)).await;
        Worker::refused(&again, 409, "RequestConflict", "exists already");
    }
    let events = worker.events().await;
    assert_eq!(events.len(), 2, "each object once, when it is finished: {events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_artifact_is_not_visible_before_it_is_finished() {
    let worker = Worker::start().await;
    let name = "public/object";
    let created = upload_object(&worker, name, b"the object").await;
    let infos = [worker.run.clone(), format!("/task/{}", worker.task)]
        .map(|of| format!("{of}/artifact-info/{}", segment(name)));
    for path in &infos {
        worker.anonymous(path).await.refused(404, "ResourceNotFound");
    }
    let finish = json!({"uploadId": created["uploadId"]});
    let path = format!("{}/artifacts/{}", worker.run, segment(name));
    assert_eq!(worker.call("PUT", &path, Some(&finish)).await.status, 204);
    for path in &infos {
        let info = worker.anonymous(path).await;
        assert_eq!((info.status, &info.json()["size"]), (200, &json!(10)), "{}", info.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_name_that_is_a_scope_pattern_is_refused() {
    let worker = Worker::start().await;
    let body = |kind: &str| json!({"storageType": kind, "contentType": "text/plain", "expires": minutes_from_now(60)});
    let refused = worker.create("public/*", &body("object")).await;
    Worker::refused(&refused, 400, "InvalidRequestArguments", "`name`");
    worker.created("public/*", &body("s3")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploaded_object_expires_no_later_than_its_artifact() {
    let worker = Worker::start().await;
    let created = object(&worker, "public/object").await;
    let mut body = upload_body(&created, &json!({}));
    body["expires"] = json!("9999-01-01T00:00:00.000Z");
    let path = format!("/upload/{}", segment(created["name"].as_str().unwrap()));
    let begun = service(&worker, &created["credentials"], "PUT", &path, Some(&body)).await;
    assert_eq!((begun.status, &begun.body["expires"]), (200, &created["expires"]), "{}", begun.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_artifact_of_any_type_is_410_for_half_an_hour() {
    let worker = Worker::start().await;
    let mut object = Value::Null;
    // The upload URL of the object expires earlier.
    let expires = minutes_from_now(180);
    for (name, mut body) in [
        ("public/reference", json!({"storageType": "reference", "contentType": "text/plain", "url": "https://a/"})),
        ("public/link", json!({"storageType": "link", "artifact": "public/reference"})),
        ("public/error", json!({"storageType": "error", "reason": "file-missing-on-worker", "message": "no file"})),
        ("public/object", json!({"storageType": "object", "contentType": "text/plain"})),
    ] {
        body["expires"] = json!(expires);
        object = worker.created(name, &body).await;
    }
    let url = put_url_of(&worker, &object, 1).await;
    assert_eq!(put(&worker.rig, &url, "text/plain", b"x").await.status, 200);
    end_object(&worker, &object, b"x").await;
    let finish = json!({"uploadId": object["uploadId"]});
    let path = format!("{}/artifacts/{}", worker.run, segment("public/object"));
    assert_eq!(worker.call("PUT", &path, Some(&finish)).await.status, 204);
    let download = format!("{OBJECT_API}/download/{}", segment(object["name"].as_str().unwrap()));
    let all_refused = async |status: u16, code: &str| {
        for name in ["reference", "link", "error", "object"] {
            for operation in ["artifacts", "artifact-content"] {
                worker.anonymous(&format!("{}/{operation}/public/{name}", worker.run)).await.refused(status, code);
            }
        }
        Worker::refused(&worker.rig.call("GET", &download, None).await, status, code, "object");
    };
    worker.rig.advance(181 * 60).await;
    all_refused(410, "ResourceExpired").await;
    worker.rig.advance(28 * 60).await;
    all_refused(410, "ResourceExpired").await;
    worker.rig.advance(2 * 60).await;
    all_refused(404, "ResourceNotFound").await;
}
