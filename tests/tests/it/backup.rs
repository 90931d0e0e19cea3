//! `tenure backup`, `backup verify` and `restore`, on an embedded and on an external database.

mod damaged;
mod history;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::db::TestDatabase;
use tenure_tests::http::{Answer, Client};
use tenure_tests::server::{Launch, Server, binary};

use crate::private_files::is_private;
use crate::rig::{
    DataFolder, Raw, RawReply, Rig, call, client_of, credentials_of, embedded, finish, minutes_from_now, new_folder,
    ok, refusal, run_of, send, status, stderr, stdout,
};

const QUEUE: &str = "backup/queue";
const ARTIFACT: &str = "public%2Freport";
/// A verification creates a cluster.
const TIMEOUT: Duration = Duration::from_secs(120);

fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(binary());
    command.args(args);
    if let Some(folder) = std::env::var_os("TENURE_TEST_PG_BIN") {
        command.env("TENURE_PG_BIN", folder);
    }
    command
}

async fn run(args: &[&OsStr]) -> Output {
    output(command(args)).await
}

async fn output(command: Command) -> Output {
    let output = tokio::process::Command::from(command).kill_on_drop(true).output();
    tokio::time::timeout(TIMEOUT, output)
        .await
        .expect("the command ends by itself")
        .expect("the program can be started")
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

async fn verify(dir: &Path) -> Output {
    run(&["backup".as_ref(), "verify".as_ref(), dir.as_ref()]).await
}

async fn restore_into(dir: &Path, data_dir: &Path) -> Output {
    run(&["restore".as_ref(), dir.as_ref(), "--data-dir".as_ref(), data_dir.as_ref()]).await
}

/// Arguments of a backup of the rig's database.
fn backup_args(rig: &Rig, dir: &Path) -> Vec<OsString> {
    let mut args = ["backup", "--database-url", rig.database.url(), "--data-dir"].map(OsString::from).to_vec();
    args.push(rig.folder.path().join("server").into_os_string());
    args.push(dir.as_os_str().to_owned());
    args
}

async fn back_up(rig: &Rig, dir: &Path, more: &[&str]) -> Output {
    let mut command = command(backup_args(rig, dir));
    command.args(more).env("TENURE_SECRET_KEY", &rig.secret_key);
    output(command).await
}

fn manifest(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("manifest.json")).unwrap()).unwrap()
}

fn text_of(task: SlugId) -> String {
    format!("report of {task}")
}

/// A busy machine's database may not answer in time.
async fn until_answered(client: &mut Client, who: &Credentials, method: &str, path: &str, body: &Value) -> Answer {
    loop {
        let answer = call(client, who, method, path, Some(body)).await;
        if answer.status != 503 {
            return answer;
        }
    }
}

async fn until_read(server: &Server, who: &Credentials, path: &str) -> RawReply {
    loop {
        let found = send(server, who, "GET", path, None).await;
        if found.status != 503 {
            return found;
        }
    }
}

/// Uploads an artifact of a claimed run.
async fn upload(server: &Server, claim: &Value) {
    let path = format!("{}/artifacts/{ARTIFACT}", run_of(claim));
    let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
    let created = ok(until_answered(&mut client_of(server), &credentials_of(claim), "POST", &path, &body).await);
    let url = created["putUrl"].as_str().unwrap();
    let mut raw = Raw::new("PUT", url.strip_prefix(server.root_url()).unwrap()).header("Content-Type", "text/plain");
    raw.body = Some(text_of(task_of(claim)).into_bytes());
    let reply = loop {
        let reply = raw.send(server.root_url()).await;
        if reply.status != 503 {
            break reply;
        }
    };
    assert_eq!(reply.status, 200, "{}", reply.text());
}

fn task_of(claim: &Value) -> SlugId {
    claim["status"]["taskId"].as_str().unwrap().parse().unwrap()
}

/// Downloads the artifact of a task; `None` if it has none, or one that is not uploaded yet. Of its
/// latest run, because a claim that was answered with 503 is taken back if it was made.
async fn download(server: &Server, root: &Credentials, task: SlugId) -> Option<String> {
    let found = until_read(server, root, &format!("/task/{task}/artifacts/{ARTIFACT}")).await;
    if found.status == 404 {
        return None;
    }
    let url = found.header("location").unwrap_or_else(|| panic!("{}: {}", found.status, found.text()));
    let path = url.strip_prefix(server.root_url()).unwrap();
    let reply = loop {
        let reply = Raw::new("GET", path).send(server.root_url()).await;
        if reply.status != 503 {
            break reply;
        }
    };
    assert!(matches!(reply.status, 200 | 404), "{}: {}", reply.status, reply.text());
    (reply.status == 200).then(|| reply.text())
}

/// Creates a task whose claimed run has an artifact.
async fn task_with_artifact(rig: &Rig) -> SlugId {
    let task = rig.create_one(QUEUE).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    assert_eq!(task_of(&claim), task);
    upload(&rig.server, &claim).await;
    task
}

fn stored_files(folder: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_backup_is_restored_into_empty_database() {
    let (rig, folder) = (Rig::start().await, new_folder());
    let task = task_with_artifact(&rig).await;
    let dir = folder.path().join("backup");
    let made = succeeded(&back_up(&rig, &dir, &[]).await);
    assert!(made.contains("1 artifacts of") && made.contains("with the secret key"), "{made}");
    is_private(&dir);
    let about = manifest(&dir);
    assert_eq!((about["format"].as_u64(), about["artifacts"]["count"].as_u64()), (Some(1), Some(1)), "{about}");
    assert_eq!(std::fs::read_to_string(dir.join("secret-key")).unwrap().trim(), rig.secret_key);
    let missed = rig.create_one(QUEUE).await;
    let whole = succeeded(&verify(&dir).await);
    assert!(whole.contains("is whole"), "{whole}");

    // The database of the rig has tables.
    let artifacts = format!("file://{}", folder.path().join("artifacts").display());
    let restore = async |url: &str, artifacts: &str| {
        let args = ["restore", dir.to_str().unwrap(), "--database-url", url, "--artifacts-url", artifacts];
        output(command(args)).await
    };
    let line = refusal(&restore(rig.database.url(), &artifacts).await, 1);
    assert!(line.contains("is not empty") && line.contains("--database-url"), "{line}");
    assert!(!folder.path().join("artifacts").exists());

    let database = TestDatabase::create().await;
    let used = format!("file://{}", dir.display());
    for (wrong, part) in [(used.as_str(), "it is not empty"), ("s3://bucket", "the backup has its artifacts as files")]
    {
        let line = refusal(&restore(database.url(), wrong).await, 2);
        assert!(line.contains("--artifacts-url") && line.contains(part), "{line}");
    }
    let restored = succeeded(&restore(database.url(), &artifacts).await);
    assert!(restored.contains(dir.join("secret-key").to_str().unwrap()), "{restored}");
    let launch = Launch::on_database(database.url(), &rig.secret_key).flag("--artifacts-url", &artifacts);
    let server = launch.start(folder.path(), "restored").await;
    assert_eq!(download(&server, &rig.root, task).await, Some(text_of(task)));
    assert_eq!(status(&mut client_of(&server), &rig.root, task).await["state"], "running");
    let absent = send(&server, &rig.root, "GET", &format!("/task/{missed}/status"), None).await;
    assert_eq!(absent.status, 404, "{}", absent.text());
    is_private(&folder.path().join("artifacts"));
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_without_keys_needs_key_after_restore() {
    let (rig, folder, data) = (Rig::start().await, new_folder(), DataFolder::new());
    let task = task_with_artifact(&rig).await;
    let dir = folder.path().join("backup");
    let line = refusal(&output(command(backup_args(&rig, &dir))).await, 2);
    assert!(line.contains("--secret-key") && line.contains("--no-keys"), "{line}");
    let made = succeeded(&back_up(&rig, &dir, &["--no-keys"]).await);
    assert!(made.contains("without the secret key"), "{made}");
    assert!(!dir.join("secret-key").exists() && !dir.join("root-credentials.json").exists());
    succeeded(&verify(&dir).await);

    let key = data.data_dir().join("secret-key");
    let restored = succeeded(&restore_into(&dir, &data.data_dir()).await);
    assert!(restored.contains(key.to_str().unwrap()), "{restored}");
    let refused = finish(embedded().command(&data.data_dir())).await;
    let line = stderr(&refused).lines().last().unwrap_or_default().to_owned();
    assert!(!refused.status.success() && line.contains("secret-key is missing"), "{line}");
    std::fs::write(&key, &rig.secret_key).unwrap();
    let server = embedded().start(data.folder.path(), "data").await;
    assert_eq!(download(&server, &rig.root, task).await, Some(text_of(task)));
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_key_is_not_backed_up() {
    let (rig, folder) = (Rig::start().await, new_folder());
    let dir = folder.path().join("backup");
    let mut command = command(backup_args(&rig, &dir));
    command.env("TENURE_SECRET_KEY", tenure_tests::server::fresh_secret_key());
    let line = refusal(&output(command).await, 1);
    assert!(line.contains("does not open the tokens"), "{line}");
    assert!(!dir.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn used_target_is_refused_and_unchanged() {
    let (rig, folder) = (Rig::start().await, new_folder());
    let used = folder.path().join("used");
    std::fs::create_dir(&used).unwrap();
    std::fs::write(used.join("notes"), "mine").unwrap();
    let line = refusal(&back_up(&rig, &used, &[]).await, 2);
    assert!(line.contains("it is not empty") && line.contains("name a directory"), "{line}");

    let dir = folder.path().join("backup");
    std::fs::create_dir(&dir).unwrap();
    succeeded(&back_up(&rig, &dir, &[]).await);
    let line = refusal(&back_up(&rig, &dir, &[]).await, 2);
    assert!(line.contains("it is not empty"), "{line}");
    let line = refusal(&restore_into(&dir, &used).await, 2);
    assert!(line.contains("--data-dir") && line.contains("it is not empty"), "{line}");
    assert_eq!(std::fs::read_dir(&used).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(used.join("notes")).unwrap(), "mine");
    for wrong in [folder.path().join("absent"), used] {
        let line = refusal(&verify(&wrong).await, 1);
        assert!(line.contains(wrong.to_str().unwrap()), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_artifact_folder_is_refused() {
    let (rig, folder) = (Rig::start().await, new_folder());
    task_with_artifact(&rig).await;
    let elsewhere = format!("file://{}", folder.path().join("elsewhere").display());
    let refused = back_up(&rig, &folder.path().join("backup"), &["--artifacts-url", &elsewhere]).await;
    let line = refusal(&refused, 2);
    assert!(line.contains("--artifacts-url") && line.contains("names 1 artifacts, and none is there"), "{line}");

    // The bytes in a bucket are not read.
    let dir = folder.path().join("of-bucket");
    let made = succeeded(&back_up(&rig, &dir, &["--artifacts-url", "s3://bucket/prefix"]).await);
    assert!(made.contains("1 artifacts stay in s3://bucket/prefix"), "{made}");
    assert_eq!(manifest(&dir)["artifacts"]["bucket"], "s3://bucket/prefix");
    assert!(!dir.join("artifacts").exists());
    succeeded(&verify(&dir).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifact_that_store_has_lost_is_reported() {
    let (rig, folder) = (Rig::start().await, new_folder());
    task_with_artifact(&rig).await;
    let store = rig.folder.path().join("server/artifacts");
    for lost in stored_files(&store) {
        std::fs::remove_file(lost).unwrap();
    }
    task_with_artifact(&rig).await;
    let dir = folder.path().join("backup");
    let made = back_up(&rig, &dir, &[]).await;
    assert!(succeeded(&made).contains("1 artifacts of"), "{}", stdout(&made));
    assert!(stderr(&made).contains("1 artifacts that the database names were missing"), "{}", stderr(&made));
    let whole = succeeded(&verify(&dir).await);
    assert!(whole.contains("1 other artifacts were already missing"), "{whole}");
}
