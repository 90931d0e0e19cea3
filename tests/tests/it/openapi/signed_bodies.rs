//! The hash of the body in a Hawk signature, against every operation of the document.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{Operation, basic, fetch};
use crate::rig::{Rig, Signature};

/// Operations with a body and without a Hawk signature of it. authenticateHawk forwards another
/// service's request, the body of registerWorker has its own proof, and the others use URLs whose
/// signature covers no body.
const UNSIGNED: [&str; 4] = ["authenticateHawk", "registerWorker", "updateMessage", "uploadArtifact"];
/// Operations of a well-known client. The body has its scopes, so it is parsed before the signature
/// is checked.
const TESTER: [&str; 2] = ["testAuthenticate", "testAuthenticateGet"];
const MEDIA_TYPES: [&str; 4] = ["application/json", "text/plain", "application/octet-stream", ""];
/// A successful stream does not end.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const WRITTEN_BY_PASSES: &str = "servers|counters|counter_deltas|outbox|outbox_new|outbox_order|log_readers|workers|queue_views|clock|failed_runs|\
     queue_minutes";

fn hash_of_empty_body(media_type: &str) -> String {
    STANDARD.encode(Sha256::digest(format!("hawk.1.payload\n{media_type}\n\n")))
}

async fn tables(database: &mut PgConnection) -> BTreeMap<String, String> {
    let names = format!(
        "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' AND tablename !~ '^({WRITTEN_BY_PASSES})$'"
    );
    let names: Vec<String> = sqlx::query_scalar(AssertSqlSafe(names)).fetch_all(&mut *database).await.unwrap();
    let mut digests = BTreeMap::new();
    for name in names {
        let rows = format!("SELECT md5(coalesce(string_agg(t::text, ',' ORDER BY t::text), '')) FROM {name} t");
        let digest: String = sqlx::query_scalar(AssertSqlSafe(rows)).fetch_one(&mut *database).await.unwrap();
        digests.insert(name, digest);
    }
    digests
}

async fn rig_with_claimed_example() -> (Rig, Value) {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    let document = fetch(&rig).await;
    let root = basic(&rig.root.client_id, rig.root.access_token.expose());
    for name in ["createTask", "claimTask"] {
        let reply = rig.send(&Operation::find(&document, name).request().authorization(&root)).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
    }
    (rig, document)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_is_refused_under_the_hash_of_another() {
    let (rig, document) = rig_with_claimed_example().await;
    let mut database = rig.database.connect("tables").await;
    let before = tables(&mut database).await;
    let tester = tenure_api::credentials::Credentials {
        client_id: "tester".to_owned(),
        access_token: tenure_api::credentials::AccessToken::new("no-secret".to_owned()),
        certificate: None,
    };
    let (mut unsigned, mut accepted) = (BTreeSet::new(), Vec::new());
    for operation in Operation::all(&document) {
        let name = operation.name().to_owned();
        let is_tester = TESTER.contains(&name.as_str());
        if operation.described["x-taskcluster-scopes"].is_null() && !is_tester {
            if operation.described["requestBody"].is_object() {
                unsigned.insert(name);
            }
            continue;
        }
        for media_type in MEDIA_TYPES {
            let mut request = operation.request();
            request.body.get_or_insert_with(|| b"{}".to_vec());
            request = request.without("Content-Type");
            if !media_type.is_empty() {
                request = request.header("Content-Type", media_type);
            }
            let (who, target) = (if is_tester { &tester } else { &rig.root }, request.target.clone());
            let (method, hash) = (operation.method.as_str(), Some(hash_of_empty_body(media_type)));
            let signature = Signature { who, method, target: &target, hash, ..Signature::of(&rig.server) };
            let request = request.authorization(&signature.header());
            let refused = match tokio::time::timeout(ANSWER_MAX, rig.send(&request)).await {
                Ok(reply) if is_tester && reply.status == 400 => true,
                Ok(reply) => reply.status == 401 && reply.text().contains("payload hash"),
                Err(_) => false,
            };
            if !refused {
                accepted.push(format!("{name} as {media_type:?}"));
            }
        }
    }
    let changed: Vec<String> = tables(&mut database)
        .await
        .into_iter()
        .filter(|(name, rows)| before[name] != *rows)
        .map(|(name, _)| name)
        .collect();
    assert!(accepted.is_empty() && changed.is_empty(), "accepted: {accepted:#?}, changed tables: {changed:?}");
    assert_eq!(unsigned, UNSIGNED.map(str::to_owned).into(), "these operations take a body that no signature covers");
}
