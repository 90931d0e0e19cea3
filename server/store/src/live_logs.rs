//! Logs of runs while they are written. Both tables are unlogged, so chunks need no flush. A crash
//! or failover empties them.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use uuid::Uuid;

use super::decode::Row;

/// Approximate overhead of a chunk's row.
const ROW_BYTES: i32 = 100;
/// Latest chunks kept, while within the byte limit.
const CHUNKS_KEPT: i32 = 4_096;
/// Old chunks are deleted with every 16th new one.
const TRIMMED_EVERY: i32 = 16;

#[derive(Debug, Clone)]
pub struct Chunk {
    pub task: Uuid,
    pub run: i16,
    /// Offset of its first byte in the log.
    pub offset: i64,
    pub bytes: Vec<u8>,
}

/// Appends chunks to the logs of claimed runs, at most one per run, and deletes bytes more than
/// `kept_max` before the end of a log. Skips bytes already stored.
///
/// Returns the index and outcome of each chunk whose run is held. The outcome is none if another
/// transaction has begun the log meanwhile; retry then.
pub async fn append(
    conn: &mut PgConnection,
    chunks: &[Chunk],
    kept_max: i64,
) -> Result<Vec<(usize, Option<Appended>)>, sqlx::Error> {
    let ids: Vec<Uuid> = chunks.iter().map(|chunk| chunk.task).collect();
    let runs: Vec<i16> = chunks.iter().map(|chunk| chunk.run).collect();
    let offsets: Vec<i64> = chunks.iter().map(|chunk| chunk.offset).collect();
    let bytes: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk.bytes.clone()).collect();
    let rows = sqlx::query!(
        r#"-- append_live_logs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        held AS MATERIALIZED (
            SELECT i.n, i.at, i.bytes, t.seq, i.run
            FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS i(id, run, at, bytes, n)
            JOIN tasks t ON t.id = i.id
            JOIN claims c ON c.seq = t.seq AND c.run = i.run
        ),
        old AS MATERIALIZED (
            SELECT l.seq, l.run, l.next, l.chunks FROM held h JOIN live_logs l ON l.seq = h.seq AND l.run = h.run
            ORDER BY l.seq, l.run FOR NO KEY UPDATE OF l
        ),
        placed AS MATERIALIZED (
            SELECT h.n, h.seq, h.run, GREATEST(h.at, COALESCE(o.next, 0 /* count */)) AS start,
                   COALESCE(o.chunks, 0 /* count */) + 1 /* count */ AS number,
                   substr(h.bytes, 1 /* count */ + LEAST(
                       GREATEST(COALESCE(o.next, 0 /* count */) - h.at, 0 /* count */), octet_length(h.bytes))::int) AS bytes
            FROM held h LEFT JOIN old o ON o.seq = h.seq AND o.run = h.run
        ),
        fresh AS MATERIALIZED (SELECT * FROM placed WHERE octet_length(bytes) > 0 /* count */),
        stored AS (
            INSERT INTO live_log_chunks (seq, run, start, number, bytes)
            -- In order, here and below, so that two servers cannot deadlock.
            SELECT seq, run, start, number, bytes FROM fresh ORDER BY seq, run
            ON CONFLICT DO NOTHING RETURNING seq, run, start, number, octet_length(bytes) AS size
        ),
        trimmed AS (
            DELETE FROM live_log_chunks x USING fresh f
            WHERE f.number % $7 /* trimmed every */ = 0 /* count */ AND x.seq = f.seq AND x.run = f.run
              AND (x.start + octet_length(x.bytes) <= f.start + octet_length(f.bytes) - $5 /* kept */
                   OR x.number <= f.number - $8 /* chunks kept */)
            RETURNING x.seq, x.run, octet_length(x.bytes) + $6 /* row */ AS size
        ),
        gone AS MATERIALIZED (SELECT seq, run, sum(size)::bigint AS size FROM trimmed GROUP BY seq, run),
        counted AS (
            INSERT INTO live_logs AS l (seq, run, next, chunks, kept, look_at)
            SELECT s.seq, s.run, s.start + s.size, s.number, s.size + $6 - COALESCE(g.size, 0 /* count */),
                   db_now.now + make_interval(secs => $9)
            FROM stored s LEFT JOIN gone g ON g.seq = s.seq AND g.run = s.run, db_now ORDER BY s.seq, s.run
            ON CONFLICT (seq, run) DO UPDATE SET next = GREATEST(l.next, EXCLUDED.next),
                chunks = GREATEST(l.chunks, EXCLUDED.chunks), kept = l.kept + EXCLUDED.kept
        )
        SELECT p.n AS "n!",
               CASE WHEN octet_length(p.bytes) = 0 /* count */ THEN p.start ELSE s.start + s.size END AS "next?",
               COALESCE(s.size + $6, 0 /* count */) - COALESCE(g.size, 0 /* count */) AS "kept!"
        FROM placed p LEFT JOIN stored s ON s.seq = p.seq AND s.run = p.run LEFT JOIN gone g ON g.seq = p.seq AND g.run = p.run"#,
        &ids,
        &runs,
        &offsets,
        &bytes,
        kept_max,
        ROW_BYTES,
        TRIMMED_EVERY,
        CHUNKS_KEPT,
        tenure_domain::live_log::CHECK_EVERY.as_seconds_f64()
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (crate::hot::member(row.n), Appended::read(row.next, row.kept))).collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// End offset of the log.
    pub next: i64,
    /// Change of the log's size, with rows. Negative if more was deleted than stored.
    pub kept: i64,
}

impl Appended {
    fn read(next: Option<i64>, kept: i64) -> Option<Self> {
        next.map(|next| Self { next, kept })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveLogState {
    pub seq: i64,
    /// True if a worker holds the run.
    pub held: bool,
    /// End offset of the log, if it exists.
    pub next: Option<i64>,
}

/// None if the task does not exist.
pub async fn find(conn: &mut PgConnection, task: TaskId, run: RunId) -> Result<Option<LiveLogState>, sqlx::Error> {
    sqlx::query_as!(
        LiveLogState,
        r#"-- find_live_log
        SELECT t.seq, EXISTS (SELECT FROM claims c WHERE c.seq = t.seq AND c.run = $2) AS "held!", l.next AS "next?"
        FROM tasks t LEFT JOIN live_logs l ON l.seq = t.seq AND l.run = $2 WHERE t.id = $1"#,
        task.uuid(),
        run.number().cast_signed()
    )
    .fetch_optional(conn)
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub seq: i64,
    pub run: i16,
    /// Offset of the next byte.
    pub next: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub reader: usize,
    /// Offset of its first byte.
    pub start: i64,
    pub bytes: Vec<u8>,
}

/// Reads up to `limit` chunks for each reader, in log order.
pub async fn read(conn: &mut PgConnection, readers: &[Position], limit: i64) -> Result<Vec<Piece>, sqlx::Error> {
    let seqs: Vec<i64> = readers.iter().map(|reader| reader.seq).collect();
    let runs: Vec<i16> = readers.iter().map(|reader| reader.run).collect();
    let nexts: Vec<i64> = readers.iter().map(|reader| reader.next).collect();
    let rows = sqlx::query!(
        r#"-- read_live_logs
        SELECT i.n AS "n!", x.start AS "start!", x.bytes AS "bytes!"
        FROM unnest($1::bigint[], $2::smallint[], $3::bigint[] /* offsets */) WITH ORDINALITY AS i(seq, run, next, n)
        CROSS JOIN LATERAL (
            SELECT x.start, x.bytes FROM live_log_chunks x
            WHERE x.seq = i.seq AND x.run = i.run AND x.start >= COALESCE(
                      (SELECT y.start FROM live_log_chunks y WHERE y.seq = i.seq AND y.run = i.run AND y.start <= i.next
                       ORDER BY y.start DESC LIMIT 1), 0 /* count */)
              AND x.start + octet_length(x.bytes) > i.next
            ORDER BY x.start LIMIT $4
        ) x
        ORDER BY i.n, x.start"#,
        &seqs,
        &runs,
        &nexts,
        limit
    )
    .fetch_all(conn)
    .await?;
    let piece = |row: (i64, i64, Vec<u8>)| Piece { reader: crate::hot::member(row.0), start: row.1, bytes: row.2 };
    Ok(rows.into_iter().map(|row| piece((row.n, row.start, row.bytes))).collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    pub held: bool,
    pub next: Option<i64>,
}

pub async fn states(conn: &mut PgConnection, readers: &[Position]) -> Result<Vec<State>, sqlx::Error> {
    let seqs: Vec<i64> = readers.iter().map(|reader| reader.seq).collect();
    let runs: Vec<i16> = readers.iter().map(|reader| reader.run).collect();
    sqlx::query_as!(
        State,
        r#"-- live_log_states
        SELECT COALESCE((SELECT c.run FROM claims c WHERE c.seq = i.seq) = i.run, false) AS "held!",
               (SELECT l.next FROM live_logs l WHERE l.seq = i.seq AND l.run = i.run) AS "next?"
        FROM unnest($1::bigint[], $2::smallint[]) WITH ORDINALITY AS i(seq, run, n) ORDER BY i.n"#,
        &seqs,
        &runs
    )
    .fetch_all(conn)
    .await
}

/// Size of all logs, with rows.
pub async fn total(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- total_live_logs
        SELECT COALESCE(sum(kept), 0 /* count */)::bigint AS "kept!" FROM live_logs"#
    )
    .fetch_one(conn)
    .await
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueLog {
    pub seq: i64,
    pub run: i16,
    /// None if the task was purged.
    pub task: Option<DueTask>,
    pub now: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTask {
    pub id: TaskId,
    pub run: RunId,
    pub expires: DateTime<Utc>,
    pub ended: Option<DateTime<Utc>>,
    /// True if the run has the artifact.
    pub uploaded: bool,
}

/// Lists up to `limit` logs due for a check; none is left before `from`. `backing` names the
/// artifact with the whole log.
pub async fn list_due(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    backing: &str,
    limit: i64,
) -> Result<Vec<DueLog>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- due_live_logs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        due AS MATERIALIZED (
            SELECT seq, run FROM live_logs WHERE look_at >= $1 AND look_at <= (SELECT now FROM db_now)
            ORDER BY look_at LIMIT $3
        )
        SELECT l.seq AS "seq!", l.run AS "run!", d.id AS "id?", d.expires AS "expires?", x.resolved AS "resolved?",
               EXISTS (SELECT FROM artifacts a WHERE a.seq = l.seq AND a.run = l.run AND a.name = $2) AS "uploaded!",
               db_now.now AS "now!"
        FROM due l LEFT JOIN task_definitions d ON d.seq = l.seq LEFT JOIN runs x ON x.seq = l.seq AND x.run = l.run, db_now"#,
        from,
        backing,
        limit
    )
    .fetch_all(conn)
    .await?;
    let due = rows.into_iter().map(|row| {
        let task = match (row.id, row.expires) {
            (Some(id), Some(expires)) => {
                let columns = Row { table: "live_logs", task: id };
                let (id, run) = (columns.slug("id", id)?, columns.run(row.run)?);
                Some(DueTask { id, run, expires, ended: row.resolved, uploaded: row.uploaded })
            }
            _ => None,
        };
        Ok(DueLog { seq: row.seq, run: row.run, task, now: row.now })
    });
    due.collect()
}

/// Postpones the next check of a log.
pub async fn put_off(conn: &mut PgConnection, seq: i64, run: i16, until: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!("-- put_off_live_log\nUPDATE live_logs SET look_at = $3 WHERE seq = $1 AND run = $2", seq, run, until)
        .execute(conn)
        .await?;
    Ok(())
}

pub async fn purge(conn: &mut PgConnection, seq: i64, run: i16) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- purge_live_log
        WITH log AS (DELETE FROM live_logs WHERE seq = $1 AND run = $2)
        DELETE FROM live_log_chunks WHERE seq = $1 AND run = $2",
        seq,
        run
    )
    .execute(conn)
    .await?;
    Ok(())
}
