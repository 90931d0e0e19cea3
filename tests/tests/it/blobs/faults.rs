//! The artifact folder is missing, full, or has lost its files.

use std::process::Command;

use super::*;

const NAME: &str = "artifact/t/0/public/a.bin";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_made_refuses_uploads_until_it_can() {
    let outside = tempfile::tempdir_in("/tmp").unwrap();
    let way = outside.path().join("way");
    std::fs::write(&way, "a file is in the way").unwrap();
    let url = format!("file://{}", way.join("artifacts").display());
    let stored = Stored::start_with(|launch| launch.flag("--artifacts-url", &url)).await;
    let answer = stored.put(NAME, OCTETS).body("bytes").send().await.unwrap();
    assert_eq!(header(&answer, "retry-after"), "1");
    assert!(refused(answer, 503, "Unavailable").await.contains("artifact store"));
    assert!(stored.rig.server.log().contains("the artifact store cannot be used"));
    std::fs::remove_file(&way).unwrap();
    stored.upload(NAME, "bytes").await;
    stored.holds(NAME, b"bytes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_refuses_uploads_and_keeps_stored_bytes() {
    let disk = tempfile::tempdir_in("/tmp").unwrap();
    let mounting = ["-t", "tmpfs", "-o", "size=3m,mode=0711", "tenure-test"];
    if !nix::unistd::geteuid().is_root()
        || !Command::new("mount").args(mounting).arg(disk.path()).status().unwrap().success()
    {
        eprintln!("skipped: only root may mount a small file system");
        return;
    }
    struct Mounted<'a>(&'a std::path::Path);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0).status();
        }
    }
    let _mounted = Mounted(disk.path());
    let url = format!("file://{}", disk.path().display());
    let stored = Stored::start_with(|launch| launch.flag("--artifacts-url", &url)).await;
    let bytes = some_bytes(1 << 20, 1);
    stored.upload(NAME, bytes.clone()).await;
    let answer = stored.put(NAME, OCTETS).body(some_bytes(4 << 20, 2)).send().await.unwrap();
    refused(answer, 503, "Unavailable").await;
    stored.holds(NAME, &bytes).await;
    assert_eq!(stored.rows().await, 1);
    stored.upload("artifact/t/0/other", bytes.clone()).await;
    stored.holds("artifact/t/0/other", &bytes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_or_changed_bytes_are_reported_and_can_be_replaced() {
    let stored = Stored::start().await;
    stored.upload(NAME, "bytes").await;
    let file = stored.files().remove(0);
    std::fs::write(&file, "more bytes").unwrap();
    assert!(refused(stored.get(NAME).send().await.unwrap(), 500, "InternalError").await.contains("incidentId"));
    std::fs::remove_file(&file).unwrap();
    refused(stored.get(NAME).send().await.unwrap(), 404, "NotFound").await;
    assert!(stored.rig.server.log().contains("stored bytes are gone from the artifact store"));
    stored.upload(NAME, "again").await;
    stored.holds(NAME, b"again").await;
    assert_eq!(stored.get_status(NAME).await, 200);
}
