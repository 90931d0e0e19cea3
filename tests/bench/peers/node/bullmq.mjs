// Defaults; completed jobs are kept.

import { Queue, Worker } from "bullmq";
import { measure } from "./load.mjs";

const QUEUE = "noop";

await measure(async () => {
  const connection = { host: "127.0.0.1", port: Number(process.env.REDIS_PORT), maxRetriesPerRequest: null };
  const queue = new Queue(QUEUE, { connection });
  await queue.waitUntilReady();
  let worker;
  return {
    enqueue: (job) => queue.add(QUEUE, job),
    enqueueMany: (jobs) => queue.addBulk(jobs.map((data) => ({ name: QUEUE, data }))),
    async work(concurrency, started, completed) {
      worker = new Worker(QUEUE, async ({ data }) => started(data.n), { connection, concurrency });
      worker.on("completed", ({ data }) => completed(data.n));
      worker.on("error", (error) => console.error(error));
      await worker.waitUntilReady();
    },
    stored: () => queue.getWaitingCount(),
    close: async () => worker?.close(true),
  };
});
