//! The audit: who changed what.

use tenure_api::audit::{Audit, AuditEntry};

use crate::http::api::prelude::*;
use tenure_domain::audit::{Action, Kind};
use tenure_domain::json::raw as raw_value;
use tenure_domain::scopes::Expression;
use tenure_store::audit::{self, EXAMINED_MAX, Filter, Recorded};

const SCOPE: &str = "tenure:list-audit";

/// Scope for the audit, also on pages that show entries.
pub(in crate::http) fn scope() -> Expression {
    SCOPE.into()
}

/// `GET /api/tenure/v1/audit`
pub fn list_audit() -> Endpoint {
    Endpoint::get("listAudit", handle_list_audit).scopes(Scope(SCOPE)).large_answer().described(
        "tenure",
        "List who changed what",
        describe_list_audit,
    )
}

fn describe_list_audit(operation: Operation, sample: &Sample) -> Operation {
    let text = json!({"type": "string", "minLength": 1});
    let kinds = json!({"type": "string", "enum": Kind::ALL.map(Kind::as_str)});
    let actions: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
    let entry = json!({
        "id": 7,
        "at": sample.after(0),
        "clientId": "root",
        "action": "cancelTask",
        "kind": "task",
        "object": sample.task,
        "detail": {"taskQueueId": QUEUE},
        "traceId": "2c6f1f0e-58a4-4f0b-9c3a-0d4f3f1f6f0a",
    });
    paged(operation)
        .about(&format!(
            "Newest first. Changes that an operator may want to ask about: of tasks, groups, queues, workers, clients, \
             roles, schedules, subscriptions, partition groups, database roles and jobs; not the creation of tasks and \
             the calls of workers. A page examines up to {EXAMINED_MAX} changes, so a page with a token is not the last one, even if it has \
             few or no entries."
        ))
        .query("client", "Only changes of this client", &text, &Value::Null)
        .query("kind", "Only changes of this kind of object", &kinds, &Value::Null)
        .query("object", "Only changes of the object with this id", &text, &Value::Null)
        .query("action", "Only changes by this operation", &json!({"type": "string", "enum": actions}), &Value::Null)
        .query("after", "Only changes after this time", &json!({"type": "string", "format": "date-time"}), &Value::Null)
        .answers::<Audit>("A page; with a token if there may be more", &json!({"audit": [entry]}))
}

async fn handle_list_audit(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let query = call.query(&["client", "object", "kind", "action", "after", "limit", "continuationToken"])?;
    let page = Page::read(&query)?;
    let filter = filter(&query)?;
    let before = page.after.as_deref().map(str::parse::<i64>).transpose().map_err(|_| ApiError::unknown_token())?;
    let limit = i64::try_from(page.limit.unwrap_or(PAGE_MAX)).unwrap_or(i64::MAX);
    let mut conn = tenure_store::page::begin(&app.engine.pool).await?;
    let audit::Page { rows, next } = audit::list(&mut conn, filter, before, limit).await?;
    conn.commit().await?;
    let audit = rows.into_iter().map(shown).collect::<Result<_, _>>()?;
    ok(&Audit { audit, continuation_token: next.map(|next| Page::token(&next.to_string())) })
}

fn filter(query: &[(String, String)]) -> Result<Filter<'_>, ApiError> {
    let mut filter = Filter::default();
    for (name, value) in query {
        let wrong = |rule: &str| ApiError::arguments(format!("the query parameter `{name}` {rule}"));
        // PostgreSQL cannot store NUL.
        if value.is_empty() || value.contains('\0') {
            return Err(wrong("must not be empty or contain the character U+0000"));
        }
        match name.as_str() {
            "client" => filter.client_id = Some(value),
            "object" => filter.object = Some(value),
            "action" => {
                let action = Action::parse(value).ok_or_else(|| wrong("is not an operation that the audit has"))?;
                filter.action = Some(action.name());
            }
            "kind" => {
                let kinds = Kind::ALL.map(Kind::as_str).join(", ");
                filter.kind = Some(Kind::parse(value).ok_or_else(|| wrong(&format!("must be one of {kinds}")))?);
            }
            "after" => filter.after = Some(query_time(name, value)?),
            _ => {}
        }
    }
    Ok(filter)
}

fn shown(row: Recorded) -> Result<AuditEntry, ApiError> {
    let Recorded { id, at, client_id, action, kind, object, detail, trace_id } = row;
    let detail = raw_value(detail).map_err(|error| ApiError::internal(&error.to_string()))?;
    Ok(AuditEntry { id, at: at.into(), client_id, action, kind, object, detail, trace_id })
}
