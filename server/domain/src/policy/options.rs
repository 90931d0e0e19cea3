//! Options of a task, in `extra.tenure` of its definition, so unmodified clients can use them.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{WorkerGroup, WorkerId};
use tenure_api::policy::{PreferredWorker as PreferredWorkerOnWire, TaskOptions};
use tenure_api::states::{Delivery, OnDuplicate};

use super::document::{COMPLETE_TIME_MAX, RetryDelay};
use super::hold::Start;
use super::seconds;
use crate::unacceptable::Unacceptable;

/// Maximum delay of tasks and released runs: 366 days in seconds.
pub const TASK_DELAY_MAX: i64 = 31_622_400;
/// Of keys and unique names.
pub const KEY_CHARS_MAX: usize = 255;
/// Maximum wait for a preferred worker, in seconds.
pub const WORKER_WAIT_MAX: i64 = 3_600;
/// The field with the options in a definition.
pub const IN_EXTRA: &str = "extra.tenure";
/// The field with the options in a submission.
pub const BESIDE: &str = "options";

/// Absent options follow the queue's policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    pub start: Option<Start>,
    pub delivery: Option<Delivery>,
    /// Zero is unlimited while the claim is renewed.
    pub complete_time: Option<TimeDelta>,
    pub retry_delay: Option<RetryDelay>,
    pub retry_failed: Option<bool>,
    /// Used if the queue's `keyBy` is `key`.
    pub key: Option<String>,
    pub unique: Option<Unique>,
    /// Used if the queue assigns runs.
    pub worker: Option<PreferredWorker>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    pub name: String,
    /// None follows the queue's policy.
    pub on_duplicate: Option<OnDuplicate>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreferredWorker {
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Maximum wait, since the run began to wait.
    pub wait: TimeDelta,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// `tenure:task-options:<taskQueueId>`.
    TaskOptions,
}

impl Options {
    pub fn in_extra(extra: Option<&RawValue>) -> Result<Option<Self>, Unacceptable> {
        tenure(extra)?.map(|sent| read(IN_EXTRA, sent)).transpose()
    }

    pub fn from_request(place: &str, sent: &TaskOptions) -> Result<Self, Unacceptable> {
        let TaskOptions {
            delay,
            not_before,
            delivery,
            complete_time,
            retry_delay,
            retry_failed,
            key,
            unique: name,
            on_duplicate,
            worker,
        } = sent;
        let field = |name: &str| format!("{place}.{name}");
        Ok(Self {
            start: start(place, *delay, not_before.map(Timestamp::time))?,
            delivery: *delivery,
            complete_time: complete_time
                .map(|value| seconds(&field("completeTime"), value, 0, COMPLETE_TIME_MAX))
                .transpose()?,
            retry_delay: retry_delay.map(|sent| RetryDelay::from_request(&field("retryDelay"), sent)).transpose()?,
            retry_failed: *retry_failed,
            key: key.as_deref().map(|sent| key_of(&field("key"), sent)).transpose()?,
            unique: unique(place, name.as_deref(), *on_duplicate)?,
            worker: worker.as_ref().map(|sent| preferred(&field("worker"), sent)).transpose()?,
        })
    }

    /// True if no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Permission to create tasks does not include the cost of lost workers or the choice of a
    /// worker.
    pub fn needs(&self) -> Needs {
        let Self { start: _, delivery, complete_time: _, retry_delay: _, retry_failed: _, key: _, unique: _, worker } =
            self;
        if delivery.is_some() || worker.is_some() { Needs::TaskOptions } else { Needs::Nothing }
    }
}

pub(super) fn key_of(field: &str, sent: &str) -> Result<String, Unacceptable> {
    if sent.is_empty() || sent.chars().count() > KEY_CHARS_MAX {
        return Err(Unacceptable::Rule(format!("`{field}` must have from 1 to {KEY_CHARS_MAX} characters")));
    }
    if sent.contains('\0') {
        return Err(Unacceptable::Rule(format!("`{field}` must not contain the character U+0000")));
    }
    Ok(sent.to_owned())
}

fn unique(place: &str, name: Option<&str>, on_duplicate: Option<OnDuplicate>) -> Result<Option<Unique>, Unacceptable> {
    match (name, on_duplicate) {
        (Some(name), on_duplicate) => {
            Ok(Some(Unique { name: key_of(&format!("{place}.unique"), name)?, on_duplicate }))
        }
        (None, Some(_)) => Err(Unacceptable::Rule(format!("`{place}.onDuplicate` requires `{place}.unique`"))),
        (None, None) => Ok(None),
    }
}

fn preferred(field: &str, sent: &PreferredWorkerOnWire) -> Result<PreferredWorker, Unacceptable> {
    Ok(PreferredWorker {
        worker_group: sent.worker_group.clone(),
        worker_id: sent.worker_id.clone(),
        wait: seconds(&format!("{field}.wait"), sent.wait, 0, WORKER_WAIT_MAX)?,
    })
}

/// Refuses a delay together with a date.
pub(super) fn start(
    place: &str,
    delay: Option<i64>,
    not_before: Option<DateTime<Utc>>,
) -> Result<Option<Start>, Unacceptable> {
    let field = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    match (delay, not_before) {
        (Some(_), Some(_)) => Err(Unacceptable::Rule(format!(
            "`{}` and `{}` must not both be given: leave one out",
            field("delay"),
            field("notBefore")
        ))),
        (Some(delay), None) => Ok(Some(Start::After(seconds(&field("delay"), delay, 0, TASK_DELAY_MAX)?))),
        (None, not_before) => Ok(not_before.map(Start::At)),
    }
}

/// Returns `extra` with the options inserted. None: store it as sent.
pub fn stored_extra(extra: Option<&RawValue>, options: Option<&RawValue>) -> Result<Option<String>, Unacceptable> {
    let Some(options) = options else { return Ok(None) };
    read(BESIDE, options)?;
    if tenure(extra)?.is_some() {
        return Err(Unacceptable::Rule(format!("`{BESIDE}` and `{IN_EXTRA}` must not both be given: leave one out")));
    }
    let whole = extra.map_or("{}", |extra| extra.get().trim());
    let others = whole.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let others = others.ok_or_else(|| Unacceptable::Schema("`extra` must be an object".to_owned()))?.trim();
    let comma = if others.is_empty() { "" } else { "," };
    Ok(Some(format!("{{{others}{comma}\"tenure\":{options}}}")))
}

pub fn of_request(request: &CreateTaskRequest<'_>) -> Result<Option<Options>, Unacceptable> {
    Ok(Options::in_extra(request.extra)?.filter(|options| !options.is_empty()))
}

/// Elsewhere `extra` is checked to be an object.
fn tenure(extra: Option<&RawValue>) -> Result<Option<&RawValue>, Unacceptable> {
    #[derive(Deserialize)]
    struct Extra<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        tenure: Option<&'a RawValue>,
    }
    fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
        <&RawValue>::deserialize(value).map(Some)
    }
    let Some(text) = extra.map(RawValue::get) else { return Ok(None) };
    // Most have no options and are not parsed. A key may have escapes.
    if !text.trim_start().starts_with('{') || !(text.contains("tenure") || text.contains('\\')) {
        return Ok(None);
    }
    let extra: Extra<'_> =
        serde_json::from_str(text).map_err(|error| Unacceptable::Schema(format!("`extra`: {error}")))?;
    Ok(extra.tenure)
}

fn read(place: &str, sent: &RawValue) -> Result<Options, Unacceptable> {
    if !sent.get().starts_with('{') {
        return Err(Unacceptable::Schema(format!("`{place}` must be an object")));
    }
    let mut parser = serde_json::Deserializer::from_str(sent.get());
    let options: TaskOptions = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let path = if error.path().iter().len() > 0 { format!("{place}.{}", error.path()) } else { place.to_owned() };
        Unacceptable::Schema(format!("`{path}`: {}", error.inner()))
    })?;
    Options::from_request(place, &options)
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
