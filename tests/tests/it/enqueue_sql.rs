//! Enqueueing from SQL with real servers: the program of the document, kills, and lost rights.

use std::str::FromStr as _;

use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tenure_tests::http::TENURE_API;

use crate::rig::{Raw, Rig, eventually, ok, send, stderr, tenure};

const PAGE: &str = include_str!("../../../docs/enqueue-from-sql.md");
const PROGRAM: &str = include_str!("enqueue_sql/place_order.rs");

include!("enqueue_sql/place_order.rs");

/// A database role without other rights, which enqueues as a client.
struct Application {
    role: String,
    options: PgConnectOptions,
}

impl Application {
    async fn new(rig: &Rig, client_id: &str) -> Self {
        let database: String = rig.database.url().chars().filter(char::is_ascii_alphanumeric).collect();
        let role = format!("app_{}", &database[database.len().saturating_sub(26)..]);
        run(rig, &format!("CREATE ROLE {role} LOGIN PASSWORD 'app'")).await;
        let allow = ["enqueue", "allow", &role, "--client", client_id];
        let output = tenure(&allow, &[("DATABASE_URL", rig.database.url())]).await;
        assert!(output.status.success(), "{}", stderr(&output));
        let options = PgConnectOptions::from_str(rig.database.url()).unwrap().username(&role).password("app");
        Self { role, options }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options).await.unwrap()
    }

    /// Drops the role, which belongs to the cluster.
    async fn end(self, rig: &Rig) {
        run(rig, &format!("DROP OWNED BY {0}; DROP ROLE {0}", self.role)).await;
    }
}

async fn run(rig: &Rig, sql: &str) {
    let mut database = rig.database.connect("test").await;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut database).await.unwrap();
}

async fn count(rig: &Rig, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&mut rig.database.connect("test").await).await.unwrap()
}

async fn enqueue(conn: &mut PgConnection) -> String {
    sqlx::query_scalar("SELECT tenure_enqueue('acme/mail', '{}')").fetch_one(conn).await.unwrap()
}

async fn refused(rig: &Rig) -> Vec<Value> {
    let listed = ok(rig.call("GET", &format!("{TENURE_API}/enqueued/refused"), None).await);
    listed["refused"].as_array().unwrap().clone()
}

async fn exists(rig: &Rig, task: &str) -> Option<()> {
    (rig.call("GET", &format!("/task/{task}/status"), None).await.status == 200).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_of_document_enqueues_task() {
    assert!(PAGE.contains(&format!("```rust\n{PROGRAM}```")), "the document has another program");
    let rig = Rig::start().await;
    let application = Application::new(&rig, "root").await;
    run(&rig, &format!("CREATE TABLE orders (customer text); GRANT INSERT ON orders TO {}", application.role)).await;
    let pool = PgPool::connect_with(application.options.clone()).await.unwrap();
    let task = place_order(&pool, "a@example.com").await.unwrap();
    eventually("the task", async || exists(&rig, &task).await).await;
    let definition = ok(rig.call("GET", &format!("/task/{task}"), None).await);
    assert_eq!(definition["payload"], json!({"to": "a@example.com"}));
    pool.close().await;
    application.end(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_create_each_task_once() {
    let rig = Rig::start().await;
    let application = Application::new(&rig, "root").await;
    let mut conn = application.connect().await;
    let many = "SELECT tenure_enqueue('acme/mail', jsonb_build_object('n', n)) FROM generate_series(1, 500) n";
    for round in 0..4 {
        let mut second = rig.another(&format!("second-{round}")).await;
        sqlx::query(many).execute(&mut conn).await.unwrap();
        // In the middle of its work.
        eventually("some tasks exist", async || {
            (count(&rig, "SELECT count(*) FROM tasks").await > round * 500).then_some(())
        })
        .await;
        second.kill().unwrap();
    }
    eventually("no row is left", async || (count(&rig, "SELECT count(*) FROM enqueued").await == 0).then_some(()))
        .await;
    assert_eq!(count(&rig, "SELECT count(*) FROM tasks").await, 2_000);
    drop(conn);
    application.end(&rig).await;
}

/// Value of `tenure_duplicates_total` for an outcome.
async fn duplicates(rig: &Rig, outcome: &str) -> u64 {
    let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
    let series = format!("tenure_duplicates_total{{outcome=\"{outcome}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coalesced_row_is_not_counted_as_rejected() {
    let rig = Rig::start().await;
    let application = Application::new(&rig, "root").await;
    let mut conn = application.connect().await;
    for on_duplicate in ["reject", "coalesce", "reject"] {
        let options = json!({"options": {"unique": "report", "onDuplicate": on_duplicate}}).to_string();
        let sql = "SELECT tenure_enqueue('acme/mail', '{}', $1::text::jsonb)";
        sqlx::query(sql).bind(options).execute(&mut conn).await.unwrap();
        let open = "SELECT count(*) FROM enqueued WHERE error IS NULL";
        eventually("the row is handled", async || (count(&rig, open).await == 0).then_some(())).await;
    }
    assert_eq!(count(&rig, "SELECT count(*) FROM enqueued").await, 1, "the second of those to reject");
    // Counted after the commit that the test has seen.
    eventually("both are counted", async || {
        let counted = (duplicates(&rig, "coalesced").await, duplicates(&rig, "rejected").await);
        (counted == (1, 1)).then_some(())
    })
    .await;
    drop(conn);
    application.end(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_deleted_client_are_refused_until_retried() {
    let rig = Rig::start().await;
    let grants = ["create", "shop", "--submit", "acme/*", "--json"];
    assert!(rig.administrate(&grants).await.status.success());
    let application = Application::new(&rig, "shop").await;
    let mut conn = application.connect().await;
    let task = enqueue(&mut conn).await;
    eventually("the task", async || exists(&rig, &task).await).await;

    assert!(rig.administrate(&["delete", "shop"]).await.status.success());
    eventually("a task is refused", async || {
        enqueue(&mut conn).await;
        (!refused(&rig).await.is_empty()).then_some(())
    })
    .await;
    let first = refused(&rig).await.remove(0);
    assert_eq!((&first["taskQueueId"], &first["role"]), (&json!("acme/mail"), &json!(application.role)));
    let retry = format!("{TENURE_API}/enqueued/{}/retry", first["taskId"].as_str().unwrap());

    // Without the scopes nothing is shown or retried.
    let reader = rig.make_client("reader", &["queue:status:*"]).await;
    for (method, path) in [("GET", format!("{TENURE_API}/enqueued/refused")), ("POST", retry.clone())] {
        send(&rig.server, &reader, method, &path, None).await.refused(403, "InsufficientScopes");
    }
    assert!(rig.administrate(&grants).await.status.success());
    eventually("the retried task", async || {
        rig.call("POST", &retry, None).await;
        exists(&rig, first["taskId"].as_str().unwrap()).await
    })
    .await;
    assert_eq!(rig.call("POST", &retry, None).await.status, 404);
    drop(conn);
    application.end(&rig).await;
}
