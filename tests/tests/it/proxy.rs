//! A way between a server and its database that a test can cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgConnectOptions;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Passes connections on until it is cut; then all of them end, and new ones end at once.
pub struct Proxy {
    url: String,
    open: Arc<AtomicBool>,
    cut: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// In front of the database that the URL names.
    pub async fn before(url: &str) -> Self {
        let behind: PgConnectOptions = url.parse().expect("the URL of a test database");
        let (host, port) = (behind.get_host().to_owned(), behind.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let here = listener.local_addr().expect("a bound port");
        let authority = format!("{host}:{port}");
        assert!(url.contains(&authority), "the test cluster must be named as host:port");
        let (open, cut) = (Arc::new(AtomicBool::new(true)), Arc::new(Notify::new()));
        let accepting = tokio::spawn(accept(listener, authority.clone(), Arc::clone(&open), Arc::clone(&cut)));
        Self { url: url.replace(&authority, &here.to_string()), open, cut, accepting }
    }

    /// The database's URL by this way.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn cut(&self) {
        self.open.store(false, Ordering::SeqCst);
        self.cut.notify_waiters();
    }

    pub fn mend(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, behind: String, open: Arc<AtomicBool>, cut: Arc<Notify>) {
    while let Ok((mut here, _)) = listener.accept().await {
        let (behind, open, cut) = (behind.clone(), Arc::clone(&open), Arc::clone(&cut));
        tokio::spawn(async move {
            let ended = cut.notified();
            tokio::pin!(ended);
            // From here on a cut is not missed.
            ended.as_mut().enable();
            if !open.load(Ordering::SeqCst) {
                return;
            }
            let Ok(mut there) = TcpStream::connect(behind).await else { return };
            tokio::select! {
                () = ended => {}
                _ = copy_bidirectional(&mut here, &mut there) => {}
            }
        });
    }
}
