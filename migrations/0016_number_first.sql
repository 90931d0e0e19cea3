-- A transaction has its number before it takes a position in the log or a place in a queue: the safe position knows open transactions
-- by their numbers. A row is numbered only when it is written, which is after its defaults are worked out.
SET LOCAL lock_timeout = '5s';

ALTER TABLE outbox_new ALTER COLUMN id SET DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('pending_ord') END;
ALTER TABLE pending ALTER COLUMN ord SET DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('pending_ord') END;
