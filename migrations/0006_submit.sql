-- What repeats of a submission are recognized by. ARCHITECTURE.md explains who reads and writes it.

SET LOCAL lock_timeout = '5s';

CREATE TABLE idempotency_keys (
    client_id  text NOT NULL,
    key        text NOT NULL,
    digest     bytea NOT NULL,
    task_group uuid NOT NULL,
    tasks      uuid[] NOT NULL,
    created    timestamptz NOT NULL,
    PRIMARY KEY (client_id, key)
);
COMMENT ON TABLE idempotency_keys IS
    'Submissions that came with an Idempotency-Key; a row is written with the tasks, and forgotten after a day.';
COMMENT ON COLUMN idempotency_keys.client_id IS 'Who submitted; each client has keys of its own.';
COMMENT ON COLUMN idempotency_keys.key IS 'The header''s value.';
COMMENT ON COLUMN idempotency_keys.digest IS 'SHA-256 of the body, whatever its spacing and the order of its keys.';
COMMENT ON COLUMN idempotency_keys.task_group IS 'The group that the answer named.';
COMMENT ON COLUMN idempotency_keys.tasks IS 'The tasks of the answer, in the order of the request.';
COMMENT ON COLUMN idempotency_keys.created IS 'When the tasks were created.';
CREATE INDEX idempotency_keys_created ON idempotency_keys (created);
