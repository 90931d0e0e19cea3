//! A server that hands out one job. It knows no failures, as Taskcluster's queue.

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

/// Returns the first line and the body.
async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_lowercase();
            let length = length.split_once("content-length: ").map_or("0", |(_, rest)| rest.lines().next().unwrap());
            if body.len() >= length.parse().unwrap() {
                return head.lines().next().map(|line| (line.to_owned(), body.to_owned()));
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
            while let Some((line, asked)) = request(&mut stream).await {
                let is_refused = asked.contains("\"failure\"");
                let body = if is_refused {
                    r#"{"code": "InputError", "message": "unknown field"}"#.to_owned()
                } else if !line.contains("/claim-work/") {
                    format!(r#"{{"status": {STATUS}}}"#)
                } else if given.swap(true, std::sync::atomic::Ordering::SeqCst) {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    r#"{"tasks": []}"#.to_owned()
                } else {
                    claimed(payload)
                };
                let head = format!(
                    "HTTP/1.1 {} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    if is_refused { 400 } else { 200 },
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            }
        });
    }
}
