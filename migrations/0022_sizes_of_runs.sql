-- A claim adds up the definitions that it hands out: the ordinary create writes the size of each with its run, so that the claim
-- need not look each of them up for that alone.
SET LOCAL lock_timeout = '5s';

COMMENT ON COLUMN pending.bytes IS
    'octet_length of the definition; null of runs that were not made by the ordinary create, and of those of earlier releases.';
COMMENT ON COLUMN claims.bytes IS 'Not used yet.';
