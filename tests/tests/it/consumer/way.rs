//! A way between a worker and its server that a test can silence or cut, and that keeps what the worker sent.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Passes connections on. While it is silent nothing passes and nothing is refused, as if all packets were dropped; the connections
/// from then end when it is not silent any more.
pub struct Way {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    behind: String,
    silent: watch::Sender<bool>,
    cuts: watch::Sender<u32>,
    sent: Mutex<Vec<(Instant, String)>>,
}

impl Way {
    /// To the server of this root URL.
    pub async fn to(root_url: &str) -> Self {
        let behind = root_url.strip_prefix("http://").expect("a test's server has no TLS").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound port"));
        let shared = Arc::new(Shared {
            behind,
            silent: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            sent: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { url, shared, accepting }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn silence(&self) {
        self.shared.silent.send_replace(true);
    }

    /// Cuts the connections that there are; new ones are made.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub fn mend(&self) {
        self.shared.silent.send_replace(false);
    }

    /// When something was sent that has this text.
    pub fn sent(&self, text: &str) -> Vec<Instant> {
        let sent = self.shared.sent.lock().unwrap();
        sent.iter().filter(|(_, bytes)| bytes.contains(text)).map(|(at, _)| *at).collect()
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((here, _)) = listener.accept().await {
        tokio::spawn(pass(here, Arc::clone(&shared)));
    }
}

async fn pass(mut here: TcpStream, shared: Arc<Shared>) {
    let (mut silent, mut cuts) = (shared.silent.subscribe(), shared.cuts.subscribe());
    let mut behind = None;
    if !*silent.borrow() {
        let there = behind.insert(TcpStream::connect(&shared.behind).await.expect("the server listens"));
        tokio::select! {
            biased;
            _ = silent.wait_for(|silent| *silent) => {}
            _cut = cuts.changed() => return,
            _ended = copy(&mut here, there, &shared) => return,
        }
    }
    drop(silent.wait_for(|silent| !*silent).await);
}

async fn copy(here: &mut TcpStream, there: &mut TcpStream, shared: &Shared) -> std::io::Result<()> {
    let (mut from_worker, mut to_worker) = here.split();
    let (mut from_server, mut to_server) = there.split();
    let requests = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_worker.read(&mut buffer).await?;
            if read == 0 {
                return to_server.shutdown().await;
            }
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            shared.sent.lock().unwrap().push((Instant::now(), text));
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let answers = tokio::io::copy(&mut from_server, &mut to_worker);
    tokio::try_join!(requests, answers)?;
    Ok(())
}
