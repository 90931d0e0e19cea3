//! Backups that were interrupted or changed.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use sha2::{Digest as _, Sha256};
use sqlx::Connection as _;
use tenure_tests::postgres;

use super::*;
use crate::rig::eventually;

/// A `pg_dump` that announces itself and waits.
struct WaitingDump {
    bin: PathBuf,
    begun: PathBuf,
    go: PathBuf,
}

impl WaitingDump {
    fn in_folder(folder: &Path) -> Self {
        let [bin, begun, go] = ["bin", "begun", "go"].map(|name| folder.join(name));
        std::fs::create_dir(&bin).unwrap();
        let real = |program: &str| PathBuf::from(postgres::command(program).get_program());
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" != --version ]; then\ntouch {}\nwhile [ ! -e {} ]; do sleep 0.1; done\nfi\n\
             exec {} \"$@\"\n",
            begun.display(),
            go.display(),
            real("pg_dump").display()
        );
        std::fs::write(bin.join("pg_dump"), script).unwrap();
        std::fs::set_permissions(bin.join("pg_dump"), std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink(real("pg_restore"), bin.join("pg_restore")).unwrap();
        Self { bin, begun, go }
    }

    /// Starts a backup, in its own process group, whose dump waits.
    async fn begin(&self, rig: &Rig, dir: &Path) -> (Child, Pid) {
        let mut backup = command(backup_args(rig, dir));
        backup.arg("--pg-bin").arg(&self.bin).env("TENURE_SECRET_KEY", &rig.secret_key);
        let backup = backup.process_group(0).stderr(Stdio::piped()).spawn().unwrap();
        eventually("pg_dump runs", async || self.begun.exists().then_some(())).await;
        std::fs::remove_file(&self.begun).unwrap();
        let pid = Pid::from_raw(i32::try_from(backup.id()).unwrap());
        (backup, pid)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_backup_is_no_backup() {
    let (rig, folder, data) = (Rig::start().await, new_folder(), DataFolder::new());
    task_with_artifact(&rig).await;
    let (dir, dump) = (folder.path().join("backup"), WaitingDump::in_folder(folder.path()));
    let (mut killed, group) = dump.begin(&rig, &dir).await;
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

    let (mut stopped, pid) = dump.begin(&rig, &dir).await;
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(stopped.wait().unwrap().code(), Some(143));
    assert!(dir.exists() && !dir.join("manifest.json").exists());
    std::fs::remove_dir_all(&dir).unwrap();
    succeeded(&back_up(&rig, &dir, &[]).await);
    succeeded(&verify(&dir).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_during_backup_fails_it() {
    let (rig, folder) = (Rig::start().await, new_folder());
    let (dir, dump) = (folder.path().join("backup"), WaitingDump::in_folder(folder.path()));
    let (backup, _) = dump.begin(&rig, &dir).await;
    let mut conn = rig.database.connect("test").await;
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9999, 'of a later release', true, '', 0)";
    sqlx::query(later).execute(&mut conn).await.unwrap();
    std::fs::write(&dump.go, "").unwrap();
    let line = refusal(&backup.wait_with_output().unwrap(), 1);
    assert!(line.contains("was migrated during the backup"), "{line}");
    assert!(!dir.join("manifest.json").exists());
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
