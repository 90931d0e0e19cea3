-- The servers of this database, each with the last time at which it could commit.
SET LOCAL lock_timeout = '5s';

CREATE TABLE servers (
    id      uuid PRIMARY KEY,
    started timestamptz NOT NULL,
    beat    timestamptz NOT NULL
);
COMMENT ON TABLE servers IS
    'A row for each server whose heartbeat was asked for; the write proves that commits are answered. Purged a day after the last beat.';
COMMENT ON COLUMN servers.id IS 'Made by the server at each start.';
COMMENT ON COLUMN servers.started IS 'When the server started.';
COMMENT ON COLUMN servers.beat IS 'When its heartbeat was written last.';
-- One row for each server, updated again and again: room for the new version in the same page.
ALTER TABLE servers SET (fillfactor = 50);
