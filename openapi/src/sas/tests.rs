//! The layout, and changes of a URL.

use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;

const QUEUE: Resource<'static> = Resource { account: "tenure", queue: "queue-7-3" };

fn key() -> SigningKey {
    SigningKey::new(b"a key for tests")
}

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

fn grant() -> Grant {
    Grant::new(&[Permission::Process, Permission::Read], at(0), at(60))
}

fn check(query: &str, now: DateTime<Utc>) -> Result<Grant, SasError> {
    verify(&QUEUE, &Query::parse(query).unwrap(), &[key()], now)
}

#[test]
fn signed_text_is_that_of_azure() {
    // Computed by openssl over the eight lines of the documentation.
    let resource = Resource { account: "DevStoreAccount1", queue: "jobs" };
    let key = SigningKey::new(
        &STANDARD
            .decode("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
            .unwrap(),
    );
    let start = DateTime::parse_from_rfc3339("2026-01-02T03:04:05Z").unwrap().to_utc();
    let signed =
        Grant::new(&[Permission::Process], start, start + TimeDelta::hours(1)).over_https_only().sign(&resource, &key);
    assert_eq!(
        signed,
        "sv=2015-04-05&st=2026-01-02T03%3A04%3A05Z&se=2026-01-02T04%3A04%3A05Z&sp=p&spr=https&sig=z5VINjA9jVIx7ee%2FiDVK6u5qfNAvka9phpLWd4n2l7M%3D"
    );
}

#[test]
fn permissions_are_in_order_of_azure() {
    let all = [Permission::Process, Permission::Update, Permission::Add, Permission::Read];
    let signed = Grant::new(&all, at(0), at(60)).sign(&QUEUE, &key());
    assert!(signed.contains("&sp=raup&"), "{signed}");
    assert!(check(&signed, at(0)).unwrap().allows(Permission::Add));
    assert!(!check(&grant().sign(&QUEUE, &key()), at(0)).unwrap().allows(Permission::Add));
}

#[test]
fn signed_grant_is_valid_until_expiry() {
    let signed = grant().sign(&QUEUE, &key());
    assert_eq!(check(&signed, at(-1)), Err(SasError::NotYet));
    for moment in [at(0), at(59)] {
        let granted = check(&signed, moment).unwrap();
        assert!(granted.allows(Permission::Process) && granted.allows(Permission::Read));
        assert!(!granted.allows(Permission::Update) && !granted.is_https_only());
    }
    assert_eq!(check(&signed, at(60)), Err(SasError::Expired));
}

#[test]
fn parameter_order_and_quoting_do_not_matter() {
    let signed = grant().sign(&QUEUE, &key());
    let mut parts: Vec<&str> = signed.split('&').collect();
    parts.reverse();
    assert!(check(&parts.join("&"), at(1)).is_ok());
    let requoted = signed.replace("%3A", ":").replace("%2F", "/").replace("%3D", "=");
    assert!(check(&requoted, at(1)).is_ok());
    assert!(check(&format!("numofmessages=3&{signed}&peekonly=true"), at(1)).is_ok());
}

#[test]
fn keys_rotate() {
    let (old, new) = (key(), SigningKey::new(b"another"));
    let query = Query::parse(&grant().sign(&QUEUE, &old)).unwrap();
    assert!(verify(&QUEUE, &query, &[new.clone(), old], at(1)).is_ok());
    assert_eq!(verify(&QUEUE, &query, &[new], at(1)), Err(SasError::Signature));
    assert_eq!(verify(&QUEUE, &query, &[], at(1)), Err(SasError::Signature));
}

#[test]
fn missing_parameter_is_named() {
    let signed = grant().sign(&QUEUE, &key());
    for name in ["sv", "se", "sp", "sig"] {
        let prefix = format!("{name}=");
        let rest: Vec<&str> = signed.split('&').filter(|pair| !pair.starts_with(&prefix)).collect();
        assert_eq!(check(&rest.join("&"), at(1)), Err(SasError::Missing(name)));
    }
    let without_start: Vec<&str> = signed.split('&').filter(|pair| !pair.starts_with("st=")).collect();
    assert_eq!(check(&without_start.join("&"), at(1)), Err(SasError::Signature));
}

proptest! {
    /// A changed byte is refused, unless the meaning is the same.
    #[test]
    fn changed_byte_is_refused(place in 0_usize..200, byte in 0x21_u8..0x7f) {
        let signed = grant().sign(&QUEUE, &key());
        let mut changed = signed.clone().into_bytes();
        let place = place % changed.len();
        changed[place] = byte;
        let changed = String::from_utf8(changed).unwrap();
        let original = Query::parse(&signed).unwrap();
        if let Ok(query) = Query::parse(&changed) && query != original {
            prop_assert!(verify(&QUEUE, &query, &[key()], at(1)).is_err(), "{changed}");
        }
    }

    #[test]
    fn other_queue_is_refused(queue in "[a-z0-9/\n-]{1,20}", account in "[a-z/\n]{1,8}") {
        let query = Query::parse(&grant().sign(&QUEUE, &key())).unwrap();
        let other = Resource { account: &account, queue: &queue };
        prop_assert_eq!(verify(&other, &query, &[key()], at(1)).is_ok(), other == QUEUE);
    }

    #[test]
    fn fields_of_signed_text_are_unambiguous(sp in "[rup\n]{0,4}", st in "[0-9TZ:\n-]{0,22}", si in "[a-z\n]{0,3}") {
        let signed = grant().sign(&QUEUE, &key());
        let original = Query::parse(&signed).unwrap();
        let encoded = |text: &str| utf8_percent_encode(text, VALUE).to_string();
        let sig = encoded(original.get("sig").unwrap());
        let se = encoded(original.get("se").unwrap());
        let forged = format!("sv={VERSION}&sp={}&st={}&se={se}&si={}&sig={sig}", encoded(&sp), encoded(&st), encoded(&si));
        let query = Query::parse(&forged).unwrap();
        let same = query.get("sp") == original.get("sp") && query.get("st") == original.get("st") && si.is_empty();
        prop_assert_eq!(verify(&QUEUE, &query, &[key()], at(1)).is_ok(), same);
    }
}
