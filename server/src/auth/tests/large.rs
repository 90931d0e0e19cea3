//! Roles that give much.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use super::*;

/// The same account for a claim that is checked.
pub(super) fn shared(account: &Account) -> Arc<Account> {
    let (token, use_is_news) = (account.token.clone(), AtomicBool::new(false));
    Arc::new(Account {
        client_id: account.client_id.clone(),
        key: token.key(),
        token,
        own_scopes: account.own_scopes.clone(),
        expanded: Mutex::default(),
        expires_ms: account.expires_ms,
        disabled: account.disabled,
        expired: account.expired,
        use_is_news,
    })
}

/// A small role and one that gives more than is followed at once.
fn roles() -> Arc<Resolver> {
    let many = (0..GIVEN_AT_ONCE / 32).map(|number| format!("given:{number}")).collect();
    let role = |role_id: &str, scopes| RoleScopes { role_id: role_id.to_owned(), scopes };
    Arc::new(Resolver::new([role("small", strings(&["a"])), role("large", many)]))
}

fn prove(account: &Arc<Account>, roles: &Arc<Resolver>, header: &str) -> Proven {
    let claim = read(header);
    let request = request(header);
    let is_of_a_task = matches!(claim.issuer(), Ok(Issuer::Tasks));
    let proven = if is_of_a_task {
        claim.check_task(&tasks(KEYS), &request, NOW)
    } else {
        claim.check(account, roles, &request, NOW)
    };
    proven.unwrap_or_else(|refused| panic!("{refused}"))
}

#[tokio::test]
async fn roles_that_give_much_are_followed_apart_and_others_at_once() {
    let keys = SecretKeys::parse(KEYS).unwrap();
    tenure_store::testing::with_clients(|pool| async move {
        let heavy = Heavy::with_turns(1);
        let authenticator = Authenticator::new(pool.clone(), Facts::new(pool.clone()), keys, heavy.clone());
        let roles = roles();
        let all = Arc::new(account(&["*"]));
        let narrowed = |scope: &str| sign_with_ext(&permanent(), &format!(r#""authorizedScopes":["{scope}"]"#));
        let headers = |scope: &str| {
            let lent = sign(&temporary(None, &[scope]));
            [lent, sign(&task(&tasks(KEYS), &[scope])), narrowed(scope)]
        };
        // Its only turn is taken.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = pin!(heavy.run(LARGE_MIN, move || released.recv().is_err()));
        assert!(futures_util::poll!(other.as_mut()).is_pending());
        for header in headers("assume:small") {
            let mut at_once = pin!(authenticator.principal(prove(&all, &roles, &header), &roles));
            let done = futures_util::poll!(at_once.as_mut());
            assert!(matches!(done, Poll::Ready(Ok(principal)) if may(&principal, "a")), "it waits for a turn");
        }
        let assuming = Arc::new(account(&["assume:large"]));
        let mut large: Vec<_> = headers("assume:large").map(|header| prove(&all, &roles, &header)).into();
        large.push(prove(&assuming, &roles, &sign(&permanent())));
        let waiting = large.into_iter().map(|proven| authenticator.principal(proven, &roles));
        let mut waiting = pin!(futures_util::future::join_all(waiting));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert!(assuming.find_scopes(&roles).is_none());
        drop(release);
        other.await;
        for principal in waiting.await {
            assert!(may(&principal.unwrap(), "given:1"));
        }
        // What a client may do is worked out once.
        let again = prove(&assuming, &roles, &sign(&permanent()));
        assert!(!again.assumes_roles());
    })
    .await;
}
