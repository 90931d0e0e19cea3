//! A policy's limits as sentences for people.

use super::document::{Admission, Policy};
use crate::admission::Rate;
use tenure_api::states::KeyBy;

/// Empty if every run is ready for any worker once its delay is over.
pub fn words(policy: &Policy) -> Vec<String> {
    let Some(admission) = policy.admission() else { return Vec::new() };
    let Admission { assign, key_by, accept_time, total, per_key, rate_total, rate_per_key, fair } = admission;
    let key = match key_by {
        KeyBy::Key => "key",
        KeyBy::ProjectId => "project",
        KeyBy::SchedulerId => "scheduler",
        KeyBy::TaskGroupId => "task group",
    };
    let accept = accept_time.map_or_else(String::new, |time| {
        format!(", which must accept them within {}", seconds(time.num_seconds().unsigned_abs()))
    });
    let sentences = [
        assign.then(|| format!("Runs are assigned to sessions of workers{accept}.")),
        total.map(|total| format!("At most {} of the queue at a time.", runs(total))),
        per_key.map(|limit| format!("At most {} of each {key} at a time.", runs(limit))),
        rate_total.map(|rate| paced("the queue", rate)),
        rate_per_key.map(|rate| paced(&format!("each {key}"), rate)),
        fair.then(|| format!("Each {key} gets a share by its weight.")),
    ];
    sentences.into_iter().flatten().collect()
}

fn runs(number: u32) -> String {
    if number == 1 { "1 run".to_owned() } else { format!("{number} runs") }
}

fn seconds(number: u64) -> String {
    if number == 1 { "1 second".to_owned() } else { format!("{number} seconds") }
}

fn paced(of: &str, rate: Rate) -> String {
    let Rate { count, seconds: time, burst } = rate;
    let starts = if count == 1 { "1 start".to_owned() } else { format!("{count} starts") };
    let burst = if burst > 1 { format!(", {burst} of them at once") } else { String::new() };
    format!("At most {starts} of {of} in {}{burst}.", seconds(time.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(policy: Value) -> Vec<String> {
        words(&Policy::from_request(&serde_json::from_value(policy).unwrap()).unwrap())
    }

    #[test]
    fn each_limit_is_a_sentence() {
        assert_eq!(of(json!({"delay": 5})), Vec::<String>::new());
        let all = json!({"dispatch": "assign", "acceptTime": 1, "keyBy": "projectId", "fair": true,
            "concurrency": {"total": 1, "perKey": 3},
            "rate": {"total": {"count": 100, "seconds": 3600, "burst": 10}, "perKey": {"count": 1, "seconds": 1}}});
        assert_eq!(
            of(all),
            [
                "Runs are assigned to sessions of workers, which must accept them within 1 second.",
                "At most 1 run of the queue at a time.",
                "At most 3 runs of each project at a time.",
                "At most 100 starts of the queue in 3600 seconds, 10 of them at once.",
                "At most 1 start of each project in 1 second.",
                "Each project gets a share by its weight.",
            ]
        );
    }
}
