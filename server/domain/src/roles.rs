//! Roles: names for sets of scopes. A caller with `assume:R` also has the scopes of the role R.
//!
//! A role id with a final star matches every name with this prefix, and `<..>` in its scopes
//! becomes the rest of the name. A held scope with a final star assumes every role that it covers.

mod search;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub use self::search::{Search, Way};
use super::scopes::{ScopeSet, valid_scope};

pub const ROLE_ID_MAX: usize = 1_000;
pub const SCOPES_MAX: usize = 10_000;
pub const SCOPE_CHARS_MAX: usize = 4_096;
pub const DESCRIPTION_CHARS_MAX: usize = 10_240;
/// Maximum bytes of an expanded set: its scopes, and `SCOPE_OVERHEAD` for each.
pub const EXPANSION_MAX: usize = 4 << 20;
/// Bytes counted per scope in addition to its length.
const SCOPE_OVERHEAD: usize = 32;
/// Maximum bytes that roles give during one expansion, including duplicates. Every caller may
/// expand scopes, and thousands of scopes may assume the same role.
pub const GIVEN_MAX: usize = 64 << 20;
/// Minimum bytes left for own scopes of a client that assumes all roles.
pub const OWN_SCOPES_ROOM: usize = 1 << 20;
pub const ASSUME: &str = "assume:";
/// Held by every caller. The role `anonymous` has all scopes of callers without credentials.
pub const ASSUME_ANONYMOUS: &str = "assume:anonymous";
/// The rest of the assumed name.
const PARAMETER: &str = "<..>";

/// The expansion exceeds [`EXPANSION_MAX`] or [`GIVEN_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "by the roles that they assume, the scopes expand to more than {EXPANSION_MAX} bytes, or roles give \
     more than {GIVEN_MAX} bytes on the way; make these roles smaller"
)]
pub struct TooLarge;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleScopes {
    pub role_id: String,
    /// The scopes before expansion.
    pub scopes: Vec<String>,
}

/// The migration has the same check.
#[must_use]
pub fn valid_role_id(text: &str) -> bool {
    (1..=ROLE_ID_MAX).contains(&text.len()) && valid_scope(text)
}

/// The error is a sentence for the caller.
pub fn check_scopes(scopes: &[String]) -> Result<(), String> {
    if scopes.len() > SCOPES_MAX {
        return Err(format!("`scopes` has {} items; at most {SCOPES_MAX}", scopes.len()));
    }
    for (index, scope) in scopes.iter().enumerate() {
        if scope.len() > SCOPE_CHARS_MAX {
            return Err(format!("`scopes[{index}]` has {} characters; at most {SCOPE_CHARS_MAX}", scope.len()));
        }
        if !valid_scope(scope) {
            return Err(format!("`scopes[{index}]` must be printable ASCII and not end in two stars"));
        }
    }
    Ok(())
}

/// The error is a sentence for the caller.
pub fn check_parameters(scopes: &[String]) -> Result<(), String> {
    for scope in scopes {
        let Some((before, after)) = scope.split_once(PARAMETER) else { continue };
        if after.contains(PARAMETER) {
            return Err(format!("the scope {scope:?} has {PARAMETER} more than once"));
        }
        if before.ends_with('*') {
            return Err(format!("the scope {scope:?} must not have a star just before {PARAMETER}"));
        }
    }
    Ok(())
}

pub fn check_description(description: &str) -> Result<(), String> {
    let length = description.chars().count();
    if length > DESCRIPTION_CHARS_MAX {
        return Err(format!("`description` has {length} characters; at most {DESCRIPTION_CHARS_MAX}"));
    }
    if description.contains('\0') {
        return Err("`description` must not have the character NUL".to_owned());
    }
    Ok(())
}

/// Returns the scopes that a caller needs to change `existing` to `new`. A placeholder may become
/// anything, so the caller needs everything it could become.
pub fn added(role_id: Option<&str>, new: &[String], existing: &[String]) -> Vec<String> {
    let kept: HashSet<&str> = existing.iter().map(String::as_str).collect();
    let covered = ScopeSet::new(existing.iter().cloned());
    let parameterised = role_id.is_some_and(|id| id.ends_with('*'));
    new.iter()
        .filter(|scope| !kept.contains(scope.as_str()))
        .map(|scope| match scope.split_once(PARAMETER) {
            Some((before, _)) if parameterised => format!("{before}*"),
            Some(_) | None => scope.clone(),
        })
        .filter(|scope| !covered.allows(scope))
        .collect()
}

/// True if a change locks out clients that assume all roles. A client whose expansion is too large
/// is refused, and a caller who may change some roles must not lock out others. If such clients are
/// locked out already, changes must not make it worse; otherwise no role could be made smaller.
pub fn keeps_clients_out(before: &Resolver, after: &Resolver) -> bool {
    // Clients without own scopes are locked out last.
    let has_room = |roles: &Resolver| roles.room_of_all().map(|room| room >= OWN_SCOPES_ROOM + SCOPE_OVERHEAD);
    let after = has_room(after);
    after != Some(true) && after < has_room(before)
}

pub fn assume_any(scopes: &[String]) -> bool {
    scopes.iter().any(|scope| assumed(scope).is_some())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assumed<'a> {
    Role(&'a str),
    AllThatBegin(&'a str),
}

/// A lone star needs no roles: it covers everything.
fn assumed(scope: &str) -> Option<Assumed<'_>> {
    if let Some(name) = scope.strip_prefix(ASSUME) {
        return Some(name.strip_suffix('*').map_or(Assumed::Role(name), Assumed::AllThatBegin));
    }
    let stem = scope.strip_suffix('*')?;
    (!stem.is_empty() && ASSUME.starts_with(stem)).then_some(Assumed::AllThatBegin(""))
}

#[derive(Debug)]
struct Template {
    before: String,
    after: Option<String>,
}

impl Template {
    fn new(scope: String) -> Self {
        match scope.split_once(PARAMETER) {
            Some((before, after)) => Self { before: before.to_owned(), after: Some(after.to_owned()) },
            None => Self { before: scope, after: None },
        }
    }

    /// An open-ended rest ends in a star, which absorbs the text after the placeholder.
    fn fill(&self, rest: Rest<'_>) -> String {
        match (&self.after, rest) {
            (None, _) => self.before.clone(),
            (Some(after), Rest::Is(text)) => format!("{}{text}{after}", self.before),
            (Some(_), Rest::Begins(text)) => format!("{}{text}*", self.before),
        }
    }

    /// Returns the scope with any value of the placeholder.
    fn pattern(&self) -> String {
        self.fill(Rest::Begins(""))
    }
}

#[derive(Clone, Copy)]
enum Rest<'a> {
    Is(&'a str),
    Begins(&'a str),
}

#[derive(Debug)]
pub struct Resolver {
    exact: BTreeMap<String, Vec<String>>,
    /// Roles with a final star, by prefix.
    starred: BTreeMap<String, Vec<Template>>,
    /// The lengths of these prefixes; only these are looked up.
    stem_lengths: Vec<usize>,
    of_every_caller: Arc<ScopeSet>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new([])
    }
}

impl Resolver {
    fn empty() -> Self {
        Self {
            exact: BTreeMap::new(),
            starred: BTreeMap::new(),
            stem_lengths: Vec::new(),
            of_every_caller: Arc::default(),
        }
    }

    pub fn new(roles: impl IntoIterator<Item = RoleScopes>) -> Self {
        let (mut exact, mut starred) = (BTreeMap::new(), BTreeMap::new());
        for RoleScopes { role_id, scopes } in roles {
            match role_id.strip_suffix('*') {
                Some(stem) => drop(starred.insert(stem.to_owned(), scopes.into_iter().map(Template::new).collect())),
                None => drop(exact.insert(role_id, scopes)),
            }
        }
        let mut stem_lengths: Vec<usize> = starred.keys().map(String::len).collect();
        stem_lengths.sort_unstable();
        stem_lengths.dedup();
        let mut resolver = Self { exact, starred, stem_lengths, ..Self::empty() };
        let scopes = [ASSUME_ANONYMOUS.to_owned()];
        // An oversized role `anonymous` gives nothing to anyone.
        let closed = resolver.close(scopes.clone()).unwrap_or_else(|TooLarge| scopes.to_vec());
        resolver.of_every_caller = Arc::new(ScopeSet::of_every_caller(closed));
        resolver
    }

    pub fn of_every_caller(&self) -> Arc<ScopeSet> {
        Arc::clone(&self.of_every_caller)
    }

    /// Adds the scopes of roles and of every caller. Fails if they are too large.
    pub fn expand(&self, scopes: impl IntoIterator<Item = String>) -> Result<ScopeSet, TooLarge> {
        self.expand_within(scopes, GIVEN_MAX)
    }

    /// Like [`Self::expand`], with a smaller limit for the bytes that roles give.
    pub fn expand_within(
        &self,
        scopes: impl IntoIterator<Item = String>,
        given_max: usize,
    ) -> Result<ScopeSet, TooLarge> {
        let own: Vec<String> = scopes.into_iter().collect();
        let own = if assume_any(&own) { self.follow(own, given_max)?.in_order } else { own };
        Ok(ScopeSet::with(own, &self.of_every_caller))
    }

    /// Adds the scopes of roles. Fails if they are too large.
    pub fn resolve(&self, scopes: impl IntoIterator<Item = String>) -> Result<ScopeSet, TooLarge> {
        self.close(scopes).map(ScopeSet::new)
    }

    /// Bytes left for own scopes of a client that assumes all roles; none if it is locked out.
    fn room_of_all(&self) -> Option<usize> {
        let found = self.follow([format!("{ASSUME}*")], GIVEN_MAX).ok()?;
        Some((EXPANSION_MAX - found.size).min(GIVEN_MAX - found.given))
    }

    fn close(&self, scopes: impl IntoIterator<Item = String>) -> Result<Vec<String>, TooLarge> {
        self.follow(scopes, GIVEN_MAX).map(|found| found.in_order)
    }

    /// Follows roles until they give nothing new, which also ends cycles.
    fn follow(&self, scopes: impl IntoIterator<Item = String>, given_max: usize) -> Result<Closure, TooLarge> {
        let mut found = Closure { given_max, ..Closure::default() };
        for scope in scopes {
            found.add(scope)?;
        }
        let mut next = 0;
        while let Some(scope) = found.in_order.get(next).cloned() {
            next += 1;
            if let Some(assumed) = assumed(&scope) {
                self.each_scope(assumed, |scope| found.add(scope))?;
            }
        }
        Ok(found)
    }

    fn each_scope(
        &self,
        assumed: Assumed<'_>,
        mut give: impl FnMut(String) -> Result<(), TooLarge>,
    ) -> Result<(), TooLarge> {
        for role in self.matching(assumed) {
            match role {
                Match::Exact(_, scopes) => scopes.iter().try_for_each(|scope| give(scope.clone()))?,
                Match::Starred(_, templates, rest) => {
                    templates.iter().try_for_each(|template| give(template.fill(rest)))?;
                }
            }
        }
        Ok(())
    }

    fn matching<'a>(&'a self, assumed: Assumed<'a>) -> Vec<Match<'a>> {
        let mut matches = Vec::new();
        let (name, open) = match assumed {
            Assumed::Role(name) => (name, false),
            Assumed::AllThatBegin(name) => (name, true),
        };
        for &length in self.stem_lengths.iter().take_while(|&&length| length <= name.len()) {
            let Some(stem) = name.get(..length) else { continue };
            let Some((stem, templates)) = self.starred.get_key_value(stem) else { continue };
            let rest = &name[length..];
            let rest = if open { Rest::Begins(rest) } else { Rest::Is(rest) };
            matches.push(Match::Starred(stem, templates, rest));
        }
        if open {
            let from = name.to_owned()..;
            let exact = self.exact.range(from.clone()).take_while(|(id, _)| id.starts_with(name));
            matches.extend(exact.map(|(id, scopes)| Match::Exact(id, scopes)));
            let starred = self.starred.range(from).take_while(|(stem, _)| stem.starts_with(name));
            // A role whose prefix equals the name was added above.
            let longer = starred.filter(|(stem, _)| stem.len() > name.len());
            matches.extend(longer.map(|(stem, templates)| Match::Starred(stem, templates, Rest::Begins(""))));
        } else if let Some((id, scopes)) = self.exact.get_key_value(name) {
            matches.push(Match::Exact(id, scopes));
        }
        matches
    }

    /// Finds a cycle of assumed roles. A lone star is no cycle: it covers everything.
    pub fn find_cycle(&self, role_id: &str) -> Option<Vec<String>> {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        // Many roles may share a scope, and each may lead to many roles.
        let mut followed = HashSet::new();
        let mut waiting = vec![role_id.to_owned()];
        while let Some(from) = waiting.pop() {
            for scope in self.scopes_of(&from) {
                let Some(assumed) = assumed(&scope) else { continue };
                if !followed.insert(scope.clone()) {
                    continue;
                }
                for to in self.matching(assumed).iter().map(Match::role_id) {
                    if to == role_id {
                        return Some(way_back(&seen, role_id, from));
                    }
                    if !seen.contains_key(&to) {
                        seen.insert(to.clone(), from.clone());
                        waiting.push(to);
                    }
                }
            }
        }
        None
    }

    fn scopes_of(&self, role_id: &str) -> Vec<String> {
        match role_id.strip_suffix('*') {
            Some(stem) => self.starred.get(stem).into_iter().flatten().map(Template::pattern).collect(),
            None => self.exact.get(role_id).cloned().unwrap_or_default(),
        }
    }
}

fn way_back(seen: &BTreeMap<String, String>, role_id: &str, last: String) -> Vec<String> {
    let mut way = vec![role_id.to_owned()];
    let mut at = Some(last);
    while let Some(role) = at.filter(|role| role != role_id) {
        at = seen.get(&role).cloned();
        way.push(role);
    }
    way.push(role_id.to_owned());
    way.reverse();
    way
}

enum Match<'a> {
    Exact(&'a str, &'a [String]),
    Starred(&'a str, &'a [Template], Rest<'a>),
}

impl Match<'_> {
    fn role_id(&self) -> String {
        match self {
            Self::Exact(id, _) => (*id).to_owned(),
            Self::Starred(stem, _, _) => format!("{stem}*"),
        }
    }
}

#[derive(Default)]
struct Closure {
    in_order: Vec<String>,
    known: HashSet<String>,
    size: usize,
    /// Bytes of the given scopes, including duplicates.
    given: usize,
    given_max: usize,
}

impl Closure {
    fn add(&mut self, scope: String) -> Result<(), TooLarge> {
        self.given += scope.len() + SCOPE_OVERHEAD;
        if self.given > self.given_max {
            return Err(TooLarge);
        }
        if self.known.contains(&scope) {
            return Ok(());
        }
        self.size += scope.len() + SCOPE_OVERHEAD;
        if self.size > EXPANSION_MAX {
            return Err(TooLarge);
        }
        self.known.insert(scope.clone());
        self.in_order.push(scope);
        Ok(())
    }
}

#[cfg(test)]
#[path = "roles_tests.rs"]
mod tests;
