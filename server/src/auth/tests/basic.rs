//! HTTP Basic.

use super::*;

#[test]
fn basic_accepts_client_id_and_access_token() {
    let basic = |text: &str| format!("basic {}", STANDARD.encode(text));
    let with = |header: &str| check(&account(&["a"]), &request(header), NOW);
    let principal = with(&basic("ci:a:the-token")).unwrap();
    assert_eq!(principal.client_id.as_deref(), Some("ci:a"));
    assert!(may(&principal, "a") && !may(&principal, "b"));
    assert_eq!(with(&basic("ci:the-tokem")).unwrap_err(), AuthFailure::BasicToken);
    assert_eq!(with(&basic("ci:")).unwrap_err(), AuthFailure::BasicToken);
    assert_eq!(with(&basic("ci")).unwrap_err(), AuthFailure::BasicSyntax);
    assert_eq!(with("Basic ?").unwrap_err(), AuthFailure::BasicSyntax);
    assert_eq!(with("Basic").unwrap_err(), AuthFailure::BasicSyntax);
}

#[test]
fn basic_missing_client_is_refused_like_wrong_token() {
    let header = |token: &str| format!("Basic {}", STANDARD.encode(format!("ci:{token}")));
    let checked = |header: &str, account: &Account| read(header).check_token(account);
    // Even the decoy's own token is refused.
    let decoy = decoy();
    for token in ["wrong", "", decoy.token.expose()] {
        assert_eq!(checked(&header(token), &decoy), Err(AuthFailure::BasicClient));
        let refused = check(&decoy, &request(&header(token)), NOW).unwrap_err();
        assert_eq!(refused, AuthFailure::BasicClient);
        for account in
            [account(&[]), Account { disabled: true, ..account(&[]) }, Account { expired: true, ..account(&[]) }]
        {
            assert_eq!(checked(&header(token), &account), Err(AuthFailure::BasicToken));
        }
    }
    assert_eq!(AuthFailure::BasicClient.to_string(), AuthFailure::BasicToken.to_string());
    assert_eq!(checked(&header("the-token"), &account(&[])), Ok(()));
    assert_eq!(checked(&sign(&permanent()), &decoy), Ok(()), "a signature is checked with the request");
}
