"""A TCP proxy that delays bytes, or cuts all connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.parse


class Proxy:
    """Forwards connections to a server."""

    def __init__(self, target: str) -> None:
        parts = urllib.parse.urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self.delay = 0.0
        self.is_cut = False
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def _run(self, ready: threading.Event) -> None:
        async def start() -> None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            port = self._server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.is_cut:
            writer.close()
            return
        try:
            upstream, up = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, up}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(self._pipe(reader, up), self._pipe(upstream, writer))
        self._writers -= {writer, up}

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self.is_cut = True

        def close() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(close)

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.cut()

        async def stop() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(stop(), self._loop)
        self._thread.join(10)
