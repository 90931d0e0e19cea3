//! A database with TLS only: every session of a server uses it, and verifies the certificate.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::{create_until_it_works, finish_all};
use crate::rig::{finish, new_folder, stderr};

/// A folder of PostgreSQL's with a self-signed certificate for the loopback address, and its key.
fn certificate() -> (TempDir, PathBuf, PathBuf) {
    let folder = tenure_tests::postgres::new_folder();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=database", "-addext", "subjectAltName=IP:127.0.0.1"]);
    // A certificate authority is no valid server certificate.
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let made = openssl.arg("-out").arg(&certificate).arg("-keyout").arg(&key).output().expect("scripts/setup --tests");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let owner = folder.path().metadata().unwrap();
    for file in [&certificate, &key] {
        chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    (folder, certificate, key)
}

fn url(cluster: &Cluster, root: &Path) -> String {
    format!("{}?sslmode=verify-full&sslrootcert={}", cluster.url("postgres"), root.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sessions_are_encrypted_and_verify_the_database() {
    let (_kept, certificate, key) = certificate();
    let (file, key_file) = (certificate.display(), key.display());
    let settings = ["ssl=on".to_owned(), format!("ssl_cert_file={file}"), format!("ssl_key_file={key_file}")];
    let cluster = Cluster::start(&settings.each_ref().map(String::as_str)).await;
    let (secret, folder, given) = (fresh_secret_key(), new_folder(), url(&cluster, &certificate));
    let server = Launch::on_database(&given, &secret).start(folder.path(), "server").await;
    let root = create_root_client(&given, &secret).credentials;
    let task = create_until_it_works(&server, &root).await;
    finish_all(&server, &root, vec![task]).await;
    let mut admin = PgConnection::connect(&cluster.url("postgres")).await.unwrap();
    let mut sessions: Vec<(String, bool)> = sqlx::query_as(
        "SELECT DISTINCT application_name, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
         WHERE application_name LIKE 'tenure%'",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    sessions.sort();
    let hot = |application: &String| application.ends_with(" hot");
    assert!(sessions.iter().any(|(application, _)| hot(application)), "{sessions:?}");
    assert!(sessions.iter().any(|(application, _)| !application.contains(' ')), "{sessions:?}");
    assert!(sessions.iter().all(|(_, encrypted)| *encrypted), "{sessions:?}");
    assert!(server.stop().await.success());

    let (_other, unknown, _) = self::certificate();
    let output = finish(Launch::on_database(&url(&cluster, &unknown), &secret).command(folder.path())).await;
    assert_eq!(output.status.code(), Some(1));
    let line = stderr(&output).lines().last().unwrap_or_default().to_owned();
    assert!(line.contains("invalid peer certificate"), "{line}");
}
