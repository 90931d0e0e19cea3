//! Secret keys that do not match the database.

use std::path::Path;

use sqlx::Connection as _;
use tenure_api::credentials::Credentials;
use tenure_tests::db::TestDatabase;
use tenure_tests::http::Account;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use crate::rig::{DataFolder, call, client_of, embedded, finish, new_folder, refusal, stderr, tenure};

async fn administrate(database: &TestDatabase, keys: &str, args: &[&str]) -> std::process::Output {
    tenure(args, &[("DATABASE_URL", database.url()), ("TENURE_SECRET_KEY", keys)]).await
}

async fn is_let_in(server: &Server, who: &Credentials) -> bool {
    call(&mut client_of(server), who, "GET", "/api/auth/v1/scopes/current", None).await.status == 200
}

/// The single line with which a server refuses these keys, without repeating them.
async fn refused(database: &TestDatabase, folder: &Path, keys: &str) -> String {
    let line = last_line(&finish(Launch::on_database(database.url(), keys).command(folder)).await);
    assert!(line.contains("--secret-key (TENURE_SECRET_KEY)"), "{line}");
    assert!(keys.split(',').all(|key| !line.contains(key)), "{line}");
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_secret_key_refuses_to_start() {
    let (database, folder) = (TestDatabase::create().await, new_folder());
    let (key, other) = (fresh_secret_key(), fresh_secret_key());
    let start = async |keys: &str| Launch::on_database(database.url(), keys).start(folder.path(), "server").await;
    assert!(start(&key).await.stop().await.success());
    let root = create_root_client(database.url(), &key).credentials;
    for checked in [true, false] {
        let line = refused(&database, folder.path(), &other).await;
        assert!(line.contains("does not open the tokens in this database"), "{line}");
        let line = refusal(&administrate(&database, &other, &["client", "create", "ci"]).await, 1);
        assert!(line.contains("does not open the tokens in this database"), "{line}");
        let line = refusal(&administrate(&database, &other, &["client", "reset-token", "root"]).await, 1);
        assert!(line.contains("--secret-key (TENURE_SECRET_KEY)"), "{line}");
        assert!(administrate(&database, &other, &["client", "list"]).await.status.success());
        if checked {
            // As an earlier release left it: only the tokens show the key.
            let mut conn = database.connect("test").await;
            sqlx::query("DELETE FROM settings").execute(&mut conn).await.unwrap();
            conn.close().await.unwrap();
        }
    }
    let server = start(&key).await;
    assert!(is_let_in(&server, &root).await);
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_changed_by_list_and_kept_while_tokens_need_it() {
    let (database, folder) = (TestDatabase::create().await, new_folder());
    let (old, new) = (fresh_secret_key(), fresh_secret_key());
    let start = async |keys: &str| Launch::on_database(database.url(), keys).start(folder.path(), "server").await;
    let root = create_root_client(database.url(), &old).credentials;
    let both = format!("{new},{old}");
    // A command with the new list still encrypts with the servers' key.
    let made = administrate(&database, &both, &["client", "create", "ci", "--scope", "x"]).await;
    let ci = serde_json::from_slice::<Account>(&made.stdout).unwrap().credentials;
    for keys in [&old, &format!("{old},{new}"), &both] {
        let server = start(keys).await;
        assert!(is_let_in(&server, &root).await && is_let_in(&server, &ci).await, "{}", server.log_tail());
        assert!(server.stop().await.success());
    }
    assert!(refused(&database, folder.path(), &old).await.contains("does not open the tokens"), "the check follows");
    let line = refused(&database, folder.path(), &new).await;
    assert!(line.contains("was removed: put it back") && line.contains("ci, root"), "{line}");
    let reset = administrate(&database, &both, &["client", "reset-token", "root"]).await;
    let root = serde_json::from_slice::<Account>(&reset.stdout).unwrap().credentials;
    let line = refused(&database, folder.path(), &new).await;
    assert!(line.contains("the tokens of ci;") && line.contains("tenure client reset-token"), "{line}");
    assert!(administrate(&database, &new, &["client", "delete", "ci"]).await.status.success());
    let server = start(&new).await;
    assert!(is_let_in(&server, &root).await);
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_with_another_key_or_without_it_is_refused() {
    let data_folder = DataFolder::new();
    let (server, root) = data_folder.start(&embedded()).await;
    assert!(server.stop().await.success());
    let file = data_folder.data_dir().join("secret-key");
    let kept = std::fs::read(&file).unwrap();

    std::fs::write(&file, fresh_secret_key()).unwrap();
    let line = refusal_of_embedded(&data_folder).await;
    assert!(line.contains("does not open the tokens") && line.contains(file.to_str().unwrap()), "{line}");
    std::fs::remove_file(&file).unwrap();
    let line = refusal_of_embedded(&data_folder).await;
    assert!(line.contains("secret-key is missing") && line.contains("backup"), "{line}");
    assert!(!file.exists(), "a new key hides that the old one is lost");

    std::fs::write(&file, &kept).unwrap();
    let (server, again) = data_folder.start(&embedded()).await;
    assert!(again == root && is_let_in(&server, &root).await);
    assert!(server.stop().await.success());

    // The key is lost for good: without clients the directory accepts a new one.
    std::fs::remove_file(&file).unwrap();
    let data_dir = data_folder.data_dir();
    let deleted = tenure(&["client", "delete", "root", "--data-dir", data_dir.to_str().unwrap()], &[]).await;
    assert!(deleted.status.success(), "{}", stderr(&deleted));
    let (server, root) = data_folder.start(&embedded()).await;
    assert!(is_let_in(&server, &root).await);
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_root_client_stays_deleted() {
    let data_folder = DataFolder::new();
    let data_dir = data_folder.data_dir();
    let administrate = async |args: &[&str]| {
        let done = tenure(&[args, &["--data-dir", data_dir.to_str().unwrap()]].concat(), &[]).await;
        assert!(done.status.success(), "{}", stderr(&done));
        done
    };
    let (server, root) = data_folder.start(&embedded()).await;
    let made = administrate(&["client", "create", "admin", "--scope", "*"]).await;
    let admin = serde_json::from_slice::<Account>(&made.stdout).unwrap().credentials;
    administrate(&["client", "delete", "root"]).await;
    assert!(server.stop().await.success());

    let server = embedded().start(data_folder.folder.path(), "data").await;
    assert!(!is_let_in(&server, &root).await, "the deleted client is back with its old token");
    assert!(is_let_in(&server, &admin).await);
    assert!(server.stop().await.success());
}

async fn refusal_of_embedded(data_folder: &DataFolder) -> String {
    last_line(&finish(embedded().command(&data_folder.data_dir())).await)
}

fn last_line(output: &std::process::Output) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().last().unwrap_or_default();
    assert!(line.starts_with("tenure: "), "{text}");
    line.to_owned()
}
