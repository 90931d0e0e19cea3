-- The audit: who changed what.
SET LOCAL lock_timeout = '5s';

CREATE TABLE audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL,
    client_id text COLLATE "C" NOT NULL,
    action    text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    object    text COLLATE "C" NOT NULL,
    detail    jsonb NOT NULL,
    trace_id  text COLLATE "C"
);
CREATE INDEX audit_object ON audit (kind, object, id);
COMMENT ON TABLE audit IS 'Changes by people and programs, each written in the transaction of its change. Contains no secrets.';
COMMENT ON COLUMN audit.id IS 'Order of the changes. Concurrent changes may commit in another order.';
COMMENT ON COLUMN audit.at IS 'Time of the change.';
COMMENT ON COLUMN audit.client_id IS 'The client that made the change; local: and the user of the system for commands that use the database.';
COMMENT ON COLUMN audit.action IS 'Name of the operation in the API, or of the command for changes without one.';
COMMENT ON COLUMN audit.kind IS
    'Kind of the object: task, task-group, queue, worker, client, role, schedule, subscription or database-role.';
COMMENT ON COLUMN audit.object IS 'Id of the object.';
COMMENT ON COLUMN audit.detail IS 'JSON object with the details of the change.';
COMMENT ON COLUMN audit.trace_id IS 'Trace id of the request; null for commands that use the database.';
