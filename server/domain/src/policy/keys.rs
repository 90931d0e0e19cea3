//! Rules for a single key, which override the queue's policy.

use tenure_api::policy::Rate as RateOnWire;
use tenure_api::queue_keys::KeyRules as KeyRulesOnWire;

use super::document::{CONCURRENCY_PER_KEY_MAX, rate};
use super::{number, options};
use crate::admission::Rate;
use crate::unacceptable::Unacceptable;

pub const WEIGHT_LEAST: f64 = 0.001;
pub const WEIGHT_MOST: f64 = 1_000.0;
/// Each is a row that is kept until it is deleted.
pub const KEYS_WITH_RULES_MAX: i64 = 10_000;

/// Absent fields follow the policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyRules {
    /// Limit of its ready, assigned and claimed runs.
    pub concurrency: Option<u32>,
    pub rate: Option<Rate>,
    pub weight: Option<f64>,
}

impl KeyRules {
    pub fn from_request(sent: &KeyRulesOnWire) -> Result<Self, Unacceptable> {
        let KeyRulesOnWire { concurrency, rate: own_rate, weight } = *sent;
        if *sent == KeyRulesOnWire::default() {
            return Err(Unacceptable::Rule(
                "at least one of `concurrency`, `rate` and `weight` must be set: to remove all of them, delete the \
                 key's rules"
                    .to_owned(),
            ));
        }
        if weight.is_some_and(|weight| !(WEIGHT_LEAST..=WEIGHT_MOST).contains(&weight)) {
            return Err(Unacceptable::Rule(format!("`weight` must be from {WEIGHT_LEAST} to {WEIGHT_MOST}")));
        }
        Ok(Self {
            concurrency: concurrency.map(|of| number("concurrency", of, 1, CONCURRENCY_PER_KEY_MAX)).transpose()?,
            rate: own_rate.map(|sent| rate("rate", sent)).transpose()?,
            weight,
        })
    }

    pub fn to_wire(&self) -> KeyRulesOnWire {
        let Self { concurrency, rate, weight } = *self;
        KeyRulesOnWire {
            concurrency: concurrency.map(i64::from),
            rate: rate.map(|Rate { count, seconds, burst }| RateOnWire {
                count: count.into(),
                seconds: seconds.into(),
                burst: Some(burst.into()),
            }),
            weight,
        }
    }
}

pub fn named(key: &str) -> Result<String, Unacceptable> {
    options::key_of("key", key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(body: Value) -> Result<KeyRules, String> {
        let sent: KeyRulesOnWire = serde_json::from_value(body).unwrap();
        KeyRules::from_request(&sent).map_err(|wrong| match wrong {
            Unacceptable::Rule(message) => message,
            Unacceptable::Schema(_) | Unacceptable::Unserializable(_) => panic!("a rule refuses it: {wrong:?}"),
        })
    }

    #[test]
    fn each_field_has_its_range() {
        for (field, least, most, below, above) in [
            ("concurrency", json!(1), json!(1_000), json!(0), json!(1_001)),
            ("weight", json!(0.001), json!(1_000), json!(0.000_999), json!(1_000.001)),
        ] {
            for inside in [least, most] {
                assert!(read(json!({field: inside})).is_ok(), "{field}");
            }
            for outside in [below, above, json!(-1), json!(1e300)] {
                let refused = read(json!({field: outside})).unwrap_err();
                assert!(refused.contains(&format!("`{field}` must be from")), "{refused}");
            }
        }
        for (rate, part) in [
            (json!({"count": 0, "seconds": 1}), "rate.count"),
            (json!({"count": 1, "seconds": 86_401}), "rate.seconds"),
            (json!({"count": 1, "seconds": 1, "burst": 2}), "rate.burst"),
            (json!({"count": 1, "seconds": 1, "burst": 0}), "rate.burst"),
        ] {
            let refused = read(json!({"rate": rate})).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        assert!(read(json!({})).unwrap_err().contains("at least one"));
    }

    #[test]
    fn rules_round_trip_through_wire() {
        let rules = read(json!({"concurrency": 5, "rate": {"count": 10, "seconds": 60}, "weight": 2})).unwrap();
        assert_eq!(rules.rate, Some(Rate { count: 10, seconds: 60, burst: 1 }));
        let shown = serde_json::to_value(rules.to_wire()).unwrap();
        assert_eq!(shown, json!({"concurrency": 5, "rate": {"count": 10, "seconds": 60, "burst": 1}, "weight": 2.0}));
        assert_eq!(read(shown), Ok(rules));
        assert!(named("").is_err() && named("a\0").is_err() && named(&"é".repeat(256)).is_err());
        assert_eq!(named(&"é".repeat(255)), Ok("é".repeat(255)));
    }
}
