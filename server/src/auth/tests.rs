//! One test for each credential and each refusal. Accounts are built here; tests of the store cover
//! the database.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use sqlx::PgPool;
use tenure_api::credentials::{Credentials, Grant, issue};
use tenure_api::hawk::{SignRequest, authorization_header};

use super::*;
use tenure_domain::roles::RoleScopes;

mod basic;
mod forwarded;
mod roles_and_urls;
mod shut_out;

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
    account_with("the-token", scopes)
}

fn account_with(token: &str, scopes: &[&str]) -> Account {
    Account::new("ci", client_with(token, scopes))
}

fn client_with(token: &str, scopes: &[&str]) -> ClientAccount {
    ClientAccount {
        access_token: AccessToken::new(token.to_owned()),
        scopes: strings(scopes),
        disabled: false,
        expires: None,
        expired: false,
        use_is_news: false,
    }
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

/// Acts as the authenticator, with this account in place of the database.
fn check(account: &Account, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthFailure> {
    let anonymous = RoleScopes { role_id: "anonymous".to_owned(), scopes: strings(&["queue:status:*"]) };
    check_with(&Arc::new(Resolver::new([anonymous])), account, request, now)
}

fn check_with(
    roles: &Arc<Resolver>,
    account: &Account,
    request: &RequestParts<'_>,
    now: Now,
) -> Result<Principal, AuthFailure> {
    let claim = Claim::read(request)?.unwrap();
    match claim.issuer()? {
        Issuer::Tasks => claim.check_task(&tasks(KEYS), Roles::whole(roles), request, now),
        Issuer::Workers => panic!("no worker has registered here"),
        Issuer::Client(_) => claim.check(account, Roles::whole(roles), request, now),
    }
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
fn permanent_client_has_its_own_and_anonymous_scopes() {
    let principal = check(&account(&["a:*"]), &request(&sign(&permanent())), NOW).unwrap();
    assert_eq!(principal.client_id.as_deref(), Some("ci"));
    assert_eq!(principal.expires_ms, None);
    assert!(may(&principal, "a:b") && may(&principal, "queue:status:x") && !may(&principal, "b"));
}

#[test]
fn forbidden_names_caller_missing_and_required_scopes() {
    let principal = check(&account(&["a:*"]), &request(&sign(&permanent())), NOW).unwrap();
    let error = principal.authorize(&Expression::all_of(["a:1", "b"])).unwrap_err();
    assert_eq!(error.to_string(), "the client \"ci\" lacks the scopes for this: missing b; required all of [a:1, b]");
    // Without any of the scopes, the message prints the expression once.
    let error = principal.authorize(&Expression::any_of(["b", "c"])).unwrap_err();
    assert_eq!(error.to_string(), "the client \"ci\" lacks the scopes for this: missing any of [b, c]");
    let anonymous = Principal { client_id: None, ..principal };
    assert!(anonymous.authorize(&"b".into()).unwrap_err().to_string().starts_with("a request without credentials"));
}

#[test]
fn temporary_credentials_have_scopes_until_certificate_ends() {
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
fn issuer_cannot_lend_scopes_it_lacks() {
    let lacks = |scope: &str| AuthFailure::IssuerScope { issuer: "ci".to_owned(), scope: scope.to_owned() };
    assert_eq!(refused(&["a:b"], &temporary(None, &["a:b", "a:*"])), lacks("a:*"));
    assert_eq!(refused(&["a:b"], &temporary(Some("temp/one"), &["a:b"])), lacks("auth:create-client:temp/one"));
    let ok = account(&["a:b", "auth:create-client:temp/*"]);
    assert!(check(&ok, &request(&sign(&temporary(Some("temp/one"), &["a:b"]))), NOW).is_ok());
}

#[test]
fn certificate_must_be_in_force_by_either_clock() {
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
fn invalid_certificate_is_refused() {
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
fn wrong_token_or_changed_request_is_refused() {
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
fn client_signing_path_without_query_can_only_list() {
    let header = sign_as(&permanent(), "GET", "/api/list");
    let at = |target| {
        check(&account(&["*"]), &RequestParts { method: "GET", target, ..request(&header) }, NOW).map(|_| ()).is_ok()
    };
    assert!(at("/api/list"));
    assert!(at("/api/list?limit=5&continuationToken=abc"));
    assert!(at("/api/list?prefix=a%2F&quarantined=true&since=2026-05-14"));
    assert!(!at("/api/list?limit=5&other=1"));
    assert!(!at("/api/list?"));
    assert!(!at("/api/lists?limit=5"));
}

#[test]
fn stale_timestamp_is_refused_by_real_time_only() {
    let header = sign(&permanent());
    let at = |real_s: i64, server_s: i64| {
        let now = Now { real_ms: real_s * 1000, server_ms: server_s * 1000 };
        check(&account(&["*"]), &request(&header), now).map(|_| ())
    };
    assert_eq!(at(NOW_S + 900, NOW_S), Ok(()));
    assert_eq!(at(NOW_S - 900, NOW_S), Ok(()));
    assert_eq!(at(NOW_S, NOW_S + 100_000), Ok(()));
    assert_eq!(at(NOW_S + 901, NOW_S), Err(AuthFailure::Stale { seconds: 901, clock: Clock::Behind }));
    assert_eq!(at(NOW_S - 901, NOW_S), Err(AuthFailure::Stale { seconds: 901, clock: Clock::Ahead }));
    let message = |signed| at(signed, NOW_S).unwrap_err().to_string();
    let (behind, ahead) = (message(NOW_S + 3600), message(NOW_S - 3600));
    assert!(behind.contains("was signed 3600 s ago") && behind.contains("behind"), "{behind}");
    assert!(ahead.contains("was signed 3600 s in the future") && ahead.contains("ahead"), "{ahead}");
}

#[test]
fn changed_body_or_content_type_is_refused() {
    let header = sign(&permanent());
    let parts = request(&header);
    let with = |parts| check(&account(&["*"]), &parts, NOW).map(|_| ());
    assert_eq!(with(RequestParts { body: b"{}", ..parts }), Err(AuthFailure::PayloadHash));
    assert_eq!(with(RequestParts { content_type: Some("text/plain"), ..parts }), Err(AuthFailure::PayloadHash));
    assert_eq!(with(RequestParts { content_type: None, ..parts }), Err(AuthFailure::PayloadHash));
}

#[test]
fn body_of_any_media_type_is_hashed_as_it_is() {
    let signed = SignRequest {
        method: "POST",
        resource: TARGET,
        host: "queue.example",
        port: 8080,
        timestamp: NOW_S,
        nonce: "n",
        payload: None,
    };
    let sent = |payload: &[u8]| {
        let header =
            authorization_header(&permanent(), &SignRequest { payload: Some(("text/plain", payload)), ..signed });
        let parts = RequestParts { content_type: Some("text/plain"), body: b"some text", ..request(&header) };
        check(&account(&["*"]), &parts, NOW).map(|_| ())
    };
    assert_eq!(sent(b"some text"), Ok(()));
    assert_eq!(sent(b""), Err(AuthFailure::PayloadHash));
}

#[test]
fn header_without_hash_accepts_any_body() {
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
    // The certificate is inserted into ext unparsed, so this adds a second field.
    let certificate = credentials.certificate.as_deref().unwrap_or("null");
    sign(&Credentials { certificate: Some(format!("{certificate},{ext}")), ..credentials.clone() })
}

#[test]
fn authorized_scopes_narrow_request() {
    for credentials in [permanent(), temporary(None, &["a:*"])] {
        let header = sign_with_ext(&credentials, r#""authorizedScopes":["a:b"]"#);
        let principal = check(&account(&["a:*"]), &request(&header), NOW).unwrap();
        assert!(may(&principal, "a:b") && may(&principal, "queue:status:x") && !may(&principal, "a:c"));
        assert!(principal.is_narrowed && !accepted(&credentials).is_narrowed);
        let header = sign_with_ext(&credentials, r#""authorizedScopes":["a:b","b"]"#);
        let failure = check(&account(&["a:*"]), &request(&header), NOW).unwrap_err();
        assert_eq!(failure, AuthFailure::AuthorizedScopes("b".to_owned()));
        // The first of two stars is a literal character, the last one a pattern.
        let header = sign_with_ext(&credentials, r#""authorizedScopes":["a:b**"]"#);
        let principal = check(&account(&["a:*"]), &request(&header), NOW).unwrap();
        assert!(
            may(&principal, "a:b*") && may(&principal, "a:b*c") && !may(&principal, "a:b") && !may(&principal, "a:bc")
        );
    }
}

#[test]
fn malformed_ext_is_refused() {
    let header = sign_with_ext(&permanent(), r#""authorizedScopes":"a""#);
    assert_eq!(check(&account(&["*"]), &request(&header), NOW).unwrap_err(), ExtError.into());
    let header = sign_with_ext(&permanent(), r#""authorizedScopes":["a\u00e9"]"#);
    assert_eq!(check(&account(&["*"]), &request(&header), NOW).unwrap_err(), ExtError.into());
}

#[test]
fn header_of_other_scheme_or_form_is_refused() {
    let failure = |text: &str| check(&account(&["*"]), &request(text), NOW).unwrap_err();
    assert_eq!(failure("Bearer abc"), AuthFailure::Scheme);
    assert_eq!(failure(""), AuthFailure::Scheme);
    assert_eq!(failure("Hawk id=\"a\""), HeaderError::Missing("ts").into());
}

#[test]
fn unknown_client_is_refused_like_wrong_token() {
    let other = account_with("other", &["*"]);
    for credentials in [permanent(), temporary(None, &["a"]), temporary(Some("named"), &["a"])] {
        let refused = |account: &Account| check(account, &request(&sign(&credentials)), NOW).unwrap_err();
        assert_eq!(refused(&decoy()), refused(&other));
    }
    let refused = check(&decoy(), &request(&sign(&permanent())), NOW).unwrap_err();
    assert!(matches!(refused, AuthFailure::Mac(_)), "{refused}");
    assert_ne!(decoy().token.expose(), decoy().token.expose());
    assert!(decoy().disabled);
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
fn task_credentials_have_scopes_of_run_and_task() {
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
fn task_credentials_expire_by_server_clock() {
    let header = sign(&task(&tasks(KEYS), &[]));
    let at = |ahead_ms| {
        let now = Now { server_ms: NOW.server_ms + ahead_ms, ..NOW };
        check(&account(&[]), &request(&header), now).map(|_| ())
    };
    assert_eq!(at(25 * 60_000), Ok(()));
    assert_eq!(at(25 * 60_000 + 1), Err(CertificateError::Expired.into()));
    // The claim stays valid although the database's clock was set back.
    assert_eq!(at(-HOUR_MS), Ok(()));
}

#[test]
fn task_credentials_survive_key_rotation() {
    let new = STANDARD.encode([9; 32]);
    let rotated = tasks(&format!("{new},{KEYS}"));
    let header = sign(&task(&tasks(KEYS), &[]));
    let verified = |issuer: &TaskCredentials| {
        read(&header).check_task(issuer, Roles::whole(&Arc::default()), &request(&header), NOW).map(|_| ())
    };
    assert_eq!(verified(&rotated), Ok(()));
    assert_eq!(verified(&tasks(&new)), Err(CertificateError::Signature.into()));
    let header = sign(&task(&rotated, &[]));
    assert!(read(&header).check_task(&tasks(&new), Roles::whole(&Arc::default()), &request(&header), NOW).is_ok());
}

#[test]
fn task_credentials_need_server_key() {
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
    assert!(asks_for_a_client, "no client has this id");
    assert!(!clients::valid_client_id(task_credentials::ISSUER));
    let other_token = Credentials { access_token: AccessToken::new("other".to_owned()), ..real };
    assert!(matches!(refused(&["*"], &other_token), AuthFailure::Mac(_)));
}

#[test]
fn credentials_with_many_scopes_are_accepted() {
    let scopes: Vec<String> = (0..2000).map(|number| format!("some:scope:with-the-number:{number}")).collect();
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let principal = accepted(&task(&tasks(KEYS), &scopes));
    assert!(may(&principal, "some:scope:with-the-number:1999"));
}

proptest! {
    #[test]
    fn no_header_panics(header in "(Hawk |Basic )?[ -~]{0,150}") {
        let _ = check(&account(&["*"]), &request(&header), NOW);
    }
}

/// Creates the client `ci` with the scope `a`.
async fn create_ci(pool: &PgPool, keys: &SecretKeys) {
    let client = clients::NewClient {
        client_id: "ci".to_owned(),
        scopes: strings(&["a"]),
        description: String::new(),
        expires: None,
        delete_on_expiration: false,
    };
    clients::create(pool, keys, &client, &permanent().access_token).await.unwrap();
}

#[tokio::test]
async fn database_failure_is_not_a_client_failure() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    tenure_store::testing::with_clients(|pool| async move {
        create_ci(&pool, &keys).await;
        let authenticator = Authenticator::new(pool.clone(), Facts::new(pool.clone()), keys);
        let (permanent_header, temporary) = (sign(&permanent()), sign(&temporary(None, &["a"])));
        let principal = authenticator.authenticate(&request(&permanent_header), NOW).await.unwrap();
        assert!(may(&principal, "a"));

        pool.close().await;
        let unknown = sign(&Credentials { client_id: "unknown".to_owned(), ..permanent() });
        let error = authenticator.authenticate(&request(&unknown), NOW).await.unwrap_err();
        assert!(matches!(error, AuthError::Lookup(_)), "{error}");
        // Within a second, a cached client and its temporary credentials need no database.
        assert!(authenticator.authenticate(&request(&temporary), NOW).await.is_ok());
        let of_a_task = sign(&task(authenticator.task_credentials(), &[]));
        assert!(authenticator.authenticate(&request(&of_a_task), NOW).await.is_ok());
        let unsigned = RequestParts { authorization: None, ..request("") };
        let anonymous = authenticator.authenticate(&unsigned, NOW).await.unwrap();
        assert!(anonymous.client_id.is_none() && may(&anonymous, "queue:status:x") && !may(&anonymous, "a"));
        // Later, workers are still accepted, unless their tasks assume roles.
        tokio::time::sleep(cache::AGE_MAX).await;
        assert!(authenticator.authenticate(&request(&of_a_task), NOW).await.is_ok());
        let assuming = sign(&task(authenticator.task_credentials(), &["assume:r"]));
        for needs_roles in [&request(&assuming), &request(&permanent_header), &unsigned] {
            let error = authenticator.authenticate(needs_roles, NOW).await.unwrap_err();
            assert!(matches!(error, AuthError::Lookup(_)), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn scopes_of_a_client_are_those_it_has_now() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    tenure_store::testing::with_clients(|pool| async move {
        create_ci(&pool, &keys).await;
        let authenticator = Authenticator::new(pool.clone(), Facts::new(pool.clone()), keys);
        let scopes = authenticator.scopes_of("ci").await.unwrap();
        assert!(scopes.allows("a") && scopes.allows("assume:client-id:ci") && !scopes.allows("b"));
        let unknown = authenticator.scopes_of("other").await;
        assert!(matches!(unknown, Err(AuthError::Failure(AuthFailure::UnknownClient(_)))));
        sqlx::query("UPDATE clients SET disabled = true").execute(&pool).await.unwrap();
        authenticator.client_changed("ci");
        let disabled = authenticator.scopes_of("ci").await;
        assert!(matches!(disabled, Err(AuthError::Failure(AuthFailure::Disabled(_)))));
        pool.close().await;
        authenticator.client_changed("ci");
        assert!(matches!(authenticator.scopes_of("ci").await, Err(AuthError::Lookup(_))));
    })
    .await;
}
