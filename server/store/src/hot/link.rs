//! Sockets for [`super::pipeline`], with TLS as the options require, like sqlx.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Request for TLS: message length and request code.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
const TLS_OFFERED: u8 = b'S';
const TLS_REFUSED: u8 = b'N';

pub(super) trait Link: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Link for T {}

/// Options without a getter.
#[derive(Default)]
pub(crate) struct Secrets {
    pub(crate) password: Option<String>,
    pub(crate) root: Option<String>,
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
}

impl Secrets {
    pub(crate) fn of(options: &PgConnectOptions) -> Self {
        // Other names are replaced, because a URL cannot express all hosts and users.
        let url = options.clone().host("localhost").username("user").database("database").to_url_lossy();
        let password = url.password().map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        let mut secrets = Self { password, ..Self::default() };
        for (name, value) in url.query_pairs() {
            // As sqlx writes the name of a file.
            let value = value.strip_prefix("file: ").unwrap_or(&value).to_owned();
            match &*name {
                "sslrootcert" => secrets.root = Some(value),
                "sslcert" => secrets.certificate = Some(value),
                "sslkey" => secrets.key = Some(value),
                _ => {}
            }
        }
        secrets
    }
}

/// Connects, including the TLS handshake.
pub(super) async fn connect(options: &PgConnectOptions) -> Result<Box<dyn Link>, sqlx::Error> {
    let host = options.get_host();
    let directory = options.get_socket().map(PathBuf::as_path).or(host.starts_with('/').then_some(Path::new(host)));
    if let Some(directory) = directory {
        let socket = directory.join(format!(".s.PGSQL.{}", options.get_port()));
        return secure(UnixStream::connect(socket).await?, options).await;
    }
    let address = host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((address, options.get_port())).await?;
    stream.set_nodelay(true)?;
    secure(stream, options).await
}

async fn secure(mut stream: impl Link + 'static, options: &PgConnectOptions) -> Result<Box<dyn Link>, sqlx::Error> {
    let mode = options.get_ssl_mode();
    let required = match mode {
        // Like sqlx, treats "allow" as "disable".
        PgSslMode::Disable | PgSslMode::Allow => return Ok(Box::new(stream)),
        PgSslMode::Prefer => false,
        PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
    };
    stream.write_all(&TLS_REQUEST).await?;
    match stream.read_u8().await? {
        TLS_OFFERED => {}
        TLS_REFUSED if required => return Err(tls("server does not support TLS")),
        TLS_REFUSED => return Ok(Box::new(stream)),
        other => return Err(sqlx::Error::Protocol(format!("unexpected answer to the request for TLS: {other}"))),
    }
    let config = client_config(mode, &Secrets::of(options)).await?;
    let name = ServerName::try_from(options.get_host().to_owned()).map_err(tls)?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        // Such as an invalid certificate.
        Err(error) => Err(error.downcast::<rustls::Error>().map_or_else(sqlx::Error::from, tls)),
    }
}

async fn client_config(mode: PgSslMode, secrets: &Secrets) -> Result<ClientConfig, sqlx::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(tls)?;
    let algorithms = provider.signature_verification_algorithms;
    let checks: Arc<dyn ServerCertVerifier> = match mode {
        PgSslMode::VerifyFull => authority(secrets, provider).await?,
        PgSslMode::VerifyCa => Arc::new(Lenient { authority: Some(authority(secrets, provider).await?), algorithms }),
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer | PgSslMode::Require => {
            Arc::new(Lenient { authority: None, algorithms })
        }
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(checks);
    match (&secrets.certificate, &secrets.key) {
        (Some(certificate), Some(key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(certificate).await?).collect();
            let key = PrivateKeyDer::from_pem_slice(&pem(key).await?).map_err(tls)?;
            builder.with_client_auth_cert(chain.map_err(tls)?, key).map_err(tls)
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        (_, _) => Err(sqlx::Error::Configuration("a client's certificate and key must be given together".into())),
    }
}

/// Checks certificates by the known authorities and the configured one.
async fn authority(secrets: &Secrets, provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, sqlx::Error> {
    let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    if let Some(root) = &secrets.root {
        for certificate in CertificateDer::pem_slice_iter(&pem(root).await?) {
            roots.add(certificate.map_err(tls)?).map_err(tls)?;
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(tls)
}

/// Returns `given` if it is PEM text, else reads that file.
async fn pem(given: &str) -> io::Result<Vec<u8>> {
    if given.trim_start().starts_with("-----BEGIN") {
        return Ok(given.as_bytes().to_vec());
    }
    tokio::fs::read(given).await
}

fn tls(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Tls(error.into())
}

/// Verifies less than `verify-full`, like libpq with the same `sslmode`: accepts any name, and
/// without an authority any signer. The server must always prove possession of its key.
#[derive(Debug)]
struct Lenient {
    /// Signers accepted by `verify-ca`.
    authority: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(certificate, chain, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
