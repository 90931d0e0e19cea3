-- On a busy server autovacuum analyzes these tables every few seconds. No plan depends on what the arrays and texts hold, and
-- statistics of arrays took more processor time than all others together.
SET LOCAL lock_timeout = '5s';

ALTER TABLE outbox
    ALTER kinds SET STATISTICS 0, ALTER seqs SET STATISTICS 0, ALTER runs SET STATISTICS 0, ALTER retries_left SET STATISTICS 0,
    ALTER priorities SET STATISTICS 0, ALTER details SET STATISTICS 0;
ALTER TABLE outbox_new
    ALTER kinds SET STATISTICS 0, ALTER seqs SET STATISTICS 0, ALTER runs SET STATISTICS 0, ALTER retries_left SET STATISTICS 0,
    ALTER priorities SET STATISTICS 0, ALTER details SET STATISTICS 0, ALTER queues SET STATISTICS 0, ALTER pending SET STATISTICS 0,
    ALTER claimed SET STATISTICS 0, ALTER delayed SET STATISTICS 0, ALTER waiting SET STATISTICS 0;
ALTER TABLE due ALTER seqs SET STATISTICS 0;
-- Definitions are read by seq. The sample is as large as the largest target says: 3,000 rows instead of 30,000.
ALTER TABLE task_definitions
    ALTER scheduler SET STATISTICS 0, ALTER project SET STATISTICS 0, ALTER scopes SET STATISTICS 0, ALTER routes SET STATISTICS 0,
    ALTER tags SET STATISTICS 0, ALTER definition SET STATISTICS 0,
    ALTER seq SET STATISTICS 10, ALTER id SET STATISTICS 10, ALTER task_group SET STATISTICS 10, ALTER deadline SET STATISTICS 10,
    ALTER expires SET STATISTICS 10;

-- Most tasks change once, when they end: room for that in the page, whatever cannot be removed yet. An update that has no room takes
-- another entry in the index.
ALTER TABLE tasks SET (fillfactor = 50);
