//! Refusals that need several requests, each with its own server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::rig::{Rig, TIMEOUT, call, client_of, eventually, minutes_from_now, new_task, ok};

/// Changes the scopes of a row while an update waits that has seen the old ones.
async fn update_meets_another(table: &str, key: &str, id: &str, path: &str) {
    let rig = Rig::start().await;
    let body = json!({"description": "", "expires": "2999-01-01T00:00:00Z", "scopes": ["a"]});
    let mut body = body;
    if table == "roles" {
        body.as_object_mut().unwrap().remove("expires");
    }
    ok(rig.call("PUT", path, Some(&body)).await);
    let mut other = rig.database.connect("other").await;
    let run = async |other: &mut sqlx::PgConnection, sql: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(other).await.unwrap();
    };
    run(&mut other, format!("BEGIN; UPDATE {table} SET scopes = '{{b}}' WHERE {key} = '{id}'")).await;
    let (server, root) = (client_of(&rig.server), rig.root.clone());
    let (path, body) = (path.to_owned(), body);
    let update = tokio::spawn(async move {
        let mut server = server;
        call(&mut server, &root, "POST", &path, Some(&body)).await
    });
    let mut looker = rig.database.connect("looker").await;
    eventually("the update waits", async || {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut looker)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    run(&mut other, "COMMIT".to_owned()).await;
    let answer = tokio::time::timeout(TIMEOUT, update).await.unwrap().unwrap();
    assert_eq!((answer.status, answer.code()), (409, "RequestConflict"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_a_client_that_meets_another_is_refused() {
    update_meets_another("clients", "client_id", "ci", "/api/auth/v1/clients/ci").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_a_role_that_meets_another_is_refused() {
    update_meets_another("roles", "role_id", "ci", "/api/auth/v1/roles/ci").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_that_amount_to_too_much_are_refused() {
    let rig = Rig::start().await;
    // As much as a role may have, plus the caller's own scopes.
    let large = |kind: &str| (0..700).map(|n| format!("{kind}:{n}:{}", "x".repeat(4_000))).collect::<Vec<String>>();
    let role = json!({"description": "", "scopes": large("given")});
    let made = rig.call("PUT", "/api/auth/v1/roles/large", Some(&role)).await;
    assert_eq!(made.status, 200, "{}", made.body["message"]);
    let asked = json!({"scopes": (large("own").into_iter().chain(["assume:large".to_owned()]).collect::<Vec<_>>())});
    let answer = rig.call("POST", "/api/auth/v1/scopes/expand", Some(&asked)).await;
    assert_eq!((answer.status, answer.code()), (400, "InputError"), "{}", answer.body["message"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_more_bytes_than_the_server_takes_is_refused() {
    let rig = Rig::start_with(|launch| launch.flag("--artifact-size-max", "1KiB")).await;
    let upload = async |size: usize| {
        let data = json!({"contentType": "text/plain", "objectData": STANDARD.encode(vec![0; size])});
        let body = json!({
            "projectId": "p",
            "uploadId": new_task(),
            "expires": minutes_from_now(60),
            "proposedUploadMethods": {"dataInline": data},
        });
        rig.call("PUT", &format!("/api/object/v1/upload/{size}"), Some(&body)).await
    };
    let fits = upload(1024).await;
    assert_eq!(fits.status, 200, "{}", fits.body);
    let answer = upload(1025).await;
    assert_eq!((answer.status, answer.code()), (400, "InputError"), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purge_requests_of_worker_pool_are_bounded_for_a_day() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    let mut database = rig.database.connect("purge-requests").await;
    let fill =
        "INSERT INTO purge_requests SELECT 'acme/linux', 'cache-' || n, tenure_now() FROM generate_series(1, 1000) n";
    sqlx::raw_sql(fill).execute(&mut database).await.unwrap();
    let path = |pool: &str| format!("/api/purge-cache/v1/purge-cache/{pool}");
    let ask = async |pool: &str, cache: &str| rig.call("POST", &path(pool), Some(&json!({"cacheName": cache}))).await;
    let answer = ask("acme%2Flinux", "more").await;
    assert_eq!((answer.status, answer.code()), (409, "RequestConflict"), "{}", answer.body);
    assert!(answer.body["message"].as_str().unwrap().contains("1000"), "{}", answer.body);
    let asked = async || {
        let answer = rig.call("GET", &path("acme/linux"), None).await;
        answer.body["requests"].as_array().unwrap().len()
    };
    assert_eq!(asked().await, 1000);
    assert_eq!(ask("acme/linux", "cache-7").await.status, 204, "an existing request may be repeated");
    assert_eq!(ask("acme/other", "more").await.status, 204);
    rig.advance(24 * 3600 - 60).await;
    assert_eq!(ask("acme/linux", "cache-7").await.status, 204);
    rig.advance(120).await;
    assert_eq!(asked().await, 1, "a day is over for all but one");
    // The pass has deleted the others from the table.
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM purge_requests").fetch_one(&mut database).await.unwrap();
    assert_eq!(left, 1);
    assert_eq!(ask("acme/linux", "more").await.status, 204);
}
