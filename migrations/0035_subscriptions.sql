-- Subscriptions: events that are sent to receivers.
CREATE TABLE subscriptions (
    name text COLLATE "C" PRIMARY KEY,
    url text NOT NULL,
    secret bytea NOT NULL,
    previous_secret bytea,
    previous_until timestamptz,
    exchanges text,
    routing_key_pattern text,
    route text,
    batch smallint NOT NULL,
    result boolean NOT NULL,
    give_up_after double precision NOT NULL,
    client_id text NOT NULL,
    created timestamptz NOT NULL,
    changed timestamptz NOT NULL,
    counted_from timestamptz NOT NULL,
    position bigint NOT NULL,
    in_flight bigint NOT NULL,
    server uuid,
    term bigint NOT NULL,
    lease_until timestamptz NOT NULL,
    failures integer NOT NULL,
    failing_since timestamptz,
    next_try timestamptz,
    error text,
    last_success timestamptz,
    suspended timestamptz,
    suspended_by smallint,
    CHECK (in_flight >= position)
) WITH (fillfactor = 50);
COMMENT ON TABLE subscriptions IS 'Subscriptions by name. There are no indexes but the key, so that updates stay in their page.';
COMMENT ON COLUMN subscriptions.name IS 'The name, unique in the database.';
COMMENT ON COLUMN subscriptions.url IS 'Where messages are posted.';
COMMENT ON COLUMN subscriptions.secret IS 'The secret that signs messages, encrypted with a key derived from the secret key.';
COMMENT ON COLUMN subscriptions.previous_secret IS 'The secret before, encrypted as well; null if there was none.';
COMMENT ON COLUMN subscriptions.previous_until IS 'Until when (real time) the secret before signs messages, too.';
COMMENT ON COLUMN subscriptions.exchanges IS 'Only events of these exchanges, separated by commas; null: all.';
COMMENT ON COLUMN subscriptions.routing_key_pattern IS 'Only events whose routing key matches; null: all.';
COMMENT ON COLUMN subscriptions.route IS 'Only events of tasks with a route that matches; null: all.';
COMMENT ON COLUMN subscriptions.batch IS 'Maximum events per message.';
COMMENT ON COLUMN subscriptions.result IS 'True: ends of tasks are sent with their results.';
COMMENT ON COLUMN subscriptions.give_up_after IS 'Age in seconds at which an undelivered event suspends the subscription.';
COMMENT ON COLUMN subscriptions.client_id IS 'The client of the last PUT. Its scopes are checked for each message.';
COMMENT ON COLUMN subscriptions.created IS 'When it was first stored.';
COMMENT ON COLUMN subscriptions.changed IS 'When it was last stored or resumed.';
COMMENT ON COLUMN subscriptions.counted_from IS 'When (real time) it was created or last resumed: older events are counted from here.';
COMMENT ON COLUMN subscriptions.position IS 'All events up to this position of the log were delivered, or do not pass the filter.';
COMMENT ON COLUMN subscriptions.in_flight IS 'The end of the message that is being sent; position if there is none.';
COMMENT ON COLUMN subscriptions.server IS 'The server that sends; null if none does.';
COMMENT ON COLUMN subscriptions.term IS 'Incremented by each change of the sending server and of the subscription.';
COMMENT ON COLUMN subscriptions.lease_until IS 'When (real time) another server may take over.';
COMMENT ON COLUMN subscriptions.failures IS 'Failed attempts since the last success.';
COMMENT ON COLUMN subscriptions.failing_since IS 'Time (real) of the first of these failures; null without any.';
COMMENT ON COLUMN subscriptions.next_try IS 'When (real time) the message is sent again; null if it did not fail.';
COMMENT ON COLUMN subscriptions.error IS 'Why the last attempt failed; null if it did not.';
COMMENT ON COLUMN subscriptions.last_success IS 'When (real time) a message was last accepted; null if none was.';
COMMENT ON COLUMN subscriptions.suspended IS 'When (real time) it was suspended; null if it is active.';
COMMENT ON COLUMN subscriptions.suspended_by IS 'Why it was suspended: 1 age, 2 gone, 3 events-lost.';

INSERT INTO fact_generations (name, generation) VALUES ('subscriptions', 1);
