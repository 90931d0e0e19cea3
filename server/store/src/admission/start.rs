//! Stores decisions.

use sqlx::PgConnection;
use tenure_domain::admission::{Decided, HeadState, PRIORITIES};

use super::Locked;
use super::load::FoundHeads;

#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Version of the queue's state to replace; none if unchanged.
    pub version: Option<i64>,
    /// Next conforming start of the queue.
    pub tat: f64,
    pub least: [f64; PRIORITIES],
    pub keys: Vec<i64>,
    pub tats: Vec<f64>,
    /// `ctid` of each head.
    pub rows: Vec<String>,
    pub vtimes: Vec<f64>,
    /// Where the runs of each head begin; none if unchanged.
    pub places: Vec<Option<i64>>,
    pub ready: Vec<bool>,
    /// Next checks of these heads.
    pub times: Vec<Option<f64>>,
}

impl Stored {
    pub(crate) fn new(locked: &Locked, decided: &Decided, found: &FoundHeads) -> Self {
        let is_changed = (decided.tat, decided.least) != (locked.tat, locked.least);
        let (keys, tats) = decided.keys.iter().copied().unzip();
        let mut stored = Self {
            version: is_changed.then_some(locked.version),
            tat: decided.tat,
            least: decided.least,
            keys,
            tats,
            ..Self::default()
        };
        // The decision has every head, in the given order.
        for (head, row) in decided.heads.iter().zip(&found.rows) {
            stored.rows.push(row.clone());
            stored.vtimes.push(head.vtime);
            stored.places.push(head.from_ord);
            stored.ready.push(head.state == HeadState::Ready);
            stored.times.push(match head.state {
                HeadState::At(time) => Some(time),
                HeadState::Ready | HeadState::Full | HeadState::Empty => None,
            });
        }
        stored
    }

    /// Updates `locked` after the changes are stored.
    pub(crate) fn note(&self, locked: &mut Locked) {
        if let Some(version) = self.version {
            locked.version = version + 1;
            (locked.tat, locked.least) = (self.tat, self.least);
        }
    }
}

/// Stores the times of a queue and its keys, and the state of heads.
pub async fn store(
    transaction: &mut PgConnection,
    locked: &mut Locked,
    decided: &Decided,
    found: &FoundHeads,
) -> Result<(), sqlx::Error> {
    let stored = Stored::new(locked, decided, found);
    sqlx::query!(
        "-- store_decision
        WITH replaced AS (DELETE FROM admission_state WHERE queue = $1 AND version = $2),
        of_queue AS (
            INSERT INTO admission_state (queue, version, tat, least)
            SELECT $1, $2::bigint + 1, $3, $4 WHERE $2 IS NOT NULL
        ),
        of_keys AS (
            UPDATE admission_keys k SET tat = i.tat FROM unnest($5::bigint[], $6::float8[]) AS i(id, tat) WHERE k.id = i.id
        )
        UPDATE admission_heads h SET vtime = i.vtime, from_ord = COALESCE(i.place, h.from_ord), ready = i.ready, at = to_timestamp(i.at)
        FROM unnest($7::text[], $8::float8[], $9::bigint[], $10::boolean[], $11::float8[]) AS i(row, vtime, place, ready, at)
        WHERE h.ctid = i.row::tid
          AND (h.vtime, h.from_ord, h.ready, h.at)
              IS DISTINCT FROM (i.vtime, COALESCE(i.place, h.from_ord), i.ready, to_timestamp(i.at))",
        locked.queue,
        stored.version,
        stored.tat,
        &stored.least as &[f64; PRIORITIES],
        &stored.keys,
        &stored.tats,
        &stored.rows,
        &stored.vtimes,
        &stored.places as &[Option<i64>],
        &stored.ready,
        &stored.times as &[Option<f64>]
    )
    .execute(transaction)
    .await?;
    stored.note(locked);
    Ok(())
}

pub async fn store_state(
    transaction: &mut PgConnection,
    locked: &mut Locked,
    tat: f64,
    least: [f64; PRIORITIES],
) -> Result<(), sqlx::Error> {
    if (tat, least) == (locked.tat, locked.least) {
        return Ok(());
    }
    sqlx::query!(
        "-- store_state
        WITH replaced AS (DELETE FROM admission_state WHERE queue = $1 AND version = $2)
        INSERT INTO admission_state (queue, version, tat, least) VALUES ($1, $2::bigint + 1, $3, $4)",
        locked.queue,
        locked.version,
        tat,
        &least as &[f64; PRIORITIES]
    )
    .execute(transaction)
    .await?;
    (locked.version, locked.tat, locked.least) = (locked.version + 1, tat, least);
    Ok(())
}

/// Charges a turn to a head, for a start out of turn.
pub async fn take_turn(
    transaction: &mut PgConnection,
    key: i64,
    priority: usize,
    growth: f64,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- take_turn
        UPDATE admission_heads SET vtime = vtime + $3
        WHERE ctid = (SELECT ctid FROM admission_heads WHERE key_id = $1 AND priority = $2 ORDER BY vtime DESC LIMIT 1)",
        key,
        i16::try_from(priority).unwrap_or(i16::MAX),
        growth
    )
    .execute(transaction)
    .await?;
    Ok(())
}
