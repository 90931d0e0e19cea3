-- What a decision reads of a limited queue does not grow with the rows that an old snapshot keeps: each kind of row is found by its
-- newest version, or from a mark on that a server remembers.
--
-- The pass of a server of the release before fails from now on: nothing looks at announcements through it.
SET LOCAL lock_timeout = '5s';

-- Decisions lock their queue first, and report claims before their announcements.
LOCK TABLE admission_queues IN EXCLUSIVE MODE;
LOCK TABLE claims, admission_work, admission_keys, admission_heads IN ACCESS EXCLUSIVE MODE;

CREATE TABLE admission_state (
    queue   integer NOT NULL,
    version bigint NOT NULL,
    tat     double precision NOT NULL DEFAULT 0,
    least   double precision[] NOT NULL DEFAULT '{0,0,0,0,0,0,0}',
    PRIMARY KEY (queue, version)
);
COMMENT ON TABLE admission_state IS
    'What each decision changes of a limited queue: one row, or none before the first decision. A change inserts the next version and
deletes the one before. So the newest is the first in descending order, whatever old snapshots keep.';
COMMENT ON COLUMN admission_state.queue IS 'task_queues.id.';
COMMENT ON COLUMN admission_state.version IS 'Grows with each change.';
COMMENT ON COLUMN admission_state.tat IS 'When the rate of the queue has its next token, in seconds since 1970, as GCRA has it.';
COMMENT ON COLUMN admission_state.least IS 'For each priority the least virtual time of a head that may start.';
ALTER TABLE admission_state SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO admission_state (queue, version, tat, least) SELECT queue, 1, tat, least FROM admission_queues;
COMMENT ON COLUMN admission_queues.tat IS 'Unused: servers of the release before name it.';
COMMENT ON COLUMN admission_queues.least IS 'Unused: servers of the release before name it.';

-- Virtual times grow: the newest version of a head is the first in descending order. The lock of the queue keeps heads unique.
ALTER TABLE admission_heads DROP CONSTRAINT admission_heads_pkey, ADD PRIMARY KEY (key_id, priority, vtime);

-- Which heads a key has, so that they are found without a search.
ALTER TABLE admission_keys ADD COLUMN priorities smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN admission_keys.priorities IS 'A bit for each code of Priority of which the key has a head.';
UPDATE admission_keys k SET priorities = h.bits
FROM (SELECT key_id, bit_or(1 << priority)::smallint AS bits FROM admission_heads GROUP BY key_id) h WHERE h.key_id = k.id;

-- Every transaction below the oldest that is open when announcements are taken in has ended: none of its announcements comes later.
ALTER TABLE admission_work ADD COLUMN xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint;
ALTER TABLE admission_work DROP CONSTRAINT admission_work_pkey, ADD PRIMARY KEY (queue, xid, id);
COMMENT ON COLUMN admission_work.xid IS 'The transaction.';

CREATE SEQUENCE claims_admitted;
ALTER TABLE claims ADD COLUMN admitted bigint;
COMMENT ON COLUMN claims.admitted IS 'Grows with each claim that a decision has made, while it holds the lock of the queue; null of other claims, and of those that were given another key.';
DROP INDEX claims_key;
CREATE INDEX claims_key ON claims (key_id, admitted) WHERE key_id IS NOT NULL;

INSERT INTO settings (name, value) VALUES ('needed-migration', '26') ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value;
