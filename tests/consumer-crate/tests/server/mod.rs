//! A server that hands out one job.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const STATUS: &str = r#"{"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "state": "running", "retriesLeft": 5, "runs": []}"#;

fn claimed(payload: &str) -> String {
    format!(
        r#"{{"tasks": [{{"status": {STATUS}, "runId": 0, "takenUntil": "2999-01-01T00:00:00.000Z",
            "credentials": {{"clientId": "task", "accessToken": "secret"}},
            "task": {{"taskQueueId": "acme/shapes", "taskGroupId": "9HrBC1jMQ3KlZw4CssPUeQ",
                "deadline": "2999-01-01T00:00:00.000Z", "expires": "2999-01-01T00:00:00.000Z", "payload": {payload},
                "metadata": {{"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com"}}}}}}]}}"#
    )
}

async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_lowercase();
            let length = length.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap());
            if body.len() >= length.parse().unwrap() {
                return head.lines().next().map(str::to_owned);
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap() == 0 {
            return None;
        }
    }
}

pub async fn serve(listener: TcpListener, payload: &'static str) {
    let given = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let given = given.clone();
        tokio::spawn(async move {
            while let Some(line) = request(&mut stream).await {
                let body = if !line.contains("/claim-work/") {
                    format!(r#"{{"status": {STATUS}}}"#)
                } else if given.swap(true, std::sync::atomic::Ordering::SeqCst) {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    r#"{"tasks": []}"#.to_owned()
                } else {
                    claimed(payload)
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            }
        });
    }
}
