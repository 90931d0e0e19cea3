//! The table `fact_generations`: which of the small facts that every server remembers have changed.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// The channel on which servers hear that a fact has changed; the payload is its name.
pub const CHANNEL: &str = "tenure_facts";

/// The generations of all facts at one time.
#[derive(Debug)]
pub struct Generations {
    /// By the names of the facts.
    pub of: HashMap<String, i64>,
    /// The database's time, if there is any fact.
    pub now: Option<DateTime<Utc>>,
}

/// The generations of all facts. A fact that is read afterwards is as new as its generation, or newer.
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

/// Raises the generation of a fact, in the transaction that changes it: once that has committed, every server hears of it
/// or sees it within half a second. Locks the fact's row until then, so that it comes last.
pub async fn raise(transaction: &mut PgConnection, fact: &str) -> Result<(), sqlx::Error> {
    sqlx::query!("-- raise_fact\nSELECT FROM (SELECT raise_fact($1)) raised", fact).execute(transaction).await?;
    Ok(())
}
