//! Arguments and rights: what the function refuses, and what a role cannot do.

use super::{Shop, enqueue, said};
use crate::support::*;

#[tokio::test]
async fn wrong_argument_is_named() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    for (sql, expected) in [
        ("'a b', '{}'", "queue: 'a b' is no name of a task queue"),
        ("'acme/', '{}'", "queue: 'acme/'"),
        ("'/mail', '{}'", "queue: '/mail'"),
        ("'acme/Mail', '{}'", "queue: 'acme/Mail'"),
        ("'acme/mail''; DROP TABLE tasks; --', '{}'", "is no name of a task queue"),
        ("NULL, '{}'", "queue: null"),
        ("'mail', NULL", "payload: must be a JSON object"),
        ("'mail', '[]'", "payload: must be a JSON object"),
        ("'mail', '{}', '[]'", "options: must be a JSON object"),
        ("'mail', '{}', '{\"payload\": {}}'", "\"payload\" is not an option; it is the second argument"),
        ("'mail', '{}', '{\"taskQueueId\": \"a/b\"}'", "\"taskQueueId\" is not an option"),
        ("'mail', '{}', '{\"colour\": 1}'", "\"colour\" is unknown"),
        ("'mail', '{}', '{\"name\": null}'", "\"name\" must be a string"),
        ("'mail', '{}', '{\"priority\": \"urgent\"}'", "\"priority\" must be one of highest"),
        ("'mail', '{}', '{\"priority\": 3}'", "\"priority\" must be one of highest"),
        ("'mail', '{}', '{\"requires\": \"none\"}'", "\"requires\" must be one of"),
        ("'mail', '{}', '{\"retries\": 1.5}'", "\"retries\" must be a whole number from 0 to 49"),
        ("'mail', '{}', '{\"retries\": \"1\"}'", "\"retries\" must be a whole number"),
        ("'mail', '{}', '{\"scopes\": [1]}'", "\"scopes\" must be an array of strings"),
        ("'mail', '{}', '{\"scopes\": [[\"a\"]]}'", "\"scopes\" must be an array of strings"),
        ("'mail', '{}', '{\"tags\": {\"a\": [\"b\"]}}'", "\"tags\" must be an object whose values are strings"),
        ("'mail', '{}', '{\"tags\": []}'", "\"tags\" must be an object"),
        ("'mail', '{}', '{\"options\": \"x\"}'", "\"options\" must be an object"),
        ("'mail', '{}', '{\"deadlineAfter\": 59}'", "\"deadlineAfter\" must be whole seconds from 60"),
        ("'mail', '{}', '{\"deadline\": \"tomorrow\"}'", "\"deadline\" must be an RFC 3339"),
        ("'mail', '{}', '{\"deadline\": \"2026-02-30T00:00:00Z\"}'", "\"deadline\" must be an RFC 3339"),
        ("'mail', '{}', '{\"deadline\": \"2020-01-31T00:00:00Z\"}'", "\"deadline\" is in the past"),
        ("'mail', '{}', '{\"expires\": \"2020-01-31T00:00:00Z\"}'", "\"expires\" must be after the deadline"),
        ("'mail', '{}', '{\"deadline\": \"9999-01-31T00:00:00Z\", \"deadlineAfter\": 60}'", "leave out one"),
        ("'mail', '{}', '{\"taskId\": \"abc\"}'", "\"taskId\" is no task id"),
    ] {
        let call = format!("SELECT tenure_enqueue({sql})");
        let refused = sqlx::query(AssertSqlSafe(call)).execute(&mut conn).await.unwrap_err();
        assert!(said(&refused).contains(expected), "{sql}: {}", said(&refused));
    }
    let huge = enqueue(&mut conn, &json!({"a": "x".repeat(1 << 20)}), &json!({})).await.unwrap_err();
    assert!(said(&huge).contains("at most 1048576 are allowed"), "{}", said(&huge));
    let digits = "SELECT tenure_enqueue('mail', '{\"a\": 1e130000}'), tenure_enqueue('mail', ('{\"a\": [' || repeat('1e131000,', 9) || '1]}')::jsonb)";
    let huge = sqlx::query(digits).execute(&mut conn).await.unwrap_err();
    assert!(said(&huge).contains("at most 1048576"), "numbers are counted as they are stored: {}", said(&huge));
    assert_eq!(shop.waiting().await, 0, "each call was rolled back");
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn largest_payload_becomes_task() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let largest = json!({"a": "x".repeat((1 << 20) - 200)});
    let mut ids = Vec::new();
    // More than a slice may have.
    for _ in 0..20 {
        ids.push(enqueue(&mut conn, &largest, &json!({})).await.unwrap());
    }
    shop.handle().await;
    for id in ids {
        assert_eq!(shop.queue.status(id).await.id, id);
    }
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn unmapped_role_is_refused_whatever_it_creates() {
    let shop = Shop::open().await;
    shop.deny().await;
    let mut conn = shop.connect().await;
    let unprivileged = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap_err();
    assert!(said(&unprivileged).contains("permission denied"), "{}", said(&unprivileged));
    // Restored backups have no rights, so that everybody may execute the function.
    run_sql(shop.database.pool(), "GRANT EXECUTE ON FUNCTION tenure_enqueue TO PUBLIC").await;
    let unmapped = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap_err();
    let fix = format!("Run: tenure enqueue allow {} --client CLIENT", shop.role);
    assert!(said(&unmapped).contains(&fix), "{}", said(&unmapped));

    // Temporary tables of the names that the function uses.
    let mine = format!(
        "CREATE TEMP TABLE enqueue_roles (role text, client_id text);
         INSERT INTO pg_temp.enqueue_roles VALUES ('{}', 'root');
         CREATE TEMP TABLE enqueued (id bigint, task uuid, queue text, body text, at timestamptz);
         CREATE TEMP TABLE clock (only_row boolean, clock_offset interval);
         SET search_path = pg_temp, public",
        shop.role
    );
    run_sql(&mut conn, &mine).await;
    let unmapped = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap_err();
    assert!(said(&unmapped).contains(&fix), "{}", said(&unmapped));

    // A role that is mapped does not lend its mapping.
    let allowed = "UPDATE enqueue_roles SET client_id = 'root' WHERE role = $1";
    let other = format!("other_{}", shop.role);
    run_sql(shop.database.pool(), &format!("CREATE ROLE {other}; GRANT {other} TO {}", shop.role)).await;
    let insert = "INSERT INTO enqueue_roles (role, client_id) VALUES ($1, 'root')";
    sqlx::query(insert).bind(&other).execute(shop.database.pool()).await.unwrap();
    run_sql(&mut conn, &format!("SET ROLE {other}")).await;
    let borrowed = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap_err();
    assert!(said(&borrowed).contains(&fix), "{}", said(&borrowed));

    // With its own mapping, rows go to the real tables.
    sqlx::query(allowed).bind(&shop.role).execute(shop.database.pool()).await.unwrap();
    run_sql(&mut conn, "RESET ROLE").await;
    enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    assert_eq!(shop.waiting().await, 1);
    drop(conn);
    run_sql(shop.database.pool(), &format!("DROP ROLE {other}")).await;
    shop.finish().await;
}

#[tokio::test]
async fn role_cannot_touch_tables_or_helpers() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    for sql in [
        "SELECT FROM enqueued",
        "INSERT INTO enqueued (task, queue, body) VALUES (gen_random_uuid(), 'a/b', '{}')",
        "INSERT INTO enqueue_roles VALUES ('x', 'root')",
        "SELECT enqueue_problem('name', '1')",
        "SELECT FROM tasks",
    ] {
        let denied = sqlx::query(sql).execute(&mut conn).await.unwrap_err();
        assert!(said(&denied).contains("permission denied"), "{sql}: {}", said(&denied));
    }
    drop(conn);
    shop.finish().await;
}
