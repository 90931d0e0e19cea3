//! Creating a task again: a new task with the definition of another one, as the form changes it.
//!
//! The new task has its own group, because the other one's may be sealed. The form contains its id,
//! so a form sent twice creates one task.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use http::StatusCode;
use maud::html;
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;
use tenure_api::states::Priority;
use uuid::Uuid;

use super::form::{self, Field, Form};
use super::subject::get_definition;
use super::task::of;
use super::{Failed, Order, Outcome};
use crate::http::api::create_task;
use crate::http::call::read_object;
use crate::http::page::error::PageError;
use crate::http::page::text;
use crate::http::scopes::Values;
use tenure_domain::create::{DEADLINE_AHEAD, NewTask};
use tenure_domain::json;

const SAME: &str = "same";
const NONE: &str = "none";
/// Fields that name the old task's queue, group and dates.
const LEFT_OUT: [&str; 4] = ["provisionerId", "workerType", "taskGroupId", "expires"];

/// Fields keep their text, such as the digits of numbers.
type Definition = BTreeMap<String, Box<RawValue>>;

pub(super) async fn form(order: &Order<'_>) -> Result<Form, PageError> {
    let task = &of(order)?.task;
    let definition = read(order).await?;
    let now = form::now(order.app).await?;
    let ahead = match (date(&definition, "created"), date(&definition, "deadline")) {
        (Some(created), Some(deadline)) => (deadline - created).min(DEADLINE_AHEAD),
        _ => DEADLINE_AHEAD,
    };
    let depends = definition.get("dependencies").is_some_and(|list| list.get().contains('"'));
    let same = (SAME.to_owned(), "the same".to_owned());
    let choices = if depends { vec![same, (NONE.to_owned(), "none".to_owned())] } else { Vec::new() };
    let payload = definition.get("payload").map_or("{}", |payload| payload.get());
    let fields = [
        Field::hidden("taskId", TaskId::from_random(Uuid::new_v4().into_bytes()).to_string()),
        Field::line("taskQueueId", "Queue").value(task.queue.as_str()),
        Field::priority(task.priority),
        Field::line("deadline", "Deadline").value(Timestamp::new(now + ahead).to_string()),
        Field::line("expires", "Expires").hint("empty for a year after the deadline"),
    ];
    let depends = depends.then(|| Field::choice("dependencies", "Dependencies", choices));
    let payload = Field::text("payload", "Payload").value(text::pretty(payload));
    let about =
        html! { p.dim { "Creates a new task in a group of its own. What the form does not have is as in this task." } };
    Ok(Form::new("Create the task", about).with(fields.into_iter().chain(depends).chain([payload])))
}

pub(super) async fn create(order: &Order<'_>) -> Result<Outcome, Failed> {
    let engine = &order.app.engine;
    let id: TaskId =
        order.sent.text("taskId").parse().map_err(|_| Failed::input("`taskId` must be that of the form"))?;
    let link = order.visit.link_to("task", &[&id.to_string()]);
    let definition = changed(order, read(order).await?, form::now(order.app).await?)?;
    let text = json::text(&definition).map_err(|error| Failed::input(error.to_string()))?;
    let request: CreateTaskRequest<'_> = read_object(text.as_bytes())?;
    let requested = NewTask::from_request(id, &request)?;
    let required = create_task::SCOPES.fill(&create_task::values(requested.task()), &Values::of_path());
    order.visit.authorize(required.map_err(|_| PageError::Internal)?)?;
    if engine.status.submit(id).await.is_ok() {
        return Ok(Outcome::DoneAt("The task was created by this form before.".to_owned(), link));
    }
    create_task::store(engine, requested.accept()?).await?;
    Ok(Outcome::DoneAt(format!("Created again from task {}.", of(order)?.task.id), link))
}

async fn read(order: &Order<'_>) -> Result<Definition, PageError> {
    let definition = get_definition(order.app, order.visit, of(order)?.task.id).await?;
    if definition.len() > text::DEFINITION_SHOWN {
        let message =
            format!("The definition has more than {} bytes: create the task over the API.", text::DEFINITION_SHOWN);
        return Err(PageError::Refused(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    serde_json::from_str(&definition).map_err(|error| {
        tracing::error!(%error, "a stored definition is no JSON object");
        PageError::Internal
    })
}

fn date(definition: &Definition, field: &str) -> Option<DateTime<Utc>> {
    serde_json::from_str::<Timestamp>(definition.get(field)?.get()).ok().map(Timestamp::time)
}

fn changed(order: &Order<'_>, mut definition: Definition, now: DateTime<Utc>) -> Result<Definition, Failed> {
    for field in LEFT_OUT {
        definition.remove(field);
    }
    let sent = order.sent;
    let priority: Priority = sent.priority()?;
    let mut set = |field: &str, json: String| -> Result<(), Failed> {
        let raw =
            RawValue::from_string(json).map_err(|error| Failed::input(format!("`{field}` is not JSON: {error}")))?;
        definition.insert(field.to_owned(), raw);
        Ok(())
    };
    let quoted = |text: &str| Value::from(text).to_string();
    set("taskQueueId", quoted(sent.text("taskQueueId")))?;
    set("priority", quoted(priority.as_str()))?;
    set("created", quoted(&Timestamp::new(now).to_string()))?;
    set("deadline", quoted(sent.text("deadline")))?;
    if let Some(expires) = sent.non_empty("expires") {
        set("expires", quoted(expires))?;
    }
    if sent.text("dependencies") != SAME {
        set("dependencies", "[]".to_owned())?;
    }
    set("payload", sent.text("payload").to_owned())?;
    Ok(definition)
}
