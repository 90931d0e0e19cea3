//! Requests and their retries.

use super::*;

#[test]
fn encoded_parameter_survives_url_library() {
    let mut url = Url::parse("http://localhost/api/queue/v1").unwrap();
    url.set_path(&format!("{}/claim-work/{}", url.path(), parameter(&"p/w%")));
    assert_eq!(url.as_str(), "http://localhost/api/queue/v1/claim-work/p%2Fw%25");
}

#[test]
fn invalid_root_url_is_refused() {
    for bad in ["", "localhost:8080", "ftp://x", "http://", "http://x/?a=b"] {
        assert!(Client::builder().root_url(bad).build().is_err(), "{bad}");
    }
}

#[test]
fn variables_of_tenure_precede_those_of_taskcluster() {
    let read = |variables: &[(&str, &str)]| {
        let all: std::collections::BTreeMap<_, _> =
            variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Client::from_variables(|name| all.get(name).cloned())
    };
    let taskcluster = [
        ("TASKCLUSTER_ROOT_URL", "http://one/"),
        ("TASKCLUSTER_CLIENT_ID", "task"),
        ("TASKCLUSTER_ACCESS_TOKEN", "old"),
        ("TASKCLUSTER_CERTIFICATE", "{}"),
    ];
    let own = [("TENURE_URL", "http://two"), ("TENURE_CLIENT_ID", "me"), ("TENURE_ACCESS_TOKEN", "new")];
    for (variables, url, (client_id, token, certificate)) in [
        (taskcluster.to_vec(), "http://one", ("task", "old", Some("{}"))),
        ([&taskcluster[..], &own[..]].concat(), "http://two", ("me", "new", None)),
        ([&taskcluster[..], &own[..1]].concat(), "http://two", ("task", "old", Some("{}"))),
        ([&taskcluster[..], &[("TENURE_URL", "")][..]].concat(), "http://one", ("task", "old", Some("{}"))),
    ] {
        let client = read(&variables).unwrap();
        let signs = client.credentials().unwrap();
        assert_eq!((client.root_url(), signs.client_id.as_str()), (url, client_id));
        assert_eq!((signs.access_token.expose(), signs.certificate.as_deref()), (token, certificate));
    }
    assert!(read(&own[..1]).unwrap().credentials().is_none());
    for (variables, missing) in [(&own[..0], "TENURE_URL"), (&own[..2], "TENURE_ACCESS_TOKEN")] {
        let Err(error) = read(variables) else { panic!("{missing} is not needed") };
        assert!(matches!(error, Error::NotInEnvironment(name) if name == missing), "{error}");
    }
}

/// Refuses the first two requests once both have arrived, like a server whose clock is an hour
/// ahead.
async fn refuse_two(listener: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (both, served) = (Arc::new(tokio::sync::Barrier::new(2)), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (both, served) = (Arc::clone(&both), Arc::clone(&served));
        tokio::spawn(async move {
            let mut head = Vec::new();
            while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                if !head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                head.clear();
                let is_refused = served.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2;
                if is_refused {
                    both.wait().await;
                }
                let status = if is_refused { "401 Unauthorized" } else { "200 OK" };
                let date = crate::clock::ServerClock::default().now().time() + chrono::TimeDelta::hours(1);
                let date = date.format("%a, %d %b %Y %H:%M:%S GMT");
                let answer = format!("HTTP/1.1 {status}\r\ndate: {date}\r\ncontent-length: 2\r\n\r\n{{}}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }
}

#[tokio::test]
async fn calls_signed_with_wrong_clock_are_resent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(refuse_two(listener));
    let client = Client::builder().root_url(&url).build().unwrap().with_retry_policy(RetryPolicy::never());
    let task = "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap();
    let (one, other) = tokio::join!(client.wait_for_task(task, 0), client.wait_for_task(task, 0));
    assert_eq!((one.unwrap(), other.unwrap()), (serde_json::json!({}), serde_json::json!({})));
    serving.abort();
}
