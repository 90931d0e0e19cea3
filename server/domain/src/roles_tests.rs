//! Expansion of roles, as a table and as properties, and checks of roles.

use proptest::prelude::*;

use super::*;

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn resolver(roles: &[(&str, &[&str])]) -> Resolver {
    Resolver::new(
        roles.iter().map(|&(role_id, scopes)| RoleScopes { role_id: role_id.to_owned(), scopes: strings(scopes) }),
    )
}

fn resolved(resolver: &Resolver, scopes: &[&str]) -> Vec<String> {
    resolver.resolve(strings(scopes)).unwrap().iter().map(str::to_owned).collect()
}

#[test]
fn roles_give_what_the_table_says() {
    let roles = resolver(&[
        ("reader", &["read"]),
        ("writer", &["write", "assume:reader"]),
        ("chief", &["assume:write*"]),
        ("project:*", &["queue:create-task:<..>:*", "in:project"]),
        ("project:x:admin", &["admin-of-x"]),
        ("hook-id:*", &["assume:project:<..>:hooks", "index:<..>.latest"]),
        ("group:*", &["assume:project:<..>"]),
        ("client-id:ci/*", &["ci:<..>"]),
        ("all", &["*"]),
        ("plain", &["literal:<..>"]),
    ]);
    let table: &[(&[&str], &[&str])] = &[
        (&[], &[]),
        (&["a"], &["a"]),
        (&["assume:nobody"], &["assume:nobody"]),
        (&["assume:reader"], &["assume:reader", "read"]),
        (&["assume:writer"], &["assume:reader", "assume:writer", "read", "write"]),
        (&["assume:chief"], &["assume:chief", "assume:reader", "assume:write*", "read", "write"]),
        (&["assume:project:y"], &["assume:project:y", "in:project", "queue:create-task:y:*"]),
        // An exact role and a role with a final star may both match.
        (
            &["assume:project:x:admin"],
            &["admin-of-x", "assume:project:x:admin", "in:project", "queue:create-task:x:admin:*"],
        ),
        // The rest of the name may be empty.
        (&["assume:project:"], &["assume:project:", "in:project", "queue:create-task::*"]),
        (&["assume:project"], &["assume:project"]),
        // A held pattern longer than the role's prefix: the placeholder keeps its beginning, and
        // the star absorbs the following text.
        (&["assume:project:x:*"], &["admin-of-x", "assume:project:x:*", "in:project", "queue:create-task:x:*"]),
        (
            &["assume:hook-id:h*"],
            &["assume:hook-id:h*", "assume:project:h*", "in:project", "index:h*", "queue:create-task:h*"],
        ),
        // A held pattern that covers the role's.
        (&["assume:client*"], &["assume:client*", "ci:*"]),
        (&["assume:client-id:ci/*"], &["assume:client-id:ci/*", "ci:*"]),
        (&["assume:client-id:ci/a*"], &["assume:client-id:ci/a*", "ci:a*"]),
        (&["assume:client-id:ci/a"], &["assume:client-id:ci/a", "ci:a"]),
        // Placeholders pass through several roles.
        (&["assume:group:g"], &["assume:group:g", "assume:project:g", "in:project", "queue:create-task:g:*"]),
        (
            &["assume:hook-id:h"],
            &[
                "assume:hook-id:h",
                "assume:project:h:hooks",
                "in:project",
                "index:h.latest",
                "queue:create-task:h:hooks:*",
            ],
        ),
        // A star inside a name is a character.
        (&["assume:project:a*b"], &["assume:project:a*b", "in:project", "queue:create-task:a*b:*"]),
        // A role without a final star has no placeholder.
        (&["assume:plain"], &["assume:plain", "literal:<..>"]),
        (&["assume:all"], &["*"]),
        (&["*", "assume:writer"], &["*"]),
    ];
    for (held, expected) in table {
        assert_eq!(resolved(&roles, held), strings(expected), "{held:?}");
    }
    // A star within the word `assume` assumes everything.
    for held in ["a*", "assum*", "assume*", "assume:*"] {
        assert_eq!(resolved(&roles, &[held]), ["*"], "{held}");
    }
    assert_eq!(resolved(&roles, &["assumed*", "b*"]), ["assumed*", "b*"]);
}

#[test]
fn role_star_gives_to_every_assuming_caller() {
    let roles = resolver(&[("*", &["seen:<..>"])]);
    assert_eq!(resolved(&roles, &["assume:x"]), ["assume:x", "seen:x"]);
    assert_eq!(resolved(&roles, &["assume:x*"]), ["assume:x*", "seen:x*"]);
    assert_eq!(resolved(&roles, &["assume:*"]), ["assume:*", "seen:*"]);
}

#[test]
fn mutually_assuming_roles_terminate() {
    let roles = resolver(&[("a", &["assume:b", "x"]), ("b", &["assume:a", "y"]), ("c*", &["assume:c<..>"])]);
    assert_eq!(resolved(&roles, &["assume:a"]), ["assume:a", "assume:b", "x", "y"]);
    assert_eq!(resolved(&roles, &["assume:cd", "assume:c*"]), ["assume:c*"]);
}

#[test]
fn infinite_expansion_stops_at_limit() {
    let roles = resolver(&[("a*", &["assume:a<..>b"])]);
    assert_eq!(roles.resolve(strings(&["assume:a"])), Err(TooLarge));
    assert_eq!(roles.expand(strings(&["assume:a"])), Err(TooLarge));
    assert!(roles.expand(strings(&["assume:b"])).is_ok());
    // The role then gives nothing to callers without credentials, but a client that can repair it
    // still works.
    let roles = resolver(&[("anonymous", &["assume:a", "x"]), ("a*", &["assume:a<..>b"])]);
    assert_eq!(roles.of_every_caller().iter().collect::<Vec<_>>(), [ASSUME_ANONYMOUS]);
    assert!(roles.expand(strings(&["auth:update-role:anonymous"])).is_ok());
}

#[test]
fn expansion_stops_at_given_limit() {
    let roles = resolver(&[("a", &["x", "assume:b"]), ("b", &["x", "y"])]);
    let own = || strings(&["assume:a"]);
    // Duplicates count again.
    let given: usize = ["assume:a", "x", "assume:b", "x", "y"].map(|scope| scope.len() + SCOPE_OVERHEAD).iter().sum();
    assert_eq!(roles.expand_within(own(), given), roles.expand(own()));
    assert_eq!(roles.expand_within(own(), given - 1), Err(TooLarge));
    assert!(roles.expand_within(strings(&["x"]), 0).is_ok(), "no role to follow");
}

#[test]
fn every_caller_has_exactly_scopes_of_anonymous() {
    let plain = Resolver::default().expand(strings(&["queue:create-task:x"])).unwrap();
    assert_eq!(plain, ScopeSet::new(strings(&["queue:create-task:x", ASSUME_ANONYMOUS])));
    for closed in [resolver(&[]), resolver(&[("anonymous", &[])]), resolver(&[("anonymous-too", &["a"])])] {
        assert_eq!(closed.of_every_caller().iter().collect::<Vec<_>>(), [ASSUME_ANONYMOUS]);
    }
    let roles = resolver(&[("anonymous", &["assume:visitor"]), ("visitor", &["secrets:get:x"])]);
    for scopes in [roles.expand([]).unwrap(), roles.expand(strings(&["assume:other"])).unwrap()] {
        assert!(!scopes.allows("queue:status:abc") && scopes.allows("secrets:get:x"), "{scopes:?}");
    }
    assert!(roles.of_every_caller().allows("secrets:get:x"));
    assert_eq!(roles.expand(strings(&["*"])).unwrap(), ScopeSet::new(strings(&["*"])));
}

#[test]
fn added_scopes_are_those_not_covered() {
    let added = |role: Option<&str>, new: &[&str], old: &[&str]| added(role, &strings(new), &strings(old));
    assert_eq!(added(None, &["a", "b:c", "d"], &["a", "b:*"]), ["d"]);
    assert_eq!(added(None, &["b:*"], &["b:c"]), ["b:*"]);
    // The caller needs everything that a placeholder may become.
    assert_eq!(added(Some("r*"), &["x:<..>:y"], &[]), ["x:*"]);
    assert_eq!(added(Some("r*"), &["x:<..>:y", "x:<..>:z"], &["x:<..>:y"]), ["x:*"]);
    assert!(added(Some("r*"), &["x:<..>:y"], &["x:*"]).is_empty());
    assert_eq!(added(Some("r"), &["x:<..>"], &[]), ["x:<..>"]);
}

#[test]
fn a_cycle_is_found_and_shown() {
    let roles = resolver(&[
        ("a", &["assume:b"]),
        ("b", &["x", "assume:c*"]),
        ("c:d", &["assume:a"]),
        ("e", &["assume:a", "*"]),
        ("f*", &["assume:f<..>x"]),
        ("g*", &["assume:h:<..>"]),
        ("h:*", &["assume:b"]),
        ("i:*", &["assume:i"]),
        ("j:k", &["assume:j:*"]),
    ]);
    assert_eq!(roles.find_cycle("a").unwrap(), ["a", "b", "c:d", "a"]);
    assert_eq!(roles.find_cycle("f*").unwrap(), ["f*", "f*"]);
    assert_eq!(roles.find_cycle("j:k").unwrap(), ["j:k", "j:k"]);
    for harmless in ["e", "g*", "h:*", "i:*", "nobody"] {
        assert_eq!(roles.find_cycle(harmless), None, "{harmless}");
    }
}

#[test]
fn invalid_role_is_refused() {
    for good in ["a", "*", "repo:github.com/a/b:*", " ", &"x".repeat(ROLE_ID_MAX)] {
        assert!(valid_role_id(good), "{good}");
    }
    for bad in ["", "a**", "\u{e9}", "a\n", &"x".repeat(ROLE_ID_MAX + 1)] {
        assert!(!valid_role_id(bad), "{bad}");
    }
    assert!(check_scopes(&strings(&["a", "b*", ""])).is_ok());
    assert!(check_scopes(&strings(&["a", "b**"])).unwrap_err().contains("scopes[1]"));
    assert!(check_scopes(&["a".repeat(SCOPE_CHARS_MAX + 1)]).unwrap_err().contains("scopes[0]"));
    assert!(check_scopes(&vec![String::new(); SCOPES_MAX + 1]).unwrap_err().contains("10001"));
    assert!(check_parameters(&strings(&["a:<..>:b", "c"])).is_ok());
    assert!(check_parameters(&strings(&["a:<..>:<..>"])).is_err());
    assert!(check_parameters(&strings(&["a:*<..>"])).is_err());
    assert!(check_description(&"x".repeat(DESCRIPTION_CHARS_MAX)).is_ok());
    assert!(check_description(&"x".repeat(DESCRIPTION_CHARS_MAX + 1)).is_err());
    assert!(check_description("\0").is_err());
}

#[test]
fn role_assumed_thousands_of_times_is_bounded() {
    let scopes: Vec<String> = (0..1_000).map(|number| format!("given:{number}")).collect();
    let roles = Resolver::new([RoleScopes { role_id: "hook:*".to_owned(), scopes }]);
    let assuming = |count: usize| (0..count).map(|number| format!("assume:hook:{number}"));
    assert_eq!(roles.resolve(assuming(900)).unwrap().iter().count(), 1_900);
    // The result is small; the expansion is long.
    assert_eq!(roles.resolve(assuming(2_000)), Err(TooLarge));
}

/// Roles with finite expansion: placeholders never pass on a longer text.
fn any_roles() -> impl Strategy<Value = Vec<(String, Vec<String>)>> {
    let scope = "(assume:[ab]{0,3}(<\\.\\.>)?\\*?)|([xy]{0,2}(<\\.\\.>)?[xy]{0,2}\\*?)";
    proptest::collection::vec(("[ab]{1,3}\\*?", proptest::collection::vec(scope, 0..4)), 0..6)
}

fn build(roles: Vec<(String, Vec<String>)>) -> Resolver {
    let fits = |scope: &String| valid_scope(scope) && check_parameters(std::slice::from_ref(scope)).is_ok();
    Resolver::new(roles.into_iter().map(|(role_id, mut scopes)| {
        scopes.retain(fits);
        RoleScopes { role_id, scopes }
    }))
}

fn any_held() -> impl Strategy<Value = Vec<String>> {
    let scope = "(assume:[ab]{0,4}\\*?)|([xy]{0,3}\\*?)|(assume?\\*)";
    proptest::collection::vec(scope, 0..5)
        .prop_map(|held| held.into_iter().filter(|scope| valid_scope(scope)).collect())
}

proptest! {
    #[test]
    fn expansion_ends_keeps_what_is_held_and_is_idempotent(roles in any_roles(), held in any_held()) {
        let roles = build(roles);
        // Roles that assume themselves with a longer name never end; the limit stops them.
        let Ok(once) = roles.resolve(held.clone()) else { return Ok(()) };
        prop_assert_eq!(once.first_missing(&held), None);
        let again = roles.resolve(once.iter().map(str::to_owned)).unwrap();
        prop_assert_eq!(&again, &once);
    }

    #[test]
    fn more_scopes_never_expand_to_less(roles in any_roles(), held in any_held(), more in any_held()) {
        let roles = build(roles);
        let (Ok(less), Ok(all)) = (roles.resolve(held.clone()), roles.resolve([held, more].concat())) else {
            return Ok(());
        };
        let less: Vec<String> = less.iter().map(str::to_owned).collect();
        prop_assert_eq!(all.first_missing(&less), None);
    }

    #[test]
    fn a_wider_pattern_expands_to_no_less(roles in any_roles(), name in "[ab]{0,4}", keep in 0..5_usize) {
        let roles = build(roles);
        let wide = format!("assume:{}*", &name[..keep.min(name.len())]);
        let (Ok(one), Ok(many)) = (roles.resolve([format!("assume:{name}")]), roles.resolve([wide])) else {
            return Ok(());
        };
        let one: Vec<String> = one.iter().map(str::to_owned).collect();
        prop_assert_eq!(many.first_missing(&one), None);
    }

    #[test]
    fn roles_without_cycles_stay_within_the_limit(roles in any_roles(), held in any_held()) {
        let ids: Vec<String> = roles.iter().map(|(id, _)| id.clone()).collect();
        let roles = build(roles);
        if ids.iter().all(|id| roles.find_cycle(id).is_none()) {
            prop_assert!(roles.resolve(held).is_ok());
        }
    }
}

#[test]
fn role_change_locks_out_no_more_clients() {
    let all_with = |bytes: usize| {
        let scope = |n: usize| format!("{n:04}:{}", "x".repeat(1024 - 5 - SCOPE_OVERHEAD));
        Resolver::new([RoleScopes { role_id: "r".to_owned(), scopes: (0..bytes >> 10).map(scope).collect() }])
    };
    // With enough bytes left for clients' own scopes, with too few, and too large for every client.
    let [roomy, tight, too_large] = [1 << 20, 7 << 19, 5 << 20].map(all_with);
    for (before, after, keeps_out) in [
        (&roomy, &roomy, false),
        (&roomy, &tight, true),
        (&roomy, &too_large, true),
        (&tight, &roomy, false),
        (&tight, &tight, false),
        (&tight, &too_large, true),
        (&too_large, &roomy, false),
        (&too_large, &tight, false),
        (&too_large, &too_large, false),
    ] {
        assert_eq!(keeps_clients_out(before, after), keeps_out, "{:?}", (before.room_of_all(), after.room_of_all()));
    }
}

#[test]
fn shared_scope_is_followed_once() {
    const ROLES: usize = 20_000;
    // One step for each role with this scope would be 400 million steps.
    let all = (0..ROLES).flat_map(|n| {
        let role = |role_id: String, scope: &str| RoleScopes { role_id, scopes: strings(&[scope]) };
        [role(format!("many:{n}"), "assume:others:*"), role(format!("others:{n}"), "a")]
    });
    let first = RoleScopes { role_id: "first".to_owned(), scopes: strings(&["assume:many:*"]) };
    assert_eq!(Resolver::new(all.chain([first])).find_cycle("first"), None);
}
