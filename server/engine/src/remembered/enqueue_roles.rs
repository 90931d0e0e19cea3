//! Database roles that may enqueue tasks from SQL, with their clients.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::Fact;
use tenure_store::enqueued;

#[derive(Debug)]
pub struct EnqueueRoles;

impl Fact for EnqueueRoles {
    const NAME: &'static str = enqueued::FACT;
    /// Client by role; none for a role that was denied.
    type Value = HashMap<String, Option<String>>;

    async fn read(conn: &mut PgConnection) -> Result<Self::Value, sqlx::Error> {
        let roles = enqueued::list_roles(conn).await?;
        Ok(roles.into_iter().map(|role| (role.role, role.client_id)).collect())
    }
}
