//! Database sessions have the schema version in their `application_name`, so a later release can
//! lock out servers of an older one.

use tenure_store::schema;

use crate::support::*;

const FENCE: &str = "
    CREATE FUNCTION older_release() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'this release is older than the schema' USING ERRCODE = '57000'; END $$;
    CREATE TRIGGER older_release BEFORE INSERT OR UPDATE OR DELETE ON pending FOR EACH STATEMENT
        WHEN (substring(current_setting('application_name') FROM '^tenure/([0-9]+)')::int < $VERSION)
        EXECUTE FUNCTION older_release()";

#[tokio::test]
async fn later_release_can_lock_out_older_one() {
    let (database, queue) = start().await;
    let version = schema::version();
    let fence = async |version: i64| {
        let sql = format!(
            "DROP TRIGGER IF EXISTS older_release ON pending; DROP FUNCTION IF EXISTS older_release; {}",
            FENCE.replace("$VERSION", &version.to_string())
        );
        run_sql(database.pool(), &sql).await;
    };
    fence(version).await;
    queue.create_one(QUEUE).await;
    fence(version + 1).await;
    for fields in [json!({}), json!({"taskGroupId": new_task(QUEUE, &json!({})).id})] {
        assert!(queue.create(&new_task(QUEUE, &fields)).await.is_err(), "by every statement and session");
    }
    let connector = database.connector();
    let (hot, pool) = (connector.connect_pipeline().await.unwrap(), connector.small_pool("listener"));
    let listener = pool.acquire().await.unwrap();
    let mut all: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT application_name FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'tenure%'",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    all.sort();
    assert_eq!(all, ["", " hot", " listener"].map(|role| format!("tenure/{version}{role}")));
    drop((hot, listener));
    pool.close().await;
    fence(version).await;
    queue.claim_one(QUEUE).await;
    finish(database, queue).await;
}
