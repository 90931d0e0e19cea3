//! Roles: names for sets of scopes. A caller with `assume:R` has the scopes of the role R as well.
//!
//! A role id that ends in a star matches every name with this prefix, and `<..>` in its scopes is replaced by the rest of
//! the name. A held scope that ends in a star assumes every role that it covers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::scopes::{ScopeSet, valid_scope};

/// The most characters that a role id may have.
pub const ROLE_ID_MAX: usize = 1_000;
/// The most scopes that one role or one client may have.
pub const SCOPES_MAX: usize = 10_000;
/// The most characters that a scope of a role or a client may have.
pub const SCOPE_CHARS_MAX: usize = 4_096;
/// The most characters that the description of a role or a client may have.
pub const DESCRIPTION_CHARS_MAX: usize = 10_240;
/// How large a set may get by expansion: the bytes of its scopes, and some more for each.
pub const EXPANSION_MAX: usize = 4 << 20;
/// What a scope counts for besides its bytes.
const SCOPE_OVERHEAD: usize = 32;
/// What roles may give while one set is expanded, in bytes, with scopes counted too that it has already: every caller may
/// ask what scopes amount to, and thousands of them may assume one role.
pub const GIVEN_MAX: usize = 64 << 20;
/// What is left of both for a client's own scopes, in bytes, when it assumes all roles.
pub const OWN_SCOPES_ROOM: usize = 1 << 20;
/// What a scope begins with that assumes a role.
pub const ASSUME: &str = "assume:";
/// Every caller holds this, signed or not. All that callers without credentials may do is in the role of that name.
pub const ASSUME_ANONYMOUS: &str = "assume:anonymous";
/// In the scopes of a role whose id ends in a star: the rest of the assumed name.
const PARAMETER: &str = "<..>";

/// Scopes expand to more than [`EXPANSION_MAX`], or the roles give more than [`GIVEN_MAX`] on the way there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "by the roles that they assume, the scopes expand to more than {EXPANSION_MAX} bytes, or roles give \
     more than {GIVEN_MAX} bytes on the way; make these roles smaller"
)]
pub struct TooLarge;

/// A role as far as expansion looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleScopes {
    /// What is assumed.
    pub role_id: String,
    /// The scopes of a caller that assumes it, before expansion.
    pub scopes: Vec<String>,
}

/// Whether a text can be the id of a role; the migration checks the same.
#[must_use]
pub fn valid_role_id(text: &str) -> bool {
    (1..=ROLE_ID_MAX).contains(&text.len()) && valid_scope(text)
}

/// Says which of the scopes that a role or a client is to have is not acceptable.
///
/// # Errors
/// A sentence for the caller.
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

/// Says which of the scopes of a role misuses the parameter.
///
/// # Errors
/// A sentence for the caller.
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

/// Says what is wrong with a description.
///
/// # Errors
/// A sentence for the caller.
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

/// What a caller must hold to give these scopes to a role or client that has those: whatever those do not cover. The
/// parameter of a role may become anything, so the caller that writes it must have all that it could become.
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

/// Whether a change of roles keeps out clients that assume all of them: one whose scopes expand to too much is refused, and a
/// caller that may make some roles must not do that to others. Where it is so already, roles may change as long as it gets no
/// worse, or none could be made smaller.
pub fn keeps_clients_out(before: &Resolver, after: &Resolver) -> bool {
    // Those without scopes of their own are the last that are kept out.
    let has_room = |roles: &Resolver| roles.room_of_all().map(|room| room >= OWN_SCOPES_ROOM + SCOPE_OVERHEAD);
    let after = has_room(after);
    after != Some(true) && after < has_room(before)
}

/// Whether roles give anything to a caller with one of these scopes.
pub fn assume_any(scopes: &[String]) -> bool {
    scopes.iter().any(|scope| assumed(scope).is_some())
}

/// What a scope assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assumed<'a> {
    Role(&'a str),
    AllThatBegin(&'a str),
}

/// A scope that is nothing but a star needs no roles: it covers them all.
fn assumed(scope: &str) -> Option<Assumed<'_>> {
    if let Some(name) = scope.strip_prefix(ASSUME) {
        return Some(name.strip_suffix('*').map_or(Assumed::Role(name), Assumed::AllThatBegin));
    }
    let stem = scope.strip_suffix('*')?;
    (!stem.is_empty() && ASSUME.starts_with(stem)).then_some(Assumed::AllThatBegin(""))
}

/// A scope of a role whose id ends in a star.
#[derive(Debug)]
struct Template {
    before: String,
    /// What follows the parameter; none: there is none.
    after: Option<String>,
}

impl Template {
    fn new(scope: String) -> Self {
        match scope.split_once(PARAMETER) {
            Some((before, after)) => Self { before: before.to_owned(), after: Some(after.to_owned()) },
            None => Self { before: scope, after: None },
        }
    }

    /// A rest that may be anything from here on swallows what follows the parameter.
    fn fill(&self, rest: Rest<'_>) -> String {
        match (&self.after, rest) {
            (None, _) => self.before.clone(),
            (Some(after), Rest::Is(text)) => format!("{}{text}{after}", self.before),
            (Some(_), Rest::Begins(text)) => format!("{}{text}*", self.before),
        }
    }

    /// As it is assumed by the role itself, whatever the parameter becomes.
    fn pattern(&self) -> String {
        self.fill(Rest::Begins(""))
    }
}

/// What the parameter becomes.
#[derive(Clone, Copy)]
enum Rest<'a> {
    Is(&'a str),
    Begins(&'a str),
}

/// All roles, ready to expand scopes with.
#[derive(Debug)]
pub struct Resolver {
    exact: BTreeMap<String, Vec<String>>,
    /// Roles whose id ends in a star, by what comes before it.
    starred: BTreeMap<String, Vec<Template>>,
    /// The lengths that these beginnings have, so that only these are looked up.
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
        // A role `anonymous` that is too large gives nothing to anyone.
        let closed = resolver.close(scopes.clone()).unwrap_or_else(|TooLarge| scopes.to_vec());
        resolver.of_every_caller = Arc::new(ScopeSet::of_every_caller(closed));
        resolver
    }

    /// What every caller may do, signed or not.
    pub fn of_every_caller(&self) -> Arc<ScopeSet> {
        Arc::clone(&self.of_every_caller)
    }

    /// Everything that a caller with these scopes may do: theirs, what their roles give, and what of_every_caller may.
    ///
    /// # Errors
    /// If that is too much.
    pub fn expand(&self, scopes: impl IntoIterator<Item = String>) -> Result<ScopeSet, TooLarge> {
        self.expand_within(scopes, GIVEN_MAX)
    }

    /// The same where roles give no more than so many bytes on the way, so that no more has to be worked out.
    ///
    /// # Errors
    /// If they give more, or that is too much.
    pub fn expand_within(
        &self,
        scopes: impl IntoIterator<Item = String>,
        given_max: usize,
    ) -> Result<ScopeSet, TooLarge> {
        let own: Vec<String> = scopes.into_iter().collect();
        let own = if assume_any(&own) { self.follow(own, given_max)?.in_order } else { own };
        Ok(ScopeSet::with(own, &self.of_every_caller))
    }

    /// These scopes and what their roles give.
    ///
    /// # Errors
    /// If that is too much.
    pub fn resolve(&self, scopes: impl IntoIterator<Item = String>) -> Result<ScopeSet, TooLarge> {
        self.close(scopes).map(ScopeSet::new)
    }

    /// How much a client that assumes all roles may have besides, in bytes; none: it is kept out.
    fn room_of_all(&self) -> Option<usize> {
        let found = self.follow([format!("{ASSUME}*")], GIVEN_MAX).ok()?;
        Some((EXPANSION_MAX - found.size).min(GIVEN_MAX - found.given))
    }

    fn close(&self, scopes: impl IntoIterator<Item = String>) -> Result<Vec<String>, TooLarge> {
        self.follow(scopes, GIVEN_MAX).map(|found| found.in_order)
    }

    /// Follows roles until they give nothing new, and at most so many bytes; roles that assume each other end there too.
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
            // One whose stem is the name itself is there already.
            let longer = starred.filter(|(stem, _)| stem.len() > name.len());
            matches.extend(longer.map(|(stem, templates)| Match::Starred(stem, templates, Rest::Begins(""))));
        } else if let Some((id, scopes)) = self.exact.get_key_value(name) {
            matches.push(Match::Exact(id, scopes));
        }
        matches
    }

    /// A way from a role through what it assumes back to itself, if there is one. A lone star is no such way: it covers
    /// everything without any role.
    pub fn find_cycle(&self, role_id: &str) -> Option<Vec<String>> {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        // Many roles may have the same scope, and each may lead to many.
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
    /// Bytes of the scopes that were given, known ones among them.
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
