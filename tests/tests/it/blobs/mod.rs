//! Uploads and downloads by signed URLs, on real servers. `any_store` applies to every store:
//! `scripts/test-blob-stores` runs it against object stores. `files` and `faults` inspect the
//! folder.

mod any_store;
mod faults;
mod files;
mod gate;

use std::path::PathBuf;

use bytes::Bytes;
use reqwest::{Method, RequestBuilder, Response};
use sha2::{Digest as _, Sha256};
use tenure_api::blob_url::{self, Access};
use tenure_api::credentials::SigningKey;
use tenure_store::secrets::{Purpose, SecretKeys};
use tenure_tests::clock::unix_millis;
use tenure_tests::server::Launch;

use crate::rig::{Rig, TIMEOUT};

const HOUR_MS: i64 = 3_600_000;
const OCTETS: &str = "application/octet-stream";

struct Stored {
    rig: Rig,
    key: SigningKey,
    http: reqwest::Client,
}

impl Stored {
    async fn start() -> Self {
        Self::start_with(|launch| launch).await
    }

    async fn start_with(settings: impl FnOnce(Launch) -> Launch) -> Self {
        let rig = Rig::start_with(settings).await;
        let keys = SecretKeys::parse(&rig.secret_key).unwrap().signing_keys(Purpose::BlobUrls);
        let _already = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT * 4).build().unwrap();
        Self { rig, key: keys[0].clone(), http }
    }

    fn put_target(&self, name: &str, content_type: &str) -> String {
        blob_url::sign(&self.key, Access::Put { content_type }, name, unix_millis() + HOUR_MS)
    }

    fn get_target(&self, name: &str) -> String {
        blob_url::sign(&self.key, Access::Get, name, unix_millis() + HOUR_MS)
    }

    fn request(&self, method: Method, target: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{target}", self.rig.server.root_url()))
    }

    fn put(&self, name: &str, content_type: &str) -> RequestBuilder {
        self.request(Method::PUT, &self.put_target(name, content_type)).header("content-type", content_type)
    }

    fn get(&self, name: &str) -> RequestBuilder {
        self.request(Method::GET, &self.get_target(name))
    }

    async fn upload(&self, name: &str, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let tag = format!("\"{}\"", hex(&bytes));
        let answer = self.put(name, OCTETS).body(bytes).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), header(&answer, "etag")), (200, tag.as_str()), "{name}");
        assert_eq!(answer.bytes().await.unwrap().len(), 0);
    }

    #[track_caller]
    fn holds(&self, name: &str, expected: &[u8]) -> impl Future<Output = ()> {
        let (asked, expected, name) = (self.get(name).send(), expected.to_vec(), name.to_owned());
        async move {
            let answer = asked.await.unwrap();
            assert_eq!(answer.status().as_u16(), 200, "{name}");
            let bytes = answer.bytes().await.unwrap();
            assert!(bytes == expected, "{name}: {} bytes instead of {}", bytes.len(), expected.len());
        }
    }

    async fn get_status(&self, name: &str) -> u16 {
        self.get(name).send().await.unwrap().status().as_u16()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.rig.folder.path().join("server/artifacts")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found
    }

    async fn rows(&self) -> i64 {
        self.count("SELECT count(*) FROM blobs").await
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let mut conn = self.rig.database.connect("blobs").await;
        sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
    }

    async fn metric(&self, line: &str) -> u64 {
        let text = self.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        let value = text.lines().find_map(|one| one.strip_prefix(line)).unwrap_or_else(|| panic!("no {line}"));
        value.trim().parse().unwrap()
    }
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns pseudo-random bytes, so that no part equals another.
fn some_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

async fn refused(answer: Response, status: u16, code: &str) -> String {
    assert_eq!(answer.status().as_u16(), status);
    let body: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(body["code"], code, "{body}");
    body["message"].as_str().unwrap().to_owned()
}
