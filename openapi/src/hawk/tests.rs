//! Vectors from the Python implementation (`mohawk`), each refusal, and round trips.

use proptest::prelude::*;

use super::*;
use crate::credentials::AccessToken;

const TOKEN: &str = "werxhqb98rpaxn39848xrunpaw3489ruxnpa98w4rxn";

fn key() -> SigningKey {
    AccessToken::new(TOKEN.to_owned()).key()
}

fn credentials(certificate: Option<&str>) -> Credentials {
    Credentials {
        client_id: "dh37fgj492je".to_owned(),
        access_token: AccessToken::new(TOKEN.to_owned()),
        certificate: certificate.map(str::to_owned),
    }
}

const PLAIN: &str = concat!(
    r#"Hawk mac="ZTfwSMxzyQ0Ay2QlSfILZiuL3bP2Byzs0UbqG7IhVek=", hash="B0weSUXsMcb5UhL41FZbrUJCAotzSI3HawE1NPLRUz8=", "#,
    r#"id="dh37fgj492je", ts="1353832234", nonce="j4h3g2", ext="some-app-ext-data""#
);
const PLAIN_TARGET: Target<'static> =
    Target { method: "GET", resource: "/resource/1?b=1&a=2", host: "example.com", port: 8000 };

#[test]
fn header_of_python_client_verifies() {
    let header = Header::parse(PLAIN).unwrap();
    assert_eq!(header.id, "dh37fgj492je");
    assert_eq!(header.timestamp, 1_353_832_234);
    assert_eq!(header.ext, Some("some-app-ext-data"));
    assert!(header.signed_by(&key(), &PLAIN_TARGET));
    assert!(payload_hash("", b"").matches(header.hash.unwrap()));
    assert_eq!(Header::find_hash(PLAIN), header.hash);
    let unsigned = PLAIN.replace("hash=\"B0weSUXsMcb5UhL41FZbrUJCAotzSI3HawE1NPLRUz8=\", ", "");
    assert_eq!((Header::parse(&unsigned).unwrap().hash, Header::find_hash(&unsigned)), (None, None));
}

#[test]
fn value_ending_in_hash_name_is_not_the_hash() {
    for nonce in ["xhash=", "x, hash=", " hash="] {
        for (rest, hash) in [("", None), (r#", hash="aGFzaA==""#, Some("aGFzaA=="))] {
            let header = format!(r#"Hawk id="me", ts="1353832234", nonce="{nonce}"{rest}, mac="bWFj""#);
            assert_eq!((Header::parse(&header).unwrap().hash, Header::find_hash(&header)), (hash, hash), "{header}");
        }
    }
}

#[test]
fn method_and_host_ignore_case_but_path_does_not() {
    let post = concat!(
        r#"Hawk mac="fcQx2bs9Yv1UAD++usb9Db00xcnL6vZiY0mV91zFsRU=", hash="Yi9LfIIFRtBEPt74PVmbTF/xVAwPn7ub15ePICfgnuY=", "#,
        r#"id="dh37fgj492je", ts="1353832234", nonce="j4h3g2", ext="some-app-ext-data""#
    );
    let header = Header::parse(post).unwrap();
    let target = Target { method: "post", host: "Example.com", port: 80, ..PLAIN_TARGET };
    assert!(header.signed_by(&key(), &target));
    assert!(payload_hash("text/plain", b"Thank you for flying Hawk").matches(header.hash.unwrap()));

    let put = concat!(
        r#"Hawk mac="P9Lxxbj1L4xIaQmlJ73IZsNg3qRH8XSOdCPdLHYQdQw=", hash="OobA+oRuoPfghwhY92XDjxFQt/ngiHU7h18UGsfjPn0=", "#,
        r#"id="dh37fgj492je", ts="1353832234", nonce="j4h3g2", ext="e30=""#
    );
    let header = Header::parse(put).unwrap();
    let resource = "/api/queue/v1/task/abc%2Fdef";
    let target = Target { method: "PUT", resource, host: "queue.example", port: 443 };
    assert!(header.signed_by(&key(), &target));
    assert!(!header.signed_by(&key(), &Target { resource: "/api/queue/v1/task/abc/def", ..target }));
    let body = "{\"a\":\"\u{e9}\"}";
    assert!(payload_hash(" Application/JSON ; charset=utf-8", body.as_bytes()).matches(header.hash.unwrap()));
}

#[test]
fn app_and_dlg_are_signed() {
    let value = concat!(
        r#"Hawk mac="hYmymbEE2LgLQbGflSPnk6yiu4K6sQ+tW5B+9nPRTYw=", id="dh37fgj492je", ts="1353832234", "#,
        r#"nonce="j4h3g2", app="my-app", dlg="my-authority""#
    );
    assert!(Header::parse(value).unwrap().signed_by(&key(), &PLAIN_TARGET));
    let other = value.replace("my-authority", "authority");
    assert!(!Header::parse(&other).unwrap().signed_by(&key(), &PLAIN_TARGET));
}

#[test]
fn attributes_in_any_order_and_scheme_in_any_case() {
    let value = PLAIN.replace("Hawk mac", "hAWK  mac").replace(", ", "  ,");
    assert!(Header::parse(&value).unwrap().signed_by(&key(), &PLAIN_TARGET));
}

#[test]
fn malformed_header_is_refused_with_broken_rule() {
    let error = |value: &str| Header::parse(value).unwrap_err();
    assert_eq!(error(""), HeaderError::Scheme);
    assert_eq!(error("Hawk"), HeaderError::Scheme);
    assert_eq!(error("Bearer abc"), HeaderError::Scheme);
    assert_eq!(error("Hawk id"), HeaderError::Syntax);
    assert_eq!(error("Hawk id=\"a"), HeaderError::Syntax);
    assert_eq!(error(&PLAIN.replace("\", id", "\" id")), HeaderError::Syntax);
    assert_eq!(error("Hawk who=\"a\""), HeaderError::UnknownAttribute);
    assert_eq!(error("Hawk id=\"a\", id=\"a\""), HeaderError::Repeated("id"));
    assert_eq!(error("Hawk id=\"\""), HeaderError::Value("id"));
    assert_eq!(error("Hawk ext=\"a\\\\b\""), HeaderError::Value("ext"));
    assert_eq!(error("Hawk id=\"\u{e9}\""), HeaderError::Value("id"));
    assert_eq!(error(&PLAIN.replace("1353832234", "-1")), HeaderError::Value("ts"));
    assert_eq!(error(&PLAIN.replace("1353832234", "99999999999999999999")), HeaderError::Value("ts"));
    for (name, attribute) in [
        ("id", "id=\"dh37fgj492je\", "),
        ("ts", "ts=\"1353832234\", "),
        ("nonce", "nonce=\"j4h3g2\", "),
        ("mac", "mac=\"ZTfwSMxzyQ0Ay2QlSfILZiuL3bP2Byzs0UbqG7IhVek=\", "),
    ] {
        assert_eq!(error(&PLAIN.replace(attribute, "")), HeaderError::Missing(name));
    }
}

#[test]
fn header_of_any_length_is_read() {
    let long = format!("x{}", "y".repeat(100_000));
    assert_eq!(Header::parse(&PLAIN.replace("some-app-ext-data", &long)).unwrap().ext, Some(long.as_str()));
}

#[test]
fn changed_request_or_header_breaks_signature() {
    let header = Header::parse(PLAIN).unwrap();
    assert!(!header.signed_by(&SigningKey::new(b"other"), &PLAIN_TARGET));
    for target in [
        Target { method: "PUT", ..PLAIN_TARGET },
        Target { resource: "/resource/1?b=1&a=3", ..PLAIN_TARGET },
        Target { host: "example.org", ..PLAIN_TARGET },
        Target { port: 8001, ..PLAIN_TARGET },
    ] {
        assert!(!header.signed_by(&key(), &target), "{target:?}");
    }
    for (from, to) in [
        ("1353832234", "1353832235"),
        ("j4h3g2", "j4h3g3"),
        ("B0weSUXs", "b0weSUXs"),
        ("some-app", "some-App"),
        ("ZTfwSMxz", "zTfwSMxz"),
        ("IhVek=\"", "IhVek\""),
    ] {
        let changed = PLAIN.replace(from, to);
        assert!(!Header::parse(&changed).unwrap().signed_by(&key(), &PLAIN_TARGET), "{from} to {to}");
    }
}

#[test]
fn ext_is_read_in_both_alphabets_and_without_padding() {
    assert!(Ext::decode("e30=").unwrap().certificate().is_none());
    assert!(Ext::decode("e30").unwrap().authorized_scopes.is_none());
    let json = r#"{"certificate":{"version":1,"x":"~~~???>>>"},"authorizedScopes":["a?~","b*"]}"#;
    let standard = STANDARD.encode(json);
    assert!(standard.contains('+') || standard.contains('/'));
    let url_safe = standard.replace('+', "-").replace('/', "_");
    for text in [standard.as_str(), standard.trim_end_matches('='), &url_safe, url_safe.trim_end_matches('=')] {
        let ext = Ext::decode(text).unwrap();
        assert_eq!(ext.certificate(), Some(r#"{"version":1,"x":"~~~???>>>"}"#));
        assert_eq!(ext.authorized_scopes, Some(vec!["a?~".to_owned(), "b*".to_owned()]));
    }
}

#[test]
fn malformed_ext_is_refused() {
    for json in ["", "7", "\"a\"", "{", r#"{"authorizedScopes":"*"}"#, r#"{"authorizedScopes":[1]}"#] {
        assert_eq!(Ext::decode(&STANDARD.encode(json)).unwrap_err(), ExtError, "{json}");
    }
    assert_eq!(Ext::decode("e30!").unwrap_err(), ExtError);
    let null = Ext::decode(&STANDARD.encode(r#"{"certificate":null,"authorizedScopes":null,"more":1}"#)).unwrap();
    assert!(null.certificate().is_none() && null.authorized_scopes.is_none());
}

const REQUEST: SignRequest<'static> = SignRequest {
    method: "GET",
    resource: "/resource/1?b=1&a=2",
    host: "example.com",
    port: 8000,
    timestamp: 1_353_832_234,
    nonce: "j4h3g2",
    payload: None,
};

#[test]
fn client_omits_empty_hash_and_ext() {
    let value = authorization_header(&credentials(None), &REQUEST);
    assert!(value.starts_with(r#"Hawk id="dh37fgj492je", ts="1353832234", nonce="j4h3g2", mac=""#), "{value}");
    let empty = authorization_header(&credentials(Some("")), &REQUEST);
    assert_eq!(empty, value);
}

#[test]
fn client_signs_like_python_client() {
    let request = SignRequest {
        method: "POST",
        port: 80,
        payload: Some(("text/plain", b"Thank you for flying Hawk")),
        ..REQUEST
    };
    let value = authorization_header(&credentials(None), &request);
    assert!(value.contains(r#"hash="Yi9LfIIFRtBEPt74PVmbTF/xVAwPn7ub15ePICfgnuY=""#), "{value}");
}

#[test]
fn client_sends_its_certificate() {
    let value = authorization_header(&credentials(Some(r#"{"version":1}"#)), &REQUEST);
    let header = Header::parse(&value).unwrap();
    assert!(header.signed_by(&key(), &PLAIN_TARGET));
    assert_eq!(Ext::decode(header.ext.unwrap()).unwrap().certificate(), Some(r#"{"version":1}"#));
}

proptest! {
    #[test]
    fn signed_request_verifies(
        method in "[A-Za-z]{1,8}",
        resource in "/[!-~]{0,60}",
        host in "[A-Za-z0-9.:\\[\\]-]{1,30}",
        port in any::<u16>(),
        timestamp in 0..10_000_000_000_i64,
        nonce in "[A-Za-z0-9_-]{1,16}",
        body in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..60)),
    ) {
        let payload = body.as_deref().map(|body| ("application/json", body));
        let request = SignRequest {
            method: &method, resource: &resource, host: &host, port, timestamp, nonce: &nonce, payload,
        };
        let value = authorization_header(&credentials(Some("{}")), &request);
        let header = Header::parse(&value).unwrap();
        prop_assert_eq!(header.timestamp, timestamp);
        prop_assert_eq!(header.hash.is_some(), body.is_some());
        let (upper, lower) = (method.to_uppercase(), host.to_lowercase());
        let target = Target { method: &upper, resource: &resource, host: &lower, port };
        prop_assert!(header.signed_by(&key(), &target));
    }

    #[test]
    fn reading_a_header_never_panics(value in "(Hawk )?[ -~]{0,120}", ext in "[A-Za-z0-9+/_=-]{0,60}") {
        let _ = Header::parse(&value);
        let _ = Ext::decode(&ext);
    }
}
