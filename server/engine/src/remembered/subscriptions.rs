//! Names of the subscriptions. Without any, no pass of theirs runs a statement.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::Fact;
use tenure_store::subscriptions;

#[derive(Debug)]
pub struct Subscriptions;

impl Fact for Subscriptions {
    const NAME: &'static str = subscriptions::FACT;
    type Value = BTreeSet<String>;

    async fn read(conn: &mut PgConnection) -> Result<Self::Value, sqlx::Error> {
        Ok(subscriptions::list_names(conn).await?.into_iter().collect())
    }
}
