//! A task enqueued from SQL exists if its transaction was committed, and not if it was rolled back.

use super::{Findings, History, Rule};
use crate::history::record::{Answer, Event};

pub(super) fn check(history: &History, findings: &mut Findings) {
    for record in &history.records {
        let Event::Enqueue { task, answer } = &record.event else { continue };
        let exists = history.drained.tasks.contains_key(task);
        match answer {
            Answer::Done(()) if !exists => {
                findings
                    .add(Rule::Enqueued, format!("{task} was enqueued by a committed transaction and does not exist"));
            }
            Answer::Refused(_) if exists => {
                findings
                    .add(Rule::Enqueued, format!("{task} was enqueued by a transaction without a commit and exists"));
            }
            Answer::Done(()) | Answer::Refused(_) | Answer::Unknown => {}
        }
    }
}
