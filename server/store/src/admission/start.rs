//! Stores the results of a decision.

use sqlx::PgConnection;
use tenure_domain::admission::{Decided, HeadState, PRIORITIES};

/// Stores the times of a queue and of its keys, and the heads that were given.
pub async fn store(transaction: &mut PgConnection, queue: i32, decided: &Decided) -> Result<(), sqlx::Error> {
    let (keys_changed, tats): (Vec<i64>, Vec<f64>) = decided.keys.iter().copied().unzip();
    let (mut keys, mut priorities, mut vtimes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut places, mut ready, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for head in &decided.heads {
        keys.push(head.key);
        priorities.push(i16::try_from(head.priority).unwrap_or(i16::MAX));
        vtimes.push(head.vtime);
        places.push(head.from_ord);
        ready.push(head.state == HeadState::Ready);
        times.push(match head.state {
            HeadState::At(time) => Some(time),
            HeadState::Ready | HeadState::Full | HeadState::Empty => None,
        });
    }
    sqlx::query!(
        "-- store_decision
        WITH of_queue AS (
            UPDATE admission_queues SET tat = $2, least = $3
            WHERE queue = $1 AND (tat, least) IS DISTINCT FROM ($2::float8, $3::float8[])
        ),
        of_keys AS (
            UPDATE admission_keys k SET tat = i.tat FROM unnest($4::bigint[], $5::float8[]) AS i(id, tat) WHERE k.id = i.id
        )
        UPDATE admission_heads h SET vtime = i.vtime, from_ord = COALESCE(i.place, h.from_ord), ready = i.ready, at = to_timestamp(i.at)
        FROM unnest($6::bigint[], $7::smallint[], $8::float8[], $9::bigint[], $10::boolean[], $11::float8[])
             AS i(key_id, priority, vtime, place, ready, at)
        WHERE h.key_id = i.key_id AND h.priority = i.priority
          AND (h.vtime, h.from_ord, h.ready, h.at)
              IS DISTINCT FROM (i.vtime, COALESCE(i.place, h.from_ord), i.ready, to_timestamp(i.at))",
        queue,
        decided.tat,
        &decided.least as &[f64; PRIORITIES],
        &keys_changed,
        &tats,
        &keys,
        &priorities,
        &vtimes,
        &places as &[Option<i64>],
        &ready,
        &times as &[Option<f64>]
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// A start out of turn.
#[derive(Debug, Clone, Copy)]
pub struct OutOfTurn {
    /// `task_queues.id`.
    pub queue: i32,
    /// When the next start of the queue conforms to its rate, if that changed.
    pub tat: Option<f64>,
    /// The key.
    pub key: i64,
    /// When the next start of the key conforms to its rate, if that changed.
    pub key_tat: Option<f64>,
    /// The priority, and how much the virtual time of the head grows.
    pub turn: Option<(i16, f64)>,
}

/// Charges a start out of turn to its key and its queue.
pub async fn store_out_of_turn(transaction: &mut PgConnection, start: OutOfTurn) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- store_out_of_turn
        WITH of_key AS (UPDATE admission_keys SET tat = $4 WHERE id = $3 AND $4::float8 IS NOT NULL),
        of_head AS (UPDATE admission_heads SET vtime = vtime + $6::float8 WHERE key_id = $3 AND priority = $5::smallint)
        UPDATE admission_queues SET tat = $2 WHERE queue = $1 AND $2::float8 IS NOT NULL",
        start.queue,
        start.tat,
        start.key,
        start.key_tat,
        start.turn.map(|(priority, _)| priority),
        start.turn.map(|(_, growth)| growth)
    )
    .execute(transaction)
    .await?;
    Ok(())
}
