//! An operation's scopes, as a template with placeholders. The document prints it; a request's
//! values fill it.

use std::borrow::Cow;

use serde_json::{Value, json};

use tenure_domain::scopes::{Expression, ScopeSet};

/// A scope expression with placeholders, such as `queue:status:<taskId>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    Scope(&'static str),
    AllOf(&'static [Template]),
    AnyOf(&'static [Template]),
    /// An empty list requires nothing.
    ForEach {
        item: &'static str,
        list: &'static str,
        scopes: &'static [&'static str],
    },
    /// Required only under a condition.
    If {
        condition: &'static str,
        then: &'static Template,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub struct Unfilled(pub &'static str);

impl Template {
    /// Fills the placeholders; `path` supplies values missing from `values`.
    pub fn fill(&self, values: &Values<'_>, path: &Values<'_>) -> Result<Expression, Unfilled> {
        Ok(Expression::all_of(self.parts(&Lookup { values, path, item: None })?))
    }

    /// True if `held` satisfies the template, as for nearly every caller. Avoids building the
    /// expression, which only refusals need.
    pub fn is_held(&self, held: &ScopeSet, values: &Values<'_>, path: &Values<'_>) -> Result<bool, Unfilled> {
        let lookup = Lookup { values, path, item: None };
        let is_held = self.check(&mut Check { held, scope: String::new() }, &lookup, Within::AllOf)?;
        debug_assert_eq!(self.fill(values, path).map(|expression| held.satisfies(&expression)), Ok(is_held));
        Ok(is_held)
    }

    /// Under `within`, a list contributes one part per item, and a condition one or none.
    fn check(&self, check: &mut Check<'_>, lookup: &Lookup<'_>, within: Within) -> Result<bool, Unfilled> {
        match *self {
            Self::Scope(text) => check.allows(text, lookup),
            Self::AllOf(parts) => Within::AllOf.over(parts, |part| part.check(check, lookup, Within::AllOf)),
            Self::AnyOf(parts) => Within::AnyOf.over(parts, |part| part.check(check, lookup, Within::AnyOf)),
            Self::ForEach { item, list, scopes } => within.over(lookup.list(list)?, |value| {
                let lookup = Lookup { item: Some((item, value)), ..*lookup };
                Within::AllOf.over(scopes, |text| check.allows(text, &lookup))
            }),
            Self::If { condition, then } => {
                if lookup.condition(condition)? {
                    then.check(check, lookup, within)
                } else {
                    Ok(within == Within::AllOf)
                }
            }
        }
    }

    fn parts(&self, lookup: &Lookup<'_>) -> Result<Vec<Expression>, Unfilled> {
        let all = |parts: &[Self]| -> Result<Vec<Expression>, Unfilled> {
            Ok(parts.iter().map(|part| part.parts(lookup)).collect::<Result<Vec<_>, _>>()?.concat())
        };
        match *self {
            Self::Scope(text) => Ok(vec![lookup.scope(text)?]),
            Self::AllOf(parts) => Ok(vec![Expression::all_of(all(parts)?)]),
            Self::AnyOf(parts) => Ok(vec![Expression::any_of(all(parts)?)]),
            Self::ForEach { item, list, scopes } => {
                let of_one = |value: &Cow<'_, str>| {
                    let lookup = Lookup { item: Some((item, value)), ..*lookup };
                    let scopes: Result<Vec<_>, _> = scopes.iter().map(|text| lookup.scope(text)).collect();
                    Ok(Expression::all_of(scopes?))
                };
                lookup.list(list)?.iter().map(of_one).collect()
            }
            Self::If { condition, then } => {
                if lookup.condition(condition)? {
                    then.parts(lookup)
                } else {
                    Ok(Vec::new())
                }
            }
        }
    }

    /// Format of Taskcluster's API references: a text, `{"AllOf": [...]}`, `{"AnyOf": [...]}`,
    /// `{"for": x, "in": list, "each": text}`, or `{"if": condition, "then": expression}`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut printed = self.printed();
        if printed.len() == 1 { printed.remove(0) } else { json!({"AllOf": printed}) }
    }

    fn printed(&self) -> Vec<Value> {
        let all = |parts: &[Self]| parts.iter().flat_map(Self::printed).collect::<Vec<_>>();
        match *self {
            Self::Scope(text) => vec![text.into()],
            Self::AllOf(parts) => vec![json!({"AllOf": all(parts)})],
            Self::AnyOf(parts) => vec![json!({"AnyOf": all(parts)})],
            Self::ForEach { item, list, scopes } => {
                scopes.iter().map(|text| json!({"for": item, "in": list, "each": text})).collect()
            }
            Self::If { condition, then } => vec![json!({"if": condition, "then": then.to_json()})],
        }
    }
}

/// By name.
#[derive(Clone, Debug, Default)]
pub struct Values<'a> {
    texts: Vec<(&'a str, Cow<'a, str>)>,
    lists: Vec<(&'a str, Vec<Cow<'a, str>>)>,
    conditions: Vec<(&'a str, bool)>,
}

impl<'a> Values<'a> {
    /// No values beyond the path's.
    #[must_use]
    pub fn of_path() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn text(mut self, name: &'a str, value: impl Into<Cow<'a, str>>) -> Self {
        self.texts.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn list(mut self, name: &'a str, items: impl IntoIterator<Item = impl Into<Cow<'a, str>>>) -> Self {
        self.lists.push((name, items.into_iter().map(Into::into).collect()));
        self
    }

    #[must_use]
    pub fn condition(mut self, name: &'a str, holds: bool) -> Self {
        self.conditions.push((name, holds));
        self
    }

    fn find_text(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_ref())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    AllOf,
    AnyOf,
}

impl Within {
    /// Stops as soon as the result is known.
    fn over<T>(self, parts: &[T], mut holds: impl FnMut(&T) -> Result<bool, Unfilled>) -> Result<bool, Unfilled> {
        let decides = self == Self::AnyOf;
        for part in parts {
            if holds(part)? == decides {
                return Ok(decides);
            }
        }
        Ok(!decides)
    }
}

/// A caller's scopes, and a buffer for comparisons.
struct Check<'a> {
    held: &'a ScopeSet,
    scope: String,
}

impl Check<'_> {
    fn allows(&mut self, template: &'static str, lookup: &Lookup<'_>) -> Result<bool, Unfilled> {
        self.scope.clear();
        lookup.write_scope(template, &mut self.scope)?;
        Ok(self.held.allows(&self.scope))
    }
}

#[derive(Clone, Copy)]
struct Lookup<'a> {
    values: &'a Values<'a>,
    path: &'a Values<'a>,
    item: Option<(&'a str, &'a str)>,
}

impl Lookup<'_> {
    fn scope(&self, template: &'static str) -> Result<Expression, Unfilled> {
        let mut scope = String::with_capacity(template.len());
        self.write_scope(template, &mut scope)?;
        Ok(scope.into())
    }

    /// A value that looks like a placeholder stays unchanged.
    fn write_scope(&self, template: &'static str, scope: &mut String) -> Result<(), Unfilled> {
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('<') {
            let (name, behind) = after.split_once('>').ok_or(Unfilled(template))?;
            scope.push_str(before);
            scope.push_str(self.text(name).ok_or(Unfilled(name))?);
            rest = behind;
        }
        scope.push_str(rest);
        Ok(())
    }

    fn text(&self, name: &str) -> Option<&str> {
        let item = self.item.filter(|(key, _)| *key == name).map(|(_, value)| value);
        item.or_else(|| self.values.find_text(name)).or_else(|| self.path.find_text(name))
    }

    fn list(&self, name: &'static str) -> Result<&[Cow<'_, str>], Unfilled> {
        let found = self.values.lists.iter().find(|(key, _)| *key == name);
        found.map(|(_, items)| items.as_slice()).ok_or(Unfilled(name))
    }

    fn condition(&self, name: &'static str) -> Result<bool, Unfilled> {
        let found = self.values.conditions.iter().find(|(key, _)| *key == name);
        found.map(|(_, holds)| *holds).ok_or(Unfilled(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: Template = Template::AllOf(&[
        Template::ForEach { item: "route", list: "routes", scopes: &["route:<route>", "at:<queue>/<route>"] },
        Template::AnyOf(&[
            Template::Scope("one:<queue>"),
            Template::If { condition: "isLowest", then: &Template::Scope("two:<id>") },
        ]),
    ]);

    fn values<'a>(routes: &[&'a str], is_lowest: bool) -> Values<'a> {
        Values::of_path().list("routes", routes.to_vec()).text("queue", "a/<id>").condition("isLowest", is_lowest)
    }

    #[test]
    fn template_is_printed_and_filled() {
        let printed = json!({"AllOf": [
            {"for": "route", "in": "routes", "each": "route:<route>"},
            {"for": "route", "in": "routes", "each": "at:<queue>/<route>"},
            {"AnyOf": ["one:<queue>", {"if": "isLowest", "then": "two:<id>"}]},
        ]});
        assert_eq!(TEMPLATE.to_json(), printed);
        let path = Values::of_path().text("id", "7").text("queue", "of the path");
        let filled = TEMPLATE.fill(&values(&["x", "y"], true), &path).unwrap();
        let expected =
            "all of [all of [route:x, at:a/<id>/x], all of [route:y, at:a/<id>/y], any of [one:a/<id>, two:7]]";
        assert_eq!(filled.to_string(), expected);
        let filled = TEMPLATE.fill(&values(&[], false), &path).unwrap();
        assert_eq!(filled, Expression::from("one:a/<id>"), "a single part needs no list");
    }

    #[test]
    fn is_held_agrees_with_filled_template() {
        let path = Values::of_path().text("id", "7");
        let held = |scopes: &[&str], routes: &[&str], is_lowest| {
            let set = ScopeSet::new(scopes.iter().map(|scope| (*scope).to_owned()));
            let values = values(routes, is_lowest);
            let is_held = TEMPLATE.is_held(&set, &values, &path).unwrap();
            assert_eq!(is_held, set.satisfies(&TEMPLATE.fill(&values, &path).unwrap()));
            is_held
        };
        let either = Template::AnyOf(&[
            Template::ForEach { item: "route", list: "routes", scopes: &["route:<route>", "at:<route>"] },
            Template::If { condition: "isLowest", then: &Template::Scope("lowest") },
        ]);
        assert!(held(&["route:*", "at:*", "two:7"], &["x", "y"], true));
        assert!(!held(&["route:*", "at:*", "two:7"], &["x", "y"], false));
        assert!(!held(&["route:x", "at:*", "one:*"], &["x", "y"], true));
        assert!(held(&["one:*"], &[], false));
        for (scopes, routes, is_lowest, expected) in [
            (&["route:y", "at:y"][..], &["x", "y"][..], false, true),
            (&["route:x", "at:y"], &["x", "y"], false, false),
            (&["lowest"], &["x"], true, true),
            (&["lowest"], &["x"], false, false),
            (&["*"], &[], false, false),
        ] {
            let set = ScopeSet::new(scopes.iter().map(|scope| (*scope).to_owned()));
            assert_eq!(either.is_held(&set, &values(routes, is_lowest), &path), Ok(expected), "{scopes:?} {routes:?}");
        }
        let none = Values::of_path();
        assert_eq!(TEMPLATE.is_held(&ScopeSet::default(), &none, &none), Err(Unfilled("routes")));
    }

    #[test]
    fn missing_placeholder_value_is_an_error() {
        let none = Values::of_path();
        assert_eq!(TEMPLATE.fill(&none, &none), Err(Unfilled("routes")));
        assert_eq!(TEMPLATE.fill(&values(&[], true), &none), Err(Unfilled("id")));
        let without = Values::of_path().list("routes", ["x"]).text("queue", "q");
        assert_eq!(TEMPLATE.fill(&without, &none), Err(Unfilled("isLowest")));
    }
}
