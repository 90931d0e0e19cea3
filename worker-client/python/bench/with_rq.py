"""The jobs with RQ."""

from __future__ import annotations

import os

import redis
import rq
from common import main, picked_up, tick

queue = rq.Queue(connection=redis.Redis.from_url(os.environ["BENCH_REDIS"]))


def many(number: int) -> None:
    queue.enqueue_many([rq.Queue.prepare_data(tick, result_ttl=0) for _ in range(number)])


if __name__ == "__main__":
    main(
        lambda: queue.enqueue(tick, result_ttl=0),
        many,
        lambda sent: queue.enqueue(picked_up, sent, result_ttl=0),
    )
