//! A proxy between a server and its database that a test can cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Forwards connections until it is cut. Then all connections end, new ones at once.
pub struct Proxy {
    url: String,
    state: Arc<ProxyState>,
    accepting: JoinHandle<()>,
}

struct ProxyState {
    behind: String,
    open: AtomicBool,
    drops_options: AtomicBool,
    cut: Notify,
    /// Each connection has a clone of the current value at its start.
    made: Mutex<Arc<()>>,
}

impl ProxyState {
    fn made(&self) -> Arc<()> {
        Arc::clone(&self.made.lock().unwrap())
    }

    fn end_all(&self) {
        self.open.store(false, Ordering::SeqCst);
        self.cut.notify_waiters();
    }
}

impl Proxy {
    pub async fn before(url: &str) -> Self {
        let behind: PgConnectOptions = url.parse().expect("the URL of a test database");
        let (host, port) = (behind.get_host().to_owned(), behind.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let here = listener.local_addr().expect("a bound port");
        let authority = format!("{host}:{port}");
        assert!(url.contains(&authority), "the test cluster must be named as host:port");
        let (open, drops_options) = (AtomicBool::new(true), AtomicBool::new(false));
        let state = Arc::new(ProxyState {
            behind: authority.clone(),
            open,
            drops_options,
            cut: Notify::new(),
            made: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { url: url.replace(&authority, &here.to_string()), state, accepting }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on drops the settings of new connections, as a pooler may.
    pub fn drop_options(&self) {
        self.state.drops_options.store(true, Ordering::SeqCst);
    }

    /// Ends all connections. After the return none forwards anything, so no later request reaches
    /// the database.
    pub async fn cut(&self) {
        self.state.end_all();
        // Held by the proxy, the accepting task, and each connection.
        while Arc::strong_count(&self.state) > 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends all connections without refusing new ones. Returns when all old connections have ended:
    /// a later cut would be another outage.
    pub async fn interrupt(&self) {
        let before = std::mem::take(&mut *self.state.made.lock().unwrap());
        self.state.cut.notify_waiters();
        while Arc::strong_count(&before) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn open(&self) {
        self.state.open.store(true, Ordering::SeqCst);
    }

    pub fn mend(&self) {
        if self.state.drops_options.swap(false, Ordering::SeqCst) {
            // Connections without their settings must not stay.
            self.state.cut.notify_waiters();
        }
        self.open();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.state.end_all();
    }
}

async fn accept(listener: TcpListener, state: Arc<ProxyState>) {
    while let Ok((mut here, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let made = state.made();
            let ended = state.cut.notified();
            tokio::pin!(ended);
            // From here on no cut is missed; an earlier cut has replaced the value already.
            ended.as_mut().enable();
            if !Arc::ptr_eq(&made, &state.made()) {
                return;
            }
            if !state.open.load(Ordering::SeqCst) {
                return;
            }
            let Ok(mut there) = TcpStream::connect(&state.behind).await else { return };
            let passing = async {
                if state.drops_options.load(Ordering::SeqCst) {
                    let startup = without_options(&mut here).await?;
                    there.write_all(&startup).await?;
                }
                copy_bidirectional(&mut here, &mut there).await
            };
            tokio::select! {
                () = ended => {}
                _ = passing => {}
            }
        });
    }
}

/// Reads the first packet of a connection and removes its parameter `options`. Denies a preceding
/// TLS request.
async fn without_options(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    /// Stands for the version in a TLS request.
    const SSL_REQUEST: u32 = 80_877_103;
    loop {
        let length = client.read_u32().await?;
        let mut packet = vec![0; length as usize - 4];
        client.read_exact(&mut packet).await?;
        if packet == SSL_REQUEST.to_be_bytes() {
            client.write_all(b"N").await?;
            continue;
        }
        let (version, parameters) = packet.split_at(4);
        let parts: Vec<&[u8]> = parameters.split(|&byte| byte == 0).collect();
        let kept = parts.chunks_exact(2).filter(|pair| pair[0] != b"options" && !pair[0].is_empty());
        let mut rest: Vec<u8> = kept.flat_map(|pair| [pair[0], b"\0", pair[1], b"\0"].concat()).collect();
        rest.push(0);
        let length = u32::try_from(version.len() + rest.len() + 4).expect("a packet is short");
        return Ok([&length.to_be_bytes(), version, &rest].concat());
    }
}
