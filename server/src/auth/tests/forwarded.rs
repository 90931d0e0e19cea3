//! Forwarded port and scheme.

use super::*;

#[test]
fn proxy_forwards_port_of_client() {
    let header = sign(&permanent());
    let parts = RequestParts { host: "queue.example", ..request(&header) };
    let forwarded = RequestParts { forwarded_port: Some("8080"), forwarded_proto: Some("https"), ..parts };
    assert!(check(&account(&["*"]), &forwarded, NOW).is_ok());
    let port = |parts: RequestParts<'_>| parts.signed_target().port;
    assert_eq!(port(parts), 80);
    assert_eq!(port(RequestParts { forwarded_proto: Some("HTTPS"), ..parts }), 443);
    assert_eq!(port(RequestParts { forwarded_proto: Some("http"), ..parts }), 80);
    // The first of two proxies is the client's.
    let two = RequestParts { forwarded_proto: Some("https , http"), ..parts };
    assert_eq!(port(two), 443);
    assert_eq!(port(RequestParts { forwarded_port: Some("8443, 80"), ..two }), 8443);
    let v6 = RequestParts { host: "[::1]:8080", ..parts }.signed_target();
    assert_eq!((v6.host, v6.port), ("[::1]", 8080));
    let v6 = RequestParts { host: "[::1]", ..parts }.signed_target();
    assert_eq!((v6.host, v6.port), ("[::1]", 80));
}
