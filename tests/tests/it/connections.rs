//! Many connections: a server reserves files for itself, and refuses the excess.

use nix::sys::signal::{Signal, kill};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::rig::{
    DataFolder, LOOK_EVERY, RawReply, call, call_patiently, client_of, definition, embedded, eventually, new_task,
    postmaster_of,
};
use tenure_tests::server::Server;

const OPEN_FILES: u32 = 256;
/// More connections than the server may have files.
const CONNECTIONS: usize = 300;
/// Longest wait for a connection; accepting never waits.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

async fn connect(server: &Server) -> TcpStream {
    let address = server.root_url().strip_prefix("http://").unwrap();
    let connecting = tokio::time::timeout(TIMEOUT, TcpStream::connect(address));
    connecting.await.expect("connections are accepted").expect("the server listens")
}

/// Answer to a connection that sends nothing, before it is closed; `None` if it is kept.
async fn refusal(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    match tokio::time::timeout(LOOK_EVERY, stream.read_to_end(&mut bytes)).await {
        Ok(_) => Some(bytes),
        Err(_) => None,
    }
}

fn soft_limit(server: &Server) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("the system knows the limits");
    let line = text.lines().find(|line| line.starts_with("Max open files")).expect("one of them is this");
    line.split_whitespace().nth(3).expect("it has a value").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_leave_files_for_database_and_restart() {
    let place = DataFolder::new();
    let (server, root) = place.start(&embedded().open_files(64, OPEN_FILES)).await;
    assert_eq!(soft_limit(&server), OPEN_FILES.to_string(), "it takes what it may have");
    let mut client = client_of(&server);
    let answer =
        call_patiently(&mut client, &root, "PUT", &format!("/task/{}", new_task()), Some(&definition("many/idle")))
            .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(connect(&server).await);
    }
    let mut received = Vec::new();
    let mut kept = Vec::new();
    for mut stream in idle {
        match refusal(&mut stream).await {
            Some(bytes) => received.push(bytes),
            None => kept.push(stream),
        }
    }
    assert!(kept.len() >= 32 && kept.len() < 200, "{} connections are kept", kept.len());
    let words: Vec<RawReply> =
        received.iter().filter(|bytes| !bytes.is_empty()).map(|bytes| RawReply::parse(bytes)).collect();
    assert!(!words.is_empty(), "the first ones beyond the limit get an answer");
    for reply in &words {
        reply.refused(503, "ServiceUnavailable");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    let postmaster = postmaster_of(&place.data_dir()).unwrap();
    kill(postmaster, Signal::SIGKILL).unwrap();
    eventually("PostgreSQL runs again", async || {
        postmaster_of(&place.data_dir()).filter(|&restarted| restarted != postmaster)
    })
    .await;
    eventually("kept connections are served", async || {
        let path = format!("/task/{}", new_task());
        let answer = call(&mut client, &root, "PUT", &path, Some(&definition("many/idle"))).await;
        assert!([200, 503].contains(&answer.status), "{}", answer.body);
        (answer.status == 200).then_some(())
    })
    .await;
    drop(kept);
    eventually("there is a place again", async || {
        let mut stream = connect(&server).await;
        stream.write_all(b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.ok()?;
        bytes.starts_with(b"HTTP/1.1 200 ").then_some(())
    })
    .await;
    assert!(server.stop().await.success());
}
