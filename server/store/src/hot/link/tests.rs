//! Tests TLS of the second driver by `sslmode`, with a TLS proxy in front of PostgreSQL.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::hot::pipeline::Pipeline;
use crate::hot::statement::Statement;
use crate::testing::TestDatabase;

/// Host in the proxies' certificates.
const NAME: &str = "localhost";
/// The same host by a name that is not in the certificates.
const OTHER_NAME: &str = "127.0.0.1";

/// Creates certificates: `ca.crt` signed `server.crt` and `client.crt`, but not `other.crt`.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = |name: &str| {
        let subject = format!("/CN={name}");
        let files = ["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")];
        openssl(folder.path(), &[&["req", "-x509", "-subj", &subject, "-days", "2"], &KEY[..], &files].concat());
    };
    authority("ca");
    authority("other");
    for name in ["server", "client"] {
        let (subject, names) = (format!("/CN={name}"), format!("subjectAltName=DNS:{NAME}"));
        let files = ["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")];
        let signed = ["req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", &subject, "-days", "2"];
        let leaf = ["-addext", &names, "-addext", "basicConstraints=critical,CA:FALSE"];
        openssl(folder.path(), &[&signed[..], &leaf, &KEY, &files].concat());
    }
    folder
}

const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

fn openssl(folder: &Path, arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).current_dir(folder).output().expect("scripts/setup --tests");
    assert!(made.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
}

#[derive(Clone)]
enum Answer {
    Offered(TlsAcceptor),
    Refused,
}

/// Starts a proxy to the database and returns its port.
async fn proxy(database: &TestDatabase, answer: Answer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = (database.options().get_host().to_owned(), database.options().get_port());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (target, answer) = (target.clone(), answer.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect((target.0.as_str(), target.1)).await?;
                let mut asked = [0; TLS_REQUEST.len()];
                client.read_exact(&mut asked).await?;
                assert_eq!(asked, TLS_REQUEST, "it did not ask for TLS");
                match answer {
                    Answer::Offered(acceptor) => {
                        client.write_u8(TLS_OFFERED).await?;
                        copy_bidirectional(&mut acceptor.accept(client).await?, &mut server).await
                    }
                    Answer::Refused => {
                        client.write_u8(TLS_REFUSED).await?;
                        copy_bidirectional(&mut client, &mut server).await
                    }
                }
            });
        }
    });
    port
}

/// A proxy with the server's certificate. Clients must present one of the authority if `shown`.
fn acceptor(folder: &Path, shown: bool) -> Answer {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = if shown {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&read("ca.crt")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.unwrap().with_client_cert_verifier(verifier)
    } else {
        builder.unwrap().with_no_client_auth()
    };
    let chain = vec![CertificateDer::from_pem_slice(&read("server.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).unwrap();
    Answer::Offered(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap())))
}

/// Runs two statements in one transaction.
async fn try_it(options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let mut pipeline = Pipeline::connect(options).await?;
    let select = || Statement::new("SELECT $1::int").with(&1);
    assert_eq!(pipeline.run(&[select(), select()]).await.map_err(|undone| undone.error)?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn sslmode_accepts_matching_certificates() {
    use PgSslMode::{Prefer, Require, VerifyCa, VerifyFull};
    let (database, folder) = (TestDatabase::create().await, certificates());
    let port = proxy(&database, acceptor(folder.path(), false)).await;
    for (mode, name, root, accepted) in [
        (Prefer, NAME, None, true),
        (Require, NAME, None, true),
        (Require, OTHER_NAME, None, true),
        (VerifyCa, NAME, Some("ca.crt"), true),
        (VerifyCa, OTHER_NAME, Some("ca.crt"), true),
        (VerifyCa, NAME, Some("other.crt"), false),
        (VerifyCa, NAME, None, false),
        (VerifyFull, NAME, Some("ca.crt"), true),
        (VerifyFull, OTHER_NAME, Some("ca.crt"), false),
        (VerifyFull, NAME, Some("other.crt"), false),
        (VerifyFull, NAME, None, false),
    ] {
        let options = database.options().clone().host(name).port(port).ssl_mode(mode);
        let options = match root {
            Some(root) => options.ssl_root_cert(folder.path().join(root)),
            None => options,
        };
        let case = format!("{mode:?}, {name}, {root:?}");
        match try_it(&options).await {
            Ok(()) => assert!(accepted, "{case}: accepted"),
            Err(sqlx::Error::Tls(error)) => assert!(!accepted, "{case}: {error}"),
            Err(error) => panic!("{case}: {error:?}"),
        }
    }
    database.finish().await;
}

#[tokio::test]
async fn client_presents_certificate_on_demand() {
    let (database, folder) = (TestDatabase::create().await, certificates());
    let port = proxy(&database, acceptor(folder.path(), true)).await;
    let options = database.options().clone().host(NAME).port(port).ssl_mode(PgSslMode::VerifyFull);
    let options = options.ssl_root_cert(folder.path().join("ca.crt"));
    let with = |name: &str| {
        let file = |end: &str| folder.path().join(format!("{name}.{end}"));
        options.clone().ssl_client_cert(file("crt")).ssl_client_key(file("key"))
    };
    try_it(&with("client")).await.unwrap();
    assert!(try_it(&with("other")).await.is_err(), "another authority's");
    assert!(try_it(&options).await.is_err(), "none");
    database.finish().await;
}

#[tokio::test]
async fn database_without_tls_is_refused_if_required() {
    let database = TestDatabase::create().await;
    let port = proxy(&database, Answer::Refused).await;
    let options = |mode| database.options().clone().port(port).ssl_mode(mode);
    try_it(&options(PgSslMode::Prefer)).await.unwrap();
    for mode in [PgSslMode::Require, PgSslMode::VerifyCa, PgSslMode::VerifyFull] {
        let refused = try_it(&options(mode)).await.unwrap_err();
        assert!(matches!(refused, sqlx::Error::Tls(_)), "{mode:?}: {refused:?}");
    }
    database.finish().await;
}
