//! Backups that were killed or changed.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use sha2::{Digest as _, Sha256};
use sqlx::Connection as _;
use tenure_tests::postgres;

use super::*;
use crate::rig::eventually;

/// A folder with a `pg_dump` that announces itself and hangs.
fn hanging_pg_dump(folder: &Path) -> PathBuf {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let real = |program: &str| PathBuf::from(postgres::command(program).get_program());
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != --version ] || exec {} --version\ntouch {}\nexec sleep 300\n",
        real("pg_dump").display(),
        folder.join("dumping").display()
    );
    std::fs::write(bin.join("pg_dump"), script).unwrap();
    std::fs::set_permissions(bin.join("pg_dump"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink(real("pg_restore"), bin.join("pg_restore")).unwrap();
    bin
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_backup_is_no_backup() {
    let (rig, folder, data) = (Rig::start().await, new_folder(), DataFolder::new());
    task_with_artifact(&rig).await;
    let dir = folder.path().join("backup");
    let mut killed = command(backup_args(&rig, &dir));
    killed.arg("--pg-bin").arg(hanging_pg_dump(folder.path())).env("TENURE_SECRET_KEY", &rig.secret_key);
    let mut killed = killed.process_group(0).stderr(Stdio::null()).spawn().unwrap();
    let group = Pid::from_raw(i32::try_from(killed.id()).unwrap());
    let dumping = folder.path().join("dumping");
    eventually("pg_dump runs", async || dumping.exists().then_some(())).await;
    killpg(group, Signal::SIGKILL).unwrap();
    assert!(!killed.wait().unwrap().success());

    assert_eq!(stored_files(&dir.join("artifacts")).len(), 1);
    for refused in [verify(&dir).await, restore_into(&dir, &data.data_dir()).await] {
        let line = refusal(&refused, 1);
        assert!(line.contains("no manifest.json") && line.contains("did not finish"), "{line}");
    }
    assert!(!data.data_dir().exists());
    assert!(refusal(&back_up(&rig, &dir, &[]).await, 2).contains("it is not empty"));
    std::fs::remove_dir_all(&dir).unwrap();
    succeeded(&back_up(&rig, &dir, &[]).await);
    succeeded(&verify(&dir).await);
}

/// Replaces a file. Artifacts may be hard links to those of the server.
fn replace(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

async fn assert_damaged(dir: &Path, problem: &str) {
    let found = verify(dir).await;
    let lines = stderr(&found);
    assert_eq!(found.status.code(), Some(1), "{lines}");
    assert!(lines.contains(problem) && lines.contains("use another backup"), "{problem:?} is not in {lines}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_file_is_found_by_verify_and_restore() {
    let (rig, folder, data) = (Rig::start().await, new_folder(), DataFolder::new());
    task_with_artifact(&rig).await;
    let dir = folder.path().join("backup");
    succeeded(&back_up(&rig, &dir, &[]).await);
    let artifact = stored_files(&dir.join("artifacts")).remove(0);
    let names = ["database.dump", "secret-key", "artifacts.sha256"];
    for path in names.map(|name| dir.join(name)).into_iter().chain([artifact.clone()]) {
        let whole = std::fs::read(&path).unwrap();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        replace(&path, &changed);
        assert_damaged(&dir, &format!("{} was changed", path.display())).await;
        let line = refusal(&restore_into(&dir, &data.data_dir()).await, 1);
        assert!(line.contains("was changed") && line.contains("use another backup"), "{line}");
        // Removed in the middle, where no server starts.
        if data.data_dir().exists() {
            let refused = finish(embedded().command(&data.data_dir())).await;
            assert!(stderr(&refused).contains("unfinished restore"), "{}", stderr(&refused));
            std::fs::remove_dir_all(data.data_dir()).unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        assert_damaged(&dir, &format!("{} is missing", path.display())).await;
        std::fs::write(&path, &whole).unwrap();
    }
    succeeded(&verify(&dir).await);
}

/// Gives a changed file the right sum.
fn hide(dir: &Path, name: &str) {
    let bytes = std::fs::read(dir.join(name)).unwrap();
    let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut manifest = manifest(dir);
    let files = manifest["files"].as_array_mut().unwrap();
    let file = files.iter_mut().find(|file| file["name"] == name).unwrap();
    file["sha256"] = json!(sum);
    replace(&dir.join("manifest.json"), manifest.to_string().as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_are_compared_with_database() {
    let (rig, folder) = (Rig::start().await, new_folder());
    task_with_artifact(&rig).await;
    let dir = folder.path().join("backup");
    succeeded(&back_up(&rig, &dir, &[]).await);
    let artifact = stored_files(&dir.join("artifacts")).remove(0);
    let sums = dir.join("artifacts.sha256");
    let line = std::fs::read_to_string(&sums).unwrap();
    let named = line.split_once("  ").unwrap().1;
    assert_eq!(dir.join(named.trim_end()), artifact);

    let other: String = Sha256::digest("other").iter().map(|byte| format!("{byte:02x}")).collect();
    replace(&artifact, b"other");
    replace(&sums, format!("{other}  {named}").as_bytes());
    hide(&dir, "artifacts.sha256");
    assert_damaged(&dir, "has another sum in the database").await;
    replace(&sums, b"");
    hide(&dir, "artifacts.sha256");
    assert_damaged(&dir, "is named by the database, but not in the backup").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn violated_invariant_is_found_by_verify() {
    let (rig, folder) = (Rig::start().await, new_folder());
    let task = rig.create_one(QUEUE).await;
    let Rig { server, secret_key, database, root: _, folder: server_folder } = rig;
    assert!(server.stop().await.success());
    let mut conn = database.connect("test").await;
    let broken = sqlx::query("DELETE FROM pending").execute(&mut conn).await.unwrap();
    assert_eq!(broken.rows_affected(), 1);
    conn.close().await.unwrap();
    let dir = folder.path().join("backup");
    let mut command = command(["backup", "--database-url", database.url(), "--data-dir"]);
    command.arg(server_folder.path().join("server")).arg(&dir).env("TENURE_SECRET_KEY", &secret_key);
    succeeded(&output(command).await);
    let lines = stderr(&verify(&dir).await);
    for part in ["I2: an unresolved task has its last run", &task.uuid().to_string(), "use another backup"] {
        assert!(lines.contains(part), "{part:?} is not in {lines}");
    }
    database.abandon();
}
