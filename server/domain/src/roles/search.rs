//! How a caller has a scope: the shortest way through its roles.

use std::collections::HashSet;

use super::{GIVEN_MAX, Resolver, SCOPE_OVERHEAD, TooLarge, assumed};
use crate::scopes::satisfies;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// One of the caller's scopes, then a scope of a role that the one before assumes. The last one
    /// covers the required scope.
    Through(Vec<String>),
    Missing,
    /// The roles give more than the limit.
    TooLarge,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    pub way: Way,
    /// Bytes of the scopes on the way, scopes of roles included: the cost of the search.
    pub size: usize,
}

/// A scope, and the index of the scope that led to it.
struct Step {
    scope: String,
    from: Option<usize>,
}

impl Resolver {
    /// Searches for a scope that covers `required` among `own` scopes and scopes of their roles, up
    /// to `size_max` bytes. Scopes that every caller has count only if `own` includes them.
    pub fn find_way(&self, own: impl IntoIterator<Item = String>, required: &str, size_max: usize) -> Search {
        let size_max = size_max.min(GIVEN_MAX);
        let mut steps: Vec<Step> = own.into_iter().map(|scope| Step { scope, from: None }).collect();
        let mut known: HashSet<String> = steps.iter().map(|step| step.scope.clone()).collect();
        let mut size: usize = steps.iter().map(|step| step.scope.len() + SCOPE_OVERHEAD).sum();
        let mut next = 0;
        while let Some(step) = steps.get(next) {
            if satisfies(&step.scope, required) {
                return Search { way: Way::Through(way_to(&steps, next)), size };
            }
            let scope = step.scope.clone();
            if let Some(assumed) = assumed(&scope) {
                let given = self.each_scope(assumed, |scope| {
                    size += scope.len() + SCOPE_OVERHEAD;
                    if size > size_max {
                        return Err(TooLarge);
                    }
                    if known.insert(scope.clone()) {
                        steps.push(Step { scope, from: Some(next) });
                    }
                    Ok(())
                });
                if given.is_err() {
                    return Search { way: Way::TooLarge, size };
                }
            }
            next += 1;
        }
        Search { way: Way::Missing, size }
    }
}

fn way_to(steps: &[Step], last: usize) -> Vec<String> {
    let mut way = Vec::new();
    let mut at = Some(last);
    while let Some(step) = at.and_then(|at| steps.get(at)) {
        way.push(step.scope.clone());
        at = step.from;
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::RoleScopes;
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn resolver(roles: &[(&str, &[&str])]) -> Resolver {
        let roles = roles.iter().map(|&(id, scopes)| RoleScopes { role_id: id.to_owned(), scopes: strings(scopes) });
        Resolver::new(roles)
    }

    /// Held scopes, a wanted one, and the way to it.
    type Case<'a> = (&'a [&'a str], &'a str, Option<&'a [&'a str]>);

    #[test]
    fn way_names_each_role_up_to_the_scope() {
        let roles = resolver(&[
            ("reader", &["read:*"]),
            ("writer", &["write", "assume:reader"]),
            ("team:*", &["queue:create-task:low:<..>/*", "assume:writer"]),
            ("circle", &["assume:circle"]),
            ("client-id:ci", &["assume:team:ci"]),
        ]);
        let table: &[Case<'_>] = &[
            (&["a", "b:*"], "b:1", Some(&["b:*"])),
            (&["*"], "anything", Some(&["*"])),
            (&["assume:reader"], "read:x", Some(&["assume:reader", "read:*"])),
            (&["assume:writer"], "read:x", Some(&["assume:writer", "assume:reader", "read:*"])),
            // The shortest one.
            (&["assume:writer", "assume:reader"], "read:x", Some(&["assume:reader", "read:*"])),
            (
                &["assume:client-id:ci"],
                "queue:create-task:low:ci/linux",
                Some(&["assume:client-id:ci", "assume:team:ci", "queue:create-task:low:ci/*"]),
            ),
            (&["assume:circle"], "read:x", None),
            (&["assume:nobody"], "read:x", None),
            (&[], "read:x", None),
        ];
        for (own, required, expected) in table {
            let expected = expected.map_or(Way::Missing, |way| Way::Through(strings(way)));
            assert_eq!(roles.find_way(strings(own), required, GIVEN_MAX).way, expected, "{own:?} for {required}");
        }
    }

    #[test]
    fn search_ends_at_its_limit() {
        let large: Vec<String> = (0..100).map(|n| format!("{n}:{}", "x".repeat(100))).collect();
        let roles = Resolver::new([RoleScopes { role_id: "large".to_owned(), scopes: large }]);
        let search = |size_max| roles.find_way(strings(&["assume:large"]), "99:", size_max);
        assert_eq!(search(1_000).way, Way::TooLarge);
        assert!(search(1_000).size < 2_000, "{:?}", search(1_000));
        assert_eq!(search(GIVEN_MAX).way, Way::Missing);
        assert_eq!(roles.find_way(strings(&["99:*"]), "99:", 0).way, Way::Through(strings(&["99:*"])));
    }

    proptest! {
        #[test]
        fn way_exists_if_expanded_scopes_allow(
            roles in proptest::collection::vec(
                ("[ab]{1,2}\\*?", proptest::collection::vec("(assume:[ab]{1,2}|[xy]{1,2}\\*?)", 0..4)),
                0..5,
            ),
            own in proptest::collection::vec("(assume:[ab]{1,2}\\*?|[xy]\\*?)", 0..3),
            required in "[xy]{1,3}",
        ) {
            let roles = Resolver::new(roles.into_iter().map(|(role_id, scopes)| RoleScopes { role_id, scopes }));
            let allowed = roles.resolve(own.clone()).unwrap().allows(&required);
            let way = roles.find_way(own.clone(), &required, GIVEN_MAX).way;
            prop_assert_eq!(allowed, matches!(way, Way::Through(_)));
            if let Way::Through(way) = way {
                prop_assert!(own.contains(&way[0]) && satisfies(&way[way.len() - 1], &required));
            }
        }
    }
}
