"""The load on one peer, and its counts. docs/internals/peers.md describes the rows.

python PEER.py ROW WORKERS SECONDS WARMUP
"""

import asyncio
import json
import math
import random
import secrets
import sys
import time

PRODUCERS = {"enqueue": 64, "batches": 16, "life": 64, "pickup": 8}
BATCH = 100
# A job of about 1.5 KB.
PAD_BYTES = 740
# Unfinished jobs at which producers wait.
AHEAD = 256
# Pause before each job of `pickup`: the least, and a random time besides.
PAUSE_SECONDS = 0.010
SPREAD_SECONDS = 0.040
FINISH_SECONDS = 60


def tell(**line):
    print(json.dumps(line), flush=True)


def quantile(values, share):
    """Returns the smallest value not below this share."""
    values.sort()
    return values[max(1, math.ceil(len(values) * share)) - 1] if values else None


class Load:
    """Counts the jobs of one run.

    A peer has `enqueue(job)`, `enqueue_many(jobs)`, `stored()`, its number of waiting jobs, and
    `work(workers, load)`. It calls `started` with a job's number in the handler, and `completed`
    when the end of that job is stored.
    """

    def __init__(self, peer, row):
        self.peer, self.row = peer, row
        self.pad = secrets.token_hex(PAD_BYTES)
        self.producing = True
        self.issued = self.acknowledged = self.counted = 0
        self.ended = set()
        self.room = asyncio.Semaphore(AHEAD)
        self.pickups = {}
        self.window = None
        self.millis = []

    def job(self):
        self.issued += 1
        return {"n": self.issued, "pad": self.pad}

    def count(self, jobs):
        if self.window is not None:
            self.counted += jobs

    def started(self, n):
        if n not in self.pickups:
            return
        began, event = self.pickups.pop(n)
        if self.window is not None and began >= self.window:
            self.millis.append((time.monotonic() - began) * 1000)
            self.counted += 1
        event.set()

    def completed(self, n):
        if n in self.ended:
            return
        self.ended.add(n)
        if self.row == "life":
            self.count(1)
            self.room.release()

    async def produce(self):
        while self.producing:
            match self.row:
                case "enqueue":
                    await self.peer.enqueue(self.job())
                    self.acknowledged += 1
                    self.count(1)
                case "batches":
                    await self.peer.enqueue_many([self.job() for _ in range(BATCH)])
                    self.acknowledged += BATCH
                    self.count(BATCH)
                case "life":
                    await self.room.acquire()
                    if not self.producing:
                        return self.room.release()
                    await self.peer.enqueue(self.job())
                    self.acknowledged += 1
                case "pickup":
                    await asyncio.sleep(PAUSE_SECONDS + random.random() * SPREAD_SECONDS)
                    job, event = self.job(), asyncio.Event()
                    self.pickups[job["n"]] = time.monotonic(), event
                    await self.peer.enqueue(job)
                    self.acknowledged += 1
                    await event.wait()

    async def lost(self, workers):
        """Returns the number of acknowledged jobs that were lost."""
        if workers == 0:
            return max(0, self.acknowledged - await self.peer.stored())
        deadline = time.monotonic() + FINISH_SECONDS
        while len(self.ended) < self.acknowledged and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return self.acknowledged - len(self.ended)


async def measure(peer):
    row, (workers, seconds, warmup) = sys.argv[1], map(int, sys.argv[2:])
    load = Load(peer, row)
    if workers:
        await peer.work(workers, load)
    producers = asyncio.gather(*(load.produce() for _ in range(PRODUCERS[row])))

    async def pause(length):
        # Producers end early only with an error.
        await asyncio.wait([producers], timeout=length)
        if producers.done():
            await producers

    await pause(warmup)
    load.window = time.monotonic()
    tell(event="begin")
    await pause(seconds)
    jobs, elapsed = load.counted, time.monotonic() - load.window
    tell(event="end", jobs=jobs, seconds=elapsed)
    load.window, load.producing = None, False
    await asyncio.wait_for(producers, FINISH_SECONDS)
    lost = await load.lost(workers)
    tell(event="result", lost=lost, p50=quantile(load.millis, 0.5), p99=quantile(load.millis, 0.99))
