//! Queue policies and task options: their checks, and their effects on runs.
//!
//! | file | rule |
//! |---|---|
//! | [`document`] | checks, limits, defaults and stored form of policies |
//! | [`options`] | the same for task options |
//! | [`keys`] | rules for a single key, which override the policy |
//! | [`terms`] | options combined with the policy; the traits stamped on runs |
//! | [`guard`] | which creates unique names and backlog limits allow |
//! | [`hold`] | when a run is ready |
//! | [`ending`] | the end of a claim, and the bounds on runs |
//! | [`late`] | reports of runs that were taken from their workers
//! | [`life`] | the state machine: every state with every event |
//! | [`limit_words`] | the limits of a policy as sentences |
//! | [`policy_words`] | a policy as sentences |
//! | [`cells`] | the published table that `tenure verify delivery` tests |
//! | [`report`] | results, failures, `retryAfter`, release |
//! | [`pause`] | pause and resume |
//! | [`refile`] | how a changed policy reaches existing runs |
//! | [`retention`] | until when resolved tasks are kept |
//! | [`counts`] | the counts that a run contributes to |
//! | [`held_by`] | causes that hold the runs of a queue |
//! | [`why`] | why a task is in its state |
//!
//! [`super::events::note`] announces changes in the event log. docs/internals/policies.md describes
//! how statements use these rules.

pub mod cells;
pub mod counts;
pub mod document;
pub mod ending;
pub mod guard;
pub mod held_by;
pub mod hold;
pub mod keys;
pub mod late;
pub mod life;
pub mod limit_words;
pub mod options;
pub mod pause;
pub mod policy_words;
pub mod refile;
pub mod report;
pub mod retention;
pub mod terms;
pub mod why;

use chrono::TimeDelta;

use super::unacceptable::Unacceptable;

pub const REASON_CHARS_MAX: usize = 255;

pub(crate) fn number(field: &str, value: i64, least: u32, most: i64) -> Result<u32, Unacceptable> {
    let out = || Unacceptable::Rule(format!("`{field}` must be from {least} to {most}"));
    u32::try_from(value).ok().filter(|number| *number >= least && value <= most).ok_or_else(out)
}

pub(crate) fn seconds(field: &str, value: i64, least: i64, most: i64) -> Result<TimeDelta, Unacceptable> {
    if (least..=most).contains(&value) {
        Ok(TimeDelta::seconds(value))
    } else {
        Err(Unacceptable::Rule(format!("`{field}` must be from {least} to {most} seconds")))
    }
}
