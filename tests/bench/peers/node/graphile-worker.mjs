// Batched fetches and completions, as its page on performance recommends for many short jobs.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { measure } from "./load.mjs";
import { pool } from "./postgres.mjs";

const logger = new Logger(() => () => {});

await measure(async () => {
  const pgPool = pool();
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  let runner;
  return {
    enqueue: (job) => utils.addJob("noop", job),
    enqueueMany: (jobs) => utils.addJobs(jobs.map((payload) => ({ identifier: "noop", payload }))),
    async work(concurrentJobs, started, completed) {
      const localQueue = { size: concurrentJobs + 1 };
      runner = await run({
        pgPool: pool(),
        logger,
        noHandleSignals: true,
        taskList: { noop: async ({ n }) => started(n) },
        preset: { worker: { concurrentJobs, localQueue, completeJobBatchDelay: 0 } },
      });
      runner.events.on("job:complete", ({ job }) => completed(job.payload.n));
    },
    stored: async () => Number((await pgPool.query("SELECT count(*) FROM graphile_worker.jobs")).rows[0].count),
    close: async () => runner?.stop(),
  };
});
