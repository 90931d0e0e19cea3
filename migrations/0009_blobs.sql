-- What is stored of artifacts and objects: which bytes are whose. ARCHITECTURE.md explains who reads and writes it.

SET LOCAL lock_timeout = '5s';

CREATE TABLE blobs (
    id               uuid PRIMARY KEY,
    name             text NOT NULL,
    state            smallint NOT NULL,
    content_type     text NOT NULL,
    content_encoding text,
    size             bigint,
    sha256           bytea,
    began            timestamptz NOT NULL,
    stored           timestamptz,
    due              timestamptz,
    CONSTRAINT blobs_state CHECK (state IN (0, 1, 2)),
    CONSTRAINT blobs_due CHECK ((state = 1) = (due IS NULL)),
    CONSTRAINT blobs_whole CHECK (state <> 1 OR (size >= 0 AND length(sha256) = 32 AND stored IS NOT NULL))
);
COMMENT ON TABLE blobs IS
    'A row for each generation of bytes in the store of artifacts: written before the bytes are, and deleted after them, so that no bytes are forgotten.';
COMMENT ON COLUMN blobs.id IS 'What the bytes are called in the store.';
COMMENT ON COLUMN blobs.name IS 'What they are called outside: artifact/<taskId>/<runId>/<name> or object/<name>.';
COMMENT ON COLUMN blobs.state IS
    '0 being uploaded; 1 current, what readers of the name get; 2 dropped: replaced, deleted, or an upload that was given up.';
COMMENT ON COLUMN blobs.content_type IS 'As the uploader said.';
COMMENT ON COLUMN blobs.content_encoding IS 'As the uploader said, such as gzip; null if it said nothing.';
COMMENT ON COLUMN blobs.size IS 'How many bytes there are; null before they are whole.';
COMMENT ON COLUMN blobs.sha256 IS 'Their SHA-256; null before they are whole.';
COMMENT ON COLUMN blobs.began IS 'When the upload began.';
COMMENT ON COLUMN blobs.stored IS 'When the bytes became the current ones of their name; null before.';
COMMENT ON COLUMN blobs.due IS
    'When bytes and row are to be removed: an uploader puts it off while it works. Null exactly while they are current.';
CREATE UNIQUE INDEX blobs_current ON blobs (name) WHERE state = 1;
CREATE INDEX blobs_unfinished ON blobs (name) WHERE state = 0;
CREATE INDEX blobs_due ON blobs (due) WHERE due IS NOT NULL;
