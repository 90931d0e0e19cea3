//! A receiver of webhooks that misbehaves on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tenure_api::credentials::SigningKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Treatment of a message by the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Accepts,
    Answers(u16),
    /// To itself, so that a followed redirect would be seen.
    Redirects,
    Hangs,
    /// Closes the connection before the body.
    Cuts,
    /// Handles the message and dies before the answer.
    Dies,
    /// Accepts, with a body that does not end.
    Floods,
}

#[derive(Debug, Clone)]
pub struct Message {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Message {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("a message is JSON")
    }

    /// The events of the message with their ids, for messages of one and of several.
    pub fn events(&self) -> Vec<(String, Value)> {
        let body = self.json();
        let id = |event: &Value| event["id"].as_str().expect("an event has an id").to_owned();
        match body["data"]["events"].as_array() {
            Some(events) => events.iter().map(|event| (id(event), event.clone())).collect(),
            None => vec![(id(&body), body["data"].clone())],
        }
    }

    /// True if one of the signatures is by this secret.
    pub fn is_signed_by(&self, secret: &str) -> bool {
        let bytes = STANDARD.decode(secret.strip_prefix("whsec_").expect("its prefix")).expect("base64");
        let signed = format!("{}.{}.{}", self.id(), self.headers["webhook-timestamp"], self.body);
        let tag = SigningKey::new(&bytes).sign(&signed);
        self.headers["webhook-signature"]
            .split(' ')
            .any(|signature| signature.strip_prefix("v1,") == Some(tag.as_str()))
    }
}

struct Shared {
    manner: Mutex<Manner>,
    /// Completely received, accepted or not.
    seen: Mutex<Vec<Message>>,
    connections: Mutex<usize>,
}

pub struct Receiver {
    pub port: u16,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let shared = Arc::new(Shared {
            manner: Mutex::new(Manner::Accepts),
            seen: Mutex::default(),
            connections: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let acceptor = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *serving.connections.lock().expect("no panic") += 1;
                tokio::spawn(serve(stream, Arc::clone(&serving), port));
            }
        });
        Self { port, shared, acceptor }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    pub fn set(&self, manner: Manner) {
        *self.shared.manner.lock().expect("no panic") = manner;
    }

    pub fn seen(&self) -> Vec<Message> {
        self.shared.seen.lock().expect("no panic").clone()
    }

    pub fn connections(&self) -> usize {
        *self.shared.connections.lock().expect("no panic")
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>, port: u16) -> Option<()> {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8(buffer.drain(..end).collect()).ok()?;
        let manner = *shared.manner.lock().expect("no panic");
        if manner == Manner::Cuts {
            return None;
        }
        let mut lines = head.lines();
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let length: usize = headers.get("content-length").map_or(Ok(0), |length| length.parse()).ok()?;
        while buffer.len() < length {
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        }
        let body = String::from_utf8(buffer.drain(..length).collect()).ok()?;
        shared.seen.lock().expect("no panic").push(Message { path, headers, body });
        let answer = match manner {
            Manner::Accepts => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            Manner::Answers(status) => format!("HTTP/1.1 {status} As Told\r\ncontent-length: 5\r\n\r\nhello"),
            Manner::Redirects => {
                format!(
                    "HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:{port}/other\r\ncontent-length: 0\r\n\r\n"
                )
            }
            Manner::Hangs => std::future::pending().await,
            Manner::Dies | Manner::Cuts => return None,
            Manner::Floods => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
                loop {
                    stream.write_all(&[b'x'; 4_096]).await.ok()?;
                }
            }
        };
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}
