//! The table `fact_generations`: versions of small facts that every server caches.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Channel on which servers learn of changed facts; the payload is the name.
pub const CHANNEL: &str = "tenure_facts";

#[derive(Debug)]
pub struct Generations {
    /// By name.
    pub of: HashMap<String, i64>,
    /// Time of the database, if there is any fact.
    pub now: Option<DateTime<Utc>>,
}

/// Returns the generations of all facts. Facts read afterwards are at least as new.
pub async fn get_generations(conn: &mut PgConnection) -> Result<Generations, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- fact_generations
        SELECT g.name, g.generation, db_now.now AS "now!" FROM fact_generations g, db_now"#
    )
    .fetch_all(conn)
    .await?;
    let now = rows.first().map(|row| row.now);
    Ok(Generations { of: rows.into_iter().map(|row| (row.name, row.generation)).collect(), now })
}

/// Raises the generation of a fact, in the transaction that changes it. After the commit, all
/// servers are notified or poll it within half a second. Locks the fact until then, so call it
/// last.
pub async fn raise(transaction: &mut PgConnection, fact: &str) -> Result<(), sqlx::Error> {
    sqlx::query!("-- raise_fact\nSELECT FROM (SELECT raise_fact($1)) raised", fact).execute(transaction).await?;
    Ok(())
}
