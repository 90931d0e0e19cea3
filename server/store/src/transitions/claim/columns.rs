//! The requests of a claim as columns.

use crate::hot;

use super::{PRIORITIES, Want, Worker};

/// The queues, and the workers with their slots. No worker has a session if there are no sessions.
#[derive(Default)]
pub(super) struct Columns<'a> {
    pub(super) queues: Vec<i32>,
    pub(super) names: Vec<&'a str>,
    pub(super) epochs: Vec<i64>,
    pub(super) marks: [Vec<i64>; PRIORITIES],
    pub(super) amounts: Vec<i32>,
    pub(super) slots: Vec<i32>,
    pub(super) groups: Vec<&'a str>,
    pub(super) ids: Vec<&'a str>,
    pub(super) sessions: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(wants: &[Want<'a>], workers: &[Worker<'a>]) -> Self {
        Self {
            queues: wants.iter().map(|want| want.queue).collect(),
            names: wants.iter().map(|want| want.name).collect(),
            epochs: wants.iter().map(|want| want.epoch).collect(),
            marks: std::array::from_fn(|priority| wants.iter().map(|want| want.marks[priority]).collect()),
            amounts: wants.iter().map(|want| hot::int4(want.slots.len())).collect(),
            slots: wants.iter().flat_map(|want| want.slots.iter().copied()).collect(),
            groups: workers.iter().map(|worker| worker.group).collect(),
            ids: workers.iter().map(|worker| worker.id).collect(),
            sessions: if workers.iter().any(|worker| worker.session.is_some()) {
                workers.iter().map(|worker| worker.session).collect()
            } else {
                Vec::new()
            },
        }
    }

    /// The low-water marks of the first queue, by priority.
    pub(super) fn marks_of_first(&self) -> Vec<i64> {
        self.marks.iter().map(|marks| marks.first().copied().unwrap_or_default()).collect()
    }

    /// How many runs are requested in all.
    pub(super) fn amount(&self) -> i64 {
        i64::from(hot::int4(self.slots.len()))
    }
}
