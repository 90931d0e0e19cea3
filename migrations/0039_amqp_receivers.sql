-- Receivers of subscriptions that take AMQP messages.
ALTER TABLE subscriptions ADD COLUMN exchange_prefix text;
COMMENT ON COLUMN subscriptions.exchange_prefix IS 'For AMQP: what the names of exchanges begin with; null: a webhook.';
COMMENT ON COLUMN subscriptions.url IS 'Where messages are posted. For AMQP: the broker, without user and password.';
COMMENT ON COLUMN subscriptions.secret IS 'Encrypted with a key derived from the secret key: the secret that signs messages, or for AMQP the whole URL.';
