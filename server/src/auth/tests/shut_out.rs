//! Disabled and expired clients, and the callers that learn the reason.

use super::*;

#[test]
fn disabled_or_expired_is_revealed_only_to_token_holders() {
    let shut = [
        (Account { disabled: true, ..account(&["a"]) }, AuthFailure::Disabled("ci".to_owned())),
        (Account { expired: true, ..account(&["a"]) }, AuthFailure::Expired("ci".to_owned())),
    ];
    let basic = |token: &str| format!("Basic {}", STANDARD.encode(format!("ci:{token}")));
    let other_token = |of: Credentials| Credentials { access_token: AccessToken::new("other".to_owned()), ..of };
    let lent = temporary(None, &["a"]);
    let forged = issue("ci", &other_token(permanent()).access_token.key(), grant(None, &["a"]));
    // Missing scopes are revealed only to the client and to holders of credentials that it made.
    let too_much = temporary(None, &["b"]);
    for (account, refusal) in shut {
        let refused = |header: &str| check(&account, &request(header), NOW).unwrap_err();
        for right in [sign(&permanent()), sign(&lent), sign(&too_much), basic("the-token")] {
            assert_eq!(refused(&right), refusal);
        }
        assert!(matches!(refused(&sign(&other_token(permanent()))), AuthFailure::Mac(_)));
        assert!(matches!(refused(&sign(&other_token(lent.clone()))), AuthFailure::Mac(_)));
        assert!(matches!(refused(&sign(&other_token(too_much.clone()))), AuthFailure::Mac(_)));
        assert_eq!(refused(&sign(&forged)), CertificateError::Signature.into());
        assert_eq!(refused(&basic("other")), AuthFailure::BasicToken);
    }
    let refused = check(&account(&["a"]), &request(&sign(&other_token(too_much))), NOW).unwrap_err();
    assert!(matches!(refused, AuthFailure::Mac(_)), "{refused}");
}

#[test]
fn temporary_credentials_with_too_long_id_are_refused() {
    let named = |length: usize| {
        let credentials = temporary(Some(&"n".repeat(length)), &["a"]);
        check(&account(&["*"]), &request(&sign(&credentials)), NOW).map(|principal| principal.client_id)
    };
    assert_eq!(named(CLIENT_ID_MAX), Ok(Some("n".repeat(CLIENT_ID_MAX))));
    assert_eq!(named(CLIENT_ID_MAX + 1), Err(AuthFailure::LongName));
}
