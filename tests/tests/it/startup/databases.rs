//! Unusable databases: one line names the place, the reason and the remedy.

use sqlx::AssertSqlSafe;
use tenure_tests::db::TestDatabase;
use tenure_tests::random::Random;
use tenure_tests::server::{Launch, fresh_secret_key};

use crate::rig::{finish, new_folder, refusal, stderr, tenure};

const PASSWORD: &str = "hunter2";

/// Last lines of a server and of a command with this database; both name it, and neither its
/// password.
async fn lines(url: &str) -> [String; 2] {
    let (folder, key) = (new_folder(), fresh_secret_key());
    let output = finish(Launch::on_database(url, &key).command(folder.path())).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    // After warnings about its settings, if it was reachable.
    let server = stderr(&output).lines().last().unwrap_or_default().to_owned();
    let command =
        tenure(&["client", "create", "x"], &[("DATABASE_URL", url), ("TENURE_SECRET_KEY", key.as_str())]).await;
    let lines = [server, refusal(&command, 1)];
    for line in &lines {
        assert!(!line.contains(PASSWORD) && !line.contains("pool") && !line.contains("at line"), "{line}");
    }
    lines
}

#[track_caller]
fn assert_has(lines: &[String; 2], parts: &[&str]) {
    for line in lines {
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in: {line}");
        }
    }
}

fn url_of(database: &TestDatabase, user: &str, name: Option<&str>) -> (String, String) {
    let url = database.url();
    let after = url.split_once('@').expect("the test cluster's URL has a user").1;
    let (server, own) = after.split_once('/').expect("and a database");
    (format!("postgres://{user}:{PASSWORD}@{server}/{}", name.unwrap_or(own)), server.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_database_is_named_with_cause_and_fix() {
    let gone = lines(&format!("postgres://nobody:{PASSWORD}@127.0.0.1:1/none")).await;
    let place = "127.0.0.1:1 (database none, user nobody)";
    assert_has(&gone, &[place, "Connection refused", "start PostgreSQL", "--database-url (DATABASE_URL)"]);

    // Accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let quiet = lines(&format!("postgres://me:{PASSWORD}@{address}/d?sslmode=disable")).await;
    assert_has(&quiet, &[&address, "no answer within 5 s", "--database-url (DATABASE_URL)"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_or_database_are_reported_with_fix() {
    let database = TestDatabase::create().await;
    let role = format!("tenure_role_{:016x}", Random::fresh_seed());
    let mut admin = database.connect("test").await;
    let mut run = async |sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.expect("an administrator may");
    };
    run(format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")).await;
    run("REVOKE CREATE ON SCHEMA public FROM PUBLIC".to_owned()).await;
    let (url, server) = url_of(&database, &role, None);
    let denied = lines(&url).await;
    assert_has(&denied, &[&server, &format!("user {role}"), "permission denied for schema public"]);
    assert_has(&denied, &["ALTER DATABASE", "OWNER TO"]);

    let (missing, _) = url_of(&database, &role, Some("tenure_not_there"));
    assert_has(&lines(&missing).await, &["tenure_not_there", "does not exist", "CREATE DATABASE"]);
    let (unknown, _) = url_of(&database, "tenure_unheard_of", None);
    assert_has(&lines(&unknown).await, &["tenure_unheard_of", "does not exist", "--database-url (DATABASE_URL)"]);

    let env = [("DATABASE_URL", database.url())];
    assert!(tenure(&["migrate"], &env).await.status.success());
    run(format!("GRANT ALL ON SCHEMA public TO {role}")).await;
    assert_has(&lines(&url).await, &[&server, "permission denied for table", "the role that made the tables"]);
    run(format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_track_activities_is_refused_with_fix() {
    let database = TestDatabase::create().await;
    let name = database.url().rsplit('/').next().expect("the URL has a database");
    let hide = format!("ALTER DATABASE {name} SET track_activities = off");
    sqlx::raw_sql(AssertSqlSafe(hide)).execute(&mut database.connect("test").await).await.unwrap();
    let fix = "ALTER SYSTEM SET track_activities = on; SELECT pg_reload_conf()";
    assert_has(&lines(database.url()).await, &["track_activities is off", fix]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_name_can_be_listened_on() {
    let (database, folder) = (TestDatabase::create().await, new_folder());
    let launch = Launch::on_database(database.url(), &fresh_secret_key()).listen("localhost:0");
    let server = launch.start(folder.path(), "server").await;
    let reply = crate::rig::Raw::new("GET", "/api/queue/v1/ping").send(server.root_url()).await;
    assert_eq!(reply.status, 200);
    assert!(server.stop().await.success());
}
