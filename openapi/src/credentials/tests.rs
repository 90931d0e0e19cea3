//! Certificates and tokens.

use proptest::prelude::*;

use super::*;

/// From `createTemporaryCredentials` of the Python client `taskcluster`, with this seed.
const UNNAMED: &str = concat!(
    r#"{"version":1,"scopes":["queue:get-task:*","queue:status:abc"],"start":1769860800000,"#,
    r#""expiry":1769864400000,"seed":"AbCdEfGhIjKlMnOpQrStUgAbCdEfGhIjKlMnOpQrStUg","#,
    r#""signature":"NNexexmGUpfikApXO1vruBHQEF6veizCD34gEDx4jmA="}"#
);
const NAMED: &str = concat!(
    r#"{"version":1,"scopes":["queue:get-task:*","queue:status:abc"],"start":1769860800000,"#,
    r#""expiry":1769864400000,"seed":"AbCdEfGhIjKlMnOpQrStUgAbCdEfGhIjKlMnOpQrStUg","issuer":"issuer/a","#,
    r#""signature":"EC+4SbeZ4xKd7cXwrm1MlC8v91tofntfx0pOr8iGxCg="}"#
);
const DERIVED: &str = "A1wZqf3yOLDbqOD0-Eq2k6cIyCgvTTfeSuJI1SUlKYc";
const START: i64 = 1_769_860_800_000;
const EXPIRY: i64 = 1_769_864_400_000;

fn issuer_key() -> SigningKey {
    AccessToken::new("tokenOfTheIssuer0123456789".to_owned()).key()
}

fn parse_error(from: &str, to: &str) -> CertificateError {
    assert!(NAMED.contains(from), "{from} is not in the certificate");
    Certificate::parse(&NAMED.replace(from, to)).unwrap_err()
}

#[test]
fn certificates_of_the_python_client_verify() {
    let unnamed = Certificate::parse(UNNAMED).unwrap();
    assert_eq!(unnamed.issuer("issuer/a"), Ok("issuer/a"));
    assert!(!unnamed.is_named());
    assert_eq!(unnamed.verify("issuer/a", &issuer_key()).unwrap().expose(), DERIVED);

    let named = Certificate::parse(NAMED).unwrap();
    assert_eq!(named.issuer("temp/one"), Ok("issuer/a"));
    assert!(named.is_named());
    assert_eq!(named.verify("temp/one", &issuer_key()).unwrap().expose(), DERIVED);
}

#[test]
fn issued_credentials_match_python_client() {
    let grant = |name: Option<&str>| Grant {
        name: name.map(str::to_owned),
        scopes: vec!["queue:get-task:*".to_owned(), "queue:status:abc".to_owned()],
        start_ms: START,
        expiry_ms: EXPIRY,
        seed: "AbCdEfGhIjKlMnOpQrStUgAbCdEfGhIjKlMnOpQrStUg".to_owned(),
    };
    for (name, id, json) in [(None, "issuer/a", UNNAMED), (Some("temp/one"), "temp/one", NAMED)] {
        let credentials = issue("issuer/a", &issuer_key(), grant(name));
        assert_eq!(credentials.client_id, id);
        assert_eq!(credentials.access_token.expose(), DERIVED);
        assert_eq!(credentials.certificate.as_deref(), Some(json));
    }
}

#[test]
fn malformed_certificate_is_refused_with_broken_rule() {
    assert_eq!(Certificate::parse("[]").unwrap_err(), CertificateError::Malformed);
    assert_eq!(Certificate::parse("{").unwrap_err(), CertificateError::Malformed);
    assert_eq!(parse_error(r#""version":1,"#, ""), CertificateError::Malformed);
    assert_eq!(parse_error("1769860800000", "\"soon\""), CertificateError::Malformed);
    assert_eq!(parse_error(r#""version":1"#, r#""version":2"#), CertificateError::Version);
    assert_eq!(parse_error("OpQrStUg\"", "OpQrStUgg\""), CertificateError::Seed);
    assert_eq!(parse_error("queue:get-task:*", "queue:get-task:**"), CertificateError::Scopes);
    assert_eq!(parse_error("queue:get-task:*", "queue:get-tas\\n:*"), CertificateError::Scopes);
    assert_eq!(parse_error("\"expiry\":1769864400000", "\"expiry\":1772539200001"), CertificateError::Life);
}

#[test]
fn client_cannot_name_itself_as_issuer() {
    let named = Certificate::parse(NAMED).unwrap();
    assert_eq!(named.issuer("issuer/a"), Err(CertificateError::Issuer));
}

#[test]
fn client_id_in_certificate_needs_issuer() {
    let odd = UNNAMED.replace("\"version\":1", "\"version\":1,\"clientId\":\"temp/one\"");
    assert_eq!(Certificate::parse(&odd).unwrap().issuer("temp/one"), Err(CertificateError::Issuer));
}

#[test]
fn certificate_is_in_force_within_five_minutes_of_skew() {
    let certificate = Certificate::parse(NAMED).unwrap();
    assert_eq!(certificate.check_time(START - CERTIFICATE_SKEW_MS), Ok(()));
    assert_eq!(certificate.check_time(START - CERTIFICATE_SKEW_MS - 1), Err(CertificateError::NotYet));
    assert_eq!(certificate.check_time(EXPIRY + CERTIFICATE_SKEW_MS), Ok(()));
    assert_eq!(certificate.check_time(EXPIRY + CERTIFICATE_SKEW_MS + 1), Err(CertificateError::Expired));
    assert_eq!(certificate.check_end(START - CERTIFICATE_SKEW_MS - 1), Ok(()));
    assert_eq!(certificate.check_end(EXPIRY + CERTIFICATE_SKEW_MS + 1), Err(CertificateError::Expired));
    assert_eq!(certificate.expiry_ms(), EXPIRY);
}

#[test]
fn certificate_is_bound_to_client_issuer_and_scopes() {
    let named = Certificate::parse(NAMED).unwrap();
    let refused = |certificate: &Certificate, id: &str, key: &SigningKey| certificate.verify(id, key).unwrap_err();
    assert_eq!(refused(&named, "temp/two", &issuer_key()), CertificateError::Signature);
    assert_eq!(refused(&named, "temp/one", &SigningKey::new(b"other")), CertificateError::Signature);
    let wider = Certificate::parse(&NAMED.replace("queue:status:abc", "queue:*")).unwrap();
    assert_eq!(refused(&wider, "temp/one", &issuer_key()), CertificateError::Signature);
    let longer = Certificate::parse(&NAMED.replace("1769864400000", "1769864400001")).unwrap();
    assert_eq!(refused(&longer, "temp/one", &issuer_key()), CertificateError::Signature);
    let anonymous = Certificate::parse(&NAMED.replace(r#""issuer":"issuer/a","#, "")).unwrap();
    assert_eq!(refused(&anonymous, "issuer/a", &issuer_key()), CertificateError::Signature);
}

#[test]
fn client_id_of_task_names_task_run_worker_and_end() {
    let id = task_client_id(
        "CJmZxuGTQSGiSijhmS2LGg".parse().unwrap(),
        RunId::new(2).unwrap(),
        &"eu-1".parse().unwrap(),
        &"i-7".parse().unwrap(),
        1_769_860_800,
    );
    assert_eq!(id, "task-client/CJmZxuGTQSGiSijhmS2LGg/2/on/eu-1/i-7/until/1769860800");
}

#[test]
fn credentials_serialize_but_debug_hides_token() {
    let text = r#"{"clientId":"a","accessToken":"hush"}"#;
    let credentials: Credentials = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&credentials).unwrap(), text);
    assert!(!format!("{credentials:?}").contains("hush"));
    assert!(credentials.access_token == AccessToken::new("hush".to_owned()));
    assert!(credentials.access_token != AccessToken::new("husk".to_owned()));
}

proptest! {
    #[test]
    fn issued_credentials_verify(
        name in proptest::option::of("[a-z/]{1,20}-t"),
        scopes in proptest::collection::vec("[ -~]{0,30}[ -)+-~]", 0..5),
        start_ms in 0..4_000_000_000_000_i64,
        life in 0..=CERTIFICATE_LIFE_MAX_MS,
        random in proptest::array::uniform32(any::<u8>()),
    ) {
        let mut bytes = [7; SEED_BYTES];
        bytes[..32].copy_from_slice(&random);
        let grant = Grant { name, scopes: scopes.clone(), start_ms, expiry_ms: start_ms + life, seed: seed(bytes) };
        let credentials = issue("root", &issuer_key(), grant);
        let certificate = Certificate::parse(credentials.certificate.as_deref().unwrap()).unwrap();
        prop_assert_eq!(certificate.issuer(&credentials.client_id), Ok("root"));
        prop_assert_eq!(certificate.verify(&credentials.client_id, &issuer_key()).unwrap(), credentials.access_token);
        prop_assert_eq!(certificate.into_scopes(), scopes);
    }

    #[test]
    fn reading_a_certificate_never_panics(text in "[ -~]{0,200}") {
        let _ = Certificate::parse(&text);
    }
}
