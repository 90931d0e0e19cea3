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

-- The slot of a task or of another key: tenure_api::partitions has the same functions.
CREATE FUNCTION partition_slot(id uuid) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (('x' || right(id::text, 8))::bit(32)::bigint % 240)::integer;
COMMENT ON FUNCTION partition_slot(uuid) IS 'Slot of a task: the last four bytes of its id, big endian, modulo 240.';

INSERT INTO fact_generations (name, generation) VALUES ('partitions', 1);
