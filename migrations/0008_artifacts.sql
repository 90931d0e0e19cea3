-- Artifacts of runs, and objects. Their bytes are stored elsewhere; here is what is known of them.

SET LOCAL lock_timeout = '5s';

CREATE TABLE artifacts (
    seq            bigint NOT NULL,
    run            smallint NOT NULL,
    name           text COLLATE "C" NOT NULL,
    storage_type   smallint NOT NULL,
    content_type   text NOT NULL,
    content_length bigint,
    expires        timestamptz NOT NULL,
    removable      timestamptz NOT NULL,
    present        boolean NOT NULL,
    url            text,
    link           text COLLATE "C",
    reason         smallint,
    message        text,
    upload         uuid,
    PRIMARY KEY (seq, run, name),
    CHECK (content_length >= 0 AND removable >= expires),
    -- Each type has its own details and no others.
    CHECK (CASE storage_type
        WHEN 1 THEN present AND num_nonnulls(url, link, reason, message, upload) = 0
        WHEN 2 THEN upload IS NOT NULL AND num_nonnulls(url, link, reason, message) = 0
        WHEN 3 THEN present AND url IS NOT NULL AND num_nonnulls(link, reason, message, upload) = 0
        WHEN 4 THEN present AND link IS NOT NULL AND num_nonnulls(url, reason, message, upload) = 0
        WHEN 5 THEN present AND num_nonnulls(reason, message) = 2 AND num_nonnulls(url, link, upload) = 0
        ELSE false END)
);
COMMENT ON TABLE artifacts IS 'Artifacts of runs. A row is written while its task is locked, and goes before its task does.';
COMMENT ON COLUMN artifacts.seq IS 'tasks.seq.';
COMMENT ON COLUMN artifacts.run IS 'Number of the run that made it.';
COMMENT ON COLUMN artifacts.name IS 'Its name within the run; lists are in the order of its bytes.';
COMMENT ON COLUMN artifacts.storage_type IS '1 s3: bytes stored under its name; 2 object; 3 reference; 4 link; 5 error.';
COMMENT ON COLUMN artifacts.content_type IS 'As whoever made it said.';
COMMENT ON COLUMN artifacts.content_length IS 'As whoever made it said, before any compression; null if they did not.';
COMMENT ON COLUMN artifacts.expires IS 'Until when it can be read. Only ever raised, and never past the expiry of its task.';
COMMENT ON COLUMN artifacts.removable IS
    'When row and bytes may go: not before it expires, and not while an upload may still be on its way.';
COMMENT ON COLUMN artifacts.present IS 'False only for an object whose upload has not been finished.';
COMMENT ON COLUMN artifacts.url IS 'Of a reference: where it leads.';
COMMENT ON COLUMN artifacts.link IS 'Of a link: the name of another artifact of the run.';
COMMENT ON COLUMN artifacts.reason IS 'Of an error: codes of ArtifactErrorReason.';
COMMENT ON COLUMN artifacts.message IS 'Of an error: for people.';
COMMENT ON COLUMN artifacts.upload IS 'Of an object: uploadId.';
CREATE INDEX artifacts_removable ON artifacts (removable);

CREATE TABLE objects (
    name         text COLLATE "C" PRIMARY KEY,
    project      text NOT NULL,
    upload       uuid NOT NULL,
    expires      timestamptz NOT NULL,
    removable    timestamptz NOT NULL,
    finished     boolean NOT NULL DEFAULT false,
    sha256       text,
    sha512       text,
    CHECK (removable >= expires)
);
COMMENT ON TABLE objects IS 'Objects of the object service.';
COMMENT ON COLUMN objects.name IS 'Its name, of which there is one in the whole service.';
COMMENT ON COLUMN objects.project IS 'projectId of whoever uploads it.';
COMMENT ON COLUMN objects.upload IS 'uploadId; another one cannot take the name.';
COMMENT ON COLUMN objects.expires IS 'Until when it can be read; that of the artifact, once it is one.';
COMMENT ON COLUMN objects.removable IS
    'When row and bytes may go: not before it expires, and not while an upload may still be on its way.';
COMMENT ON COLUMN objects.finished IS 'Whether the upload is finished, so that the object can be read.';
COMMENT ON COLUMN objects.sha256 IS 'Digest in hexadecimal, as the uploader said; compared with the bytes at the end of the upload.';
COMMENT ON COLUMN objects.sha512 IS 'Digest in hexadecimal, as the uploader said.';
CREATE INDEX objects_removable ON objects (removable);

COMMENT ON COLUMN outbox.kinds IS
    '1 created and pending; 2 claimed; 3 completed; 4 failed; 5 exception; 6 exception, and the next run is pending; '
    '7 created and unscheduled; 8 a run is pending; 9 the priority was changed; 10 every task of the group is resolved; '
    '11 the group was sealed; 12 the priority of the group''s tasks was changed; 13 an artifact can be read.';
