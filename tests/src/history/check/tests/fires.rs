//! Schedules.

use super::*;
use crate::history::schedules::{Fires, PERIOD_MILLIS};

/// A schedule was stored within minute 10. Minute 13 is due next, and these have a task.
fn is_wrong(minutes: &[i64]) -> bool {
    let mut story = Story::new();
    let times = minutes.iter().map(|minute| minute * PERIOD_MILLIS).collect();
    story.history.fires = vec![Fires { from: 10 * PERIOD_MILLIS + 1, until: 13 * PERIOD_MILLIS, times }];
    story.broken() == [Rule::Schedules]
}

#[test]
fn each_due_time_has_one_task() {
    for (minutes, wrong) in [
        (&[11, 12][..], false),
        (&[12, 13, 11], false),
        (&[11], true),
        (&[11, 12, 12], true),
        (&[11, 12, 13, 13], true),
        (&[10, 11, 12], true),
    ] {
        assert_eq!(is_wrong(minutes), wrong, "{minutes:?}");
    }
}
