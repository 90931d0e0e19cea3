//! Commands without a Tenure, and their output with one.

use sqlx::Row as _;
use tenure_tests::db::TestDatabase;
use tenure_tests::http::Account;
use tenure_tests::server::{Launch, fresh_secret_key};

use crate::rig::{DataFolder, embedded, new_folder, refusal, stderr, tenure};

/// Every command that needs an existing database.
const COMMANDS: [&[&str]; 11] = [
    &["client", "list"],
    &["client", "show", "x"],
    &["client", "update", "x", "--description", "d"],
    &["client", "disable", "x"],
    &["client", "enable", "x"],
    &["client", "delete", "x"],
    &["client", "reset-token", "x"],
    &["role", "list"],
    &["role", "show", "x"],
    &["role", "create", "x"],
    &["role", "delete", "x"],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_makes_no_data_directory() {
    let folder = new_folder();
    let missing = folder.path().join("data");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for data_dir in [&missing, &empty] {
        for command in COMMANDS.into_iter().chain([&["client", "create", "x"][..]]) {
            let args = [command, &["--data-dir", data_dir.to_str().unwrap()]].concat();
            let line = refusal(&tenure(&args, &[]).await, 2);
            assert!(line.contains(&format!("there is no Tenure in {}", data_dir.display())), "{command:?}: {line}");
        }
    }
    assert!(!missing.exists(), "a command made the directory");
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "a command made something");
    let here = tenure(&["client", "list"], &[("TENURE_DATA_DIR", "./tenure-data-that-is-not-there")]).await;
    assert!(refusal(&here, 2).contains("there is no Tenure in ./tenure-data-that-is-not-there"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_makes_no_tables_in_a_database() {
    let (database, key) = (TestDatabase::create().await, fresh_secret_key());
    let env = [("DATABASE_URL", database.url()), ("TENURE_SECRET_KEY", key.as_str())];
    let mut conn = database.connect("test").await;
    let mut tables = async || -> i64 {
        let count = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
        sqlx::query(count).fetch_one(&mut conn).await.unwrap().get(0)
    };
    for command in COMMANDS {
        let line = refusal(&tenure(command, &env).await, 2);
        assert!(line.contains("there is no Tenure in PostgreSQL at "), "{command:?}: {line}");
        assert!(line.contains("tenure_test_"), "{command:?}: {line}");
    }
    assert_eq!(tables().await, 0);
    let made = tenure(&["client", "create", "root", "--scope", "*"], &env).await;
    assert!(made.status.success(), "{}", stderr(&made));
    assert!(tables().await > 0, "the first client of an external database may be made before its first server");
    assert!(tenure(&["client", "list"], &env).await.status.success());
}

fn root_url_in(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice::<Account>(&output.stdout).expect("credentials").root_url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_credentials_come_with_the_root_url_of_the_server() {
    let data_folder = DataFolder::new();
    let data_dir = data_folder.data_dir();
    let data_dir = data_dir.to_str().unwrap();
    let (server, _) = data_folder.start(&embedded()).await;
    let root_url = server.root_url().to_owned();
    let beside = tenure(&["client", "create", "a", "--data-dir", data_dir], &[]).await;
    assert_eq!(root_url_in(&beside), root_url);
    assert!(server.stop().await.success());
    let reset = tenure(&["client", "reset-token", "a", "--data-dir", data_dir], &[]).await;
    assert_eq!(root_url_in(&reset), root_url, "the one that was served last");

    let (database, key, folder) = (TestDatabase::create().await, fresh_secret_key(), new_folder());
    let env = [("DATABASE_URL", database.url()), ("TENURE_SECRET_KEY", key.as_str())];
    let first = tenure(&["client", "create", "root"], &env).await;
    assert_eq!(root_url_in(&first), "http://127.0.0.1:8080", "no server yet: where one listens by default");
    let launch = Launch::on_database(database.url(), &key).flag("--root-url", "https://tenure.example.com");
    assert!(launch.start(folder.path(), "server").await.stop().await.success());
    assert_eq!(root_url_in(&tenure(&["client", "create", "b"], &env).await), "https://tenure.example.com");
    let given = tenure(&["client", "create", "c", "--root-url", "http://q"], &env).await;
    assert_eq!(root_url_in(&given), "http://q");
}
