//! Scopes: who may do what, as texts such as `queue:get-task:*`.
//!
//! Only a star at the very end of a *held* scope means anything; in a required scope it is a character like any other.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::Serialize;

pub use tenure_api::credentials::valid_scope;

/// What the role `anonymous` gives to every caller until an operator changes it: a migration makes the role. Workers rely
/// on reading a task's status without credentials.
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

/// Whether a text can narrow what a request may do, as `authorizedScopes` does: printable ASCII. Only the last star of
/// `a**` is a pattern, so that it matches what begins with `a*`. No client or role can have such a scope ([`valid_scope`]).
#[must_use]
pub fn valid_pattern(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// What the scopes of a task may take as JSON, in bytes. The holder of a claim sends them with each request, as a certificate
/// in base64: with the rest of the head they have to fit into the 128 KiB that a server reads of it.
pub const TASK_SCOPES_BYTES_MAX: usize = 80 << 10;
/// What a list of texts in JSON has besides each of them, as clients write it: quotes, a comma and a space.
const AROUND_SCOPE: usize = 4;

/// Checks the scopes that a task is to have.
///
/// # Errors
/// One has a character that no scope has, or all of them together are too long for credentials.
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

/// Whether holding one scope is enough where another is required.
#[must_use]
pub fn satisfies(held: &str, required: &str) -> bool {
    match held.strip_suffix('*') {
        Some(stem) => required.starts_with(stem),
        None => held == required,
    }
}

/// Held scopes without those that others among them cover, each pattern before the scopes that share its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ScopeSet(Vec<Cow<'static, str>>);

impl ScopeSet {
    /// The set of these scopes and no more.
    pub fn new(scopes: impl IntoIterator<Item = String>) -> Self {
        Self::normalised(scopes.into_iter().map(Cow::Owned).collect())
    }

    /// The set of these scopes and of another set.
    pub fn with(scopes: impl IntoIterator<Item = String>, others: &Self) -> Self {
        // Both are in order: of task credentials these are a few, and the others are not sorted again for each request.
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

    /// The set of what every caller may do. It is a part of every other set: those of its scopes that nearly every
    /// server has in it are not copied.
    pub(super) fn of_every_caller(scopes: impl IntoIterator<Item = String>) -> Self {
        let known = |scope: &String| ANONYMOUS.iter().find(|known| *known == scope);
        let shared = |scope: String| known(&scope).map_or(Cow::Owned(scope), |&known| Cow::Borrowed(known));
        Self::normalised(scopes.into_iter().map(shared).collect())
    }

    fn normalised(mut scopes: Vec<Cow<'static, str>>) -> Self {
        scopes.sort_unstable_by(|a, b| pattern_order(a, b));
        // In this order whatever a pattern covers follows it without a gap, so looking at the last one kept is enough.
        scopes.dedup_by(|later, kept| satisfies(kept, later));
        Self(scopes)
    }

    /// Whether the set allows what needs this scope.
    #[must_use]
    pub fn allows(&self, required: &str) -> bool {
        // What lies between a pattern and a text that it covers begins with the pattern's stem: it is covered too, and not
        // in the set. So the last one that does not come after the text is the only one that can cover it.
        let place = self.0.partition_point(|held| !comes_after(held, required));
        self.0[..place].last().is_some_and(|held| satisfies(held, required))
    }

    /// The first of these scopes that the set does not allow.
    #[must_use]
    pub fn first_missing<'a>(&self, required: &'a [String]) -> Option<&'a str> {
        required.iter().map(String::as_str).find(|scope| !self.allows(scope))
    }

    /// What is still needed before the expression holds; none if it does.
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

/// By what comes before a final star, and at equality the star first.
fn pattern_order(a: &str, b: &str) -> Ordering {
    let key = |scope: &str| (scope.strip_suffix('*').map_or(scope.len(), str::len), !scope.ends_with('*'));
    let ((a_stem, a_plain), (b_stem, b_plain)) = (key(a), key(b));
    a.as_bytes()[..a_stem].cmp(&b.as_bytes()[..b_stem]).then(a_plain.cmp(&b_plain))
}

/// Whether a held scope comes after a text in which no star is a pattern, in the same order.
fn comes_after(held: &str, text: &str) -> bool {
    held.strip_suffix('*').unwrap_or(held).as_bytes() > text.as_bytes()
}

/// The scopes that an operation requires; as JSON it has the form of Taskcluster's API references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Expression {
    /// Each of these; holds if there are none.
    AllOf(Vec<Expression>),
    /// One of these; does not hold if there are none.
    AnyOf(Vec<Expression>),
    /// One scope.
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

    /// A list of one is that one.
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
    fn only_a_star_at_the_end_of_the_held_scope_is_a_pattern() {
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
    fn a_set_keeps_patterns_first_and_drops_what_they_cover() {
        let scopes = set(&["b", "a:b", "a:*", "a", "a:b*", "a:", "b", "a-"]);
        assert_eq!(scopes.iter().collect::<Vec<_>>(), ["a", "a-", "a:*", "b"]);
        assert_eq!(set(&["x", "*", "y*"]), set(&["*"]));
        assert_eq!(set(&[]).iter().count(), 0);
    }

    #[test]
    fn expressions_hold_as_their_words_say() {
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
    fn what_is_missing_leaves_out_what_is_held() {
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
    fn expressions_have_the_form_of_the_api_reference() {
        let expression = Expression::all_of([Expression::from("a"), Expression::any_of(["b", "c"])]);
        assert_eq!(serde_json::to_string(&expression).unwrap(), r#"{"AllOf":["a",{"AnyOf":["b","c"]}]}"#);
        assert_eq!(serde_json::to_string(&Expression::all_of(["a"])).unwrap(), r#""a""#);
    }

    #[test]
    fn what_every_caller_may_do_from_the_start_is_reading_alone() {
        let scopes = ScopeSet::of_every_caller(ANONYMOUS.map(str::to_owned));
        assert!(scopes.allows("queue:status:abc") && !scopes.allows("queue:create-task:x"));
        assert!(scopes.allows("queue:get-artifact:public/log") && !scopes.allows("queue:get-artifact:private/log"));
        assert!(ANONYMOUS.iter().all(|scope| valid_scope(scope)));
    }

    proptest! {
        #[test]
        fn a_set_allows_exactly_what_its_scopes_do(
            scopes in proptest::collection::vec("[ab:*]{0,4}", 0..8),
            required in "[ab:*]{0,5}",
        ) {
            // With two stars at the end too: a request can be narrowed to such a scope.
            prop_assert!(scopes.iter().all(|scope| valid_pattern(scope)));
            let expected = scopes.iter().any(|held| satisfies(held, &required));
            let set = ScopeSet::new(scopes.clone());
            prop_assert_eq!(set.allows(&required), expected);
            prop_assert_eq!(set.first_missing(&scopes), None);
        }

        #[test]
        fn two_sets_together_are_the_set_of_all_their_scopes(
            own in proptest::collection::vec("[ab:*]{0,4}", 0..8),
            others in proptest::collection::vec("[ab:*]{0,4}", 0..8),
        ) {
            let all = ScopeSet::new(own.iter().chain(&others).cloned());
            prop_assert_eq!(ScopeSet::with(own, &ScopeSet::new(others)), all);
        }

        #[test]
        fn nothing_is_missing_exactly_when_an_expression_holds(
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
