//! A reader of Server-Sent Events, by the specification of EventSource, that can also stop reading.

use serde_json::Value;
use tenure_api::credentials::Credentials;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Server;
use tenure_tests::wire::Target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::rig::{RawReply, Signature, TIMEOUT};

#[derive(Debug)]
pub enum Item {
    Event {
        kind: String,
        data: Value,
    },
    /// A comment, or a block that only sets the id or the delay.
    Other,
    End,
    Broken,
}

pub struct Stream {
    socket: TcpStream,
    raw: Vec<u8>,
    text: Vec<u8>,
    ended: bool,
    pub last_id: String,
    pub retry: Option<String>,
    pub comments: usize,
}

impl Stream {
    pub async fn try_open(
        server: &Server,
        who: Option<&Credentials>,
        query: &str,
        last_event_id: Option<&str>,
    ) -> Result<Self, RawReply> {
        let target = format!("{TENURE_API}/events/stream{query}");
        let place = Target::parse(server.root_url()).unwrap();
        let mut socket = TcpStream::connect((place.host.as_str(), place.port)).await.unwrap();
        let mut request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n", place.authority);
        if let Some(who) = who {
            let signature = Signature { who, method: "GET", target: &target, ..Signature::of(server) };
            request.push_str(&format!("Authorization: {}\r\n", signature.header()));
        }
        if let Some(id) = last_event_id {
            request.push_str(&format!("Last-Event-ID: {id}\r\n"));
        }
        request.push_str("\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut raw = Vec::new();
        let head_end = loop {
            if let Some(end) = raw.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            let read = tokio::time::timeout(TIMEOUT, socket.read_buf(&mut raw)).await;
            assert!(read.expect("the server answers").unwrap() > 0, "the server hung up");
        };
        let head = String::from_utf8_lossy(&raw[..head_end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200 ") {
            // An error has a length, and the connection may stay open after it.
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let length: usize = length.expect("a refusal has a length").parse().unwrap();
            while raw.len() < head_end + length {
                assert!(socket.read_buf(&mut raw).await.unwrap() > 0, "half a refusal");
            }
            return Err(RawReply::parse(&raw));
        }
        assert!(head.contains("\r\ncontent-type: text/event-stream\r\n"), "{head}");
        assert!(head.contains("\r\ntransfer-encoding: chunked\r\n"), "{head}");
        assert!(head.contains("\r\ncache-control: no-store"), "{head}");
        raw.drain(..head_end);
        let (last_id, text) = (last_event_id.unwrap_or_default().to_owned(), Vec::new());
        Ok(Self { socket, raw, text, ended: false, last_id, retry: None, comments: 0 })
    }

    pub async fn open(server: &Server, who: &Credentials, query: &str) -> Self {
        Self::try_open(server, Some(who), query, None).await.unwrap_or_else(|refused| panic!("{}", refused.text()))
    }

    pub async fn next(&mut self) -> Item {
        tokio::time::timeout(TIMEOUT, self.block()).await.expect("something comes in time")
    }

    /// Returns the next event, skipping comments and ids.
    pub async fn event(&mut self) -> (String, Value) {
        loop {
            match self.next().await {
                Item::Event { kind, data } => return (kind, data),
                Item::Other => {}
                over @ (Item::End | Item::Broken) => panic!("an event was expected, not {over:?}"),
            }
        }
    }

    pub async fn up_to(&mut self, position: i64) -> Vec<Value> {
        let mut events = Vec::new();
        while position_of(&events) < position {
            let (kind, data) = self.event().await;
            assert!(data["exchange"].as_str().unwrap().ends_with(&format!("/{kind}")), "{kind}: {data}");
            assert_eq!(self.last_id, data["position"].to_string(), "an event's id is its position");
            events.push(data);
        }
        events
    }

    pub async fn begun(mut self) -> Self {
        assert!(matches!(self.next().await, Item::Other));
        assert_eq!(self.retry.as_deref(), Some("1000"));
        self
    }

    pub async fn is_ended_in_order(&mut self) -> bool {
        loop {
            match self.next().await {
                Item::Event { .. } | Item::Other => {}
                Item::End => return true,
                Item::Broken => return false,
            }
        }
    }

    async fn block(&mut self) -> Item {
        loop {
            if let Some(end) = self.text.windows(2).position(|window| window == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                return self.take_in(std::str::from_utf8(&block).expect("a stream is UTF-8"));
            }
            if self.ended {
                assert!(self.text.is_empty(), "half a block at the end");
                return Item::End;
            }
            if !self.take_chunk() && self.socket.read_buf(&mut self.raw).await.unwrap_or(0) == 0 {
                return Item::Broken;
            }
        }
    }

    fn take_chunk(&mut self) -> bool {
        let Some(line) = self.raw.windows(2).position(|window| window == b"\r\n") else { return false };
        let size = std::str::from_utf8(&self.raw[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
        if self.raw.len() < line + 2 + size + 2 {
            return false;
        }
        self.text.extend_from_slice(&self.raw[line + 2..line + 2 + size]);
        self.raw.drain(..line + 2 + size + 2);
        self.ended = size == 0;
        true
    }

    fn take_in(&mut self, block: &str) -> Item {
        let (mut kind, mut data) = (None, None);
        for line in block.lines().filter(|line| !line.is_empty()) {
            match line.split_once(": ") {
                Some(("", _)) => self.comments += 1,
                Some(("id", id)) => id.clone_into(&mut self.last_id),
                Some(("retry", delay)) => self.retry = Some(delay.to_owned()),
                Some(("event", name)) => kind = Some(name.to_owned()),
                Some(("data", text)) => {
                    assert!(data.is_none(), "the data of an event is one line");
                    data = Some(serde_json::from_str(text).expect("data is JSON"));
                }
                _ => panic!("{line:?} is nothing that a stream has"),
            }
        }
        match (kind, data) {
            (Some(kind), Some(data)) => Item::Event { kind, data },
            (None, None) => Item::Other,
            half => panic!("half an event: {half:?}"),
        }
    }
}

pub fn position_of(events: &[Value]) -> i64 {
    events.last().map_or(0, |event| event["position"].as_i64().expect("an event has a position"))
}
