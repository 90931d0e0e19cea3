//! Filters for readers of the event log.

use std::fmt;

use super::events::note;
use super::topic::{Pattern, TooLong};

/// Prefix of Taskcluster's exchanges; Tenure's own have [`note::PREFIX`]. The sets of short names
/// are disjoint.
const PREFIX: &str = "exchange/taskcluster-queue/v1/";
pub const EXCHANGES: [&str; 11] = [
    "task-defined",
    "task-pending",
    "task-running",
    "artifact-created",
    "task-completed",
    "task-failed",
    "task-exception",
    "task-group-resolved",
    "task-group-sealed",
    "task-priority-changed",
    "task-group-priority-changed",
];
/// Prefix of a task's routes in the further routing keys.
const ROUTE: &str = "route.";

pub fn short_name(exchange: &str) -> &str {
    exchange.strip_prefix(PREFIX).or_else(|| exchange.strip_prefix(note::PREFIX)).unwrap_or(exchange)
}

pub fn all_exchanges() -> impl Iterator<Item = &'static str> {
    EXCHANGES.into_iter().chain(note::EXCHANGES)
}

/// Finds an exchange by its short or full name. A short name with the prefix of the other set does
/// not exist.
fn find_exchange(name: &str) -> Option<&'static str> {
    let within = |prefix, names: &[&'static str]| {
        let name = name.strip_prefix(prefix).unwrap_or(name);
        names.iter().find(|known| **known == name).copied()
    };
    within(PREFIX, &EXCHANGES).or_else(|| within(note::PREFIX, &note::EXCHANGES))
}

/// Why a filter is invalid; the messages complete "must be".
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    Exchange(String),
    Pattern(TooLong),
    /// Two consecutive dots, a dot at an end, or an empty pattern.
    EmptyWord,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange(name) => {
                write!(f, "a comma-separated list of exchanges; `{name}` is unknown, choose among ")?;
                f.write_str(&all_exchanges().collect::<Vec<_>>().join(", "))
            }
            Self::Pattern(too_long) => too_long.fmt(f),
            Self::EmptyWord => f.write_str("words separated by single dots; write # as %23 in a URL"),
        }
    }
}

/// An event must match every given part.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter {
    exchanges: Option<Vec<&'static str>>,
    key: Option<Pattern>,
    route: Option<Pattern>,
}

impl Filter {
    /// Accepts a comma-separated list of short or full names.
    pub fn set_exchanges(&mut self, list: &str) -> Result<(), Unfit> {
        let found = list
            .split(',')
            .map(|name| find_exchange(name.trim()).ok_or_else(|| Unfit::Exchange(name.trim().to_owned())));
        self.exchanges = Some(found.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// No routing key has an empty word; a client sends one if it does not encode a `#` in a URL.
    fn pattern(text: &str) -> Result<Pattern, Unfit> {
        if text.split('.').any(str::is_empty) {
            return Err(Unfit::EmptyWord);
        }
        text.parse().map_err(Unfit::Pattern)
    }

    /// Restricts the primary routing key.
    pub fn set_key(&mut self, pattern: &str) -> Result<(), Unfit> {
        self.key = Some(Self::pattern(pattern)?);
        Ok(())
    }

    /// Restricts to tasks with a matching route.
    pub fn set_route(&mut self, pattern: &str) -> Result<(), Unfit> {
        self.route = Some(Self::pattern(pattern)?);
        Ok(())
    }

    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// `cc` are the further routing keys.
    pub fn passes(&self, exchange: &str, routing_key: &str, cc: &[String]) -> bool {
        let exchange = short_name(exchange);
        self.exchanges.as_ref().is_none_or(|wanted| wanted.contains(&exchange))
            && self.key.as_ref().is_none_or(|pattern| pattern.matches(routing_key))
            && self.route.as_ref().is_none_or(|pattern| {
                cc.iter().filter_map(|key| key.strip_prefix(ROUTE)).any(|route| pattern.matches(route))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::Kind;
    use super::*;

    const KEY: &str = "primary.id.0.g.w.acme.linux.sched.group._";

    fn cc() -> Vec<String> {
        ["route.index.a.b", "route.notify.x", "other.c"].map(str::to_owned).to_vec()
    }

    fn filter(exchanges: &str, key: &str, route: &str) -> Filter {
        let mut filter = Filter::default();
        if !exchanges.is_empty() {
            filter.set_exchanges(exchanges).unwrap();
        }
        if !key.is_empty() {
            filter.set_key(key).unwrap();
        }
        if !route.is_empty() {
            filter.set_route(route).unwrap();
        }
        filter
    }

    #[test]
    fn event_passes_if_every_part_matches() {
        let running = "exchange/taskcluster-queue/v1/task-running";
        for (exchanges, key, route, expected) in [
            ("", "", "", true),
            ("task-running", "", "", true),
            ("task-failed, task-running", "", "", true),
            (running, "", "", true),
            ("task-failed", "", "", false),
            ("", "primary.#", "", true),
            ("", "primary.id", "", false),
            ("", "#.acme.linux.#", "", true),
            ("", "", "index.a.b", true),
            ("", "", "index.#", true),
            ("", "", "*.x", true),
            ("", "", "route.index.#", false),
            // A further key that is no route.
            ("", "", "c", false),
            ("task-running", "primary.#", "notify.*", true),
            ("task-failed", "primary.#", "notify.*", false),
            ("task-running", "secondary.#", "notify.*", false),
            ("task-running", "primary.#", "email.*", false),
        ] {
            let filter = filter(exchanges, key, route);
            assert_eq!(filter.passes(running, KEY, &cc()), expected, "{filter:?}");
            assert_eq!(filter.is_open(), (exchanges, key, route) == ("", "", ""));
        }
        assert!(!filter("", "", "#").passes(running, KEY, &[]), "a task without routes never matches");
    }

    #[test]
    fn filter_accepts_short_and_full_exchange_names() {
        let prefixes = EXCHANGES.map(|name| (PREFIX, name)).into_iter();
        for (prefix, name) in prefixes.chain(note::EXCHANGES.map(|name| (note::PREFIX, name))) {
            assert_eq!(filter(name, "", ""), filter(&format!("{prefix}{name}"), "", ""));
            assert!(filter(name, "", "").passes(&format!("{prefix}{name}"), KEY, &[]));
            assert_eq!(all_exchanges().filter(|known| *known == name).count(), 1, "{name} belongs to one set");
        }
        for name in [
            "task-done",
            "task-running,",
            ",",
            "exchange/taskcluster-queue/v2/task-running",
            "exchange/tenure/v1/task-running",
            "exchange/taskcluster-queue/v1/queue-paused",
            "*",
        ] {
            let refused = Filter::default().set_exchanges(name).unwrap_err().to_string();
            assert!(refused.contains("task-group-priority-changed, task-ready"), "{refused}");
        }
    }

    #[test]
    fn pattern_with_empty_or_too_many_words_is_refused() {
        for invalid in ["", ".", "primary.", ".a", "a..b", &"a".repeat(256)] {
            assert!(Filter::default().set_key(invalid).is_err(), "{invalid:?}");
            assert!(Filter::default().set_route(invalid).is_err(), "{invalid:?}");
        }
        let hint = Filter::default().set_key("primary.").unwrap_err().to_string();
        assert!(hint.contains("%23"), "{hint}");
    }

    #[test]
    fn every_published_exchange_can_be_filtered() {
        let published = (0..=i16::MAX).filter_map(Kind::from_code).flat_map(Kind::exchanges);
        let names: Vec<&str> = published.map(|exchange| exchange.name()).collect();
        assert!(names.len() >= 6);
        for name in names {
            assert!(name.starts_with(PREFIX) && EXCHANGES.contains(&short_name(name)), "{name}");
        }
    }
}
