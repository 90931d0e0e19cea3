//! A server's files are inaccessible to the machine's other users.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::json;
use tenure_tests::server::Launch;

use crate::artifacts::{Worker, put};
use crate::rig::{
    DataFolder, Rig, call, call_patiently, claim, credentials_of, definition, minutes_from_now, new_task, ok, run_of,
    tenure,
};

fn tree(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if path.is_dir() {
            found.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Asserts mode 0700 for every folder and 0600 for every file that the server created in the
/// artifact store.
#[track_caller]
pub fn is_private(folder: &Path) {
    let found = tree(folder);
    assert!(found.iter().any(|path| path.is_file()), "nothing was stored in {}", folder.display());
    for path in found {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{} is {:o}", path.display(), mode(&path));
    }
}

async fn store_some(worker: &Worker) {
    for (name, size) in [("private/small", 10), ("public/none", 0), ("private/large", 3 << 20)] {
        let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
        let created = worker.created(name, &body).await;
        let reply = put(&worker.rig, created["putUrl"].as_str().unwrap(), "text/plain", &vec![b'x'; size]).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_data_directory_and_artifacts_are_private() {
    let worker = Worker::start().await;
    store_some(&worker).await;
    let data = worker.rig.folder.path().join("server");
    is_private(&data.join("artifacts"));
    assert_eq!(mode(&data), 0o700);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_that_an_earlier_release_left_open_are_closed() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let store = folder.path().join("store");
    std::fs::create_dir_all(store.join("ab")).unwrap();
    std::fs::write(store.join("ab/abcd"), "bytes of earlier").unwrap();
    for (path, mode) in [("store", 0o755), ("store/ab", 0o755), ("store/ab/abcd", 0o644)] {
        std::fs::set_permissions(folder.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let url = format!("file://{}", store.display());
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--artifacts-url", &url)).await;
    store_some(&Worker::of(rig).await).await;
    assert_eq!(mode(&store), 0o700);
    // Its siblings are not the server's.
    assert_eq!(mode(folder.path()), 0o755);
}

/// Bytes of an artifact in embedded mode, where PostgreSQL may run as another user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_data_directory_is_passable_only_for_its_user() {
    let data_folder = DataFolder::new();
    let data = data_folder.data_dir();
    // As an earlier release created it.
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o711)).unwrap();
    for _ in 0..2 {
        let (server, root) = data_folder.start(&Launch::default()).await;
        let task = new_task();
        let mut client = crate::rig::client_of(&server);
        let (path, body) = (format!("/task/{task}"), definition("private/files"));
        ok(call_patiently(&mut client, &root, "PUT", &path, Some(&body)).await);
        let held = claim(&mut client, &root, "private/files", 1).await.remove(0);
        let path = format!("{}/artifacts/private%2Flog", run_of(&held));
        let body = json!({"storageType": "s3", "contentType": "text/plain", "expires": minutes_from_now(60)});
        let created = call(&mut client, &credentials_of(&held), "POST", &path, Some(&body)).await;
        let url = created.body["putUrl"].as_str().unwrap();
        // An earlier test may have installed it.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let put = http.put(url).header("content-type", "text/plain").body("secret").send().await.unwrap();
        assert_eq!(put.status().as_u16(), 200);

        is_private(&data.join("artifacts"));
        let database = std::fs::metadata(data.join("pg")).unwrap();
        let ours = std::fs::metadata(&data).unwrap();
        if database.uid() == ours.uid() {
            assert_eq!(mode(&data), 0o700);
        } else {
            assert_eq!((mode(&data), ours.gid()), (0o710, database.gid()), "{:o}", mode(&data));
            let listing = std::process::Command::new("setpriv")
                .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"])
                .arg(tree(&data.join("artifacts")).pop().unwrap())
                .output();
            assert!(!listing.unwrap().status.success(), "another user reads an artifact");
        }
        // PostgreSQL restarts after this, and commands still reach it.
        let listed = tenure(&["client", "list", "--data-dir", data.to_str().unwrap()], &[]).await;
        assert!(listed.status.success(), "{}", crate::rig::stderr(&listed));
        server.stop().await;
    }
}

/// PostgreSQL's user reaches a data directory through the directories created for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parents_of_data_directory_let_database_user_pass() {
    let data_folder = DataFolder::new();
    let data = data_folder.folder.path().join("on/the/way");
    let made = tenure(&["migrate", "--data-dir", data.to_str().unwrap()], &[]).await;
    assert!(made.status.success(), "{}", crate::rig::stderr(&made));
    let root = nix::unistd::geteuid().is_root();
    assert_eq!(mode(&data_folder.folder.path().join("on/the")), if root { 0o711 } else { 0o700 });
    assert_eq!(mode(&data), if root { 0o710 } else { 0o700 });
}

/// A directory with other contents keeps its mode: it may be a home or `/srv`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_with_other_things_in_it_keeps_its_mode() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let data = folder.path().join("shared");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("another file"), "").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    let rig = Rig::start().await;
    let server = Launch::on_database(rig.database.url(), &rig.secret_key).start(folder.path(), "shared").await;
    assert_eq!(mode(&data), 0o755);
    assert_eq!(mode(&data.join("artifacts")), 0o700);
    server.stop().await;
}
