-- Partition groups: members divide work among themselves, each with its share.
CREATE TABLE partition_groups (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    tick_interval integer NOT NULL,
    drain_timeout integer NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    replicas smallint NOT NULL DEFAULT 0,
    proposed bigint NOT NULL DEFAULT 0,
    next_replicas smallint,
    draining_since timestamptz,
    number bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0,
    resumed bigint NOT NULL DEFAULT 0,
    created timestamptz NOT NULL,
    CHECK ((next_replicas IS NULL) = (draining_since IS NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE partition_groups IS 'Partition groups by name.';
COMMENT ON COLUMN partition_groups.id IS 'A short key.';
COMMENT ON COLUMN partition_groups.name IS 'The name, unique in the database.';
COMMENT ON COLUMN partition_groups.tick_interval IS 'Seconds in which each member calls once. Never changed: numbers count by it.';
COMMENT ON COLUMN partition_groups.drain_timeout IS 'Seconds that a member may take to acknowledge a map; 0: as long as it calls.';
COMMENT ON COLUMN partition_groups.epoch IS 'Number of the active map; 0 before the first one.';
COMMENT ON COLUMN partition_groups.replicas IS 'Shares of the active map.';
COMMENT ON COLUMN partition_groups.proposed IS 'Number of the last proposed map. Numbers are never used again.';
COMMENT ON COLUMN partition_groups.next_replicas IS 'Shares of the proposed map; null without a proposal.';
COMMENT ON COLUMN partition_groups.draining_since IS 'When the map was proposed; null without a proposal.';
COMMENT ON COLUMN partition_groups.number IS 'The last interval in which a member called: seconds since 1970 divided by tick_interval.';
COMMENT ON COLUMN partition_groups.since IS 'Members have called in this interval or later.';
COMMENT ON COLUMN partition_groups.resumed IS 'The interval of the first call after a pause of all members.';
COMMENT ON COLUMN partition_groups.created IS 'When it was first stored.';

CREATE TABLE partition_members (
    grp integer NOT NULL,
    member text COLLATE "C" NOT NULL,
    joined bigint NOT NULL,
    ticked bigint NOT NULL,
    share smallint,
    next_share smallint,
    acked boolean NOT NULL,
    PRIMARY KEY (grp, member)
) WITH (fillfactor = 50);
COMMENT ON TABLE partition_members IS 'Members of partition groups. The row of the group is locked for each change.';
COMMENT ON COLUMN partition_members.grp IS 'partition_groups.id.';
COMMENT ON COLUMN partition_members.member IS 'The name that the member gave itself.';
COMMENT ON COLUMN partition_members.joined IS 'The interval of its first call.';
COMMENT ON COLUMN partition_members.ticked IS 'The interval of its last call.';
COMMENT ON COLUMN partition_members.share IS 'Its share in the active map; null if it has none.';
COMMENT ON COLUMN partition_members.next_share IS 'Its share in the proposed map; null if it has none.';
COMMENT ON COLUMN partition_members.acked IS 'True if it has acknowledged the proposed map.';

-- tenure_api::partitions has the same function.
CREATE FUNCTION partition_slot(id uuid) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (('x' || right(id::text, 8))::bit(32)::bigint % 240)::integer;
COMMENT ON FUNCTION partition_slot(uuid) IS 'Slot of a task: the last four bytes of its id, big endian, modulo 240.';

-- Queues whose workers claim by their share.
SET LOCAL lock_timeout = '5s';
ALTER TABLE task_queues ADD COLUMN partition integer;
COMMENT ON COLUMN task_queues.partition IS
    'partition_groups.id of the group whose members claim shares: `partition` of the policy; null otherwise.';
CREATE INDEX pending_partitioned ON pending (queue, priority, partition_slot(id), ord)
    WHERE traits & 512 <> 0 AND reserved_until IS NULL;

-- Bit 9 passes from queues to runs.
CREATE OR REPLACE FUNCTION run_traits(of_queue smallint, delivery smallint, complete_time double precision, retry_first double precision,
                                      retry_most double precision, retry_failed boolean)
RETURNS smallint LANGUAGE sql IMMUTABLE RETURN
    NULLIF(COALESCE(delivery, of_queue & 3, 0) | COALESCE(of_queue & 16, 0) | COALESCE(of_queue & 512, 0)
           | CASE WHEN retry_first IS NULL THEN COALESCE(of_queue & 4, 0) WHEN retry_first > 0 AND retry_most > 0 THEN 4 ELSE 0 END
           | CASE WHEN complete_time IS NULL THEN 0 ELSE 8 END
           | CASE WHEN retry_failed IS NULL THEN COALESCE(of_queue & 1024, 0) WHEN retry_failed THEN 1024 ELSE 0 END, 0)::smallint;

-- The function takes the lock of flips, shared, and then reads the group with a newer snapshot than its statement has.
CREATE FUNCTION lock_partition(of_group integer, of_share integer)
RETURNS TABLE (epoch bigint, replicas integer, next_replicas integer, next_share integer) LANGUAGE plpgsql VOLATILE ROWS 1 AS $$
BEGIN
    IF pg_try_advisory_xact_lock_shared(1952804473, of_group) THEN
        RETURN QUERY
            SELECT g.epoch, g.replicas::integer, g.next_replicas::integer, m.next_share::integer
            FROM partition_groups g JOIN partition_members m ON m.grp = g.id AND m.share = of_share
            WHERE g.id = of_group;
    END IF;
END $$;
COMMENT ON FUNCTION lock_partition IS
    'The map of a group, which stays active until the transaction ends; none while it is about to change, or if nobody has this share.';

INSERT INTO fact_generations (name, generation) VALUES ('partitions', 1);
