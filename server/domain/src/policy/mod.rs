//! Policies of queues and options of tasks: what they may say, and what follows for a run.
//!
//! | file | rule |
//! |---|---|
//! | [`document`] | what a policy may say: limits, defaults, what is not built yet, the form in which it is stored |
//! | [`options`] | the same for the options of a task, and where they stand in its definition |
//! | [`keys`] | what holds for a single key of a queue instead of its policy |
//! | [`terms`] | what holds for a task: its options before its queue's policy; the traits that are stamped on its runs |
//! | [`hold`] | when a run is ready: delays, deadlines, and what a delay is cut to |
//! | [`ending`] | what follows when a claim ends: the table of all deliveries with all ends, and the bounds on runs |
//! | [`life`] | both together: every state of a task with every event |
//! | [`limit_words`] | the limits of a policy as sentences |
//! | [`cells`] | the table that is published and that `tenure verify delivery` plays |
//! | [`report`] | results, `retryAfter`, release |
//! | [`pause`] | pause and resume |
//! | [`refile`] | how a changed policy reaches the runs that exist |
//! | [`counts`] | which count a run is part of |
//! | [`why`] | why a task is where it is, in codes and in words |
//!
//! Notes, which tell readers of the event log of all this, are in [`super::events::note`]. How statements will use these
//! rules is in docs/internals/policies.md.

pub mod cells;
pub mod counts;
pub mod document;
pub mod ending;
pub mod hold;
pub mod keys;
pub mod life;
pub mod limit_words;
pub mod options;
pub mod pause;
pub mod refile;
pub mod report;
pub mod terms;
pub mod why;

use chrono::TimeDelta;

use super::unacceptable::Unacceptable;

/// Characters of a reason that people give.
pub const REASON_CHARS_MAX: usize = 255;

/// A number within its range, both ends included.
fn number(field: &str, value: i64, least: u32, most: i64) -> Result<u32, Unacceptable> {
    let out = || Unacceptable::Rule(format!("`{field}` must be from {least} to {most}"));
    u32::try_from(value).ok().filter(|number| *number >= least && value <= most).ok_or_else(out)
}

/// A number of whole seconds within its range, both ends included.
pub(crate) fn seconds(field: &str, value: i64, least: i64, most: i64) -> Result<TimeDelta, Unacceptable> {
    if (least..=most).contains(&value) {
        Ok(TimeDelta::seconds(value))
    } else {
        Err(Unacceptable::Rule(format!("`{field}` must be from {least} to {most} seconds")))
    }
}
