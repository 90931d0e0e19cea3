//! Roles in authentication, and signed URLs.

use tenure_api::hawk::bewit::{SignUrl, bewit};

use super::*;
use tenure_store::roles;

fn roles(roles: &[(&str, &[&str])]) -> Arc<Resolver> {
    let role =
        |&(role_id, scopes): &(&str, &[&str])| RoleScopes { role_id: role_id.to_owned(), scopes: strings(scopes) };
    Arc::new(Resolver::new(roles.iter().map(role)))
}

#[test]
fn assumed_roles_are_expanded_for_all_credentials() {
    let roles = roles(&[("reader", &["read:*"]), ("anonymous", &["seen-by-all"]), ("hook:*", &["fire:<..>"])]);
    let with = |account: &Account, header: &str| check_with(&roles, account, &request(header), NOW);
    let ci = || account(&["assume:reader", "assume:hook:*"]);
    let principal = with(&ci(), &sign(&permanent())).unwrap();
    assert!(may(&principal, "read:x") && may(&principal, "fire:any") && may(&principal, "seen-by-all"));
    // Scopes from roles can be lent, and roles can be lent.
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
fn client_is_expanded_once_per_state_of_roles() {
    let (one, other) = (roles(&[("r", &["a"])]), roles(&[("r", &["b"])]));
    let account = account(&["assume:r"]);
    let first = account.scopes(Roles::whole(&one)).unwrap();
    assert!(Arc::ptr_eq(&first, &account.scopes(Roles::whole(&one)).unwrap()));
    assert!(first.allows("a") && !first.allows("b"));
    let second = account.scopes(Roles::whole(&other)).unwrap();
    assert!(second.allows("b") && !second.allows("a"));
}

#[test]
fn reread_client_is_expanded_only_if_scopes_changed() {
    let roles = roles(&[("r", &["a"])]);
    let before = account(&["assume:r"]);
    let first = before.scopes(Roles::whole(&roles)).unwrap();
    let again = |scopes: &[&str]| Account::read_again("ci", client_with("another", scopes), Some(&before));
    assert!(Arc::ptr_eq(&first, &again(&["assume:r"]).scopes(Roles::whole(&roles)).unwrap()));
    let changed = again(&["b"]).scopes(Roles::whole(&roles)).unwrap();
    assert!(changed.allows("b") && !changed.allows("a"));
}

#[test]
fn infinite_roles_are_refused_with_reason() {
    let roles = roles(&[("a*", &["assume:a<..>b"])]);
    let refused = |account: Account| check_with(&roles, &account, &request(&sign(&permanent())), NOW).unwrap_err();
    assert_eq!(refused(account(&["assume:a"])), TooLarge.into());
    assert!(check_with(&roles, &account(&["assume:b"]), &request(&sign(&permanent())), NOW).is_ok());
}

#[test]
fn exceeded_role_limit_is_refused_and_not_cached() {
    let (roles, account) = (roles(&[("r", &["a"]), ("s", &["a"])]), account(&["assume:r", "assume:s"]));
    let little = Roles::within(&roles, 50);
    let checked = |header: &str, roles| read(header).check(&account, roles, &request(header), NOW);
    let header = sign(&permanent());
    assert_eq!(checked(&header, little).unwrap_err(), TooLarge.into());
    assert!(may(&checked(&header, Roles::whole(&roles)).unwrap(), "a"));
    assert!(may(&checked(&header, little).unwrap(), "a"), "the cached expansion of the client is used");
    // Roles named by the request are expanded each time.
    let narrowed = sign_with_ext(&permanent(), r#""authorizedScopes":["assume:r"]"#);
    for header in [sign(&temporary(None, &["assume:s"])), narrowed] {
        assert_eq!(checked(&header, little).unwrap_err(), TooLarge.into());
        assert!(may(&checked(&header, Roles::whole(&roles)).unwrap(), "a"));
    }
    let header = sign(&task(&tasks(KEYS), &["assume:r"]));
    let of_task = |roles| read(&header).check_task(&tasks(KEYS), roles, &request(&header), NOW);
    assert_eq!(of_task(little).unwrap_err(), TooLarge.into());
    assert!(may(&of_task(Roles::whole(&roles)).unwrap(), "a"));
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
fn signed_url_has_scopes_of_signer_until_it_expires() {
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
fn signed_url_is_refused_for_other_requests() {
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
fn signed_url_may_lose_unneeded_escapes() {
    let url = signed_url(&permanent(), "/artifacts/public%2Fa%3Ab%40c%28%29?x=1", NOW_S + 60);
    let loose = url.replace("%3A", ":").replace("%40", "@").replace("%28%29", "()");
    assert!(check(&account(&["*"]), &reading(&loose, "GET"), NOW).is_ok());
    let other = loose.replace("public", "private");
    assert!(matches!(check(&account(&["*"]), &reading(&other, "GET"), NOW), Err(AuthFailure::Mac(_))));
}

#[test]
fn ipv6_host_may_be_signed_without_brackets() {
    for (host, same) in [("[::1]", true), ("::1", true), ("[::2]", false), ("::2", false), ("[::1", false)] {
        let signed = SignRequest {
            method: "POST",
            resource: TARGET,
            host,
            port: 8080,
            timestamp: NOW_S,
            nonce: "n",
            payload: Some(("application/json", BODY)),
        };
        let header = authorization_header(&permanent(), &signed);
        let by_header = RequestParts { host: "[::1]:8080", ..request(&header) };
        assert_eq!(check(&account(&["*"]), &by_header, NOW).is_ok(), same, "{host}");
        let url = SignUrl { resource: READ, host, port: 8080, expires: NOW_S + 60 };
        let target = format!("{READ}?bewit={}", bewit(&permanent(), &url));
        let by_url = RequestParts { host: "[::1]:8080", ..reading(&target, "GET") };
        assert_eq!(check(&account(&["*"]), &by_url, NOW).is_ok(), same, "{host}");
    }
}

#[test]
fn tester_is_only_client_of_its_tests() {
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
fn hash_is_left_to_service_with_body() {
    let header = sign(&permanent());
    let elsewhere = RequestParts { body: b"", content_type: None, ..request(&header) };
    assert_eq!(check(&account(&["*"]), &elsewhere, NOW).unwrap_err(), AuthFailure::PayloadHash);
    let elsewhere = RequestParts { body_is_elsewhere: true, ..elsewhere };
    assert!(check(&account(&["*"]), &elsewhere, NOW).is_ok());
}

#[tokio::test]
async fn roles_are_known_while_another_fact_is_unreadable() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    tenure_store::testing::with_clients(|pool| async move {
        let authenticator = Authenticator::new(pool.clone(), Facts::new(pool.clone()), keys);
        sqlx::raw_sql("ALTER TABLE workers RENAME TO away").execute(&pool).await.unwrap();
        let role = roles::NewRole { role_id: "r".to_owned(), scopes: strings(&["a"]), description: String::new() };
        roles::create(&pool, &role).await.unwrap();
        let known = authenticator.roles().await.unwrap();
        assert!(known.expand(["assume:r".to_owned()]).unwrap().allows("a"));
    })
    .await;
}

#[tokio::test]
async fn own_changes_apply_at_once_others_within_a_second() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    tenure_store::testing::with_clients(|pool| async move {
        let client = clients::NewClient {
            client_id: "ci".to_owned(),
            scopes: strings(&["assume:r", "auth:create-client:temp/*"]),
            description: String::new(),
            expires: None,
            delete_on_expiration: false,
        };
        clients::create(&pool, &keys, &client, &permanent().access_token).await.unwrap();
        let here = Authenticator::new(pool.clone(), Facts::new(pool.clone()), keys.clone());
        let elsewhere = Authenticator::new(pool.clone(), Facts::new(pool.clone()), keys);
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
        // A role with the client's own name, and one for all callers.
        role.role_id = "client-id:ci".to_owned();
        role.scopes = strings(&["b"]);
        roles::create(&pool, &role).await.unwrap();
        role.role_id = "anonymous".to_owned();
        role.scopes = strings(&["c"]);
        roles::update(&pool, &role).await.unwrap().unwrap();
        here.roles_changed();
        assert!(may(&here.authenticate(&request(&header), NOW).await.unwrap(), "b"));
        let unsigned = RequestParts { authorization: None, ..request("") };
        let anonymous = here.authenticate(&unsigned, NOW).await.unwrap();
        assert!(may(&anonymous, "c") && !may(&anonymous, "queue:status:x"), "only the role's scopes remain");

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

proptest! {
    #[test]
    fn no_url_panics(target in "/[ -~]{0,20}\\?(bewit=)?[ -~]{0,80}") {
        let request = reading(&target, "GET");
        if let Ok(Some(claim)) = Claim::read(&request) {
            let _ = claim.check(&account(&["*"]), Roles::whole(&roles(&[])), &request, NOW);
        }
    }
}
