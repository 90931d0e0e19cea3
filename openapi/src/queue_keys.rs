//! The bodies about single keys of a queue: what holds for one instead of the queue's policy, and how each of them stands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::policy::{Rate, present_seconds};
use crate::structure::{present, present_object};

/// What holds for one key instead of the queue's policy. Each field may be absent, but not all of them.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Default, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRules {
    /// How many of its runs may be assigned or claimed at a time. Default: `concurrency.perKey` of the policy.
    #[serde(default, deserialize_with = "present_seconds", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000)]
    pub concurrency: Option<i64>,
    /// How many of its runs may start in a time. Default: `rate.perKey` of the policy.
    #[serde(default, deserialize_with = "present_object", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Its share beside other keys where these take turns. Default: 1.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001, maximum = 1_000)]
    pub weight: Option<f64>,
}

/// A key of a queue as it is now.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueKey {
    /// The key; empty for all runs without one.
    pub key: String,
    /// How many of its runs are assigned or claimed; each of both is counted up to 10,000.
    pub used: u32,
    /// How many may be; absent if that is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How many of its runs wait until a worker asks and the limits allow a start, counted up to 10,000.
    pub waiting: u32,
    /// Its own `concurrency`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    /// Its own `rate`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Its own `weight`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// A page of the keys of a queue.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueKeys {
    /// By key.
    pub keys: Vec<QueueKey>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_key_has_its_rules_beside_its_counts() {
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
    fn what_does_not_fit_its_type_is_refused() {
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
