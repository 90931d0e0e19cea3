//! The invariants of ARCHITECTURE.md as queries that list violations.
//!
//! Read in one snapshot, they hold at any time, not only at rest. Tests check their databases, and
//! `tenure backup verify` the restored copy of a backup.

use sqlx::PgConnection;

/// Violations listed per check.
const LISTED_MAX: usize = 5;

/// Name of each check, and its query for violations.
pub const CHECKS: &[(&str, &str)] = &[
    (
        "I1: a task's resolved runs are numbered from 0 without a gap",
        "SELECT t.id || ' in state ' || t.state || ', last run ' || COALESCE(t.run::text, 'none') || ', resolved: '
             || COALESCE(array_agg(r.run ORDER BY r.run) FILTER (WHERE r.run IS NOT NULL), '{}')::text
         FROM tasks t LEFT JOIN runs r ON r.seq = t.seq GROUP BY t.id
         HAVING count(r.run) <> CASE WHEN t.state = 0 THEN 0 WHEN t.state = 1 THEN t.run ELSE t.run + 1 END
             OR min(r.run) <> 0 OR max(r.run) <> count(r.run) - 1",
    ),
    (
        "I1: a resolved run is neither pending nor claimed",
        "SELECT o.what || ' ' || o.id || ' run ' || o.run
         FROM (SELECT 'pending' AS what, seq, id, run FROM pending UNION ALL SELECT 'claimed', seq, id, run FROM claims) o
         JOIN runs r ON r.seq = o.seq AND r.run = o.run",
    ),
    (
        "I1: a task ends as its last run does, and only exceptions and failed runs are tried again",
        "SELECT t.id || ' in state ' || t.state || ', run ' || r.run || ' in state ' || r.state
         FROM tasks t JOIN runs r ON r.seq = t.seq
         LEFT JOIN (SELECT seq, run, reason_created FROM runs UNION ALL SELECT seq, run, reason_created FROM pending
                    UNION ALL SELECT seq, run, reason_created FROM claims) n ON n.seq = r.seq AND n.run = r.run + 1
         WHERE CASE WHEN t.state > 1 AND r.run = t.run THEN r.state <> t.state
                    WHEN n.reason_created = 3 THEN false
                    ELSE r.state <> 5 AND NOT (r.state = 4 AND n.reason_created IS NOT DISTINCT FROM 2) END",
    ),
    (
        "I1: a completed or failed run may have a result, a failed run or an exception a failure",
        "SELECT 'seq ' || x.seq || ' run ' || x.run || ' in state ' || COALESCE(r.state::text, 'none')
         FROM results x LEFT JOIN runs r ON r.seq = x.seq AND r.run = x.run
         WHERE CASE COALESCE(r.state, 0) WHEN 3 THEN x.failure IS NOT NULL OR x.result IS NULL
                    WHEN 4 THEN x.failure IS NULL AND x.result IS NULL
                    WHEN 5 THEN x.failure IS NULL OR x.result IS NOT NULL ELSE true END",
    ),
    (
        "I1: a late result has the claim of a run that was taken away, and follows a superseded run",
        "SELECT 'seq ' || m.seq || ' run ' || m.run || ' of run ' || m.late_of
         FROM runs m LEFT JOIN runs r ON r.seq = m.seq AND r.run = m.late_of
         LEFT JOIN runs s ON s.seq = m.seq AND s.run = m.run - 1
         WHERE m.late_of IS NOT NULL
           AND (m.state <> 3 OR COALESCE(m.ended_by, 0) <> 9 OR COALESCE(r.ended_by, 0) NOT IN (7, 8)
                OR (r.started, r.worker_group, r.worker_id) IS DISTINCT FROM (m.started, m.worker_group, m.worker_id)
                OR COALESCE(s.reason_resolved, 0) <> 10)",
    ),
    (
        "I1: a run is claimed at most once",
        "SELECT 'seq ' || e.seq || ' run ' || e.run || ' claimed ' || count(*) || ' times'
         FROM transitions x, unnest(x.kinds, x.seqs, x.runs) AS e(kind, seq, run)
         WHERE e.kind = 2 GROUP BY e.seq, e.run HAVING count(*) > 1",
    ),
    (
        "I2: an unresolved task has its last run in exactly one of pending and claims, any other task in none",
        "SELECT t.id || ' in state ' || t.state || ': ' || count(o.seq) || ' open'
         FROM tasks t
         LEFT JOIN (SELECT seq, run FROM pending UNION ALL SELECT seq, run FROM claims) o ON o.seq = t.seq
         GROUP BY t.id
         HAVING count(o.seq) <> (t.state = 1)::int OR count(o.seq) FILTER (WHERE o.run IS DISTINCT FROM t.run) > 0",
    ),
    (
        "I2: no row without its task",
        "SELECT x.what || ' of seq ' || x.seq
         FROM (SELECT 'pending' AS what, seq FROM pending UNION ALL SELECT 'claims', seq FROM claims
               UNION ALL SELECT 'runs', seq FROM runs UNION ALL SELECT 'task_definitions', seq FROM task_definitions
               UNION ALL SELECT 'dead letter', seq FROM failed_runs WHERE dead
               -- A purged task may be left there until the row is due.
               UNION ALL SELECT 'due', seq FROM (SELECT unnest(seqs) AS seq FROM due) s
               WHERE seq > (SELECT last_value FROM task_seq)) x
         WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.seq = x.seq)",
    ),
    (
        "I2: no task without its definition, queue and group, and without a row of what is due for it; none with two deadlines",
        "SELECT t.id::text
         FROM tasks t
         LEFT JOIN task_definitions d ON d.seq = t.seq AND d.id = t.id AND d.task_group = t.task_group
         LEFT JOIN (SELECT seq, count(deadline) AS deadlines FROM (SELECT deadline, unnest(seqs) AS seq FROM due) s GROUP BY seq) x
                ON x.seq = t.seq
         LEFT JOIN task_queues q ON q.id = t.queue
         LEFT JOIN task_groups g ON g.id = t.task_group AND g.scheduler = d.scheduler
         GROUP BY t.id
         HAVING count(*) <> 1 OR count(d.seq) + count(x.seq) + count(q.id) <> 3 OR max(x.deadlines) > 1
             OR (count(g.id) = 1) = t.lone",
    ),
    (
        "I2: a lone task is alone in the group that is named after it, which has no row",
        // A join, because a subquery under OR runs for each task.
        "SELECT t.id::text FROM tasks t
         LEFT JOIN task_groups g ON g.id = t.id LEFT JOIN tasks o ON o.task_group = t.id AND o.id <> t.id
         WHERE t.lone AND (t.id <> t.task_group OR g.id IS NOT NULL OR o.id IS NOT NULL)",
    ),
    (
        "I2: nothing is due later than it has to be, and an unresolved task waits for its deadline",
        "SELECT d.id::text
         FROM (SELECT deadline, expires, unnest(seqs) AS seq FROM due) x JOIN task_definitions d ON d.seq = x.seq
         WHERE (x.deadline IS NULL) = (x.expires IS NULL) OR x.deadline > d.deadline
            OR x.expires > GREATEST(d.expires, (SELECT now FROM db_now))
         UNION ALL
         -- A join, because NOT IN compares each task with every other where it exceeds work_mem.
         SELECT t.id::text FROM tasks t
         LEFT JOIN (SELECT unnest(seqs) AS seq FROM due WHERE deadline IS NOT NULL) x ON x.seq = t.seq
         WHERE t.state < 2 AND x.seq IS NULL",
    ),
    (
        "I2: what pending and claims repeat of a task agrees with it",
        "SELECT o.what || ' of ' || o.id
         FROM (SELECT 'pending' AS what, seq, id, queue, priority, retries_left, deadline, bytes FROM pending
               UNION ALL SELECT 'claim', seq, id, queue, NULL, retries_left, deadline, NULL FROM claims) o
         JOIN tasks t ON t.seq = o.seq JOIN task_definitions d ON d.seq = o.seq
         WHERE (o.id, o.queue, COALESCE(o.priority, t.priority), o.retries_left, o.deadline)
               <> (t.id, t.queue, t.priority, t.retries_left, d.deadline)
            OR o.bytes <> octet_length(d.definition)",
    ),
    (
        "I2: no two pending runs of a queue and priority share a place",
        "SELECT 'queue ' || queue || ' priority ' || priority || ' place ' || ord
         FROM pending GROUP BY queue, priority, ord HAVING count(*) > 1",
    ),
    (
        "Messages: a run is kept from claimWork no longer than its message is hidden, and only got messages have receipts",
        "SELECT id || ' message ' || message FROM pending
         WHERE reserved_until > COALESCE(hidden_until, '-infinity') OR (receipt IS NULL) <> (dequeued = 0)",
    ),
    (
        "Holds: a held run is hidden from claims and from pollers, and a delay has an end",
        "SELECT id || ' hold ' || COALESCE(hold::text, 'none') || ' until ' || COALESCE(held_until::text, 'none') FROM pending
         WHERE (hold IS NOT NULL) <> (reserved_until IS NOT DISTINCT FROM '3000-01-01')
            OR (hold IS NOT NULL) <> (hidden_until IS NOT DISTINCT FROM '3000-01-01')
            OR (held_until IS NULL AND hold = 1) OR (held_until IS NOT NULL AND COALESCE(hold, 2) = 2) OR (hold IS NOT NULL AND receipt IS NOT NULL)
            OR held_until > deadline",
    ),
    (
        "Admission: a run that waits or is assigned has a key, and one with a key was admitted, waits or is delayed",
        "SELECT p.id || ' hold ' || p.hold FROM pending p WHERE p.hold IN (2, 3) AND p.key_id IS NULL",
    ),
    (
        "Admission: where a run waits, its head may start it or is looked at, or its key has no slot left",
        "SELECT w.id || ' of key ' || w.key_id || ' priority ' || w.priority
         FROM pending w LEFT JOIN admission_heads h ON h.key_id = w.key_id AND h.priority = w.priority
         WHERE w.hold = 2 AND w.deadline > (SELECT now FROM db_now) AND COALESCE(NOT h.ready AND h.at IS NULL, true)
           AND NOT EXISTS (SELECT FROM admission_work x WHERE x.key_id = w.key_id)
           AND NOT EXISTS (SELECT FROM pending p WHERE p.key_id = w.key_id AND p.hold IS DISTINCT FROM 1
                             AND p.hold IS DISTINCT FROM 2)
           AND NOT EXISTS (SELECT FROM claims c WHERE c.key_id = w.key_id)",
    ),
    (
        "Admission: no waiting run of a head lies before where its looks begin",
        "SELECT w.id || ' of key ' || w.key_id || ' at ' || w.ord || ', looked at from ' || h.from_ord
         FROM pending w JOIN admission_heads h ON h.key_id = w.key_id AND h.priority = w.priority
         WHERE w.hold = 2 AND w.ord < h.from_ord AND NOT EXISTS (SELECT FROM admission_work x WHERE x.key_id = w.key_id)",
    ),
    (
        "Admission: a head exists once, and its key knows of it",
        "SELECT h.key_id || ' priority ' || h.priority FROM admission_heads h JOIN admission_keys k ON k.id = h.key_id
         GROUP BY h.key_id, h.priority, k.priorities HAVING count(*) > 1 OR (k.priorities >> h.priority) & 1 = 0",
    ),
    (
        "Admission: no run waits or is assigned where none is needed and no changed policy is followed",
        "SELECT p.id || ' hold ' || p.hold FROM pending p JOIN task_queues q ON q.id = p.queue
         WHERE p.hold IN (2, 3) AND q.key_by IS NULL
           AND NOT EXISTS (SELECT FROM queue_policies x WHERE x.queue = p.queue AND x.refile_stage <> 0)",
    ),
    (
        "Sessions: no run is assigned to a session that has ended, and none to that of another queue",
        "SELECT p.id || ' session ' || COALESCE(p.session, 0) FROM pending p
         LEFT JOIN worker_sessions s ON s.epoch = p.session AND s.queue = p.queue
         WHERE p.hold = 3 AND (s.epoch IS NULL OR s.ended IS NOT NULL)",
    ),
    (
        "Sessions: no run is held by a session that ended five minutes ago or is not there",
        "SELECT c.id || ' run ' || c.run || ' session ' || c.session FROM claims c
         LEFT JOIN worker_sessions s ON s.epoch = c.session
         WHERE c.session IS NOT NULL
           AND (s.epoch IS NULL OR s.ended < (SELECT now FROM db_now) - make_interval(mins => 5))",
    ),
    (
        "Sessions: a run is held by a session of its own worker and queue",
        "SELECT c.id || ' run ' || c.run || ' session ' || c.session
         FROM claims c JOIN worker_sessions s ON s.epoch = c.session
         WHERE (c.queue, c.worker_group, c.worker_id) <> (s.queue, s.worker_group, s.worker_id)",
    ),
    (
        "Sessions: a worker has one that is live, and each that is not says when it ended and by what",
        "SELECT queue || ' ' || worker_group || '/' || worker_id FROM worker_sessions
         GROUP BY queue, worker_group, worker_id
         HAVING count(*) FILTER (WHERE ended IS NULL) > 1 OR count(*) FILTER (WHERE (ended IS NULL) <> (end_reason IS NULL)) > 0",
    ),
    (
        "Sessions: an item of an inbox has its session, and is a command, a run that was given to it, or about a run that was claimed; \
         where it says that the run ended, it has",
        "SELECT 'epoch ' || i.epoch || ' entry ' || i.entry
         FROM session_inbox i LEFT JOIN tasks t ON i.kind IN (1, 5) AND t.seq = i.seq
         WHERE NOT EXISTS (SELECT FROM worker_sessions s WHERE s.epoch = i.epoch)
            OR (i.kind = 2) <> (i.command IS NOT NULL) OR (i.kind IN (1, 4, 5)) <> (i.seq IS NOT NULL AND i.run IS NOT NULL)
            OR t.state = 0 OR t.run < i.run OR (i.kind = 1 AND t.state = 1 AND t.run = i.run)
            OR (i.kind = 5 AND EXISTS (SELECT FROM pending p WHERE p.seq = i.seq AND p.run = i.run))",
    ),
    (
        "Sessions: an inbox has one item about the command for a task",
        "SELECT 'epoch ' || epoch || ' seq ' || seq FROM session_inbox WHERE kind = 5 GROUP BY epoch, seq HAVING count(*) > 1",
    ),
    (
        "I2: no task waits for nothing",
        "SELECT t.id::text FROM tasks t
         WHERE t.state = 0 AND EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id)
           AND NOT EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id AND NOT e.satisfied)",
    ),
    (
        "I2: no task waits for what has happened, once the log is read and there is no work left",
        "SELECT e.dependent || ' for seq ' || e.required
         FROM dependencies e JOIN task_definitions d ON d.seq = e.required JOIN tasks t ON t.id = d.id
         JOIN tasks x ON x.id = e.dependent
         WHERE NOT e.satisfied AND (t.state = 3 OR (e.any_end AND t.state > 1))
           AND NOT EXISTS (SELECT FROM dependency_work) AND NOT EXISTS (SELECT FROM outbox_new)
           AND NOT EXISTS (SELECT FROM outbox_order o
                           WHERE o.first > (SELECT position FROM log_readers WHERE name = 'dependencies'))",
    ),
    (
        "I2: an edge is satisfied only when its required task has ended as it must",
        "SELECT e.dependent || ' for seq ' || e.required
         FROM dependencies e JOIN task_definitions d ON d.seq = e.required
         WHERE e.satisfied AND NOT EXISTS (SELECT FROM runs r WHERE r.seq = e.required AND (r.state = 3 OR e.any_end))",
    ),
    (
        "I2: no edge without the task that waits",
        "SELECT e.dependent::text FROM dependencies e WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = e.dependent)",
    ),
    (
        "Artifacts: each belongs to a run of a task that outlives it, and that was claimed",
        "SELECT 'artifact ' || a.name || ' of seq ' || a.seq || ' run ' || a.run
         FROM artifacts a
         LEFT JOIN (SELECT seq, run, started FROM runs UNION ALL SELECT seq, run, started FROM claims) r
                ON r.seq = a.seq AND r.run = a.run
         LEFT JOIN task_definitions d ON d.seq = a.seq
         WHERE r.started IS NULL OR d.expires IS NULL OR a.expires > d.expires",
    ),
    (
        "Artifacts: one that is an object and can be read has an object, whose upload is finished and is the same",
        "SELECT 'artifact ' || a.name || ' of seq ' || a.seq || ' run ' || a.run
         FROM artifacts a
         WHERE a.storage_type = 2 AND a.present AND a.expires > (SELECT now FROM db_now)
           AND NOT EXISTS (SELECT FROM objects o WHERE o.upload = a.upload AND o.finished AND o.expires = a.expires
                           AND right(o.name, length(a.name) + 1) = '/' || a.name)",
    ),
    (
        "I4: the counts equal a recount",
        "SELECT 'queue ' || queue || ': counted ' || sum(n) || ' pending, ' || sum(m) || ' claimed, ' || sum(h)
             || ' delayed and ' || sum(w) || ' waiting too many'
         FROM (SELECT queue, pending AS n, claimed AS m, delayed AS h, waiting AS w FROM counters
               UNION ALL SELECT d.queue, d.pending, d.claimed, COALESCE(d.delayed, 0), COALESCE(d.waiting, 0)
               FROM outbox_new n, unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting)
                   AS d(queue, pending, claimed, delayed, waiting)
               UNION ALL SELECT queue, -(hold IS DISTINCT FROM 1)::int, 0, -(hold IS NOT DISTINCT FROM 1)::int,
                                -(hold IS NOT DISTINCT FROM 2)::int FROM pending
               UNION ALL SELECT queue, 0, -1, 0, 0 FROM claims) x
         GROUP BY queue HAVING sum(n) <> 0 OR sum(m) <> 0 OR sum(h) <> 0 OR sum(w) <> 0",
    ),
    (
        "Names: at most one unresolved task of a name waits for no other",
        "SELECT q.name || ' ' || o.unique_name || ': ' || count(*) || ' tasks'
         FROM tasks t JOIN task_options o ON o.seq = t.seq AND o.unique_name IS NOT NULL
         JOIN task_definitions d ON d.seq = t.seq JOIN task_queues q ON q.id = t.queue
         WHERE t.state < 2 AND NOT EXISTS (SELECT FROM dependencies e WHERE e.dependent = t.id AND e.fixed AND NOT e.satisfied)
         GROUP BY q.name, d.scheduler, o.unique_name HAVING count(*) > 1",
    ),
    (
        "Names: each unresolved task with a name is among its holders",
        "SELECT t.id::text
         FROM tasks t JOIN task_options o ON o.seq = t.seq AND o.unique_name IS NOT NULL
         JOIN task_definitions d ON d.seq = t.seq JOIN task_queues q ON q.id = t.queue
         LEFT JOIN unique_names u ON u.id = unique_name_id(q.name, d.scheduler, o.unique_name)
         WHERE t.state < 2 AND t.seq = ANY(u.holders) IS NOT TRUE",
    ),
    (
        "Backlogs: a queue with a limit has traits",
        "SELECT name FROM task_queues WHERE backlog_tasks IS NOT NULL AND traits IS NULL",
    ),
    (
        "Backlogs: a queue counts bytes exactly if it has a limit of bytes, and then for all its pending runs once they are refiled",
        "SELECT q.name FROM task_queues q
         WHERE (q.backlog_bytes IS NOT NULL) <> (COALESCE(q.traits, 0) & 256 <> 0)
            OR NOT EXISTS (SELECT FROM queue_policies p WHERE p.queue = q.id AND p.refile_stage <> 0)
               AND EXISTS (SELECT FROM pending p WHERE p.queue = q.id
                           AND (COALESCE(p.traits, 0) & 256 <> 0) <> (q.backlog_bytes IS NOT NULL))",
    ),
    (
        "Backlogs: the bytes equal a recount",
        "SELECT 'queue ' || queue || ': counted ' || sum(n) || ' bytes too many'
         FROM (SELECT queue, bytes AS n FROM counters
               UNION ALL SELECT d.queue, d.bytes FROM outbox_new n, unnest(n.queues, n.bytes) AS d(queue, bytes)
               UNION ALL SELECT p.queue, -octet_length(d.definition) FROM pending p JOIN task_definitions d ON d.seq = p.seq
                         WHERE p.traits & 256 <> 0) x
         GROUP BY queue HAVING sum(n) <> 0",
    ),
    (
        "Partitions: a share of the active map has at most one member, and one of a proposal exactly one",
        "SELECT name || ' share ' || share || ': ' || members || ' members'
         FROM (SELECT g.name, m.share, g.replicas, count(*) AS members
               FROM partition_members m JOIN partition_groups g ON g.id = m.grp
               WHERE m.share IS NOT NULL GROUP BY g.id, m.share) x
         WHERE members > 1 OR share >= replicas
         UNION ALL
         SELECT g.name || ' next share ' || s.share || ': ' || count(m.member) || ' members'
         FROM partition_groups g CROSS JOIN LATERAL generate_series(0, g.next_replicas - 1) AS s(share)
         LEFT JOIN partition_members m ON m.grp = g.id AND m.next_share = s.share
         GROUP BY g.id, s.share HAVING count(m.member) <> 1",
    ),
    (
        "Partitions: numbers of maps and intervals ascend, and members agree with their group",
        "SELECT name FROM partition_groups
         WHERE epoch > proposed OR (next_replicas IS NOT NULL AND epoch = proposed) OR (epoch = 0) <> (replicas = 0)
            OR next_replicas < 1 OR since > number OR resumed > number
         UNION ALL
         SELECT 'group ' || m.grp || ' member ' || m.member
         FROM partition_members m LEFT JOIN partition_groups g ON g.id = m.grp
         WHERE g.id IS NULL OR GREATEST(m.joined, m.ticked) > g.number
            OR m.next_share >= COALESCE(g.next_replicas, 0) OR (m.acked AND (g.next_replicas IS NULL OR m.share IS NULL))",
    ),
    (
        "Partitions: a queue with a group marks its runs, and the group exists",
        "SELECT q.name FROM task_queues q LEFT JOIN partition_groups g ON g.id = q.partition
         WHERE (q.partition IS NULL) <> (COALESCE(q.traits, 0) & 512 = 0) OR (q.partition IS NOT NULL AND g.id IS NULL)
         UNION ALL
         SELECT p.id::text FROM pending p JOIN task_queues q ON q.id = p.queue
         WHERE q.partition IS NOT NULL AND COALESCE(p.traits, 0) & 512 = 0
           AND NOT EXISTS (SELECT FROM queue_policies x WHERE x.queue = p.queue AND x.refile_stage <> 0)",
    ),
    (
        "I5: each outbox row has one position",
        "SELECT 'outbox row ' || COALESCE(x.id, o.outbox_id) || ' occurs ' || count(o.outbox_id) || ' times'
         FROM outbox x FULL JOIN outbox_order o ON o.outbox_id = x.id
         GROUP BY x.id, o.outbox_id HAVING count(o.outbox_id) <> 1 OR x.id IS NULL",
    ),
    (
        "I5: an outbox row takes as many positions as it has events",
        "SELECT 'outbox row ' || x.id
         FROM (SELECT o.events, x.id, x.kinds, x.seqs, x.runs, x.retries_left, NULL::int[] AS queues
               FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
               UNION ALL SELECT events, id, kinds, seqs, runs, retries_left, queues FROM outbox_new) x
         WHERE x.events <> (SELECT COALESCE(sum(CASE WHEN kind IN (1, 6) THEN 2 ELSE 1 END), 0)
                            FROM unnest(x.kinds) AS k(kind))
            OR (cardinality(x.kinds) = 0 AND x.queues IS NULL) OR cardinality(x.kinds) <> cardinality(x.seqs)
            OR cardinality(x.kinds) <> cardinality(x.runs) OR cardinality(x.kinds) <> cardinality(x.retries_left)",
    ),
    (
        "I5: positions are dense",
        "SELECT 'position ' || first || ' follows ' || before
         FROM (SELECT first, lag(first + events) OVER (ORDER BY first) AS before FROM outbox_order) o
         WHERE before IS NOT NULL AND first <> before",
    ),
    (
        "I5: the events of a task are in order",
        "SELECT 'seq ' || seq || ' at position ' || first
         FROM (SELECT e.seq, o.first, rank, lag(rank) OVER (PARTITION BY e.seq ORDER BY o.first, e.n) AS before
               FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id,
                    unnest(x.kinds, x.seqs, x.runs) WITH ORDINALITY AS e(kind, seq, run, n),
                    LATERAL (SELECT e.run * 3 + CASE e.kind WHEN 7 THEN -1 WHEN 1 THEN 0 WHEN 8 THEN 0 WHEN 2 THEN 1
                                                            ELSE 2 END AS rank) r
               WHERE e.kind < 9 OR e.kind = 15) y
         WHERE rank <= before",
    ),
];

/// Checks of the event log against the tasks. They need the whole log, without purged events.
pub const WHOLE_LOG_CHECKS: &[(&str, &str)] = &[
    (
        "Pauses: a queue is paused exactly if the last note about that says so",
        "WITH notes AS (
             -- What has no position yet was written later than what has one.
             SELECT COALESCE(o.first, 1000000000000 + x.id) AS at, x.details[1]::json AS note
             FROM (SELECT id, true AS placed, kinds, details FROM outbox
                   UNION ALL SELECT id, false, kinds, details FROM outbox_new) x
             LEFT JOIN outbox_order o ON x.placed AND o.outbox_id = x.id
             WHERE x.kinds = '{14}'
         ), last AS (
             SELECT DISTINCT ON (note->'payload'->>'taskQueueId') note->'payload'->>'taskQueueId' AS name,
                    note->>'exchange' LIKE '%/queue-paused' AS paused
             FROM notes WHERE note->>'exchange' LIKE ANY ('{%/queue-paused,%/queue-resumed}')
             ORDER BY note->'payload'->>'taskQueueId', at DESC
         )
         SELECT 'queue ' || q.name FROM task_queues q LEFT JOIN last USING (name)
         WHERE (q.paused IS NOT NULL) <> COALESCE(last.paused, false)",
    ),
    (
        "I5: a task's creation is emitted once",
        "SELECT t.id || ' emitted ' || count(e.seq) || ' times'
         FROM tasks t LEFT JOIN (
             SELECT e.seq FROM transitions x, unnest(x.kinds, x.seqs, x.runs) AS e(kind, seq, run)
             WHERE e.kind IN (1, 7) AND e.run = 0
         ) e ON e.seq = t.seq
         GROUP BY t.id HAVING count(e.seq) <> 1",
    ),
    (
        "I5: each run that was made by a schedule or a rerun is emitted, and no other",
        "WITH emitted AS (
             SELECT e.seq, e.run FROM transitions x, unnest(x.kinds, x.seqs, x.runs) AS e(kind, seq, run)
             JOIN tasks t ON t.seq = e.seq WHERE e.kind IN (1, 8)
         ), true_ones AS (
             SELECT seq, run FROM (SELECT seq, run, reason_created FROM runs
                                   UNION ALL SELECT seq, run, reason_created FROM pending
                                   UNION ALL SELECT seq, run, reason_created FROM claims) r
             WHERE reason_created IN (0, 3)
         )
         SELECT 'not emitted: seq ' || seq || ' run ' || run FROM (TABLE true_ones EXCEPT ALL TABLE emitted) x
         UNION ALL SELECT 'emitted in vain: seq ' || seq || ' run ' || run FROM (TABLE emitted EXCEPT ALL TABLE true_ones) x",
    ),
    (
        "I5: each claim is emitted, and nothing else is emitted as a claim",
        "WITH emitted AS (
             SELECT e.seq, e.run FROM transitions x, unnest(x.kinds, x.seqs, x.runs) AS e(kind, seq, run)
             JOIN tasks t ON t.seq = e.seq WHERE e.kind = 2
         ), true_ones AS (
             SELECT seq, run FROM claims UNION ALL SELECT seq, run FROM runs WHERE started IS NOT NULL
         )
         SELECT 'not emitted: seq ' || seq || ' run ' || run FROM (TABLE true_ones EXCEPT ALL TABLE emitted) x
         UNION ALL SELECT 'emitted in vain: seq ' || seq || ' run ' || run FROM (TABLE emitted EXCEPT ALL TABLE true_ones) x",
    ),
    (
        "I5: each end of a run is emitted, and whether another run follows",
        "WITH emitted AS (
             SELECT e.seq, e.run, e.kind::int FROM transitions x, unnest(x.kinds, x.seqs, x.runs) AS e(kind, seq, run)
             JOIN tasks t ON t.seq = e.seq WHERE e.kind IN (3, 4, 5, 6, 15)
         ), true_ones AS (
             SELECT r.seq, r.run, CASE WHEN n.reason_created IN (1, 2, 4) THEN CASE r.state WHEN 4 THEN 15 ELSE 6 END
                                       ELSE r.state END::int AS kind
             FROM runs r
             LEFT JOIN (SELECT seq, run, reason_created FROM runs UNION ALL SELECT seq, run, reason_created FROM pending
                        UNION ALL SELECT seq, run, reason_created FROM claims) n ON n.seq = r.seq AND n.run = r.run + 1
         )
         SELECT 'not emitted: seq ' || seq || ' run ' || run || ' kind ' || kind
         FROM (TABLE true_ones EXCEPT ALL TABLE emitted) x
         UNION ALL SELECT 'emitted in vain: seq ' || seq || ' run ' || run || ' kind ' || kind
         FROM (TABLE emitted EXCEPT ALL TABLE true_ones) x",
    ),
    (
        "I5: a group of which every task was resolved is emitted, once the log is read",
        "WITH emitted AS MATERIALIZED (
             -- The task of the event may be purged before others of its group.
             SELECT DISTINCT COALESCE((e.details::json->>'id')::uuid, d.task_group) AS task_group
             FROM transitions x, unnest(x.kinds, x.seqs, x.details) AS e(kind, seq, details)
             LEFT JOIN task_definitions d ON d.seq = e.seq WHERE e.kind = 10
         ), resolved AS MATERIALIZED (
             SELECT task_group FROM tasks GROUP BY task_group HAVING bool_and(state > 1 OR resolved_before)
         )
         SELECT r.task_group::text FROM resolved r LEFT JOIN emitted e ON e.task_group = r.task_group
         WHERE e.task_group IS NULL
           AND NOT EXISTS (SELECT FROM outbox_new)
           AND NOT EXISTS (SELECT FROM outbox_order o
                           WHERE o.first > (SELECT position FROM log_readers WHERE name = 'groups')
                             AND (SELECT kinds FROM outbox WHERE id = o.outbox_id) && '{3,4,5}')",
    ),
    (
        "I5: no group is emitted more often than its tasks were resolved",
        "SELECT d.task_group || ' emitted ' || count(*) FILTER (WHERE e.kind = 10) || ' times'
         FROM transitions x, unnest(x.kinds, x.seqs) AS e(kind, seq) JOIN task_definitions d ON d.seq = e.seq
         GROUP BY d.task_group
         HAVING count(*) FILTER (WHERE e.kind = 10) > count(*) FILTER (WHERE e.kind IN (3, 4, 5))",
    ),
];

/// A check that cannot run, such as on a schema of another release.
#[derive(Debug, thiserror::Error)]
#[error("the check {name:?} cannot run: {source}")]
pub struct CheckError {
    name: &'static str,
    source: sqlx::Error,
}

/// Lists violations of the invariants whose names start with one of `kinds`, in the caller's
/// transaction.
pub async fn list_violations(conn: &mut PgConnection, kinds: &[&str]) -> Result<Vec<String>, CheckError> {
    let mut violations = Vec::new();
    let more = if has_whole_log(conn).await? { WHOLE_LOG_CHECKS } else { &[] };
    let all = CHECKS.iter().chain(more);
    for &(name, sql) in all.filter(|(name, _)| kinds.iter().any(|kind| name.starts_with(kind))) {
        let found: Vec<Option<String>> =
            sqlx::query_scalar(sql).fetch_all(&mut *conn).await.map_err(|source| CheckError { name, source })?;
        if !found.is_empty() {
            let listed: Vec<&str> = found.iter().take(LISTED_MAX).map(|row| row.as_deref().unwrap_or("?")).collect();
            let listed = listed.join("; ");
            violations.push(format!("{name} ({} violations): {listed}", found.len()));
        }
    }
    Ok(violations)
}

/// True if no event was purged.
async fn has_whole_log(conn: &mut PgConnection) -> Result<bool, CheckError> {
    sqlx::query_scalar("SELECT COALESCE(min(first), 1) = 1 FROM outbox_order")
        .fetch_one(conn)
        .await
        .map_err(|source| CheckError { name: "the log is whole", source })
}
