-- An event says what was true when it happened: what can change later stands in its row of the outbox.

SET LOCAL lock_timeout = '5s';

ALTER TABLE outbox ADD COLUMN priorities smallint[];
COMMENT ON COLUMN outbox.priorities IS
    'Priority of the task after each transition; null in rows of releases before this column, and of events about groups.';
