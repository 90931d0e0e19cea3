"""The jobs with Celery and Redis."""

from __future__ import annotations

import os

import celery
from common import main, picked_up
from common import tick as count

app = celery.Celery("with_celery", broker=os.environ["BENCH_REDIS"])
# A job that was claimed goes back if its worker dies, as with the other libraries.
app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=4)


@app.task
def tick() -> None:
    count()


@app.task
def pickup(sent: float) -> None:
    picked_up(sent)


def many(number: int) -> None:
    # Celery has no batches; a producer at least keeps its connection.
    with app.producer_pool.acquire() as producer:
        for _ in range(number):
            tick.apply_async(producer=producer)


if __name__ == "__main__":
    main(tick.delay, many, pickup.delay)
