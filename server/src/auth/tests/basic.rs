//! HTTP Basic.

use super::*;

#[test]
fn basic_takes_the_client_id_and_the_access_token() {
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
fn basic_answers_the_same_for_a_missing_client_and_a_wrong_token() {
    let header = |token: &str| format!("Basic {}", STANDARD.encode(format!("ci:{token}")));
    let checked = |header: &str, account: Option<&Account>| read(header).check_token(account);
    // Not even the token that a missing client is compared with is right.
    let decoy = AccessToken::from_random([0; 32]);
    for token in ["wrong", "", decoy.expose()] {
        assert_eq!(checked(&header(token), None), Err(AuthFailure::BasicClient));
        for account in
            [account(&[]), Account { disabled: true, ..account(&[]) }, Account { expired: true, ..account(&[]) }]
        {
            assert_eq!(checked(&header(token), Some(&account)), Err(AuthFailure::BasicToken));
        }
    }
    assert_eq!(AuthFailure::BasicClient.to_string(), AuthFailure::BasicToken.to_string());
    assert_eq!(checked(&header("the-token"), Some(&account(&[]))), Ok(()));
    assert_eq!(checked(&sign(&permanent()), None), Ok(()), "a signature is checked with the request");
}
