//! A proxy between clients and a server that answers in its place or cuts connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const HEAD_END: &[u8] = b"\r\n\r\n";
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server does not see the request; the answer is 503.
    Busy,
    /// The server does not see the request, and there is no answer.
    CutBefore,
    /// The server answers, and the answer is lost.
    CutAfter,
}

#[derive(Debug, Clone)]
pub struct Passed {
    pub call: String,
    /// Status of the client's answer; 0 without one.
    pub status: u16,
}

pub struct FaultyWay {
    address: SocketAddr,
    plan: Arc<Plan>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Plan {
    /// End of the affected paths, and faults of the next requests to them.
    faults: Mutex<(String, VecDeque<Fault>)>,
    passed: Mutex<Vec<Passed>>,
}

impl FaultyWay {
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let plan = Arc::<Plan>::default();
        let accepting = tokio::spawn(accept(listener, behind(address), Arc::clone(&plan)));
        Self { address, plan, accepting }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn behind(&self) -> String {
        behind(self.address).to_string()
    }

    pub fn spoil(&self, path_end: &str, faults: impl IntoIterator<Item = Fault>) {
        *self.plan.faults.lock().unwrap() = (path_end.to_owned(), faults.into_iter().collect());
    }

    pub fn passed(&self) -> Vec<Passed> {
        self.plan.passed.lock().unwrap().clone()
    }
}

impl Drop for FaultyWay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The same port of another loopback address: free, because this process holds ours.
fn behind(address: SocketAddr) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 2], address.port()))
}

async fn accept(listener: TcpListener, behind: SocketAddr, plan: Arc<Plan>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let plan = Arc::clone(&plan);
        connections.spawn(async move { pass(stream, behind, &plan).await.unwrap_or_default() });
    }
}

async fn pass(mut client: TcpStream, behind: SocketAddr, plan: &Plan) -> std::io::Result<()> {
    let Some((head, body)) = read_request(&mut client).await? else { return Ok(()) };
    let mut line = head.split(' ');
    let (method, target) = (line.next().unwrap_or_default(), line.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let fault = {
        let mut faults = plan.faults.lock().unwrap();
        if path.ends_with(&faults.0) { faults.1.pop_front() } else { None }
    };
    let answer = match fault {
        Some(Fault::CutBefore) => Vec::new(),
        Some(Fault::Busy) => BUSY.to_vec(),
        Some(Fault::CutAfter) => {
            ask(behind, &head, &body).await?;
            Vec::new()
        }
        None => ask(behind, &head, &body).await?,
    };
    let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
    let passed = Passed { call: format!("{method} {path}"), status: status.unwrap_or_default() };
    plan.passed.lock().unwrap().push(passed);
    client.write_all(&answer).await
}

async fn read_request(client: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(HEAD_END.len()).position(|window| window == HEAD_END) {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
            let length: usize = head.lines().find_map(length).unwrap_or_default();
            let mut body = bytes.split_off(end + HEAD_END.len());
            let read = body.len();
            body.resize(length, 0);
            client.read_exact(&mut body[read..]).await?;
            return Ok(Some((head, body)));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

/// Reads the server's whole answer; `connection: close` marks its end.
async fn ask(behind: SocketAddr, head: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(behind).await?;
    server.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    server.write_all(body).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    Ok(answer)
}
