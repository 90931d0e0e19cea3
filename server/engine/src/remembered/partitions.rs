//! Names of the partition groups. Without any, their pass runs no statement.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::Fact;
use tenure_store::partitions;

#[derive(Debug)]
pub struct Partitions;

impl Fact for Partitions {
    const NAME: &'static str = partitions::FACT;
    type Value = BTreeSet<String>;

    async fn read(conn: &mut PgConnection) -> Result<Self::Value, sqlx::Error> {
        Ok(partitions::list_names(conn).await?.into_iter().collect())
    }
}
