-- Usually nothing is there of the groups that a create asks for: one look at all of them says so, instead of two looks for each.
SET LOCAL lock_timeout = '5s';

CREATE OR REPLACE FUNCTION lock_free_groups(ids uuid[], own boolean) RETURNS boolean[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked boolean[];
BEGIN
    -- Of one group without a query.
    IF cardinality(ids) = 1 THEN
        locked := ARRAY[pg_try_advisory_xact_lock(uuid_hash_extended(ids[1], 0))];
    ELSE
        locked := ARRAY(SELECT pg_try_advisory_xact_lock(uuid_hash_extended(i.id, 0)) FROM unnest(ids) AS i(id));
    END IF;
    -- Each of these looks begins when the locks are there, and sees what was committed until then.
    IF NOT EXISTS (SELECT FROM task_groups g WHERE g.id = ANY (ids))
       AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = ANY (ids) AND (own OR t.lone)) THEN
        RETURN locked;
    END IF;
    RETURN ARRAY(
        SELECT i.locked AND NOT EXISTS (SELECT FROM task_groups g WHERE g.id = i.id)
               AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = i.id AND (own OR t.lone))
        FROM unnest(ids, locked) AS i(id, locked));
END $$;
