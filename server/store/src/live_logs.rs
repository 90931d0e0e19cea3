//! Logs of runs while they are written. Both tables are unlogged, so that a chunk waits for no flush; a crash of the database, or a
//! failover, leaves them empty.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use uuid::Uuid;

use super::decode::Row;

/// What the row of a chunk takes beside its bytes, roughly: what a log of many small ones costs is counted too.
const ROW_BYTES: i32 = 100;
/// How many chunks of a log are kept at least, so long as its bytes are within the limit.
const CHUNKS_KEPT: i32 = 4_096;
/// Old chunks are looked for with every so many new ones.
const TRIMMED_EVERY: i32 = 16;

/// A piece of the log of a run, as its worker sent it.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub task: Uuid,
    pub run: i16,
    /// The offset of its first byte in the whole log.
    pub offset: i64,
    pub bytes: Vec<u8>,
}

/// Adds chunks to the logs of runs that workers hold, each of another run, and deletes what lies more than `kept_max` bytes before the
/// end of a log. Of what is there already nothing is stored again. Answers with the number of each chunk whose run is held, and what
/// became of it: none if it begins where another transaction has begun the log meanwhile. Added again, it finds what that has stored.
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
        tenure_domain::live_log::LOOK_EVERY.as_seconds_f64()
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (crate::hot::member(row.n), Appended::read(row.next, row.kept))).collect())
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset behind the last byte of the log.
    pub next: i64,
    /// How much more its log takes now than before, with its rows: less than nothing if more was deleted than stored.
    pub kept: i64,
}

impl Appended {
    fn read(next: Option<i64>, kept: i64) -> Option<Self> {
        next.map(|next| Self { next, kept })
    }
}

/// What is known of the log of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The task's key.
    pub seq: i64,
    /// Whether a worker holds the run.
    pub held: bool,
    /// The offset behind the last byte of its log, if it has one.
    pub next: Option<i64>,
}

/// Looks for the log of a run. None if there is no such task.
pub async fn find(conn: &mut PgConnection, task: TaskId, run: RunId) -> Result<Option<Found>, sqlx::Error> {
    sqlx::query_as!(
        Found,
        r#"-- find_live_log
        SELECT t.seq, EXISTS (SELECT FROM claims c WHERE c.seq = t.seq AND c.run = $2) AS "held!", l.next AS "next?"
        FROM tasks t LEFT JOIN live_logs l ON l.seq = t.seq AND l.run = $2 WHERE t.id = $1"#,
        task.uuid(),
        run.number().cast_signed()
    )
    .fetch_optional(conn)
    .await
}

/// Where a reader is in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The task's key.
    pub seq: i64,
    pub run: i16,
    /// The offset of the next byte.
    pub next: i64,
}

/// What a reader gets next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub reader: usize,
    /// The offset of its first byte.
    pub start: i64,
    pub bytes: Vec<u8>,
}

/// Reads up to `limit` chunks for each of these readers, in the order of the log.
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

/// What is known of the run of a reader, and of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Whether a worker holds the run.
    pub held: bool,
    /// The offset behind the last byte of the log, if it is there.
    pub next: Option<i64>,
}

/// What is known of the runs and the logs of these readers, in their order.
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

/// What the chunks of all logs take.
pub async fn total(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- total_live_logs
        SELECT COALESCE(sum(kept), 0 /* count */)::bigint AS "kept!" FROM live_logs"#
    )
    .fetch_one(conn)
    .await
}

/// A log that is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueLog {
    /// The task's key.
    pub seq: i64,
    pub run: i16,
    /// The task, until when it is retained, and what is known of the run; none if the task was purged.
    pub task: Option<DueTask>,
    /// When this was read.
    pub now: DateTime<Utc>,
}

/// The task of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTask {
    pub id: TaskId,
    pub run: RunId,
    pub expires: DateTime<Utc>,
    /// When the run has ended, if it has.
    pub ended: Option<DateTime<Utc>>,
    /// Whether the run has an artifact of this name.
    pub uploaded: bool,
}

/// Logs that are to be looked at, up to `limit`; none is left that was due before `from`. `backing` is the artifact with the whole log.
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

/// Looks at a log again at that time.
pub async fn put_off(conn: &mut PgConnection, seq: i64, run: i16, until: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!("-- put_off_live_log\nUPDATE live_logs SET look_at = $3 WHERE seq = $1 AND run = $2", seq, run, until)
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes a log and its chunks.
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
