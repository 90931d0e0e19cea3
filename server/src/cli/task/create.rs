//! `tenure task create`.

use std::process::ExitCode;

use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::states::OnDuplicate;

use super::outlook::Outlook;
use super::{CreateArgs, outcome, progress};
use crate::cli::http::{CommandError, Server, entries, field};
use crate::cli::input;
use crate::cli::print::table;

pub(super) async fn create(server: &Server, args: CreateArgs) -> Result<ExitCode, CommandError> {
    let body = match &args.file {
        Some(file) => input::read_json("--file", file)?,
        None => definition(&args, server.time(args.options.deadline).await?),
    };
    // A retry after a lost response must not create anything twice.
    let key = uuid::Uuid::new_v4().to_string();
    let mut answer = server.client.create_tasks(&body, &key).await.map_err(|error| server.error(&error))?;
    let mut code = ExitCode::SUCCESS;
    if args.wait {
        // Announced first: the wait may take hours and be interrupted.
        if let Ok(group) = field(&answer, "/taskGroupId").parse() {
            progress::announce(server, group);
        }
        let server = &server.patient();
        let outlook = Outlook::new(server);
        let (mut ids, mut nameless) = (Vec::new(), Vec::new());
        for entry in entries(&answer, "tasks") {
            let Ok(task) = field(entry, "/taskId").parse::<TaskId>() else { continue };
            ids.push(task);
            match entry["name"].as_str() {
                Some(name) => outlook.name(task, name),
                None => nameless.push(task),
            }
        }
        outlook.read(&nameless).await?;
        let answers = progress::wait(server, &outlook, &ids).await?;
        code = outcome(&answers);
        for (n, mut waited) in answers.into_iter().enumerate() {
            answer["tasks"][n]["status"] = waited["status"].take();
        }
    }
    server.print(&answer, created)?;
    Ok(code)
}

pub(super) fn created(answer: &Value) -> String {
    let state = |entry: &Value| {
        // Another task has the unique name of this one.
        let exists = if entry["deduplicated"] == Value::Bool(true) { " (existing)" } else { "" };
        field(entry, "/status/state") + exists
    };
    let row = |entry: &Value| [field(entry, "/taskId"), state(entry), field(entry, "/name")];
    let tasks = table(["TASK", "STATE", "NAME"], entries(answer, "tasks").iter().map(row));
    format!("group {}\n{tasks}", field(answer, "/taskGroupId"))
}

pub(super) fn definition(args: &CreateArgs, deadline: Option<Timestamp>) -> Value {
    let options = &args.options;
    let mut body = command_task(args.queue.as_ref(), &args.command, options.unique.as_deref(), options.on_duplicate);
    options.add_to(&mut body, deadline);
    body
}

/// Returns the definition of a task that runs a command.
pub(in crate::cli) fn command_task(
    queue: Option<&TaskQueueId>,
    command: &[String],
    unique: Option<&str>,
    on_duplicate: Option<OnDuplicate>,
) -> Value {
    let mut body = json!({ "taskQueueId": queue, "payload": { "command": [command] } });
    if let Some(name) = unique {
        body["options"] = json!({ "unique": name });
    }
    if let Some(treatment) = on_duplicate {
        body["options"]["onDuplicate"] = json!(treatment);
    }
    body
}
