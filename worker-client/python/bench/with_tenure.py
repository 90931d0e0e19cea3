"""The jobs with this library."""

from __future__ import annotations

from common import main, picked_up
from common import tick as count

from tenure import Tenure

app = Tenure()


@app.task(queue="bench/bench", retries=0)
def tick() -> None:
    count()


@app.task(queue="bench/bench", retries=0)
def pickup(sent: float) -> None:
    picked_up(sent)


if __name__ == "__main__":
    main(
        tick.enqueue,
        lambda many: app.enqueue_many([tick.job() for _ in range(many)]),
        pickup.enqueue,
    )
