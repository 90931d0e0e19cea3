// The load on one peer, and its counts. docs/internals/peers.md describes the rows.
//
//   node PEER.mjs ROW WORKERS SECONDS WARMUP
//
// A peer is an object with `enqueue(job)`, `enqueueMany(jobs)`, `stored()` (its number of waiting
// jobs), `close()` and `work(workers, started, completed)`. It calls `started` with a job's number
// in the handler, and `completed` when the end of that job is stored.

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const PRODUCERS = { enqueue: 64, batches: 16, life: 64, pickup: 8 };
const BATCH = 100;
// A job of about 1.5 KB.
const PAD_BYTES = 740;
// Unfinished jobs at which producers wait.
const AHEAD = 256;
// Pause before each job of `pickup`: the least, and a random time besides.
const PAUSE_MS = 10;
const SPREAD_MS = 40;
const FINISH_MS = 60_000;

const now = () => performance.now();
const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

class Load {
  constructor(peer, row) {
    this.peer = peer;
    this.row = row;
    this.pad = randomBytes(PAD_BYTES).toString("hex");
    this.producing = true;
    this.issued = 0;
    this.acknowledged = 0;
    this.ended = new Set();
    this.waiting = [];
    this.pickups = new Map();
    this.window = null;
    this.counted = 0;
    this.millis = [];
  }

  job() {
    return { n: this.issued++, pad: this.pad };
  }

  count(jobs) {
    if (this.window !== null) this.counted += jobs;
  }

  started(n) {
    const pickup = this.pickups.get(n);
    if (!pickup) return;
    this.pickups.delete(n);
    if (this.window !== null && pickup.began >= this.window) {
      this.millis.push(now() - pickup.began);
      this.counted += 1;
    }
    pickup.resolve();
  }

  completed(n) {
    if (this.ended.has(n)) return;
    this.ended.add(n);
    if (this.row === "life") this.count(1);
    this.waiting.shift()?.();
  }

  async produce() {
    while (this.producing) {
      if (this.row === "enqueue") {
        await this.peer.enqueue(this.job());
        this.acknowledged += 1;
        this.count(1);
      } else if (this.row === "batches") {
        await this.peer.enqueueMany(Array.from({ length: BATCH }, () => this.job()));
        this.acknowledged += BATCH;
        this.count(BATCH);
      } else if (this.row === "life") {
        if (this.issued - this.ended.size >= AHEAD) {
          await new Promise((resolve) => this.waiting.push(resolve));
          continue;
        }
        await this.peer.enqueue(this.job());
        this.acknowledged += 1;
      } else {
        await sleep(PAUSE_MS + Math.random() * SPREAD_MS);
        const job = this.job();
        const started = new Promise((resolve) => this.pickups.set(job.n, { began: now(), resolve }));
        await this.peer.enqueue(job);
        this.acknowledged += 1;
        await started;
      }
    }
  }

  // Returns the number of acknowledged jobs that were lost.
  async lost(workers) {
    if (workers === 0) return Math.max(0, this.acknowledged - (await this.peer.stored()));
    const deadline = now() + FINISH_MS;
    while (this.ended.size < this.acknowledged && now() < deadline) await sleep(10);
    return this.acknowledged - this.ended.size;
  }
}

// The smallest value not below this share of the sorted values.
const quantile = (sorted, share) => sorted[Math.max(1, Math.ceil(sorted.length * share)) - 1];

export async function measure(open) {
  const [row, ...numbers] = process.argv.slice(2);
  const [workers, seconds, warmup] = numbers.map(Number);
  const peer = await open();
  const load = new Load(peer, row);
  if (workers > 0) await peer.work(workers, (n) => load.started(n), (n) => load.completed(n));
  const producers = Promise.all(Array.from({ length: PRODUCERS[row] }, () => load.produce()));
  await Promise.race([sleep(warmup * 1000), producers]);
  load.window = now();
  tell({ event: "begin" });
  await Promise.race([sleep(seconds * 1000), producers]);
  const [jobs, elapsed] = [load.counted, (now() - load.window) / 1000];
  tell({ event: "end", jobs, seconds: elapsed });
  load.window = null;
  load.producing = false;
  for (const resolve of load.waiting) resolve();
  await Promise.race([producers, sleep(FINISH_MS, null, { ref: false })]);
  const lost = await load.lost(workers);
  load.millis.sort((a, b) => a - b);
  tell({ event: "result", lost, p50: quantile(load.millis, 0.5), p99: quantile(load.millis, 0.99) });
  await peer.close();
  process.exit(0);
}
