//! A proxy between a worker and its server that a test can silence or cut, and that records the
//! worker's requests.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Unavailable,
    Cut,
    /// The request gets through, but the connection ends before the answer.
    Unanswered,
}

const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Forwards connections. While silent, it forwards and refuses nothing, as if all packets were
/// dropped. Connections of that time end when the silence does.
pub struct FaultProxy {
    url: String,
    shared: Arc<ProxyState>,
    accepting: JoinHandle<()>,
}

struct ProxyState {
    behind: String,
    silent: watch::Sender<bool>,
    cuts: watch::Sender<u32>,
    sent: Mutex<Vec<(Instant, String)>>,
    fault: Mutex<Option<(&'static str, Fault)>>,
}

impl FaultProxy {
    pub async fn to(root_url: &str) -> Self {
        let behind = root_url.strip_prefix("http://").expect("a test's server has no TLS").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound port"));
        let shared = Arc::new(ProxyState {
            behind,
            silent: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            sent: Mutex::default(),
            fault: Mutex::default(),
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

    /// Cuts all existing connections; new ones are possible.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub fn fault(&self, text: &'static str, fault: Fault) {
        *self.shared.fault.lock().unwrap() = Some((text, fault));
    }

    pub fn mend(&self) {
        *self.shared.fault.lock().unwrap() = None;
        self.shared.silent.send_replace(false);
    }

    pub fn texts(&self, text: &str) -> Vec<String> {
        let sent = self.shared.sent.lock().unwrap();
        sent.iter().filter(|(_, bytes)| bytes.contains(text)).map(|(_, bytes)| bytes.clone()).collect()
    }

    pub fn sent(&self, text: &str) -> Vec<Instant> {
        let sent = self.shared.sent.lock().unwrap();
        sent.iter().filter(|(_, bytes)| bytes.contains(text)).map(|(at, _)| *at).collect()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    while let Ok((here, _)) = listener.accept().await {
        tokio::spawn(pass(here, Arc::clone(&shared)));
    }
}

async fn pass(mut here: TcpStream, shared: Arc<ProxyState>) {
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

async fn copy(here: &mut TcpStream, there: &mut TcpStream, shared: &ProxyState) -> std::io::Result<()> {
    let (mut from_worker, mut to_worker) = here.split();
    let (mut from_server, mut to_server) = there.split();
    let requests = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_worker.read(&mut buffer).await?;
            if read == 0 {
                to_server.shutdown().await?;
                return Ok::<_, std::io::Error>(None);
            }
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            let fault = *shared.fault.lock().unwrap();
            let met = fault.filter(|(of, _)| text.contains(of)).map(|(_, fault)| fault);
            shared.sent.lock().unwrap().push((Instant::now(), text));
            if met.is_none_or(|fault| fault == Fault::Unanswered) {
                to_server.write_all(&buffer[..read]).await?;
            }
            if let Some(fault) = met {
                return Ok(Some(fault));
            }
        }
    };
    // Some requests are answered by the proxy, or not at all: then the server sends no more.
    let met = {
        let answers = tokio::io::copy(&mut from_server, &mut to_worker);
        tokio::pin!(answers, requests);
        tokio::select! {
            met = &mut requests => match met? {
                None => {
                    answers.await?;
                    None
                }
                met => met,
            },
            ended = &mut answers => {
                ended?;
                None
            }
        }
    };
    match met {
        Some(Fault::Unavailable) => {
            to_worker.write_all(UNAVAILABLE).await?;
            to_worker.shutdown().await?;
        }
        Some(Fault::Unanswered) => {
            let mut answer = [0];
            tokio::select! {
                read = from_server.read(&mut answer) => read.map(|_| ())?,
                sent = tokio::io::copy(&mut from_worker, &mut to_server) => sent.map(|_| ())?,
            }
        }
        Some(Fault::Cut) | None => {}
    }
    Ok(())
}
