//! Scopes: permissions as texts such as `queue:get-task:*`.
//!
//! A star is a pattern only at the very end of a *held* scope. In a required scope it is a plain
//! character.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::Serialize;

pub use tenure_api::credentials::valid_scope;

/// Initial scopes of the role `anonymous`, which operators may change. Workers rely on reading a
/// task's status without credentials.
pub const ANONYMOUS: [&str; 17] = [
    "auth:current-scopes",
    "auth:expand-scopes",
    "purge-cache:all-purge-requests",
    "purge-cache:purge-requests:*",
    "queue:get-artifact:public/*",
    "queue:get-provisioner:*",
    "queue:get-task:*",
    "queue:get-worker-type:*",
    "queue:get-worker:*",
    "queue:list-artifacts:*",
    "queue:list-dependent-tasks:*",
    "queue:list-provisioners",
    "queue:list-task-group:*",
    "queue:list-worker-types:*",
    "queue:list-workers:*",
    "queue:pending-count:*",
    "queue:status:*",
];

/// True if a text is valid in `authorizedScopes`: printable ASCII. Only the last star of `a**` is a
/// pattern, so it matches texts with the prefix `a*`. Clients and roles cannot have such a scope
/// ([`valid_scope`]).
#[must_use]
pub fn valid_pattern(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Maximum bytes of the scopes as JSON. The holder of a claim sends them with each request, as a
/// certificate in base64. With the rest of the head they must fit into the 128 KiB that a server
/// reads.
pub const TASK_SCOPES_BYTES_MAX: usize = 80 << 10;
/// JSON around each item of a list: quotes, a comma and a space.
const AROUND_SCOPE: usize = 4;

pub fn check_of_task(scopes: &[String]) -> Result<(), String> {
    let mut bytes = 0;
    for (n, scope) in scopes.iter().enumerate() {
        if !valid_pattern(scope) {
            return Err(format!("`scopes[{n}]` must match ^[\\x20-\\x7e]*$"));
        }
        let escaped = scope.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        bytes += scope.len() + escaped + AROUND_SCOPE;
    }
    if bytes > TASK_SCOPES_BYTES_MAX {
        return Err(format!(
            "`scopes` takes {bytes} bytes as JSON; at most {TASK_SCOPES_BYTES_MAX}, which fit into the credentials of a \
             claim: let the task assume a role that has them"
        ));
    }
    Ok(())
}

#[must_use]
pub fn satisfies(held: &str, required: &str) -> bool {
    match held.strip_suffix('*') {
        Some(stem) => required.starts_with(stem),
        None => held == required,
    }
}

/// Held scopes, without those covered by others. Each pattern precedes the scopes with its prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ScopeSet(Vec<Cow<'static, str>>);

impl ScopeSet {
    pub fn new(scopes: impl IntoIterator<Item = String>) -> Self {
        Self::normalised(scopes.into_iter().map(Cow::Owned).collect())
    }

    /// Builds the union with another set.
    pub fn with(scopes: impl IntoIterator<Item = String>, others: &Self) -> Self {
        // Both are sorted. Task credentials have few scopes, and `others` is not sorted again.
        let own = Self::new(scopes);
        let mut merged: Vec<Cow<'static, str>> = Vec::with_capacity(own.0.len() + others.0.len());
        let (mut own, mut others) = (own.0.into_iter().peekable(), others.0.iter().peekable());
        loop {
            let is_own = match (own.peek(), others.peek()) {
                (Some(scope), Some(other)) => pattern_order(scope, other).is_le(),
                (scope, _) => scope.is_some(),
            };
            let next = if is_own { own.next() } else { others.next().cloned() };
            let Some(next) = next else { return Self(merged) };
            if merged.last().is_none_or(|kept| !satisfies(kept, &next)) {
                merged.push(next);
            }
        }
    }

    /// The scopes that nearly every server has are not copied: this set is part of every other.
    pub(super) fn of_every_caller(scopes: impl IntoIterator<Item = String>) -> Self {
        let known = |scope: &String| ANONYMOUS.iter().find(|known| *known == scope);
        let shared = |scope: String| known(&scope).map_or(Cow::Owned(scope), |&known| Cow::Borrowed(known));
        Self::normalised(scopes.into_iter().map(shared).collect())
    }

    fn normalised(mut scopes: Vec<Cow<'static, str>>) -> Self {
        scopes.sort_unstable_by(|a, b| pattern_order(a, b));
        // Scopes covered by a pattern follow it without a gap, so comparing with the last kept one
        // suffices.
        scopes.dedup_by(|later, kept| satisfies(kept, later));
        Self(scopes)
    }

    #[must_use]
    pub fn allows(&self, required: &str) -> bool {
        // Any scope between a pattern and a text that it covers has the pattern's prefix, so it is
        // covered and not in the set. Thus only the last scope that does not come after the text
        // can cover it.
        let place = self.0.partition_point(|held| !comes_after(held, required));
        self.0[..place].last().is_some_and(|held| satisfies(held, required))
    }

    /// True if it allows some scope with this prefix.
    #[must_use]
    pub fn allows_some(&self, prefix: &str) -> bool {
        let reaches = |held: &str| match held.strip_suffix('*') {
            Some(stem) => stem.starts_with(prefix) || prefix.starts_with(stem),
            None => held.starts_with(prefix),
        };
        self.iter().any(reaches)
    }

    #[must_use]
    pub fn first_missing<'a>(&self, required: &'a [String]) -> Option<&'a str> {
        required.iter().map(String::as_str).find(|scope| !self.allows(scope))
    }

    /// Returns the unsatisfied part; none if satisfied.
    #[must_use]
    pub fn missing(&self, expression: &Expression) -> Option<Expression> {
        match expression {
            Expression::Scope(scope) => (!self.allows(scope)).then(|| expression.clone()),
            Expression::AllOf(parts) => {
                let missing: Vec<_> = parts.iter().filter_map(|part| self.missing(part)).collect();
                (!missing.is_empty()).then(|| Expression::all_of(missing))
            }
            Expression::AnyOf(parts) => {
                let missing: Option<Vec<_>> = parts.iter().map(|part| self.missing(part)).collect();
                missing.map(Expression::any_of)
            }
        }
    }

    #[must_use]
    pub fn satisfies(&self, expression: &Expression) -> bool {
        match expression {
            Expression::Scope(scope) => self.allows(scope),
            Expression::AllOf(parts) => parts.iter().all(|part| self.satisfies(part)),
            Expression::AnyOf(parts) => parts.iter().any(|part| self.satisfies(part)),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}

/// Orders by the text before a final star; if equal, the star comes first.
fn pattern_order(a: &str, b: &str) -> Ordering {
    let key = |scope: &str| (scope.strip_suffix('*').map_or(scope.len(), str::len), !scope.ends_with('*'));
    let ((a_stem, a_plain), (b_stem, b_plain)) = (key(a), key(b));
    a.as_bytes()[..a_stem].cmp(&b.as_bytes()[..b_stem]).then(a_plain.cmp(&b_plain))
}

/// True if a held scope comes after a plain text in the same order.
fn comes_after(held: &str, text: &str) -> bool {
    held.strip_suffix('*').unwrap_or(held).as_bytes() > text.as_bytes()
}

/// Its JSON has the form of Taskcluster's API references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Expression {
    /// All parts; satisfied if empty.
    AllOf(Vec<Expression>),
    /// Any part; not satisfied if empty.
    AnyOf(Vec<Expression>),
    #[serde(untagged)]
    Scope(String),
}

impl Expression {
    pub fn all_of(parts: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::AllOf(parts.into_iter().map(Into::into).collect()).without_wrapping()
    }

    pub fn any_of(parts: impl IntoIterator<Item = impl Into<Self>>) -> Self {
        Self::AnyOf(parts.into_iter().map(Into::into).collect()).without_wrapping()
    }

    /// Unwraps a single part.
    fn without_wrapping(self) -> Self {
        match self {
            Self::AllOf(mut parts) | Self::AnyOf(mut parts) if parts.len() == 1 => parts.remove(0),
            Self::Scope(_) | Self::AllOf(_) | Self::AnyOf(_) => self,
        }
    }
}

impl From<String> for Expression {
    fn from(scope: String) -> Self {
        Self::Scope(scope)
    }
}

impl From<&str> for Expression {
    fn from(scope: &str) -> Self {
        Self::Scope(scope.to_owned())
    }
}

impl std::fmt::Display for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, parts) = match self {
            Self::Scope(scope) => return f.write_str(scope),
            Self::AllOf(parts) => ("all of", parts),
            Self::AnyOf(parts) => ("any of", parts),
        };
        write!(f, "{name} [")?;
        for (index, part) in parts.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{part}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(scopes: &[&str]) -> ScopeSet {
        ScopeSet::new(scopes.iter().map(|scope| (*scope).to_owned()))
    }

    #[test]
    fn only_final_star_of_held_scope_is_pattern() {
        for (held, required, expected) in [
            ("a:b", "a:b", true),
            ("a:b", "a:bc", false),
            ("a:b", "a:", false),
            ("a:*", "a:b", true),
            ("a:*", "a:", true),
            ("a:*", "a", false),
            ("a:*", "a:*", true),
            ("a:b", "a:*", false),
            ("a:b*", "a:*", false),
            ("*", "anything", true),
            ("*", "", true),
            ("a*c", "abc", false),
            ("a*c", "a*c", true),
            ("a*c*", "a*cd", true),
            ("", "", true),
            ("", "a", false),
            ("a**", "a*", true),
            ("a**", "a*b", true),
            ("a**", "a", false),
            ("a**", "ab", false),
            ("a*", "a**", true),
            ("**", "*a", true),
            ("**", "a", false),
        ] {
            assert_eq!(satisfies(held, required), expected, "{held:?} for {required:?}");
        }
    }

    #[test]
    fn set_sorts_patterns_first_and_drops_covered_scopes() {
        let scopes = set(&["b", "a:b", "a:*", "a", "a:b*", "a:", "b", "a-"]);
        assert_eq!(scopes.iter().collect::<Vec<_>>(), ["a", "a-", "a:*", "b"]);
        assert_eq!(set(&["x", "*", "y*"]), set(&["*"]));
        assert_eq!(set(&[]).iter().count(), 0);
    }

    #[test]
    fn set_allows_some_text_with_a_prefix() {
        for (held, prefix, expected) in [
            ("a:b", "a:", true),
            ("a:b*", "a:", true),
            ("a:*", "a:", true),
            ("*", "a:", true),
            ("a*", "a:", true),
            ("a:", "a:", true),
            ("a", "a:", false),
            ("b:*", "a:", false),
        ] {
            assert_eq!(set(&[held]).allows_some(prefix), expected, "{held:?} for {prefix:?}");
        }
        assert!(!set(&[]).allows_some(""));
    }

    #[test]
    fn expressions_are_satisfied_as_named() {
        let scopes = set(&["a", "b:*"]);
        let yes = |expression: Expression| assert!(scopes.satisfies(&expression), "{expression}");
        let no = |expression: Expression| assert!(!scopes.satisfies(&expression), "{expression}");
        yes("a".into());
        no("c".into());
        yes(Expression::all_of(["a", "b:1"]));
        no(Expression::all_of(["a", "c"]));
        yes(Expression::any_of(["c", "b:1"]));
        no(Expression::any_of(["c", "d"]));
        yes(Expression::AllOf(vec![]));
        no(Expression::AnyOf(vec![]));
        yes(Expression::any_of([Expression::all_of(["c", "a"]), Expression::all_of(["a", "b:"])]));
    }

    #[test]
    fn missing_scopes_exclude_held_ones() {
        let scopes = set(&["a", "b:*"]);
        let missing = |expression| scopes.missing(&expression).map(|missing| missing.to_string());
        assert_eq!(missing(Expression::all_of(["a", "b:1"])), None);
        assert_eq!(missing(Expression::all_of(["a", "c"])).as_deref(), Some("c"));
        let route = Expression::all_of([Expression::from("a"), Expression::any_of(["c", "d"]), Expression::from("e")]);
        assert_eq!(missing(route).as_deref(), Some("all of [any of [c, d], e]"));
        let either = Expression::any_of([Expression::all_of(["a", "c"]), Expression::from("d")]);
        assert_eq!(missing(either).as_deref(), Some("any of [c, d]"));
        assert_eq!(missing(Expression::AnyOf(vec![])).as_deref(), Some("any of []"));
    }

    #[test]
    fn expressions_serialize_as_in_api_reference() {
        let expression = Expression::all_of([Expression::from("a"), Expression::any_of(["b", "c"])]);
        assert_eq!(serde_json::to_string(&expression).unwrap(), r#"{"AllOf":["a",{"AnyOf":["b","c"]}]}"#);
        assert_eq!(serde_json::to_string(&Expression::all_of(["a"])).unwrap(), r#""a""#);
    }

    #[test]
    fn some_scope_of_a_prefix_is_allowed_by_any_overlap() {
        for held in ["*", "queue:*", "queue:status:*", "queue:status:abc", "queue:status:a*"] {
            assert!(set(&[held]).allows_some("queue:status:"), "{held}");
        }
        for held in ["queue:status", "queue:status*x", "queue:get-task:*", "queue:statuses:*"] {
            assert!(!set(&[held]).allows_some("queue:status:"), "{held}");
        }
        assert!(!set(&[]).allows_some("queue:status:"));
    }

    #[test]
    fn initial_anonymous_scopes_are_read_only() {
        let scopes = ScopeSet::of_every_caller(ANONYMOUS.map(str::to_owned));
        assert!(scopes.allows("queue:status:abc") && !scopes.allows("queue:create-task:x"));
        assert!(scopes.allows("queue:get-artifact:public/log") && !scopes.allows("queue:get-artifact:private/log"));
        assert!(ANONYMOUS.iter().all(|scope| valid_scope(scope)));
    }

    proptest! {
        #[test]
        fn set_allows_exactly_what_its_scopes_allow(
            scopes in proptest::collection::vec("[ab:*]{0,4}", 0..8),
            required in "[ab:*]{0,5}",
        ) {
            // Includes two final stars: a request can be narrowed to such a scope.
            prop_assert!(scopes.iter().all(|scope| valid_pattern(scope)));
            let expected = scopes.iter().any(|held| satisfies(held, &required));
            let set = ScopeSet::new(scopes.clone());
            prop_assert_eq!(set.allows(&required), expected);
            prop_assert_eq!(set.first_missing(&scopes), None);
        }

        #[test]
        fn union_equals_set_of_all_scopes(
            own in proptest::collection::vec("[ab:*]{0,4}", 0..8),
            others in proptest::collection::vec("[ab:*]{0,4}", 0..8),
        ) {
            let all = ScopeSet::new(own.iter().chain(&others).cloned());
            prop_assert_eq!(ScopeSet::with(own, &ScopeSet::new(others)), all);
        }

        #[test]
        fn satisfied_expression_has_nothing_missing(
            held in proptest::collection::vec("[a-d]\\*?", 0..4),
            groups in proptest::collection::vec(proptest::collection::vec("[a-d]{1,2}", 0..4), 0..4),
        ) {
            let set = ScopeSet::new(held);
            let any = Expression::any_of(groups.iter().map(|group| Expression::all_of(group.clone())));
            let all = Expression::all_of(groups.iter().map(|group| Expression::any_of(group.clone())));
            for expression in [any, all] {
                prop_assert_eq!(set.missing(&expression).is_none(), set.satisfies(&expression));
            }
        }
    }
}
