//! Access to stored bytes: changed, expired and misused URLs; and common properties of the answers.

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::rig::Raw;

const NAME: &str = "artifact/t/0/public/a.txt";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn url_with_any_changed_byte_is_refused_without_server_error() {
    let stored = Stored::start().await;
    stored.upload(NAME, "bytes").await;
    for (method, target) in [("GET", stored.get_target(NAME)), ("PUT", stored.put_target(NAME, OCTETS))] {
        for at in 0..target.len() {
            for flip in [0x01, 0x10, 0x20, 0x80] {
                let mut bytes = target.clone().into_bytes();
                bytes[at] ^= flip;
                // A target that no request line can hold never reaches the server's code.
                let Ok(changed) = String::from_utf8(bytes) else { continue };
                if !changed.starts_with('/') || changed.parse::<http::Uri>().is_err() {
                    continue;
                }
                let mut raw = Raw::new(method, &changed).header("Content-Type", OCTETS);
                raw.body = (method == "PUT").then(|| b"other".to_vec());
                let reply = stored.rig.send(&raw).await;
                assert!([403, 404].contains(&reply.status), "{} for {method} {changed}", reply.status);
            }
        }
    }
    stored.holds(NAME, b"bytes").await;
    assert_eq!(stored.metric("tenure_artifact_requests_total{operation=\"put\",outcome=\"failed\"}").await, 0);
    assert_eq!(stored.metric("tenure_artifact_requests_total{operation=\"get\",outcome=\"failed\"}").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_is_for_one_method_one_content_type_and_one_name() {
    let stored = Stored::start().await;
    stored.upload(NAME, "bytes").await;
    let (put, get) = (stored.put_target(NAME, "text/plain"), stored.get_target(NAME));
    let send = async |method: Method, target: &str, content_type: Option<&str>| {
        let mut request = stored.request(method, target);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        request.body("other").send().await.unwrap()
    };
    for content_type in [None, Some(""), Some("text/html"), Some("text/plain; charset=utf-8"), Some("\u{fc}")] {
        refused(send(Method::PUT, &put, content_type).await, 403, "AccessDenied").await;
    }
    refused(send(Method::PUT, &get, Some("text/plain")).await, 403, "AccessDenied").await;
    refused(stored.request(Method::GET, &put).send().await.unwrap(), 403, "AccessDenied").await;
    for method in [Method::POST, Method::DELETE, Method::PATCH] {
        refused(send(method.clone(), &put, Some("text/plain")).await, 403, "AccessDenied").await;
        refused(send(method, &get, Some("text/plain")).await, 403, "AccessDenied").await;
    }
    let elsewhere = put.replace("/a.txt", "/b.txt");
    refused(send(Method::PUT, &elsewhere, Some("text/plain")).await, 403, "AccessDenied").await;
    refused(send(Method::PUT, &format!("{put}&x=1"), Some("text/plain")).await, 403, "AccessDenied").await;
    let bare = put.split_once('?').unwrap().0;
    refused(send(Method::PUT, bare, Some("text/plain")).await, 403, "AccessDenied").await;
    stored.holds(NAME, b"bytes").await;
    assert_eq!(send(Method::PUT, &put, Some("TEXT/Plain ")).await.status().as_u16(), 200);
    stored.holds(NAME, b"other").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_may_write_a_url_anew() {
    let stored = Stored::start().await;
    let name = "artifact/t/0/public/a:b@c,d(e).txt";
    let put = stored.put_target(name, OCTETS);
    let plain = [("%3A", ":"), ("%40", "@"), ("%2C", ","), ("%28", "("), ("%29", ")")]
        .iter()
        .fold(put.clone(), |target, (escaped, plain)| target.replace(escaped, plain));
    assert_ne!(put, plain);
    let raw =
        |target: &str| Raw { body: Some(b"bytes".to_vec()), ..Raw::new("PUT", target).header("Content-Type", OCTETS) };
    assert_eq!(stored.rig.send(&raw(&plain)).await.status, 200);
    let (path, query) = put.split_once('?').unwrap();
    let mut parameters: Vec<&str> = query.split('&').collect();
    parameters.reverse();
    assert_eq!(stored.rig.send(&raw(&format!("{path}?{}", parameters.join("&")))).await.status, 200);
    stored.holds(name, b"bytes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_ends_by_the_servers_clock() {
    let stored = Stored::start_with(|launch| launch.flag("--clock", "manual")).await;
    let (put, get) = (stored.put_target(NAME, OCTETS), stored.get_target(NAME));
    let upload =
        async || stored.request(Method::PUT, &put).header("content-type", OCTETS).body("b").send().await.unwrap();
    assert_eq!(upload().await.status().as_u16(), 200);
    stored.rig.advance(3590).await;
    assert_eq!(upload().await.status().as_u16(), 200);
    stored.rig.advance(20).await;
    assert!(refused(upload().await, 403, "AccessDenied").await.contains("expired"));
    refused(stored.request(Method::GET, &get).send().await.unwrap(), 403, "AccessDenied").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_found_where_nothing_was_uploaded() {
    let stored = Stored::start().await;
    refused(stored.get("artifact/t/0/never").send().await.unwrap(), 404, "NotFound").await;
    let head = stored.request(Method::HEAD, &stored.get_target("artifact/t/0/never")).send().await.unwrap();
    assert_eq!(head.status().as_u16(), 404);
    for path in ["/artifacts", "/artifacts/"] {
        assert_eq!(stored.request(Method::GET, path).send().await.unwrap().status().as_u16(), 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_tasks_are_saved_and_scripts_of_other_sites_may_read() {
    let stored = Stored::start().await;
    for (content_type, disposition) in [
        ("text/html; charset=utf-8", "attachment"),
        ("image/svg+xml", "attachment"),
        ("application/xhtml+xml", "attachment"),
        ("text/plain", ""),
        ("image/png", ""),
    ] {
        let put = stored.put(NAME, content_type).body("<script>alert(1)</script>").send().await.unwrap();
        assert_eq!(put.status().as_u16(), 200);
        let answer = stored.get(NAME).header("origin", "https://elsewhere.example").send().await.unwrap();
        let headers = ["content-type", "content-disposition", "x-content-type-options", "access-control-allow-origin"];
        let headers = headers.map(|name| header(&answer, name));
        assert_eq!(headers, [content_type, disposition, "nosniff", "*"]);
        assert!(header(&answer, "content-security-policy").contains("sandbox"));
        assert!(header(&answer, "access-control-expose-headers").contains("ETag"));
        assert_eq!(header(&answer, "cache-control"), "private, no-cache");
    }
    let answer = stored.get(NAME).send().await.unwrap();
    assert_eq!(header(&answer, "access-control-allow-origin"), "");
    let options = stored.request(Method::OPTIONS, &stored.get_target(NAME)).send().await.unwrap();
    assert_eq!((options.status().as_u16(), header(&options, "access-control-allow-origin")), (200, "*"));
}

async fn expect_continue(stored: &Stored, target: &str, length: &str) -> (TcpStream, String) {
    let address = stored.rig.server.root_url().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "PUT {target} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {OCTETS}\r\nContent-Length: {length}\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut buffer = [0; 4096];
    let read = tokio::time::timeout(TIMEOUT, stream.read(&mut buffer)).await.unwrap().unwrap();
    (stream, String::from_utf8_lossy(&buffer[..read]).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_continue_gets_100_or_refusal_before_body() {
    let stored = Stored::start_with(|launch| launch.flag("--artifact-size-max", "1MiB")).await;
    let target = stored.put_target(NAME, OCTETS);
    let (mut stream, first) = expect_continue(&stored, &target, "5").await;
    assert!(first.starts_with("HTTP/1.1 100 "), "{first}");
    stream.write_all(b"bytes").await.unwrap();
    let mut buffer = [0; 4096];
    let read = tokio::time::timeout(TIMEOUT, stream.read(&mut buffer)).await.unwrap().unwrap();
    assert!(buffer[..read].starts_with(b"HTTP/1.1 200 "));
    stored.holds(NAME, b"bytes").await;
    let (_stream, large) = expect_continue(&stored, &target, "1048577").await;
    assert!(large.starts_with("HTTP/1.1 413 ") && large.contains("TooLarge"), "{large}");
    let (_stream, wrong) = expect_continue(&stored, &target.replace("a.txt", "b.txt"), "5").await;
    assert!(wrong.starts_with("HTTP/1.1 403 "), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_not_whole_is_refused() {
    let stored = Stored::start().await;
    let (target, address) =
        (stored.put_target(NAME, OCTETS), stored.rig.server.root_url().trim_start_matches("http://").to_owned());
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let sent = format!(
        "PUT {target} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {OCTETS}\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nbytes\r\nno length\r\n"
    );
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("IncompleteBody"), "{answer}");
    assert_eq!(stored.get_status(NAME).await, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_and_requests_are_counted() {
    let stored = Stored::start().await;
    stored.upload(NAME, vec![1; 1000]).await;
    stored.holds(NAME, &[1; 1000]).await;
    stored.holds(NAME, &[1; 1000]).await;
    refused(stored.get("artifact/t/0/never").send().await.unwrap(), 404, "NotFound").await;
    for (line, number) in [
        ("tenure_artifact_bytes_total{direction=\"in\"}", 1000),
        ("tenure_artifact_bytes_total{direction=\"out\"}", 2000),
        ("tenure_artifact_requests_total{operation=\"put\",outcome=\"done\"}", 1),
        ("tenure_artifact_requests_total{operation=\"get\",outcome=\"done\"}", 2),
        ("tenure_artifact_requests_total{operation=\"get\",outcome=\"refused\"}", 1),
    ] {
        assert_eq!(stored.metric(line).await, number, "{line}");
    }
    let log = stored.rig.server.log();
    assert!(!log.contains("signature="), "{log}");
}
