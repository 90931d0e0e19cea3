//! The states with artifacts and objects.

use serde_json::{Value, json};

use super::row::{State, an_end, an_upload};
use super::state::{Bench, Facts, QUEUE_API, fill, fill_text, target};
use crate::artifacts::put;

const OBJECT_API: &str = "/api/object/v1";
const RUN: &str = "/task/{taskId}/runs/{runId}";

impl Bench {
    pub async fn make_artifacts(&self, state: State, facts: &mut Facts) {
        match state {
            State::Artifacts => self.make_each_kind(facts).await,
            State::Stored => self.make_stored(facts).await,
            _ => self.make_uploaded(facts, state == State::Finished).await,
        }
    }

    async fn make_each_kind(&self, facts: &mut Facts) {
        let url = "https://example.com/log";
        let reference =
            json!({"storageType": "reference", "contentType": "text/plain", "url": url, "expires": "<expires>"});
        let link = |to: &str| json!({"storageType": "link", "artifact": to, "expires": "<expires>"});
        let reason = "file-missing-on-worker";
        let error = json!({"storageType": "error", "reason": reason, "message": "none", "expires": "<expires>"});
        let expired = json!({"storageType": "s3", "contentType": "text/plain", "expires": "<lately>"});
        let all = [
            ("<name>", reference.clone()),
            ("public/log", reference),
            ("link", link("<name>")),
            ("public/link", link("<name>")),
            ("circle", link("circle")),
            ("error", error),
            ("expired", expired),
        ];
        for (name, body) in all {
            self.artifact(facts, name, &body).await;
        }
        let object = self.artifact(facts, "object", &object()).await;
        facts.insert("uploadId", text(&object["uploadId"]));
    }

    async fn make_stored(&self, facts: &mut Facts) {
        let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": "<expires>"});
        let created = self.artifact(facts, "<name>", &body).await;
        let url = text(&created["putUrl"]);
        let reply = put(&self.rig, &url, "text/plain", b"hello").await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let path = target(&format!("{QUEUE_API}{RUN}/artifact-content/{{name}}"), facts);
        let content = self.must("GET", &path, None).await;
        let query = |url: String| url.split_once('?').unwrap().1.to_owned();
        facts.insert("artifact", format!("artifact/{}/{}/{}", facts["taskId"], facts["runId"], facts["name"]));
        facts.insert("put", query(url));
        facts.insert("get", query(text(&content["url"])));
    }

    async fn make_uploaded(&self, facts: &mut Facts, finished: bool) {
        let created = self.artifact(facts, "<name>", &object()).await;
        for name in ["uploadId", "projectId"] {
            facts.insert(name, text(&created[name]));
        }
        let mut of_service = facts.clone();
        of_service.insert("name", text(&created["name"]));
        self.make_object(&of_service, &an_upload(), true).await;
        if finished {
            let path = target(&format!("{QUEUE_API}{RUN}/artifacts/{{name}}"), facts);
            self.must("PUT", &path, Some(&json!({"uploadId": created["uploadId"]}))).await;
        }
    }

    pub async fn make_object(&self, facts: &Facts, upload: &Value, finished: bool) {
        let path = target(&format!("{OBJECT_API}/upload/{{name}}"), facts);
        self.must("PUT", &path, Some(&fill(upload, facts))).await;
        if finished {
            let path = target(&format!("{OBJECT_API}/finish-upload/{{name}}"), facts);
            self.must("POST", &path, Some(&fill(&an_end(), facts))).await;
        }
    }

    async fn artifact(&self, facts: &Facts, name: &str, body: &Value) -> Value {
        let mut named = facts.clone();
        named.insert("name", fill_text(name, facts));
        let path = target(&format!("{QUEUE_API}{RUN}/artifacts/{{name}}"), &named);
        self.must("POST", &path, Some(&fill(body, facts))).await
    }
}

fn object() -> Value {
    json!({"storageType": "object", "contentType": "text/plain", "expires": "<expires>"})
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
