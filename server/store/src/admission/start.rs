//! Stores what was decided.

use sqlx::PgConnection;
use tenure_domain::admission::{Decided, HeadState, PRIORITIES};
use tenure_domain::events::note::ReadyRun;
use tenure_domain::policy::counts::{Open, change};
use tenure_domain::policy::hold::Hold;

use crate::transitions::end_hold::{note_ready, ready_run};

/// Makes runs ready that this transaction has locked, in this order: each takes a new place, as if it had come now. A note says so
/// to readers of events. Answers how many they are.
pub async fn admit(transaction: &mut PgConnection, queue: i32, name: &str, seqs: &[i64]) -> Result<usize, sqlx::Error> {
    if seqs.is_empty() {
        return Ok(0);
    }
    let rows = sqlx::query!(
        r#"-- admit_runs
        WITH placed AS MATERIALIZED (
            SELECT o.seq, nextval('pending_ord') AS ord
            FROM (SELECT seq FROM unnest($1::bigint[]) WITH ORDINALITY AS i(seq, n) ORDER BY n) o
        ),
        admitted AS (
            UPDATE pending p SET hold = NULL, held_until = NULL, reserved_until = NULL, hidden_until = NULL, session = NULL,
                waited = p.ord, ord = placed.ord
            FROM placed WHERE p.seq = placed.seq AND p.hold = 2 /* Hold::Waiting */ AND p.queue = $2
            RETURNING p.id, p.run, p.priority, p.ord
        )
        SELECT id, run, priority FROM admitted ORDER BY ord"#,
        seqs,
        queue
    )
    .fetch_all(&mut *transaction)
    .await?;
    let runs = rows.into_iter().map(|row| ready_run(row.id, row.run, row.priority));
    let runs: Vec<ReadyRun> = runs.collect::<Result<_, sqlx::Error>>()?;
    let one = change(Some(Open::Pending { hold: Some(Hold::Waiting) }), Some(Open::Pending { hold: None }));
    note_ready(transaction, queue, name, &runs, one).await?;
    Ok(runs.len())
}

/// Stores when the next starts of a queue and of some of its keys conform to their rates.
pub async fn store_times(
    transaction: &mut PgConnection,
    queue: i32,
    tat: f64,
    keys: &[(i64, f64)],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- store_tat
        UPDATE admission_queues SET tat = $2 WHERE queue = $1 AND tat <> $2",
        queue,
        tat
    )
    .execute(&mut *transaction)
    .await?;
    store_times_of_keys(transaction, keys).await
}

async fn store_times_of_keys(transaction: &mut PgConnection, keys: &[(i64, f64)]) -> Result<(), sqlx::Error> {
    if keys.is_empty() {
        return Ok(());
    }
    let (keys, tats): (Vec<i64>, Vec<f64>) = keys.iter().copied().unzip();
    sqlx::query!(
        "-- store_buckets
        UPDATE admission_keys k SET tat = i.tat FROM unnest($1::bigint[], $2::float8[]) AS i(id, tat) WHERE k.id = i.id",
        &keys,
        &tats
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Stores buckets, heads that wait for a certain time, and in a fair queue virtual times; in others they are places, which a look has
/// found.
pub async fn store(
    transaction: &mut PgConnection,
    queue: i32,
    decided: &Decided,
    fair: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- store_admission
        UPDATE admission_queues SET tat = $2, least = $3
        WHERE queue = $1 AND (tat, least) IS DISTINCT FROM ($2::float8, $3::float8[])",
        queue,
        decided.tat,
        &decided.least as &[f64; PRIORITIES]
    )
    .execute(&mut *transaction)
    .await?;
    store_times_of_keys(transaction, &decided.keys).await?;
    let (mut keys, mut priorities, mut vtimes, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for head in &decided.heads {
        keys.push(head.key);
        priorities.push(i16::try_from(head.priority).unwrap_or(i16::MAX));
        vtimes.push(head.vtime);
        times.push(match head.state {
            HeadState::At(time) => Some(time),
            HeadState::Ready | HeadState::Full | HeadState::Empty => None,
        });
    }
    sqlx::query!(
        "-- store_heads
        UPDATE admission_heads h SET vtime = CASE WHEN $5 /* fair */ THEN i.vtime ELSE h.vtime END,
            at = to_timestamp(i.at), ready = h.ready AND i.at IS NULL
        FROM unnest($1::bigint[], $2::smallint[], $3::float8[], $4::float8[]) AS i(key_id, priority, vtime, at)
        WHERE h.key_id = i.key_id AND h.priority = i.priority
          AND (h.at IS DISTINCT FROM to_timestamp(i.at) OR $5 AND h.vtime <> i.vtime)",
        &keys,
        &priorities,
        &vtimes,
        &times as &[Option<f64>],
        fair
    )
    .execute(transaction)
    .await?;
    Ok(())
}
