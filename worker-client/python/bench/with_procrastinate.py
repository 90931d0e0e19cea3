"""The jobs with procrastinate."""

from __future__ import annotations

import os

import procrastinate
from common import main, picked_up
from common import tick as count

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"])
)


@app.task(name="tick")
def tick() -> None:
    count()


@app.task(name="pickup")
def pickup(sent: float) -> None:
    picked_up(sent)


if __name__ == "__main__":
    with app.open():
        main(
            tick.defer,
            lambda number: tick.batch_defer(*[{} for _ in range(number)]),
            lambda sent: pickup.defer(sent=sent),
        )
