//! The members of a create as columns.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::Delivery;
use tenure_domain::create::CREATED_DRIFT;
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::options::Options;
use uuid::Uuid;

use super::Member;
use crate::hot;

/// The members as columns.
#[derive(Default)]
pub(super) struct Columns<'a> {
    /// Of each member its number, from 1.
    pub(super) numbers: Vec<i64>,
    pub(super) ids: Vec<Uuid>,
    /// The queues of all members, each once, and for each member which of them it is, from 1.
    pub(super) queues: Vec<i32>,
    pub(super) queue_names: Vec<&'a str>,
    pub(super) queue_places: Vec<i32>,
    pub(super) priorities: Vec<i16>,
    pub(super) retries: Vec<i16>,
    pub(super) groups: Vec<Uuid>,
    pub(super) group_expires: Vec<DateTime<Utc>>,
    pub(super) schedulers: Vec<&'a str>,
    pub(super) projects: Vec<&'a str>,
    pub(super) created: Vec<DateTime<Utc>>,
    pub(super) deadlines: Vec<DateTime<Utc>>,
    /// How many seconds ahead each of them may lie, the drift included.
    pub(super) ahead: Vec<f64>,
    pub(super) expires: Vec<DateTime<Utc>>,
    pub(super) scopes: Vec<&'a str>,
    pub(super) routes: Vec<&'a str>,
    pub(super) tags: Vec<&'a str>,
    pub(super) definitions: Vec<&'a str>,
    pub(super) waits: Vec<bool>,
    /// Empty if no member has options, as is usual: then none of their rows has any.
    pub(super) options: OptionColumns<'a>,
}

/// The columns of `task_options`.
#[derive(Default)]
pub(super) struct OptionColumns<'a> {
    pub(super) deliveries: Vec<Option<i16>>,
    /// Times are in seconds.
    pub(super) delays: Vec<Option<f64>>,
    pub(super) not_before: Vec<Option<DateTime<Utc>>>,
    pub(super) complete_times: Vec<Option<f64>>,
    pub(super) retry_first: Vec<Option<f64>>,
    pub(super) retry_factor: Vec<Option<f64>>,
    pub(super) retry_most: Vec<Option<f64>>,
    pub(super) keys: Vec<Option<&'a str>>,
    pub(super) worker_groups: Vec<Option<&'a str>>,
    pub(super) worker_ids: Vec<Option<&'a str>>,
    /// In seconds.
    pub(super) worker_waits: Vec<Option<i32>>,
}

impl<'a> OptionColumns<'a> {
    fn push(&mut self, options: Option<&'a Options>) {
        let (key, worker) = options.map_or((None, None), |options| (options.key.as_deref(), options.worker.as_ref()));
        self.keys.push(key);
        self.worker_groups.push(worker.map(|worker| worker.worker_group.as_str()));
        self.worker_ids.push(worker.map(|worker| worker.worker_id.as_str()));
        self.worker_waits.push(worker.map(|worker| i32::try_from(worker.wait.num_seconds()).unwrap_or(i32::MAX)));
        let none = Options::default();
        let Options { start, delivery, complete_time, retry_delay, key: _, worker: _ } = options.unwrap_or(&none);
        let (delay, not_before) = match *start {
            None => (None, None),
            Some(Start::After(delay)) => (Some(delay.as_seconds_f64()), None),
            Some(Start::At(time)) => (None, Some(time)),
        };
        self.deliveries.push(delivery.map(Delivery::code));
        self.delays.push(delay);
        self.not_before.push(not_before);
        self.complete_times.push(complete_time.map(TimeDelta::as_seconds_f64));
        self.retry_first.push(retry_delay.map(|delay| delay.first.as_seconds_f64()));
        self.retry_factor.push(retry_delay.map(|delay| delay.factor));
        self.retry_most.push(retry_delay.map(|delay| delay.most.as_seconds_f64()));
    }
}

impl<'a> Columns<'a> {
    /// How many seconds ahead a deadline may lie, if that is the same for all members.
    pub(super) fn one_limit(&self) -> f64 {
        self.ahead.first().copied().unwrap_or_default()
    }

    pub(super) fn new(members: &[Member<'a>]) -> Self {
        let mut columns = Self { numbers: (1..).take(members.len()).collect(), ..Self::default() };
        let mut places: HashMap<(i32, &str), i32> = HashMap::new();
        for Member { task, queue, waits, ruled: _ } in members {
            let name = task.queue.as_str();
            let place = *places.entry((*queue, name)).or_insert_with(|| {
                columns.queues.push(*queue);
                columns.queue_names.push(name);
                hot::int4(columns.queues.len())
            });
            columns.queue_places.push(place);
            columns.waits.push(*waits);
            columns.ids.push(task.id.uuid());
            columns.priorities.push(task.priority.code());
            columns.retries.push(task.retries.cast_signed());
            columns.groups.push(task.group.uuid());
            columns.group_expires.push(task.group_expires);
            columns.schedulers.push(task.scheduler.as_str());
            columns.projects.push(task.project.as_str());
            columns.created.push(task.created);
            columns.deadlines.push(task.deadline);
            columns.ahead.push((task.deadline_limit.ahead() + CREATED_DRIFT).as_seconds_f64());
            columns.expires.push(task.expires);
            columns.scopes.push(&task.scopes_text);
            columns.routes.push(&task.routes_text);
            columns.tags.push(&task.tags);
            columns.definitions.push(&task.definition);
        }
        if members.iter().any(|member| member.task.options.is_some()) {
            members.iter().for_each(|member| columns.options.push(member.task.options.as_ref()));
        }
        columns
    }
}
