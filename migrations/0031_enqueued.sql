-- Tasks enqueued from SQL, in the transaction of an application.
SET LOCAL lock_timeout = '5s';

CREATE TABLE enqueue_roles (
    role      text COLLATE "C" PRIMARY KEY,
    client_id text COLLATE "C"
);
COMMENT ON TABLE enqueue_roles IS 'Database roles that were allowed to enqueue tasks.';
COMMENT ON COLUMN enqueue_roles.role IS 'Name of the role that has logged in.';
COMMENT ON COLUMN enqueue_roles.client_id IS 'The client whose scopes its tasks need; null: denied.';

INSERT INTO fact_generations (name, generation) VALUES ('enqueue_roles', 1);
CREATE FUNCTION enqueue_roles_changed() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM raise_fact('enqueue_roles'); RETURN NULL; END $$;
COMMENT ON FUNCTION enqueue_roles_changed() IS 'Servers notice every change of these roles, also one made by hand in SQL.';
CREATE TRIGGER enqueue_roles_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON enqueue_roles
    FOR EACH STATEMENT EXECUTE FUNCTION enqueue_roles_changed();

CREATE TABLE enqueued (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid            bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    task           uuid NOT NULL,
    queue          text NOT NULL,
    body           text NOT NULL,
    deadline_after integer,
    role           text NOT NULL DEFAULT session_user,
    at             timestamptz NOT NULL DEFAULT tenure_now(),
    tries          smallint NOT NULL DEFAULT 0,
    try_at         timestamptz,
    error          text
);
COMMENT ON TABLE enqueued IS
    'Tasks enqueued from SQL that are not created yet, or were refused. A new row has neither try_at nor error.';
COMMENT ON COLUMN enqueued.id IS 'Order in which the tasks were enqueued.';
COMMENT ON COLUMN enqueued.xid IS 'The transaction that enqueued the task: a row may become visible long after rows with higher ids.';
COMMENT ON COLUMN enqueued.task IS 'Id of the task.';
COMMENT ON COLUMN enqueued.queue IS 'Full name of the task queue.';
COMMENT ON COLUMN enqueued.body IS 'JSON: the task as an entry of createTasks.';
COMMENT ON COLUMN enqueued.deadline_after IS 'Seconds from the creation of the task to its deadline; null: the deadline of the body, or the default.';
COMMENT ON COLUMN enqueued.role IS 'The database role that had logged in.';
COMMENT ON COLUMN enqueued.at IS 'When the task was enqueued.';
COMMENT ON COLUMN enqueued.tries IS 'Number of attempts that put it off.';
COMMENT ON COLUMN enqueued.try_at IS 'When to try again; null until the first attempt.';
COMMENT ON COLUMN enqueued.error IS 'Why the task was refused; null unless it was.';

CREATE INDEX enqueued_fresh ON enqueued (xid, id) WHERE try_at IS NULL AND error IS NULL;
CREATE INDEX enqueued_waiting ON enqueued (try_at) WHERE try_at IS NOT NULL AND error IS NULL;
CREATE INDEX enqueued_refused ON enqueued (id) WHERE error IS NOT NULL;
-- Dependencies between enqueued tasks.
CREATE INDEX enqueued_task ON enqueued (task);

CREATE FUNCTION enqueue_date(value text) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF value ~* '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$' THEN
        RETURN value::timestamptz;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;
COMMENT ON FUNCTION enqueue_date IS 'The time of an RFC 3339 date-time; null if it is none.';
REVOKE ALL ON FUNCTION enqueue_date FROM PUBLIC;

CREATE FUNCTION enqueue_problem(field text, value jsonb) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN field IN ('name', 'taskId', 'taskGroupId', 'schedulerId', 'projectId') THEN
            CASE WHEN jsonb_typeof(value) <> 'string' THEN 'must be a string' END
        WHEN field = 'priority' THEN
            CASE WHEN value NOT IN ('"highest"', '"very-high"', '"high"', '"medium"', '"low"', '"very-low"', '"lowest"')
                 THEN 'must be one of highest, very-high, high, medium, low, very-low, lowest' END
        WHEN field = 'requires' THEN
            CASE WHEN value NOT IN ('"all-completed"', '"all-resolved"')
                 THEN 'must be one of all-completed, all-resolved' END
        WHEN field IN ('created', 'deadline', 'expires') THEN
            CASE WHEN jsonb_typeof(value) <> 'string' OR enqueue_date(value #>> '{}') IS NULL
                 THEN 'must be an RFC 3339 date-time such as "2026-01-31T12:00:00Z"' END
        WHEN field IN ('dependencies', 'routes', 'scopes') THEN
            CASE WHEN jsonb_typeof(value) <> 'array' OR jsonb_path_exists(value, 'strict $[*] ? (@.type() <> "string")', '{}', true)
                 THEN 'must be an array of strings' END
        WHEN field IN ('metadata', 'tags') THEN
            CASE WHEN jsonb_typeof(value) <> 'object' OR jsonb_path_exists(value, 'strict $.* ? (@.type() <> "string")', '{}', true)
                 THEN 'must be an object whose values are strings' END
        WHEN field IN ('extra', 'options') THEN
            CASE WHEN jsonb_typeof(value) <> 'object' THEN 'must be an object' END
        WHEN field = 'retries' THEN
            CASE WHEN jsonb_typeof(value) <> 'number' THEN 'must be a whole number from 0 to 49'
                 WHEN value::numeric NOT BETWEEN 0 AND 49 OR value::numeric % 1 <> 0 THEN 'must be a whole number from 0 to 49' END
        WHEN field = 'deadlineAfter' THEN
            CASE WHEN jsonb_typeof(value) <> 'number' THEN 'must be whole seconds from 60 to 31622400'
                 WHEN value::numeric NOT BETWEEN 60 AND 31622400 OR value::numeric % 1 <> 0
                 THEN 'must be whole seconds from 60 to 31622400' END
        WHEN field = 'payload' THEN 'is not an option; it is the second argument'
        WHEN field IN ('taskQueueId', 'provisionerId', 'workerType') THEN 'is not an option; the first argument is the queue'
        ELSE 'is unknown; known are name, priority, retries, scopes, routes, tags, options, metadata, extra, dependencies, requires, '
             'created, deadline, deadlineAfter, expires, taskId, taskGroupId, schedulerId, projectId'
    END
$$;
COMMENT ON FUNCTION enqueue_problem IS 'What is wrong with a field of the options of tenure_enqueue; null if nothing is seen.';
REVOKE ALL ON FUNCTION enqueue_problem FROM PUBLIC;

CREATE FUNCTION tenure_enqueue(queue text, payload jsonb, options jsonb DEFAULT '{}') RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    full_name text := CASE WHEN strpos(queue, '/') > 0 THEN queue ELSE 'default/' || queue END;
    given jsonb := COALESCE(options, '{}');
    now timestamptz := tenure_now();
    deadline timestamptz;
    slug text;
    whole text;
    wrong text;
BEGIN
    IF NOT EXISTS (SELECT FROM enqueue_roles r WHERE r.role = session_user::text AND r.client_id IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
            MESSAGE = 'tenure_enqueue: the database role ' || quote_ident(session_user::text) || ' may not enqueue tasks',
            HINT = 'Run: tenure enqueue allow ' || quote_ident(session_user::text) || ' --client CLIENT';
    END IF;
    wrong := CASE
        WHEN full_name IS NULL OR full_name !~ '^[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?$' THEN
            'queue: ' || COALESCE(quote_literal(left(queue, 100)), 'null') || ' is no name of a task queue, such as acme/mail or mail: up to 38 '
            'characters on each side of the slash, on the right lower case letters, digits and dashes'
        WHEN payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN 'payload: must be a JSON object'
        WHEN jsonb_typeof(given) <> 'object' THEN 'options: must be a JSON object'
    END;
    IF wrong IS NULL THEN
        SELECT 'options: ' || left(to_json(f.key)::text, 100) || ' ' || f.problem INTO wrong
        FROM (SELECT e.key, enqueue_problem(e.key, e.value) AS problem FROM jsonb_each(given) e) f
        WHERE f.problem IS NOT NULL LIMIT 1;
    END IF;
    IF wrong IS NULL THEN
        deadline := enqueue_date(given ->> 'deadline');
        slug := given ->> 'taskId';
        wrong := CASE
            WHEN given ?& ARRAY['deadline', 'deadlineAfter'] THEN 'options: "deadline" and "deadlineAfter" are given; leave out one'
            WHEN deadline <= now THEN 'options: "deadline" is in the past'
            WHEN enqueue_date(given ->> 'expires') <= COALESCE(deadline, now) THEN
                'options: "expires" must be after the deadline, and in the future'
            WHEN slug !~ '^[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]$' THEN
                'options: "taskId" is no task id: 22 characters, a version 4 UUID in URL-safe base64'
        END;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'tenure_enqueue: ' || wrong;
    END IF;
    IF slug IS NULL THEN
        slug := rtrim(translate(encode(set_bit(uuid_send(gen_random_uuid()), 7, 0), 'base64'), '+/', '-_'), '=');
    END IF;
    whole := (given - 'deadlineAfter' || jsonb_build_object('taskQueueId', full_name, 'taskId', slug, 'payload', payload))::text;
    IF octet_length(whole) > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = 'program_limit_exceeded',
            MESSAGE = 'tenure_enqueue: payload and options have ' || octet_length(whole)::text || ' bytes; at most 1048576 are allowed',
            HINT = 'Store large data elsewhere and enqueue a reference to it.';
    END IF;
    INSERT INTO enqueued (task, queue, body, deadline_after, at)
    VALUES (encode(decode(translate(slug, '-_', '+/') || '==', 'base64'), 'hex')::uuid, full_name, whole,
            (given ->> 'deadlineAfter')::numeric::integer, now);
    RETURN slug;
END $$;
COMMENT ON FUNCTION tenure_enqueue IS
    'Enqueues a task as part of the caller''s transaction and returns its id. The options are those of an entry of createTasks, and deadlineAfter.';
REVOKE ALL ON FUNCTION tenure_enqueue FROM PUBLIC;

-- Without pg_temp at the end, temporary tables of the caller would come before these.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION tenure_enqueue SET search_path = %I, pg_temp', current_schema());
END $$;
