//! The ends that are asked for, and their columns.

use chrono::{DateTime, Utc};
use tenure_api::states::{EndedBy, ReasonCreated};
use tenure_domain::policy::ending::Ending;
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::report::TaskResult;
use tenure_domain::work::Holder;
use uuid::Uuid;

/// The end of a run that a member asks for.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// The task.
    pub id: Uuid,
    /// The run.
    pub run: i16,
    /// How and why.
    pub ending: Ending,
    /// What the worker returns, if it does; only of a run that it reports as completed or failed.
    pub result: Option<&'a TaskResult>,
    /// When the worker wants the next run to start, if it says so.
    pub start: Option<Start>,
}

impl Member<'_> {
    /// An end without anything beside it.
    #[must_use]
    pub fn new(id: Uuid, run: i16, ending: Ending) -> Self {
        Self { id, run, ending, result: None, start: None }
    }

    /// Whether no run follows, whatever retries are left, and nothing is returned.
    pub(super) fn is_for_good(&self) -> bool {
        matches!(self.ending, Ending::Reported(_)) && self.ending.retry().is_none() && self.result.is_none()
    }

    fn delay_seconds(&self) -> Option<f64> {
        match self.start {
            Some(Start::After(delay)) => Some(delay.as_seconds_f64()),
            Some(Start::At(_)) | None => None,
        }
    }

    fn date(&self) -> Option<DateTime<Utc>> {
        match self.start {
            Some(Start::At(date)) => Some(date),
            Some(Start::After(_)) | None => None,
        }
    }
}

/// The members as columns. To the statement what is missing at the end of an array is null, and what most members do not have
/// is an empty array if none has it.
#[derive(Default)]
pub(super) struct Columns<'a> {
    /// Of each member its number, from 1.
    pub(super) numbers: Vec<i64>,
    pub(super) ids: Vec<Uuid>,
    pub(super) runs: Vec<i16>,
    pub(super) states: Vec<i16>,
    pub(super) reasons: Vec<i16>,
    pub(super) holder_queues: Vec<Option<&'a str>>,
    pub(super) holder_groups: Vec<Option<&'a str>>,
    pub(super) holder_ids: Vec<Option<&'a str>>,
    pub(super) results: Vec<Option<&'a str>>,
    pub(super) retries: Vec<Option<i16>>,
    pub(super) ended_by: Vec<Option<i16>>,
    pub(super) losses: Vec<bool>,
    pub(super) delays: Vec<Option<f64>>,
    pub(super) dates: Vec<Option<DateTime<Utc>>>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(members: &[Member<'a>], holders: &[Option<&'a Holder>]) -> Self {
        let named = holders.iter().any(Option::is_some);
        let holders = if named { holders } else { &[] };
        let results = few(members, |member| member.result.map(TaskResult::text));
        #[cfg(feature = "test-util")]
        let results = crate::breakage::perhaps_without_one(results);
        Self {
            numbers: (1..).take(members.len()).collect(),
            ids: members.iter().map(|member| member.id).collect(),
            runs: members.iter().map(|member| member.run).collect(),
            states: members.iter().map(|member| member.ending.outcome().state().code()).collect(),
            reasons: members.iter().map(|member| member.ending.outcome().reason().code()).collect(),
            holder_queues: holders.iter().map(|holder| holder.map(|holder| holder.queue.as_str())).collect(),
            holder_groups: holders.iter().map(|holder| holder.map(|holder| holder.group.as_str())).collect(),
            holder_ids: holders.iter().map(|holder| holder.map(|holder| holder.id.as_str())).collect(),
            results,
            retries: members.iter().map(|member| member.ending.retry().map(ReasonCreated::code)).collect(),
            ended_by: few(members, |member| member.ending.ended_by().map(EndedBy::code)),
            losses: members.iter().map(|member| member.ending.is_loss()).collect(),
            delays: few(members, Member::delay_seconds),
            dates: few(members, Member::date),
        }
    }
}

/// A column that is empty if no member has a value.
fn few<'a, T>(members: &[Member<'a>], value: impl Fn(&Member<'a>) -> Option<T>) -> Vec<Option<T>> {
    if members.iter().all(|member| value(member).is_none()) {
        return Vec::new();
    }
    members.iter().map(value).collect()
}
