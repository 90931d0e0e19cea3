// Workers that fetch by 8, go on at once after a full fetch, and otherwise poll every half second. By
// default they would poll every two seconds, for one job each. With PG_BOSS_NOTIFY=yes each enqueue
// also wakes them, which makes PostgreSQL commit enqueues one after the other.

import { PgBoss } from "pg-boss";
import { measure } from "./load.mjs";
import { CONNECTIONS, pool } from "./postgres.mjs";

const QUEUE = "noop";
const BATCH = 8;
// The least that it accepts.
const POLLING_SECONDS = 0.5;

const notify = process.env.PG_BOSS_NOTIFY === "yes";

await measure(async () => {
  const { PGHOST: host, PGPORT: port, PGUSER: user, PGPASSWORD: password, PGDATABASE: database } = process.env;
  const server = { host, port: Number(port), user, password, database };
  const boss = new PgBoss({ ...server, max: 2 * CONNECTIONS, useListenNotify: notify });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue(QUEUE, { notify });
  return {
    enqueue: (job) => boss.send(QUEUE, job),
    enqueueMany: (jobs) => boss.insert(QUEUE, jobs.map((data) => ({ data }))),
    async work(workers, started, completed) {
      const batchSize = Math.min(BATCH, workers);
      const options = {
        batchSize,
        localConcurrency: workers / batchSize,
        burstWhenBatchFull: true,
        pollingIntervalSeconds: POLLING_SECONDS,
        notifyPollingIntervalSeconds: POLLING_SECONDS,
      };
      await boss.work(QUEUE, options, async (jobs) => {
        for (const { data } of jobs) started(data.n);
        // They are stored as completed before this worker fetches again.
        for (const { data } of jobs) completed(data.n);
      });
    },
    async stored() {
      const statement = "SELECT count(*) FROM pgboss.job WHERE name = $1 AND state = 'created'";
      const { rows } = await pool().query(statement, [QUEUE]);
      return Number(rows[0].count);
    },
    close: () => boss.stop({ graceful: false }),
  };
});
