-- Who may talk to the queue.

SET LOCAL lock_timeout = '5s';

CREATE TABLE clients (
    client_id     text PRIMARY KEY CHECK (client_id ~ '^[A-Za-z0-9!@/:.+|_-]{1,255}$'),
    token         bytea NOT NULL,
    scopes        text[] NOT NULL,
    description   text NOT NULL DEFAULT '',
    expires       timestamptz,
    disabled      boolean NOT NULL DEFAULT false,
    created       timestamptz NOT NULL DEFAULT tenure_now(),
    last_modified timestamptz NOT NULL DEFAULT tenure_now()
);
COMMENT ON TABLE clients IS 'Clients with a permanent access token; temporary credentials leave no row.';
COMMENT ON COLUMN clients.client_id IS 'What the client calls itself. No client can have the name of the server''s own issuer.';
COMMENT ON COLUMN clients.token IS 'The access token, AES-256-GCM under a key derived from the secret key: nonce, ciphertext, tag.';
COMMENT ON COLUMN clients.scopes IS 'What the client may do, before expansion.';
COMMENT ON COLUMN clients.description IS 'For people.';
COMMENT ON COLUMN clients.expires IS 'From when on the client is refused; null: never.';
COMMENT ON COLUMN clients.disabled IS 'Whether the client is refused for now.';
COMMENT ON COLUMN clients.created IS 'When the client was made.';
COMMENT ON COLUMN clients.last_modified IS 'When anything about the client was last changed, its token included.';
