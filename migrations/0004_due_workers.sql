-- Passes begin to look for what is due at a mark of times: nothing may be stored below it later. A worker may be given an `expires` of
-- the past, which is shown as it was given; when its row is due for purging is a column of its own.
ALTER TABLE registered_workers ADD COLUMN due timestamptz;
UPDATE registered_workers SET due = expires;
ALTER TABLE registered_workers ALTER COLUMN due SET NOT NULL;
COMMENT ON COLUMN registered_workers.due IS 'When it is looked at for purging: when it expires, but not before it was given that date.';
DROP INDEX registered_workers_expires;
CREATE INDEX registered_workers_due ON registered_workers (due);
