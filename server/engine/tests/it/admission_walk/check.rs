//! Invariants of every snapshot, and of the settled state.

use std::fmt::Write;

use super::world::{Limits, RATE, RATE_OF_KEY, RATE_TOTAL, Watched, World};
use crate::support::*;

/// Used slots. `place` is the code of a hold, 0 for a ready run, 4 for a claim. A ready run has no
/// slot: see [`READY`].
const USED: &str = "
    WITH runs AS MATERIALIZED (
        SELECT queue, key_id, session, COALESCE(hold, 0) AS place FROM pending
        UNION ALL SELECT queue, key_id, session, 4 FROM claims
    ),
    used AS MATERIALIZED (SELECT queue, key_id, count(*) AS n FROM runs WHERE place IN (3, 4) GROUP BY queue, key_id)
    SELECT 'queue', q.id, COALESCE(p.refile_stage, 0)::bigint,
           COALESCE((SELECT sum(n) FROM used u WHERE u.queue = q.id), 0)::bigint,
           (SELECT count(*) FROM runs r WHERE r.queue = q.id AND place = 2)
    FROM task_queues q LEFT JOIN queue_policies p ON p.queue = q.id
    UNION ALL SELECT 'key', queue, key_id, n, 0 FROM used WHERE key_id <> admission_key_id(queue, '')
    UNION ALL SELECT 'session', s.queue, s.epoch,
                     (SELECT count(*) FROM runs r WHERE r.session = s.epoch AND r.place IN (3, 4)), s.capacity
              FROM worker_sessions s WHERE s.ended IS NULL";

/// Ready runs of limited queues, which must not exist.
const READY: &str = "
    SELECT 'run ' || w.seq || ' of queue ' || w.queue || ' is ready, although its queue is limited'
    FROM pending w JOIN task_queues q ON q.id = w.queue
    WHERE w.hold IS NULL AND q.key_by IS NOT NULL
      AND NOT EXISTS (SELECT FROM queue_policies x WHERE x.queue = w.queue AND x.refile_stage <> 0)
    LIMIT 5";

/// Waiting runs that no decision will find: an announcement is missing.
const LOST: &str = "
    SELECT 'run ' || w.seq || ' of queue ' || w.queue || ' key ' || w.key_id || ' priority ' || w.priority || ' at ' || w.ord
           || ' waits and nothing will find it: ' || COALESCE('head ' || h::text, 'it has no head') || ', least '
           || COALESCE(s.least::text, 'none') || ', used ' || used.n || ' of '
           || COALESCE(l.per_key::text, 'any number')
    FROM pending w JOIN unnest($1::int[], $2::bigint[]) AS l(queue, per_key) ON l.queue = w.queue
    LEFT JOIN admission_queues a ON a.queue = w.queue
    LEFT JOIN LATERAL (SELECT least FROM admission_state s WHERE s.queue = w.queue ORDER BY s.version DESC LIMIT 1) s ON true
    LEFT JOIN admission_heads h ON h.key_id = w.key_id AND h.priority = w.priority
    CROSS JOIN LATERAL (
        SELECT (SELECT count(*) FROM pending p WHERE p.key_id = w.key_id AND p.hold IS DISTINCT FROM 1 AND p.hold IS DISTINCT FROM 2)
               + (SELECT count(*) FROM claims c WHERE c.key_id = w.key_id) AS n
    ) used
    WHERE w.hold = 2 AND w.deadline > (SELECT now FROM db_now)
      -- A run that does not follow a changed policy yet gets another key, and is announced then; so is one of a key that the policy
      -- before did not know, even if the key has a head since.
      AND (w.ord >= h.from_ord AND w.key_id = (
               SELECT admission_key_id(w.queue, k.key) FROM task_queues q JOIN task_definitions d ON d.seq = w.seq
               LEFT JOIN task_options o ON o.seq = w.seq
               CROSS JOIN LATERAL run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group) AS k(key) WHERE q.id = w.queue)
           OR NOT EXISTS (SELECT FROM queue_policies x WHERE x.queue = w.queue AND x.refile_stage <> 0))
      AND (a.queue IS NULL
           OR (NOT EXISTS (SELECT FROM admission_work x WHERE x.key_id = w.key_id)
               AND (w.ord < h.from_ord OR (h.ready AND h.vtime < s.least[w.priority + 1])
                    OR (COALESCE(NOT h.ready AND h.at IS NULL, true)
                        AND (l.per_key IS NULL OR w.key_id = admission_key_id(w.queue, '') OR used.n < l.per_key)))))
    LIMIT 5";

/// Startable waiting runs despite requests or idle passes. `$1` are queues without a rate.
const STUCK: &str = "
    WITH runs AS MATERIALIZED (
        SELECT queue, key_id, session, COALESCE(hold, 0) AS place FROM pending
        UNION ALL SELECT queue, key_id, session, 4 FROM claims
    )
    SELECT 'run ' || w.seq || ' of queue ' || w.queue || ' key ' || w.key_id || ' priority ' || w.priority
           || ' waits, but ' || of_key.n || ' of ' || COALESCE(l.per_key::text, 'any number') || ' of its key and '
           || of_queue.n || ' of ' || COALESCE(l.total::text, 'any number') || ' of its queue are assigned or claimed'
    FROM pending w
    JOIN unnest($1::int[], $2::bigint[], $3::bigint[], $4::bool[]) AS l(queue, per_key, total, assign) ON l.queue = w.queue
    JOIN task_queues q ON q.id = w.queue LEFT JOIN task_options o ON o.seq = w.seq
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM runs r WHERE r.key_id = w.key_id AND place IN (3, 4)) of_key
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM runs r WHERE r.queue = w.queue AND place IN (3, 4)) of_queue
    WHERE w.hold = 2 AND w.deadline > (SELECT now FROM db_now) AND q.paused IS NULL
      -- A claim may have been requeued just now.
      AND NOT EXISTS (SELECT FROM admission_work x WHERE x.queue = w.queue)
      AND (l.per_key IS NULL OR w.key_id = admission_key_id(w.queue, '') OR of_key.n < l.per_key)
      AND (l.total IS NULL OR of_queue.n < l.total)
      AND (NOT l.assign
           -- Not one whose preference has ended since the last pass.
           OR (COALESCE(GREATEST(w.scheduled, w.waits_since) + make_interval(secs => o.worker_wait + 1) <= (SELECT now FROM db_now), true)
               AND EXISTS (SELECT FROM worker_sessions s
                           WHERE s.queue = w.queue AND s.ended IS NULL AND NOT s.frozen AND NOT s.extended
                             AND s.until > (SELECT now FROM db_now)
                             AND s.capacity > (SELECT count(*) FROM runs r WHERE r.session = s.epoch AND place IN (3, 4)))))
    LIMIT 5";

const NAMED_TWICE: &str = "
    SELECT 'the inbox of session ' || epoch || ' has run ' || run || ' of ' || seq || ' ' || count(*) || ' times'
    FROM session_inbox WHERE kind = 4 GROUP BY epoch, seq, run HAVING count(*) > 1 LIMIT 5";

/// Maximum claims of queue `$1` in `$2` seconds, inclusive; per key if `$3`.
const STARTS: &str = "
    SELECT COALESCE(max(n), 0) FROM (
        SELECT count(*) OVER (PARTITION BY key ORDER BY started
                              RANGE BETWEEN CURRENT ROW AND make_interval(secs => $2) FOLLOWING) AS n
        FROM (SELECT CASE WHEN $3 THEN o.key END AS key, s.started
              FROM (SELECT seq, started FROM runs WHERE started IS NOT NULL UNION ALL SELECT seq, started FROM claims) s
              JOIN tasks t ON t.seq = s.seq LEFT JOIN task_options o ON o.seq = s.seq
              WHERE t.queue = $1 AND (NOT $3 OR o.key IS NOT NULL)) s) x";

/// Compares a snapshot with the limits allowed since the previous one.
pub async fn look(world: &mut World) -> Vec<String> {
    let mut conn = world.database.pool().acquire().await.unwrap();
    let mut snapshot = conn.begin().await.unwrap();
    let sql = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";
    sqlx::query(sql).execute(&mut *snapshot).await.unwrap();
    let rows: Vec<Row> = sqlx::query_as(USED).fetch_all(&mut *snapshot).await.unwrap();
    let mut wrong = find_lost(&mut snapshot, &world.queues).await;
    let ready: Vec<String> = sqlx::query_scalar(READY).fetch_all(&mut *snapshot).await.unwrap();
    wrong.extend(ready);
    snapshot.rollback().await.unwrap();
    drop(conn);
    world.waiting = rows.iter().filter(|row| row.0 == "queue").map(|row| row.4).sum();
    for queue in &mut world.queues {
        compare(queue, &rows, &mut wrong);
    }
    let mut capacities = std::collections::HashMap::new();
    for (_, _, epoch, held, capacity) in rows.iter().filter(|row| row.0 == "session") {
        let (over, before) = world.capacities.get(epoch).copied().unwrap_or_default();
        if *held > over.max(before).max(*capacity) {
            wrong.push(format!("session {epoch} has {held} runs and a capacity of {capacity}, {before} before, when it had {over} too many"));
        }
        capacities.insert(*epoch, (if held > capacity { *held } else { 0 }, *capacity));
    }
    world.capacities = capacities;
    wrong
}

type Row = (String, i32, i64, i64, i64);

async fn find_lost(snapshot: &mut PgConnection, queues: &[Watched]) -> Vec<String> {
    let limited: Vec<(i32, Limits)> =
        queues.iter().map(|queue| (queue.id, queue.limits())).filter(|(_, limits)| limits.any).collect();
    sqlx::query_scalar(LOST)
        .bind(limited.iter().map(|(id, _)| *id).collect::<Vec<_>>())
        .bind(limited.iter().map(|(_, limits)| limits.per_key).collect::<Vec<_>>())
        .fetch_all(snapshot)
        .await
        .unwrap()
}

/// Compares a queue with its limits and earlier excesses.
fn compare(queue: &mut Watched, rows: &[Row], wrong: &mut Vec<String>) {
    let own = || rows.iter().filter(|row| row.1 == queue.id);
    let (stage, total) = own().find(|row| row.0 == "queue").map(|row| (row.2, row.3)).unwrap();
    let now = queue.limits();
    // Any number, if the queue was unlimited at some time.
    let most = |limit: fn(&Limits) -> Option<i64>| {
        queue.since.iter().map(|limits| limit(limits).unwrap_or(i64::MAX)).max().unwrap_or(i64::MAX)
    };
    let (most_total, most_of_key) = (most(|limits| limits.total), most(|limits| limits.per_key));
    if total > most_total.max(queue.total_over.unwrap_or_default()) && !queue.begins {
        wrong.push(format!(
            "queue {} has {total} assigned or claimed runs, at most {most_total} since the last look, when it had {:?}",
            queue.id, queue.total_over
        ));
    }
    queue.total_over = now.total.filter(|limit| total > *limit).map(|_| total);
    let mut over = std::collections::HashMap::new();
    for (_, _, key, n, _) in own().filter(|row| row.0 == "key") {
        let before = queue.keys_over.get(key).copied().unwrap_or_default();
        if *n > most_of_key.max(before) && !queue.keys_move {
            wrong.push(format!(
                "key {key} of queue {} has {n} assigned or claimed runs, at most {most_of_key} since the last look, when it had {before}",
                queue.id
            ));
        }
        if now.per_key.is_some_and(|limit| *n > limit) {
            over.insert(*key, *n);
        }
    }
    queue.keys_over = over;
    queue.since = vec![now];
    if stage == 0 {
        (queue.keys_move, queue.begins) = (false, false);
    }
}

pub async fn settled(world: &World) -> Vec<String> {
    let mut wrong = stuck(world, |limits| limits.assign).await;
    let twice: Vec<String> = sqlx::query_scalar(NAMED_TWICE).fetch_all(world.database.pool()).await.unwrap();
    wrong.extend(twice);
    wrong
}

pub async fn stuck_in_pull_queues(world: &World) -> Vec<String> {
    stuck(world, |limits| !limits.assign).await
}

async fn stuck(world: &World, which: fn(&Limits) -> bool) -> Vec<String> {
    let limits = world.queues.iter().map(|queue| (queue.id, queue.limits()));
    let limits: Vec<(i32, Limits)> = limits.filter(|(_, limits)| limits.any && !limits.rate && which(limits)).collect();
    sqlx::query_scalar(STUCK)
        .bind(limits.iter().map(|(id, _)| *id).collect::<Vec<_>>())
        .bind(limits.iter().map(|(_, limits)| limits.per_key).collect::<Vec<_>>())
        .bind(limits.iter().map(|(_, limits)| limits.total).collect::<Vec<_>>())
        .bind(limits.iter().map(|(_, limits)| limits.assign).collect::<Vec<_>>())
        .fetch_all(world.database.pool())
        .await
        .unwrap()
}

/// Finds windows with too many claims, and oversized bursts.
pub async fn rates(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    for (of_key, (count, seconds, burst)) in [(false, RATE_TOTAL), (true, RATE_OF_KEY)] {
        for (window, most) in [(seconds as f64 - 0.000_001, count + burst), (0.0, burst)] {
            let query = sqlx::query_scalar(STARTS).bind(world.queues[RATE].id).bind(window).bind(of_key);
            let claims: i64 = query.fetch_one(world.database.pool()).await.unwrap();
            if claims > most {
                wrong.push(format!("{claims} claims were made in {window} s, of a key: {of_key}; at most {most}"));
            }
        }
    }
    wrong
}

/// Runs that should have ended.
pub async fn left(world: &World) -> Option<String> {
    let sql = "SELECT 'queue ' || queue || ' hold ' || COALESCE(hold::text, 'none') || ': ' || count(*) || ' runs, the first '
                      || min(p::text) FROM pending p GROUP BY queue, hold
               UNION ALL SELECT 'queue ' || queue || ': ' || count(*) || ' claims' FROM claims GROUP BY queue";
    let left: Vec<String> = sqlx::query_scalar(sql).fetch_all(world.database.pool()).await.unwrap();
    (!left.is_empty()).then(|| {
        left.iter().fold("left at the end:".to_owned(), |mut all, one| {
            let _ = write!(all, " {one};");
            all
        })
    })
}
