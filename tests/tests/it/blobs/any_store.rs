//! Properties of every artifact store. Servers take its location from `TENURE_ARTIFACTS_URL` in the
//! environment.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use futures_util::StreamExt as _;
use reqwest::Method;

use super::*;

/// More than an object store takes in one request, so that the upload has several parts.
const LARGE: usize = 50 << 20;

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = gzip.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writing = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = gzip.wait_with_output().unwrap();
    writing.join().unwrap();
    output.stdout
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_equals_upload_at_any_size() {
    let stored = Stored::start().await;
    // Empty, small, and around the boundaries of file parts and object parts.
    for size in [0, 1, 8191, 256 << 10, (256 << 10) + 1, (5 << 20) - 1, 5 << 20, (5 << 20) + 1, LARGE] {
        let name = format!("artifact/t/0/public/{size}.bin");
        let bytes = some_bytes(size, 1 + size as u64);
        stored.upload(&name, bytes.clone()).await;
        stored.holds(&name, &bytes).await;
        let head = stored.request(Method::HEAD, &stored.get_target(&name)).send().await.unwrap();
        let headers =
            ["content-length", "content-type", "etag", "accept-ranges"].map(|name| header(&head, name).to_owned());
        let tag = format!("\"{}\"", hex(&bytes));
        assert_eq!(headers, [size.to_string(), OCTETS.to_owned(), tag, "bytes".to_owned()]);
        assert!(header(&head, "last-modified").ends_with(" GMT"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_without_a_length_is_taken_too() {
    let stored = Stored::start().await;
    let bytes = some_bytes(700_000, 7);
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> = bytes.chunks(999).map(|piece| Ok(piece.to_vec())).collect();
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let answer = stored.put("artifact/t/0/chunks", OCTETS).body(body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    stored.holds("artifact/t/0/chunks", &bytes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_upload_replaces_first_without_breaking_its_reader() {
    let stored = Stored::start().await;
    let (first, second) = (some_bytes(LARGE, 1), some_bytes(9, 2));
    let name = "artifact/t/0/replaced";
    stored.upload(name, first.clone()).await;
    let mut reading = stored.get(name).send().await.unwrap().bytes_stream();
    let mut read = reading.next().await.unwrap().unwrap().to_vec();
    stored.upload(name, second.clone()).await;
    stored.holds(name, &second).await;
    while let Some(piece) = reading.next().await {
        read.extend_from_slice(&piece.unwrap());
    }
    assert!(read == first, "{} bytes instead of {}", read.len(), first.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_uploads_at_the_same_time_one_wins_whole() {
    let stored = Stored::start().await;
    let name = "artifact/t/0/contended";
    let bodies: Vec<Vec<u8>> = (1..=6).map(|seed| some_bytes(6 << 20, seed)).collect();
    let uploads = bodies.iter().map(|body| stored.put(name, OCTETS).body(body.clone()).send());
    for answer in futures_util::future::join_all(uploads).await {
        assert_eq!(answer.unwrap().status().as_u16(), 200);
    }
    let winner = stored.get(name).send().await.unwrap().bytes().await.unwrap();
    assert!(bodies.iter().any(|body| *body == winner), "a mixture of {} bytes", winner.len());
    let current = stored.count("SELECT count(*) FROM blobs WHERE state = 1").await;
    assert_eq!((current, stored.rows().await), (1, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gzip_comes_as_it_is_stored_or_decoded() {
    let stored = Stored::start().await;
    let text = "a line of a log that repeats itself\n".repeat(100_000).into_bytes();
    let packed = gzipped(&text);
    let name = "artifact/t/0/public/logs/live_backing.log";
    let put = stored.put(name, "text/plain; charset=utf-8").header("content-encoding", "gzip");
    assert_eq!(put.body(packed.clone()).send().await.unwrap().status().as_u16(), 200);

    for knows in ["gzip", "deflate, gzip;q=0.1", "*"] {
        let answer = stored.get(name).header("accept-encoding", knows).send().await.unwrap();
        let headers = ["content-encoding", "content-type", "vary", "etag"].map(|name| header(&answer, name).to_owned());
        let tag = format!("\"{}-gzip\"", hex(&packed));
        assert_eq!(headers, ["gzip", "text/plain; charset=utf-8", "Accept-Encoding", &tag]);
        assert_eq!(header(&answer, "content-length"), packed.len().to_string());
        assert!(answer.bytes().await.unwrap() == packed);
    }
    for lacks in [None, Some("identity"), Some("br, gzip;q=0")] {
        let mut asked = stored.get(name);
        if let Some(encodings) = lacks {
            asked = asked.header("accept-encoding", encodings);
        }
        let answer = asked.send().await.unwrap();
        let headers =
            ["content-encoding", "content-type", "vary", "accept-ranges"].map(|name| header(&answer, name).to_owned());
        assert_eq!(headers, ["", "text/plain; charset=utf-8", "Accept-Encoding", ""], "{lacks:?}");
        assert_eq!(header(&answer, "etag"), format!("\"{}-gzip-decoded\"", hex(&packed)));
        assert!(answer.bytes().await.unwrap() == text, "{lacks:?}");
    }
    // Two members are one text, as `cat a.gz b.gz` makes it.
    let twice = [gzipped(b"one "), gzipped(b"two")].concat();
    let put = stored.put("artifact/t/0/twice", OCTETS).header("content-encoding", "GZip").body(twice);
    assert_eq!(put.send().await.unwrap().status().as_u16(), 200);
    stored.holds("artifact/t/0/twice", b"one two").await;
    // A range of the stored bytes, for clients that can assemble them.
    let part = stored.get(name).header("accept-encoding", "gzip").header("range", "bytes=3-9").send().await.unwrap();
    assert_eq!((part.status().as_u16(), header(&part, "content-encoding")), (206, "gzip"));
    assert!(part.bytes().await.unwrap() == packed[3..10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_encoding_and_fake_gzip_are_served_unchanged() {
    let stored = Stored::start().await;
    for (name, encoding) in [("artifact/t/0/zstd", "zstd"), ("artifact/t/0/odd", "gzip")] {
        let put = stored.put(name, OCTETS).header("content-encoding", encoding).body("no gzip at all");
        assert_eq!(put.send().await.unwrap().status().as_u16(), 200);
        let answer = stored.get(name).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), header(&answer, "content-encoding")), (200, encoding));
        assert_eq!(answer.bytes().await.unwrap(), "no gzip at all");
    }
    // A truncated body breaks off, so that it does not pass as complete.
    let packed = gzipped(&some_bytes(2 << 20, 5));
    let half = packed[..packed.len() / 2].to_vec();
    let put = stored.put("artifact/t/0/half", OCTETS).header("content-encoding", "gzip").body(half);
    assert_eq!(put.send().await.unwrap().status().as_u16(), 200);
    let answer = stored.get("artifact/t/0/half").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    assert!(answer.bytes().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_a_part_of_the_bytes() {
    let stored = Stored::start().await;
    let bytes = some_bytes(300_000, 3);
    let name = "artifact/t/0/ranges";
    stored.upload(name, bytes.clone()).await;
    let ask = async |range: &str| stored.get(name).header("range", range).send().await.unwrap();
    for (range, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=0-299999", 0, 300_000),
        ("bytes=100000-", 100_000, 300_000),
        ("bytes=-7", 299_993, 300_000),
        ("bytes=299999-400000", 299_999, 300_000),
    ] {
        let answer = ask(range).await;
        assert_eq!(answer.status().as_u16(), 206, "{range}");
        assert_eq!(header(&answer, "content-range"), format!("bytes {from}-{}/300000", to - 1));
        assert_eq!(header(&answer, "content-length"), (to - from).to_string());
        assert!(answer.bytes().await.unwrap() == bytes[from..to], "{range}");
    }
    let beyond = ask("bytes=300000-").await;
    assert_eq!(header(&beyond, "content-range"), "bytes */300000");
    refused(beyond, 416, "InvalidRange").await;
    for ignored in ["bytes=1-2,4-5", "bytes=5-1", "lines=1-2"] {
        let answer = ask(ignored).await;
        assert_eq!((answer.status().as_u16(), answer.bytes().await.unwrap().len()), (200, 300_000), "{ignored}");
    }
    let tag = format!("\"{}\"", hex(&bytes));
    // Other bytes stored under the name within the same second have the same date.
    let date = header(&ask("bytes=0-1").await, "last-modified").to_owned();
    for (if_range, status) in [(tag.as_str(), 206), (date.as_str(), 200), ("\"other\"", 200)] {
        let asked = stored.get(name).header("range", "bytes=0-1").header("if-range", if_range);
        assert_eq!(asked.send().await.unwrap().status().as_u16(), status, "{if_range}");
    }
    stored.upload("artifact/t/0/empty", Vec::new()).await;
    let nothing = stored.get("artifact/t/0/empty").header("range", "bytes=0-").send().await.unwrap();
    refused(nothing, 416, "InvalidRange").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_name_is_a_name() {
    let stored = Stored::start().await;
    let long = format!("artifact/t/0/{}", "x".repeat(2000));
    let names = [
        "artifact/t/0/public/a:b@c,d(e) f+g%h?i#j&k=l.txt",
        "artifact/t/0/public/100%25 of it",
        "artifact/t/0/public/%2F/%2e%2e/x",
        "artifact/t/0/../../../../../etc/passwd",
        "artifact/t/0//double//slashes/",
        "artifact/t/0/.",
        "artifact/t/0/..",
        "artifact/t/0/C:\\windows\\file#1",
        "artifact/t/0/'; DROP TABLE blobs; --",
        "object/t/task/0/public/x",
        &long,
    ];
    for name in names {
        stored.upload(name, name.as_bytes().to_vec()).await;
    }
    for name in names {
        stored.holds(name, name.as_bytes()).await;
    }
    let ids: BTreeSet<&str> = names.into_iter().collect();
    assert_eq!(stored.rows().await, ids.len() as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_replaced_is_removed_after_a_while() {
    let stored = Stored::start_with(|launch| launch.flag("--clock", "manual")).await;
    let name = "artifact/t/0/again";
    for seed in 1..=3 {
        stored.upload(name, some_bytes(1000, seed)).await;
    }
    assert_eq!(stored.rows().await, 3);
    stored.rig.advance(6 * 60).await;
    assert_eq!(stored.rows().await, 1);
    stored.holds(name, &some_bytes(1000, 3)).await;
}
