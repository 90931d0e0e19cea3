//! Database roles that may enqueue tasks from SQL.

use serde_json::json;
use sqlx::{Connection, PgPool};

use super::actor::{Actor, Recorded};
use tenure_domain::audit::{Action, Entry};
use tenure_store::enqueued::{self, Allowed};

/// Lets a role enqueue tasks as a client. None if the database has no such role.
pub async fn allow(pool: &PgPool, actor: &Actor, role: &str, client_id: &str) -> Result<Option<Allowed>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let is_repeat = enqueued::lock_client(&mut transaction, role).await?.as_deref() == Some(client_id);
    let Some(allowed) = enqueued::allow(&mut transaction, role, client_id).await? else { return Ok(None) };
    let mut recorded = None;
    if !is_repeat {
        let entry = Entry::new(Action::AllowEnqueue, role, json!({"clientId": client_id}));
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(Some(allowed))
}

/// Denies a role. False if it was not allowed.
pub async fn deny(pool: &PgPool, actor: &Actor, role: &str) -> Result<bool, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    if !enqueued::deny(&mut transaction, role).await? {
        return Ok(false);
    }
    let recorded = actor.record(&mut transaction, Entry::new(Action::DenyEnqueue, role, json!({}))).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(true)
}
