-- Requests to purge caches of workers.

SET LOCAL lock_timeout = '5s';

CREATE TABLE purge_requests (
    worker_pool  text COLLATE "C" NOT NULL,
    cache_name   text COLLATE "C" NOT NULL,
    purge_before timestamptz NOT NULL,
    PRIMARY KEY (worker_pool, cache_name)
);
COMMENT ON TABLE purge_requests IS 'Caches that workers of a pool are to purge before their next use. A row is ignored a day after it was asked for.';
COMMENT ON COLUMN purge_requests.worker_pool IS 'workerPoolId, which is also the name of a task queue.';
COMMENT ON COLUMN purge_requests.cache_name IS 'The cache, whatever kind of cache it is.';
COMMENT ON COLUMN purge_requests.purge_before IS 'When it was last asked for: caches from before that are stale.';
CREATE INDEX purge_requests_purge_before ON purge_requests (purge_before);
COMMENT ON INDEX purge_requests_purge_before IS 'Finds the rows that are a day old.';
