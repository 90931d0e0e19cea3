//! Bodies about single keys of a queue: rules that override the policy, and counts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::policy::{Rate, present_seconds};
use crate::structure::{present, present_object};

/// Rules that override the policy for one key. Each field is optional, but at least one is
/// required.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRules {
    /// Limit of its assigned and claimed runs. Default: `concurrency.perKey` of the policy.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000)]
    pub concurrency: Option<i64>,
    /// Limit of its starts per time. Default: `rate.perKey` of the policy.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Its share relative to other keys under fair sharing. Default: 1.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001, maximum = 1_000)]
    pub weight: Option<f64>,
}

/// The current state of a key of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueKey {
    /// Empty for all runs without a key.
    pub key: String,
    /// Its assigned and claimed runs; each kind is counted up to 10,000.
    pub used: u32,
    /// Limit of `used`; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Its runs that wait for a worker and for the limits, counted up to 10,000.
    pub waiting: u32,
    /// Its own `concurrency`, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    /// Its own `rate`, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Its own `weight`, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueKeys {
    /// Ordered by key.
    pub keys: Vec<QueueKey>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn key_has_rules_and_counts() {
        let rate = Some(Rate { count: 3, seconds: 60, burst: None });
        let key = QueueKey {
            key: "a/b".into(),
            used: 1,
            limit: Some(2),
            waiting: 0,
            concurrency: Some(2),
            rate,
            weight: Some(0.5),
        };
        let written = json!({"key": "a/b", "used": 1, "limit": 2, "waiting": 0, "concurrency": 2,
            "rate": {"count": 3, "seconds": 60}, "weight": 0.5});
        assert_eq!(serde_json::to_value(&key).unwrap(), written);
        let plain = QueueKey { limit: None, concurrency: None, rate: None, weight: None, ..key };
        assert_eq!(serde_json::to_value(&plain).unwrap(), json!({"key": "a/b", "used": 1, "waiting": 0}));
    }

    #[test]
    fn wrong_types_are_refused() {
        for body in [
            json!({"concurrency": "2"}),
            json!({"concurrency": null}),
            json!({"concurrency": 1.5}),
            json!({"rate": 5}),
            json!({"rate": [5, 1]}),
            json!({"rate": null}),
            json!({"rate": {"count": 5}}),
            json!({"weight": "2"}),
            json!({"weight": null}),
            json!({"weigth": 2}),
        ] {
            assert!(serde_json::from_value::<KeyRules>(body.clone()).is_err(), "{body}");
        }
        for (body, read) in [
            (json!({}), KeyRules::default()),
            (json!({"weight": 2}), KeyRules { weight: Some(2.0), ..KeyRules::default() }),
        ] {
            assert_eq!(serde_json::from_value::<KeyRules>(body).unwrap(), read);
        }
        assert_eq!(serde_json::to_value(KeyRules::default()).unwrap(), Value::Object(serde_json::Map::new()));
    }
}
