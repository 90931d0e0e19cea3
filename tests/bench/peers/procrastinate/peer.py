"""procrastinate: an asyncio worker, whose completed jobs are kept, as by default."""

import asyncio
import logging
import os

import procrastinate

from load import measure

# They fit into PostgreSQL's 100 connections.
CONNECTIONS = 80


class Procrastinate:
    def __init__(self, app):
        self.app = app
        self.load = None

        @app.task(name="noop")
        async def noop(n, pad):
            self.load.started(n)
            # The worker stores its end before it takes another job with this slot.
            self.load.completed(n)

        self.noop = noop

    async def enqueue(self, job):
        await self.noop.defer_async(**job)

    async def enqueue_many(self, jobs):
        await self.noop.batch_defer_async(*jobs)

    async def work(self, workers, load):
        self.load = load

        self.worker = asyncio.create_task(
            self.app.run_worker_async(concurrency=workers, install_signal_handlers=False)
        )

    async def stored(self):
        query = "SELECT count(*) AS stored FROM procrastinate_jobs WHERE status = 'todo'"
        return (await self.app.connector.execute_query_one_async(query))["stored"]


async def main():
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(min_size=1, max_size=CONNECTIONS))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await measure(Procrastinate(app))
        # Without waiting for the worker's connections.
        os._exit(0)


logging.disable(logging.WARNING)
asyncio.run(main())
