//! One test for each way in and each refusal. Accounts are made here; the database has its own tests in the store.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use tenure_api::credentials::{Credentials, Grant, issue};
use tenure_api::hawk::bewit::{SignUrl, bewit};
use tenure_api::hawk::{SignRequest, authorization_header};

use super::*;
use crate::domain::roles::RoleScopes;

const NOW_S: i64 = 1_769_860_800;
const NOW: Now = Now { real_ms: NOW_S * 1000, server_ms: NOW_S * 1000 };
const HOUR_MS: i64 = 3_600_000;
const BODY: &[u8] = br#"{"a":1}"#;
const KEYS: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const TARGET: &str = "/api/queue/v1/task/CJmZxuGTQSGiSijhmS2LGg%2F?limit=5";

fn tasks(setting: &str) -> TaskCredentials {
    TaskCredentials::new(&SecretKeys::parse(setting).unwrap())
}

fn account(scopes: &[&str]) -> Account {
    let client = ClientAccount {
        access_token: AccessToken::new("the-token".to_owned()),
        scopes: strings(scopes),
        disabled: false,
        expires: None,
        expired: false,
        use_is_news: false,
    };
    Account::new("ci", client)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn permanent() -> Credentials {
    let access_token = AccessToken::new("the-token".to_owned());
    Credentials { client_id: "ci".to_owned(), access_token, certificate: None }
}

fn grant(name: Option<&str>, scopes: &[&str]) -> Grant {
    Grant {
        name: name.map(str::to_owned),
        scopes: strings(scopes),
        start_ms: NOW.real_ms,
        expiry_ms: NOW.real_ms + HOUR_MS,
        seed: tenure_api::credentials::seed([7; 33]),
    }
}

fn temporary(name: Option<&str>, scopes: &[&str]) -> Credentials {
    issue("ci", &permanent().access_token.key(), grant(name, scopes))
}

fn sign(credentials: &Credentials) -> String {
    sign_as(credentials, "POST", TARGET)
}

fn sign_as(credentials: &Credentials, method: &str, resource: &str) -> String {
    let payload = Some(("application/json", BODY));
    let request =
        SignRequest { method, resource, host: "queue.example", port: 8080, timestamp: NOW_S, nonce: "n", payload };
    authorization_header(credentials, &request)
}

fn request(authorization: &str) -> RequestParts<'_> {
    RequestParts {
        method: "POST",
        target: TARGET,
        host: "Queue.example:8080",
        authorization: Some(authorization),
        content_type: Some("application/json; charset=utf-8"),
        body: BODY,
        ..RequestParts::default()
    }
}

/// What the authenticator does, with this account in place of the database.
fn check(account: &Account, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthFailure> {
    check_with(&Arc::default(), account, request, now)
}

fn check_with(
    roles: &Arc<Resolver>,
    account: &Account,
    request: &RequestParts<'_>,
    now: Now,
) -> Result<Principal, AuthFailure> {
    let claim = Claim::read(request)?.unwrap();
    match claim.issuer()? {
        Issuer::Tasks => claim.check_task(&tasks(KEYS), roles, request, now),
        Issuer::Client(_) => claim.check(account, roles, request, now),
    }
}

fn roles(roles: &[(&str, &[&str])]) -> Arc<Resolver> {
    let role =
        |&(role_id, scopes): &(&str, &[&str])| RoleScopes { role_id: role_id.to_owned(), scopes: strings(scopes) };
    Arc::new(Resolver::new(roles.iter().map(role)))
}

fn accepted(credentials: &Credentials) -> Principal {
    check(&account(&["*"]), &request(&sign(credentials)), NOW).unwrap()
}

fn refused(scopes: &[&str], credentials: &Credentials) -> AuthFailure {
    check(&account(scopes), &request(&sign(credentials)), NOW).unwrap_err()
}

fn may(principal: &Principal, scope: &str) -> bool {
    principal.authorize(&scope.into()).is_ok()
}

#[test]
fn a_permanent_client_gets_its_scopes_and_those_of_everybody() {
    let principal = check(&account(&["a:*"]), &request(&sign(&permanent())), NOW).unwrap();
    assert_eq!(principal.client_id.as_deref(), Some("ci"));
    assert_eq!(principal.expires_ms, None);
    assert!(may(&principal, "a:b") && may(&principal, "queue:status:x") && !may(&principal, "b"));
}

#[test]
fn a_403_names_the_caller_what_is_missing_and_what_is_required() {
    let principal = check(&account(&["a:*"]), &request(&sign(&permanent())), NOW).unwrap();
    let error = principal.authorize(&Expression::all_of(["a:1", "b"])).unwrap_err();
    assert_eq!(error.to_string(), "the client \"ci\" lacks the scopes for this: missing b; required all of [a:1, b]");
    let anonymous = Principal { client_id: None, ..principal };
    assert!(anonymous.authorize(&"b".into()).unwrap_err().to_string().starts_with("a request without credentials"));
}

#[test]
fn temporary_credentials_have_the_scopes_of_their_certificate_until_it_ends() {
    for name in [None, Some("temp/one")] {
        let principal = accepted(&temporary(name, &["a:*"]));
        assert_eq!(principal.client_id.as_deref(), Some(name.unwrap_or("ci")));
        assert_eq!(principal.expires_ms, Some(NOW.real_ms + HOUR_MS));
        assert!(may(&principal, "a:b") && !may(&principal, "b"));
    }
    let soon = Account { expires_ms: Some(NOW.real_ms + 1), ..account(&["*"]) };
    let principal = check(&soon, &request(&sign(&temporary(None, &["a:*"]))), NOW).unwrap();
    assert_eq!(principal.expires_ms, Some(NOW.real_ms + 1));
}

#[test]
fn an_issuer_cannot_lend_what_it_lacks() {
    let lacks = |scope: &str| AuthFailure::IssuerScope { issuer: "ci".to_owned(), scope: scope.to_owned() };
    assert_eq!(refused(&["a:b"], &temporary(None, &["a:b", "a:*"])), lacks("a:*"));
    assert_eq!(refused(&["a:b"], &temporary(Some("temp/one"), &["a:b"])), lacks("auth:create-client:temp/one"));
    let ok = account(&["a:b", "auth:create-client:temp/*"]);
    assert!(check(&ok, &request(&sign(&temporary(Some("temp/one"), &["a:b"]))), NOW).is_ok());
}

#[test]
fn a_certificate_must_be_in_force_by_either_clock() {
    let header = sign(&temporary(None, &["a"]));
    let at = |ahead_ms| Now { server_ms: NOW.server_ms + ahead_ms, ..NOW };
    assert!(check(&account(&["*"]), &request(&header), at(40 * HOUR_MS)).is_ok());
    let credentials = issue(
        "ci",
        &permanent().access_token.key(),
        Grant { start_ms: NOW.real_ms + 40 * HOUR_MS, expiry_ms: NOW.real_ms + 41 * HOUR_MS, ..grant(None, &["a"]) },
    );
    assert!(check(&account(&["*"]), &request(&sign(&credentials)), at(40 * HOUR_MS)).is_ok());
    assert_eq!(refused(&["*"], &credentials), CertificateError::NotYet.into());
    let over = issue("ci", &permanent().access_token.key(), Grant { start_ms: 0, expiry_ms: 1, ..grant(None, &["a"]) });
    assert_eq!(refused(&["*"], &over), CertificateError::Expired.into());
}

#[test]
fn a_certificate_that_is_not_valid_is_refused() {
    let with = |certificate: &str| Credentials { certificate: Some(certificate.to_owned()), ..temporary(None, &["a"]) };
    assert_eq!(refused(&["*"], &with("{}")), CertificateError::Malformed.into());
    let other = temporary(None, &["b"]).certificate.unwrap().replace("[\"b\"]", "[\"a\"]");
    assert_eq!(refused(&["*"], &with(&other)), CertificateError::Signature.into());
    let own = Credentials { client_id: "ci".to_owned(), ..temporary(Some("temp/one"), &["a"]) };
    assert_eq!(refused(&["*"], &own), CertificateError::Issuer.into());
}

#[test]
fn temporary_credentials_cannot_issue_others() {
    let first = temporary(None, &["*"]);
    let second = issue("ci", &first.access_token.key(), grant(None, &["a"]));
    assert_eq!(refused(&["*"], &second), CertificateError::Signature.into());
}

#[test]
fn a_wrong_token_or_a_changed_request_is_refused_and_says_what_was_seen() {
    let wrong = Credentials { access_token: AccessToken::new("other".to_owned()), ..permanent() };
    let seen = |text: &str| AuthFailure::Mac(text.to_owned());
    assert_eq!(refused(&["*"], &wrong), seen(&format!("POST {TARGET} for Queue.example:8080")));
    let header = sign(&permanent());
    let parts = request(&header);
    for changed in [
        RequestParts { method: "PUT", ..parts },
        RequestParts { target: "/api", ..parts },
        RequestParts { host: "queue.example", ..parts },
        RequestParts { host: "other:8080", ..parts },
        RequestParts { forwarded_port: Some("81"), ..parts },
        RequestParts { forwarded_proto: Some("https"), ..parts },
    ] {
        assert!(matches!(check(&account(&["*"]), &changed, NOW), Err(AuthFailure::Mac(_))), "{changed:?}");
    }
    let long = "/é".repeat(5000);
    let failure = check(&account(&["*"]), &RequestParts { target: &long, ..parts }, NOW).unwrap_err();
    assert!(failure.to_string().len() < 1000);
}

#[test]
fn a_proxy_tells_the_port_that_the_client_connected_to() {
    let header = sign(&permanent());
    let parts = RequestParts { host: "queue.example", ..request(&header) };
    let forwarded = RequestParts { forwarded_port: Some("8080"), forwarded_proto: Some("https"), ..parts };
    assert!(check(&account(&["*"]), &forwarded, NOW).is_ok());
    let port = |parts: RequestParts<'_>| parts.signed_target().port;
    assert_eq!(port(parts), 80);
    assert_eq!(port(RequestParts { forwarded_proto: Some("HTTPS"), ..parts }), 443);
    assert_eq!(port(RequestParts { forwarded_proto: Some("http"), ..parts }), 80);
    let v6 = RequestParts { host: "[::1]:8080", ..parts }.signed_target();
    assert_eq!((v6.host, v6.port), ("[::1]", 8080));
    let v6 = RequestParts { host: "[::1]", ..parts }.signed_target();
    assert_eq!((v6.host, v6.port), ("[::1]", 80));
}

#[test]
fn a_client_that_signs_the_path_alone_can_page_and_do_nothing_else() {
    let header = sign_as(&permanent(), "GET", "/api/list");
    let at = |target| {
        check(&account(&["*"]), &RequestParts { method: "GET", target, ..request(&header) }, NOW).map(|_| ()).is_ok()
    };
    assert!(at("/api/list"));
    assert!(at("/api/list?limit=5&continuationToken=abc"));
    assert!(!at("/api/list?limit=5&other=1"));
    assert!(!at("/api/list?"));
    assert!(!at("/api/lists?limit=5"));
}

#[test]
fn a_stale_timestamp_is_refused_by_real_time_alone() {
    let header = sign(&permanent());
    let at = |real_s: i64, server_s: i64| {
        let now = Now { real_ms: real_s * 1000, server_ms: server_s * 1000 };
        check(&account(&["*"]), &request(&header), now).map(|_| ())
    };
    assert_eq!(at(NOW_S + 900, NOW_S), Ok(()));
    assert_eq!(at(NOW_S - 900, NOW_S), Ok(()));
    assert_eq!(at(NOW_S, NOW_S + 100_000), Ok(()));
    assert_eq!(at(NOW_S + 901, NOW_S), Err(AuthFailure::Stale { seconds: 901 }));
    assert_eq!(at(NOW_S - 901, NOW_S), Err(AuthFailure::Stale { seconds: 901 }));
}

#[test]
fn a_body_or_content_type_other_than_the_signed_one_is_refused() {
    let header = sign(&permanent());
    let parts = request(&header);
    let with = |parts| check(&account(&["*"]), &parts, NOW).map(|_| ());
    assert_eq!(with(RequestParts { body: b"{}", ..parts }), Err(AuthFailure::PayloadHash));
    assert_eq!(with(RequestParts { content_type: Some("text/plain"), ..parts }), Err(AuthFailure::PayloadHash));
    assert_eq!(with(RequestParts { content_type: None, ..parts }), Err(AuthFailure::PayloadHash));
}

#[test]
fn bodies_that_are_not_json_are_hashed_as_they_are_or_as_empty() {
    let payload = Some(("text/plain", &b""[..]));
    let signed = SignRequest {
        method: "POST",
        resource: TARGET,
        host: "queue.example",
        port: 8080,
        timestamp: NOW_S,
        nonce: "n",
        payload,
    };
    let header = authorization_header(&permanent(), &signed);
    let parts = RequestParts { content_type: Some("text/plain"), body: b"some text", ..request(&header) };
    assert!(check(&account(&["*"]), &parts, NOW).is_ok());
    let whole = SignRequest { payload: Some(("text/plain", b"some text")), ..signed };
    let header = authorization_header(&permanent(), &whole);
    assert!(check(&account(&["*"]), &RequestParts { authorization: Some(&header), ..parts }, NOW).is_ok());
}

#[test]
fn a_header_without_a_hash_leaves_the_body_open() {
    let signed = SignRequest {
        method: "POST",
        resource: TARGET,
        host: "queue.example",
        port: 8080,
        timestamp: NOW_S,
        nonce: "n",
        payload: None,
    };
    let header = authorization_header(&permanent(), &signed);
    assert!(check(&account(&["*"]), &RequestParts { body: b"[]", ..request(&header) }, NOW).is_ok());
}

fn sign_with_ext(credentials: &Credentials, ext: &str) -> String {
    // The certificate is put into ext as it is, so this gives ext another field as well.
    let certificate = credentials.certificate.as_deref().unwrap_or("null");
    sign(&Credentials { certificate: Some(format!("{certificate},{ext}")), ..credentials.clone() })
}

#[test]
fn authorized_scopes_narrow_what_the_request_may_do() {
    for credentials in [permanent(), temporary(None, &["a:*"])] {
        let header = sign_with_ext(&credentials, r#""authorizedScopes":["a:b"]"#);
        let principal = check(&account(&["a:*"]), &request(&header), NOW).unwrap();
        assert!(may(&principal, "a:b") && may(&principal, "queue:status:x") && !may(&principal, "a:c"));
        let header = sign_with_ext(&credentials, r#""authorizedScopes":["a:b","b"]"#);
        let failure = check(&account(&["a:*"]), &request(&header), NOW).unwrap_err();
        assert_eq!(failure, AuthFailure::AuthorizedScopes("b".to_owned()));
    }
}

#[test]
fn ext_that_cannot_be_read_is_refused() {
    let header = sign_with_ext(&permanent(), r#""authorizedScopes":"a""#);
    assert_eq!(check(&account(&["*"]), &request(&header), NOW).unwrap_err(), ExtError.into());
    let header = sign_with_ext(&permanent(), r#""authorizedScopes":["a**"]"#);
    assert_eq!(check(&account(&["*"]), &request(&header), NOW).unwrap_err(), ExtError.into());
}

#[test]
fn a_header_of_another_scheme_or_form_is_refused() {
    let failure = |text: &str| check(&account(&["*"]), &request(text), NOW).unwrap_err();
    assert_eq!(failure("Bearer abc"), AuthFailure::Scheme);
    assert_eq!(failure(""), AuthFailure::Scheme);
    assert_eq!(failure("Hawk id=\"a\""), HeaderError::Missing("ts").into());
}

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
fn clients_that_are_unknown_disabled_or_expired_are_refused() {
    let refusal = |account: Option<Account>| usable("ci", account.map(Arc::new)).err();
    let ci = || "ci".to_owned();
    assert_eq!(refusal(None), Some(AuthFailure::UnknownClient(ci())));
    assert_eq!(refusal(Some(Account { disabled: true, ..account(&[]) })), Some(AuthFailure::Disabled(ci())));
    assert_eq!(refusal(Some(Account { expired: true, ..account(&[]) })), Some(AuthFailure::Expired(ci())));
    assert_eq!(refusal(Some(account(&[]))), None);
}

fn read(header: &str) -> Claim<'_> {
    Claim::read(&request(header)).unwrap().unwrap()
}

fn task(issuer: &TaskCredentials, scopes: &[&str]) -> Credentials {
    let start = chrono::DateTime::from_timestamp(NOW_S, 0).unwrap();
    issuer.issue(&ClaimedRun {
        task_id: "CJmZxuGTQSGiSijhmS2LGg".parse().unwrap(),
        run_id: tenure_api::ids::RunId::new(1).unwrap(),
        worker_group: &"eu-1".parse().unwrap(),
        worker_id: &"i-7".parse().unwrap(),
        start,
        taken_until: start + chrono::TimeDelta::minutes(20),
        task_scopes: &strings(scopes),
    })
}

#[test]
fn task_credentials_do_what_their_run_needs_and_what_the_task_may() {
    let principal = check(&account(&[]), &request(&sign(&task(&tasks(KEYS), &["mine:*"]))), NOW).unwrap();
    let id = "task-client/CJmZxuGTQSGiSijhmS2LGg/1/on/eu-1/i-7/until/1769862000";
    assert_eq!(principal.client_id.as_deref(), Some(id));
    for verb in ["reclaim-task", "resolve-task", "create-artifact"] {
        assert!(may(&principal, &format!("queue:{verb}:CJmZxuGTQSGiSijhmS2LGg/1")));
        assert!(!may(&principal, &format!("queue:{verb}:CJmZxuGTQSGiSijhmS2LGg/2")));
    }
    assert!(may(&principal, "mine:too") && !may(&principal, "yours"));
}

#[test]
fn task_credentials_end_by_the_servers_clock() {
    let header = sign(&task(&tasks(KEYS), &[]));
    let at = |ahead_ms| {
        let now = Now { server_ms: NOW.server_ms + ahead_ms, ..NOW };
        check(&account(&[]), &request(&header), now).map(|_| ())
    };
    assert_eq!(at(25 * 60_000), Ok(()));
    assert_eq!(at(25 * 60_000 + 1), Err(CertificateError::Expired.into()));
}

#[test]
fn task_credentials_outlive_a_change_of_keys_while_the_old_key_is_listed() {
    let new = STANDARD.encode([9; 32]);
    let rotated = tasks(&format!("{new},{KEYS}"));
    let header = sign(&task(&tasks(KEYS), &[]));
    let verified =
        |issuer: &TaskCredentials| read(&header).check_task(issuer, &roles(&[]), &request(&header), NOW).map(|_| ());
    assert_eq!(verified(&rotated), Ok(()));
    assert_eq!(verified(&tasks(&new)), Err(CertificateError::Signature.into()));
    let header = sign(&task(&rotated, &[]));
    assert!(read(&header).check_task(&tasks(&new), &roles(&[]), &request(&header), NOW).is_ok());
}

#[test]
fn task_credentials_cannot_be_made_or_widened_by_anybody_else() {
    let real = task(&tasks(KEYS), &["mine"]);
    let wider = real.certificate.as_deref().unwrap().replace("mine", "*");
    let wider = Credentials { certificate: Some(wider), ..real.clone() };
    assert_eq!(refused(&["*"], &wider), CertificateError::Signature.into());
    let renamed = Credentials { client_id: "root".to_owned(), ..real.clone() };
    assert_eq!(refused(&["*"], &renamed), CertificateError::Signature.into());
    let forged = issue(task_credentials::ISSUER, &permanent().access_token.key(), grant(Some("root"), &["*"]));
    assert_eq!(refused(&["*"], &forged), CertificateError::Signature.into());
    let lent = issue(&real.client_id, &real.access_token.key(), grant(None, &["mine"]));
    let claim = sign(&lent);
    let asks_for_a_client = matches!(read(&claim).issuer(), Ok(Issuer::Client(id)) if id == real.client_id);
    assert!(asks_for_a_client, "and of that id there is none");
    assert!(!clients::valid_client_id(task_credentials::ISSUER));
    let other_token = Credentials { access_token: AccessToken::new("other".to_owned()), ..real };
    assert!(matches!(refused(&["*"], &other_token), AuthFailure::Mac(_)));
}

#[test]
fn credentials_with_very_many_scopes_are_read() {
    let scopes: Vec<String> = (0..2000).map(|number| format!("some:scope:with-the-number:{number}")).collect();
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let principal = accepted(&task(&tasks(KEYS), &scopes));
    assert!(may(&principal, "some:scope:with-the-number:1999"));
}

#[test]
fn what_is_assumed_is_followed_for_clients_temporary_and_task_credentials_and_narrowed_ones() {
    let roles = roles(&[("reader", &["read:*"]), ("anonymous", &["seen-by-all"]), ("hook:*", &["fire:<..>"])]);
    let with = |account: &Account, header: &str| check_with(&roles, account, &request(header), NOW);
    let ci = || account(&["assume:reader", "assume:hook:*"]);
    let principal = with(&ci(), &sign(&permanent())).unwrap();
    assert!(may(&principal, "read:x") && may(&principal, "fire:any") && may(&principal, "seen-by-all"));
    // What roles give can be lent, and roles can be lent.
    let principal = with(&ci(), &sign(&temporary(None, &["read:x", "assume:hook:a"]))).unwrap();
    assert!(may(&principal, "read:x") && may(&principal, "fire:a") && !may(&principal, "fire:b"));
    let failure = with(&account(&["assume:hook:a"]), &sign(&temporary(None, &["assume:reader"]))).unwrap_err();
    assert!(matches!(failure, AuthFailure::IssuerScope { .. }), "{failure}");
    let principal = with(&ci(), &sign(&task(&tasks(KEYS), &["assume:reader"]))).unwrap();
    assert!(may(&principal, "read:x") && may(&principal, "seen-by-all") && !may(&principal, "fire:a"));
    let header = sign_with_ext(&permanent(), r#""authorizedScopes":["assume:hook:a"]"#);
    let principal = with(&ci(), &header).unwrap();
    assert!(may(&principal, "fire:a") && !may(&principal, "read:x"));
}

#[test]
fn a_client_is_expanded_once_for_the_same_roles_and_anew_for_others() {
    let (one, other) = (roles(&[("r", &["a"])]), roles(&[("r", &["b"])]));
    let account = account(&["assume:r"]);
    let first = account.scopes(&one).unwrap();
    assert!(Arc::ptr_eq(&first, &account.scopes(&one).unwrap()));
    assert!(first.allows("a") && !first.allows("b"));
    let second = account.scopes(&other).unwrap();
    assert!(second.allows("b") && !second.allows("a"));
}

#[test]
fn credentials_whose_roles_have_no_end_are_refused_and_say_why() {
    let roles = roles(&[("a*", &["assume:a<..>b"])]);
    let refused = |account: Account| check_with(&roles, &account, &request(&sign(&permanent())), NOW).unwrap_err();
    assert_eq!(refused(account(&["assume:a"])), TooLarge.into());
    assert!(check_with(&roles, &account(&["assume:b"]), &request(&sign(&permanent())), NOW).is_ok());
}

const READ: &str = "/api/queue/v1/task/x/status";

fn signed_url(credentials: &Credentials, resource: &str, expires: i64) -> String {
    let url = SignUrl { resource, host: "queue.example", port: 8080, expires };
    let separator = if resource.contains('?') { '&' } else { '?' };
    format!("{resource}{separator}bewit={}", bewit(credentials, &url))
}

fn reading<'a>(target: &'a str, method: &'a str) -> RequestParts<'a> {
    RequestParts { method, target, host: "Queue.example:8080", ..RequestParts::default() }
}

#[test]
fn a_signed_url_does_what_its_signer_may_until_it_ends() {
    for (credentials, ends) in [(permanent(), NOW_S + 1), (temporary(Some("temp/one"), &["a:*"]), NOW_S + 1)] {
        let url = signed_url(&credentials, READ, ends);
        for method in ["GET", "HEAD"] {
            let principal = check(&account(&["*"]), &reading(&url, method), NOW).unwrap();
            assert_eq!(principal.client_id.as_deref(), Some(credentials.client_id.as_str()));
            assert_eq!(principal.expires_ms, Some(ends * 1000));
            assert!(may(&principal, "a:b"));
            assert_eq!(may(&principal, "b"), credentials.certificate.is_none());
        }
        let at = |real_ms| check(&account(&["*"]), &reading(&url, "GET"), Now { real_ms, ..NOW }).map(|_| ());
        assert_eq!(at(ends * 1000 - 1), Ok(()));
        assert_eq!(at(ends * 1000), Err(AuthFailure::BewitOver));
    }
    let paged = signed_url(&permanent(), "/api/list?limit=5", NOW_S + 1);
    assert!(check(&account(&["*"]), &reading(&paged, "GET"), NOW).is_ok());
    let of_a_task = signed_url(&task(&tasks(KEYS), &["mine"]), READ, NOW_S + 1);
    assert!(may(&check(&account(&[]), &reading(&of_a_task, "GET"), NOW).unwrap(), "mine"));
}

#[test]
fn a_signed_url_is_good_for_nothing_else() {
    let url = signed_url(&permanent(), READ, NOW_S + 60);
    let refused = |request: &RequestParts<'_>| check(&account(&["*"]), request, NOW).unwrap_err();
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(refused(&reading(&url, method)), AuthFailure::BewitMethod);
    }
    let header = sign(&permanent());
    let both = RequestParts { authorization: Some(&header), ..reading(&url, "GET") };
    assert_eq!(refused(&both), AuthFailure::HeaderAndBewit);
    for changed in [
        url.replace("/x/", "/y/"),
        format!("{url}&limit=5"),
        url.replace("?bewit", "?a=1&bewit"),
        signed_url(
            &Credentials { access_token: AccessToken::new("other".to_owned()), ..permanent() },
            READ,
            NOW_S + 60,
        ),
    ] {
        assert!(matches!(refused(&reading(&changed, "GET")), AuthFailure::Mac(_)), "{changed}");
    }
    let elsewhere = RequestParts { host: "other:8080", ..reading(&url, "GET") };
    assert!(matches!(refused(&elsewhere), AuthFailure::Mac(_)));
    assert_eq!(refused(&reading("/a?bewit=x", "GET")), BewitError.into());
}

#[test]
fn a_signed_url_may_lose_the_escapes_that_its_path_does_not_need() {
    let url = signed_url(&permanent(), "/artifacts/public%2Fa%3Ab%40c%28%29?x=1", NOW_S + 60);
    let loose = url.replace("%3A", ":").replace("%40", "@").replace("%28%29", "()");
    assert!(check(&account(&["*"]), &reading(&loose, "GET"), NOW).is_ok());
    let other = loose.replace("public", "private");
    assert!(matches!(check(&account(&["*"]), &reading(&other, "GET"), NOW), Err(AuthFailure::Mac(_))));
}

#[test]
fn the_tester_is_the_only_client_of_its_tests() {
    let tester = Credentials {
        client_id: "tester".to_owned(),
        access_token: AccessToken::new("no-secret".to_owned()),
        certificate: None,
    };
    let test = |credentials: &Credentials| {
        Tester::new(strings(&["test:a"])).authenticate(&request(&sign(credentials)), NOW).map(|found| found.scopes)
    };
    assert_eq!(test(&tester).unwrap().iter().collect::<Vec<_>>(), ["assume:anonymous", "test:a"]);
    assert_eq!(test(&permanent()).unwrap_err(), AuthFailure::UnknownClient("ci".to_owned()));
    let wrong = Credentials { access_token: AccessToken::new("secret".to_owned()), ..tester };
    assert!(matches!(test(&wrong).unwrap_err(), AuthFailure::Mac(_)));
    let of_a_task = test(&task(&tasks(KEYS), &["mine"])).unwrap_err();
    assert!(matches!(of_a_task, AuthFailure::UnknownClient(_)));
}

#[test]
fn a_hash_is_left_to_whoever_has_the_body() {
    let header = sign(&permanent());
    let elsewhere = RequestParts { body: b"", content_type: None, ..request(&header) };
    assert_eq!(check(&account(&["*"]), &elsewhere, NOW).unwrap_err(), AuthFailure::PayloadHash);
    let elsewhere = RequestParts { body_is_elsewhere: true, ..elsewhere };
    assert!(check(&account(&["*"]), &elsewhere, NOW).is_ok());
}

proptest! {
    #[test]
    fn no_url_makes_it_panic(target in "/[ -~]{0,20}\\?(bewit=)?[ -~]{0,80}") {
        let request = reading(&target, "GET");
        if let Ok(Some(claim)) = Claim::read(&request) {
            let _ = claim.check(&account(&["*"]), &roles(&[]), &request, NOW);
        }
    }

    #[test]
    fn no_header_makes_it_panic(header in "(Hawk |Basic )?[ -~]{0,150}") {
        let _ = check(&account(&["*"]), &request(&header), NOW);
    }
}

#[tokio::test]
async fn changes_that_this_server_made_are_felt_at_once_and_others_within_a_second() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    clients::tests::with_clients(|pool| async move {
        let client = clients::NewClient {
            client_id: "ci".to_owned(),
            scopes: strings(&["assume:r", "auth:create-client:temp/*"]),
            description: String::new(),
            expires: None,
            delete_on_expiration: false,
        };
        clients::create(&pool, &keys, &client, &permanent().access_token).await.unwrap();
        let here = Authenticator::new(pool.clone(), keys.clone());
        let elsewhere = Authenticator::new(pool.clone(), keys);
        let (header, lent) = (sign(&permanent()), sign(&temporary(Some("temp/one"), &["assume:r"])));
        let may_do = async |authenticator: &Authenticator, scope: &str| {
            let mut may_both = vec![];
            for header in [&header, &lent] {
                may_both.push(may(&authenticator.authenticate(&request(header), NOW).await.unwrap(), scope));
            }
            assert_eq!(may_both[0], may_both[1], "temporary credentials follow their issuer");
            may_both[0]
        };
        assert!(!may_do(&here, "a").await && !may_do(&elsewhere, "a").await);
        let mut role = roles::NewRole { role_id: "r".to_owned(), scopes: strings(&["a"]), description: String::new() };
        roles::create(&pool, &role).await.unwrap();
        here.roles_changed();
        assert!(may_do(&here, "a").await);
        tokio::time::sleep(cache::AGE_MAX).await;
        assert!(may_do(&elsewhere, "a").await);
        // A role of the client's own name, and one for everybody.
        role.role_id = "client-id:ci".to_owned();
        role.scopes = strings(&["b"]);
        roles::create(&pool, &role).await.unwrap();
        role.role_id = "anonymous".to_owned();
        role.scopes = strings(&["c"]);
        roles::create(&pool, &role).await.unwrap();
        here.roles_changed();
        assert!(may(&here.authenticate(&request(&header), NOW).await.unwrap(), "b"));
        let unsigned = RequestParts { authorization: None, ..request("") };
        assert!(may(&here.authenticate(&unsigned, NOW).await.unwrap(), "c"));

        clients::set_disabled(&pool, "ci", true).await.unwrap();
        here.client_changed("ci");
        for header in [&header, &lent] {
            let refused = here.authenticate(&request(header), NOW).await.unwrap_err();
            assert!(matches!(refused, AuthError::Failure(AuthFailure::Disabled(_))), "{refused}");
        }
        tokio::time::sleep(cache::AGE_MAX).await;
        assert!(elsewhere.authenticate(&request(&lent), NOW).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn clients_come_from_the_database_and_its_failure_is_not_theirs() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    clients::tests::with_clients(|pool| async move {
        let client = clients::NewClient {
            client_id: "ci".to_owned(),
            scopes: strings(&["a"]),
            description: String::new(),
            expires: None,
            delete_on_expiration: false,
        };
        clients::create(&pool, &keys, &client, &permanent().access_token).await.unwrap();
        let authenticator = Authenticator::new(pool.clone(), keys);
        let (known, temporary) = (sign(&permanent()), sign(&temporary(None, &["a"])));
        let principal = authenticator.authenticate(&request(&known), NOW).await.unwrap();
        assert!(may(&principal, "a"));

        pool.close().await;
        let stranger = sign(&Credentials { client_id: "nobody".to_owned(), ..permanent() });
        let error = authenticator.authenticate(&request(&stranger), NOW).await.unwrap_err();
        assert!(matches!(error, AuthError::Lookup(_)), "{error}");
        // Within the second a known client and its temporary credentials need no database.
        assert!(authenticator.authenticate(&request(&temporary), NOW).await.is_ok());
        let of_a_task = sign(&task(authenticator.task_credentials(), &[]));
        assert!(authenticator.authenticate(&request(&of_a_task), NOW).await.is_ok());
        let unsigned = RequestParts { authorization: None, ..request("") };
        let anonymous = authenticator.authenticate(&unsigned, NOW).await.unwrap();
        assert!(anonymous.client_id.is_none() && may(&anonymous, "queue:status:x") && !may(&anonymous, "a"));
    })
    .await;
}
