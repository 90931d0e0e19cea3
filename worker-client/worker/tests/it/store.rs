//! Artifacts of the scripted queue, with their bytes behind URLs with a secret.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::queue::{Queue, RecordedRequest, Reply, ok, refuse};

/// Part of every signed URL; must appear nowhere else.
pub const URL_SECRET: &str = "secret-of-the-url";

/// By run and name.
#[derive(Default)]
pub struct Store {
    artifacts: BTreeMap<(String, String), Stored>,
}

#[derive(Debug, Clone, Default)]
pub struct Stored {
    pub created: Value,
    pub bytes: Option<Vec<u8>>,
    pub encoding: Option<String>,
}

impl Stored {
    /// As a reader receives them.
    pub fn content(&self) -> Vec<u8> {
        let bytes = self.bytes.clone().expect("uploaded bytes");
        match self.encoding.as_deref() {
            None => bytes,
            Some("gzip") => {
                let mut content = Vec::new();
                GzDecoder::new(&*bytes).read_to_end(&mut content).unwrap();
                content
            }
            Some(other) => panic!("what is {other}?"),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.content()).unwrap()
    }
}

impl Store {
    pub fn names(&self, run: &str) -> Vec<String> {
        self.artifacts.keys().filter(|(of, _)| of == run).map(|(_, name)| name.clone()).collect()
    }

    pub fn find(&self, run: &str, name: &str) -> Option<Stored> {
        self.artifacts.get(&(run.to_owned(), name.to_owned())).cloned()
    }

    /// Returns none for other requests.
    pub fn answer(&mut self, queue: &Queue, request: &RecordedRequest) -> Option<Reply> {
        let (method, path) = request.call.split_once(' ').unwrap();
        if let Some(object) = path.strip_prefix("/store/") {
            return Some(self.bytes(method, object, request));
        }
        let (run, name) = path.strip_prefix("/api/queue/v1/task/")?.split_once("/artifacts/")?;
        let name = decode(name);
        if method == "GET" {
            // A task has a single run, number 0.
            let run = if run.contains("/runs/") { run.to_owned() } else { format!("{run}/runs/0") };
            return Some(
                self.find(&run, &name).map_or_else(|| refuse(404), |found| located(queue, &run, &name, &found)),
            );
        }
        assert_eq!(method, "POST", "{path}");
        assert!(request.signed_by.starts_with("task-"), "{path} is signed by {:?}", request.signed_by);
        let kind = request.body["storageType"].clone();
        let artifact = Stored { created: request.body.clone(), ..Stored::default() };
        let url = url(queue, run, &name);
        self.artifacts.insert((run.to_owned(), name), artifact);
        Some(match kind.as_str().unwrap() {
            "s3" => ok(json!({
                "storageType": "s3", "putUrl": url, "expires": "2001-01-01T00:45:00.000Z",
                "contentType": request.body["contentType"],
            })),
            "reference" | "link" | "error" => ok(json!({ "storageType": kind })),
            other => panic!("what is {other}?"),
        })
    }

    fn bytes(&mut self, method: &str, object: &str, request: &RecordedRequest) -> Reply {
        let (run, name) = object.strip_suffix("/bytes").unwrap().rsplit_once('/').unwrap();
        let key = (decode(run), decode(name));
        assert_eq!(request.query, format!("sig={URL_SECRET}"));
        assert_eq!(request.signed_by, "", "a signed URL needs no signature");
        let header = |name: &str| request.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let Some(artifact) = self.artifacts.get_mut(&key) else { return refuse(404) };
        if method == "PUT" {
            assert_eq!(header("content-type").as_deref(), artifact.created["contentType"].as_str());
            assert_eq!(header("content-length"), Some(request.bytes.len().to_string()));
            artifact.encoding = header("content-encoding");
            artifact.bytes = Some(request.bytes.to_vec());
            return Reply { status: 200, bytes: Some(Vec::new()), ..Reply::default() };
        }
        let Some(bytes) = artifact.bytes.clone() else { return refuse(404) };
        let encoding = artifact.encoding.iter().map(|encoding| ("content-encoding", encoding.clone())).collect();
        Reply { status: 200, headers: encoding, bytes: Some(bytes), ..Reply::default() }
    }

    pub fn put(&mut self, run: &str, name: &str, artifact: Stored) {
        self.artifacts.insert((run.to_owned(), name.to_owned()), artifact);
    }
}

fn located(queue: &Queue, run: &str, name: &str, found: &Stored) -> Reply {
    let kind = &found.created["storageType"];
    if kind == "error" {
        let body = json!({"reason": found.created["reason"], "message": found.created["message"]});
        return Reply { status: 424, body, ..Reply::default() };
    }
    let url = found.created["url"].as_str().map_or_else(|| url(queue, run, name), str::to_owned);
    let headers = vec![("location", url.clone())];
    Reply { status: 303, headers, body: json!({"storageType": kind, "url": url}), ..Reply::default() }
}

fn url(queue: &Queue, run: &str, name: &str) -> String {
    let encode = |text: &str| text.replace('%', "%25").replace('/', "%2F").replace(' ', "%20");
    format!("{}/store/{}/{}/bytes?sig={URL_SECRET}", queue.root_url(), encode(run), encode(name))
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8().unwrap().into_owned()
}
