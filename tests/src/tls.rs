//! A private certificate authority, and TLS in front of plain servers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

const KEY: [&str; 7] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];

/// An authority that has signed a certificate for 127.0.0.1.
pub struct Authority {
    folder: PathBuf,
}

impl Authority {
    /// # Panics
    /// If `openssl` is missing; `scripts/setup --tests` installs it.
    #[must_use]
    pub fn create(folder: &Path) -> Self {
        let folder = folder.join("authority");
        std::fs::create_dir(&folder).expect("the folder is new");
        let files = ["-keyout", "ca.key", "-out", "ca.crt"];
        openssl(&folder, &[&["req", "-x509", "-subj", "/CN=authority"], &KEY[..], &files].concat());
        let signed = ["req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/CN=receiver"];
        let leaf = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
        let files = ["-keyout", "receiver.key", "-out", "receiver.crt"];
        openssl(&folder, &[&signed[..], &leaf, &KEY, &files].concat());
        Self { folder }
    }

    /// PEM file with the certificate of the authority.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Accepts TLS on another port, and forwards to this one.
    pub async fn forward_to(&self, port: u16) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let own = listener.local_addr().expect("it listens").port();
        let tls = self.acceptor();
        let forwarding = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    // Fails if the client does not trust the certificate.
                    let mut client = tls.accept(client).await?;
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Forwarder { port: own, forwarding }
    }

    fn acceptor(&self) -> TlsAcceptor {
        let read = |name: &str| std::fs::read(self.folder.join(name)).expect("it was created");
        let chain = vec![CertificateDer::from_pem_slice(&read("receiver.crt")).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_slice(&read("receiver.key")).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        TlsAcceptor::from(Arc::new(config.expect("the key belongs to the certificate")))
    }
}

fn openssl(folder: &Path, arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).current_dir(folder).output().expect("scripts/setup --tests");
    assert!(made.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
}

/// Stops accepting when it is dropped.
pub struct Forwarder {
    pub port: u16,
    forwarding: JoinHandle<()>,
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}
