//! Which of the runs that workers hold, or believe to hold, are held by none. A run is held exactly if there is a claim of it.

use sqlx::PgConnection;
use tenure_api::watch::EndedClaim;
use tenure_domain::watch::Fate;
use uuid::Uuid;

use super::decode::{Row, Undecodable};

/// Runs of one statement.
pub const LOOKED_AT_MAX: usize = 10_000;

/// What was found of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A worker holds it.
    Held {
        /// The task.
        task: Uuid,
        /// Its key.
        seq: i64,
    },
    /// None does.
    Ended(EndedClaim),
}

/// A run that was held when it was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The task.
    pub task: Uuid,
    /// Its key.
    pub seq: i64,
    /// The run.
    pub run: i16,
}

struct SeenRow {
    id: Uuid,
    run: i16,
    seq: Option<i64>,
    open: bool,
    held: bool,
    state: Option<i16>,
    reason: Option<i16>,
    ended_by: Option<i16>,
}

/// What there is to say of each of these runs.
pub async fn look_up(conn: &mut PgConnection, watched: &[(Uuid, i16)]) -> Result<Vec<Seen>, sqlx::Error> {
    let (ids, runs): (Vec<Uuid>, Vec<i16>) = watched.iter().copied().unzip();
    let rows = sqlx::query_as!(
        SeenRow,
        r#"-- look_up_claims
        SELECT w.id AS "id!", w.run AS "run!", t.seq AS "seq?",
               COALESCE(t.state = 1 /* State::Unresolved */ AND t.run = w.run, false) AS "open!",
               COALESCE((SELECT c.run FROM claims c WHERE c.seq = t.seq) = w.run, false) AS "held!",
               x.state AS "state?", x.reason_resolved AS "reason?", x.ended_by AS "ended_by?"
        FROM unnest($1::uuid[] /* ids */, $2::smallint[] /* runs */) AS w(id, run)
        LEFT JOIN LATERAL (SELECT t.seq, t.state, t.run FROM tasks t WHERE t.id = w.id LIMIT 1) t ON true
        LEFT JOIN LATERAL (
            SELECT x.state, x.reason_resolved, x.ended_by FROM runs x WHERE x.seq = t.seq AND x.run = w.run LIMIT 1
        ) x ON true"#,
        &ids,
        &runs
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(SeenRow::read).collect::<Result<_, _>>()?)
}

impl SeenRow {
    fn read(self) -> Result<Seen, Undecodable> {
        let columns = Row { table: "runs", task: self.id };
        let fate = match (self.seq, self.state, self.reason) {
            (Some(seq), ..) if self.held => return Ok(Seen::Held { task: self.id, seq }),
            (_, Some(state), Some(reason)) => {
                Fate::Ended(columns.state(state)?, columns.reason_resolved(reason)?, columns.ended_by(self.ended_by)?)
            }
            _ if self.open => Fate::Pending,
            _ => Fate::Missing,
        };
        Ok(Seen::Ended(fate.of_claim(columns.slug("id", self.id)?, columns.run(self.run)?)))
    }
}

/// Those of these runs that are held no more, and may be looked up.
pub async fn list_let_go(conn: &mut PgConnection, held: &[Held]) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let (seqs, runs): (Vec<i64>, Vec<i16>) = held.iter().map(|held| (held.seq, held.run)).unzip();
    let gone = sqlx::query_scalar!(
        r#"-- list_let_go
        SELECT w.n AS "n!" FROM unnest($1::bigint[] /* seqs */, $2::smallint[] /* runs */) WITH ORDINALITY AS w(seq, run, n)
        WHERE (SELECT c.run FROM claims c WHERE c.seq = w.seq) IS DISTINCT FROM w.run"#,
        &seqs,
        &runs
    )
    .fetch_all(conn)
    .await?;
    Ok(gone.into_iter().filter_map(|n| held.get(crate::hot::member(n))).map(|held| (held.task, held.run)).collect())
}
