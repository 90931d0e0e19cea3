-- A run whose reservation by a poller ends counts as ready again, and a limit may have been lowered meanwhile: its key is announced, so
-- that the next look can have it wait. Claims of ordinary queues delete from pending and update nothing: they pay nothing.
SET LOCAL lock_timeout = '5s';

COMMENT ON FUNCTION announce_end IS 'A run of a key has ended, or is another one now, or is reserved by no poller any more.';
CREATE TRIGGER pending_freed AFTER UPDATE OF reserved_until ON pending FOR EACH ROW
    WHEN (OLD.reserved_until IS NOT NULL AND NEW.reserved_until IS NULL AND NEW.key_id IS NOT NULL AND OLD.hold IS NULL AND NEW.hold IS NULL)
    EXECUTE FUNCTION announce_end();
