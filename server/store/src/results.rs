//! Results and failures of runs. The statements that end runs write them.

use std::collections::HashMap;

use sqlx::PgConnection;
use tenure_api::ids::RunId;
use tenure_api::states::RunState;
use uuid::Uuid;

use crate::decode::Row;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    pub run: RunId,
    pub state: RunState,
    pub texts: Texts,
}

/// JSON texts. At least one is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Texts {
    pub result: Option<String>,
    pub failure: Option<String>,
}

/// Returns the result and failure of the given run, or of the last run.
pub async fn find(conn: &mut PgConnection, id: Uuid, run: Option<RunId>) -> Result<Option<Returned>, sqlx::Error> {
    let row = sqlx::query!(
        "-- find_result
        SELECT x.run, r.state, x.result, x.failure
        FROM tasks t JOIN results x ON x.seq = t.seq AND x.run = COALESCE($2, t.run)
        JOIN runs r ON r.seq = x.seq AND r.run = x.run
        WHERE t.id = $1",
        id,
        run.map(|run| run.number().cast_signed())
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let columns = Row { table: "results", task: id };
    let texts = Texts { result: row.result, failure: row.failure };
    Ok(Some(Returned { run: columns.run(row.run)?, state: columns.state(row.state)?, texts }))
}

pub async fn load(
    conn: &mut PgConnection,
    runs: &[(Uuid, RunId)],
) -> Result<HashMap<(Uuid, RunId), Texts>, sqlx::Error> {
    let (ids, numbers): (Vec<Uuid>, Vec<i16>) = runs.iter().map(|(id, run)| (*id, run.number().cast_signed())).unzip();
    let rows = sqlx::query!(
        r#"-- load_results
        SELECT i.id AS "id!", x.run, x.result, x.failure FROM unnest($1::uuid[], $2::smallint[]) AS i(id, run)
        JOIN tasks t ON t.id = i.id JOIN results x ON x.seq = t.seq AND x.run = i.run"#,
        &ids,
        &numbers
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let run = Row { table: "results", task: row.id }.run(row.run)?;
            Ok(((row.id, run), Texts { result: row.result, failure: row.failure }))
        })
        .collect()
}
