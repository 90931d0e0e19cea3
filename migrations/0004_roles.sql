-- Roles, and what clients of the API can be told about.

SET LOCAL lock_timeout = '5s';

ALTER TABLE clients
    ADD COLUMN delete_on_expiration boolean NOT NULL DEFAULT false,
    ADD COLUMN last_rotated timestamptz,
    ADD COLUMN last_used timestamptz;
COMMENT ON COLUMN clients.delete_on_expiration IS 'Whether the row may go when the client has expired.';
COMMENT ON COLUMN clients.last_rotated IS 'When the access token was last replaced; null: never.';
COMMENT ON COLUMN clients.last_used IS 'When the client last sent a request, to within hours; null: never.';

CREATE TABLE roles (
    role_id       text COLLATE "C" PRIMARY KEY
                  CHECK (length(role_id) <= 1000 AND role_id ~ '^[ -~]+$' AND role_id !~ '[*][*]$'),
    scopes        text[] NOT NULL,
    description   text NOT NULL DEFAULT '',
    created       timestamptz NOT NULL DEFAULT tenure_now(),
    last_modified timestamptz NOT NULL DEFAULT tenure_now()
);
COMMENT ON TABLE roles IS 'Names for sets of scopes: whoever holds assume:<role_id> holds these scopes too.';
COMMENT ON COLUMN roles.role_id IS 'What is assumed. With a star at its end it matches every name that begins like it.';
COMMENT ON COLUMN roles.scopes IS 'What the role gives, before expansion; <..> stands for what a star at the end of role_id matched.';
COMMENT ON COLUMN roles.description IS 'For people.';
COMMENT ON COLUMN roles.created IS 'When the role was made.';
COMMENT ON COLUMN roles.last_modified IS 'When anything about the role was last changed.';

CREATE TABLE role_generation (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    generation bigint NOT NULL
);
COMMENT ON TABLE role_generation IS 'One row. Who changes roles locks it first; servers look at it once a second.';
COMMENT ON COLUMN role_generation.only_row IS 'Keeps it at one row.';
COMMENT ON COLUMN role_generation.generation IS 'One more with each statement that changed roles.';
INSERT INTO role_generation (generation) VALUES (1);

CREATE FUNCTION roles_changed() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN UPDATE role_generation SET generation = generation + 1; RETURN NULL; END $$;
COMMENT ON FUNCTION roles_changed() IS 'Whoever changes roles, by whatever means: servers notice.';
CREATE TRIGGER roles_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON roles
    FOR EACH STATEMENT EXECUTE FUNCTION roles_changed();
