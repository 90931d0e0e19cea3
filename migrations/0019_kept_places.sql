-- A run that is given back waits for admission again at the place at which it waited before; its claim remembers that.
SET LOCAL lock_timeout = '5s';

ALTER TABLE claims ADD COLUMN waited bigint;
COMMENT ON COLUMN claims.waited IS 'As in pending.';
