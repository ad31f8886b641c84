"""A TCP relay whose connections can be cut or stalled: one per worker, in a thread of its own."""

import asyncio
import threading


class Proxy:
    """Relays 127.0.0.1:`port` to 127.0.0.1:`target`. Methods may be called by any thread."""

    def __init__(self, target):
        self._target = target
        self._writers = set()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        ready.wait()

    async def _run(self, ready):
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        ready.set()
        await self._stopped.wait()
        self._server.close()

    async def _serve(self, reader, writer):
        writers = [writer]
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(other_writer)
            self._writers.update(writers)
            await asyncio.gather(self._pump(reader, other_writer), self._pump(other_reader, writer))
            await asyncio.gather(*(each.wait_closed() for each in writers))
        except (OSError, asyncio.CancelledError):  # The end of the loop cancels.
            pass
        finally:
            self._writers.difference_update(writers)
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def refuse(self):
        """From now on nobody gets a new connection."""
        self._loop.call_soon_threadsafe(self._server.close)

    def cut(self):
        """Breaks every connection, in the middle of whatever it carries."""
        def abort():
            for writer in list(self._writers):
                writer.transport.abort()
        self._loop.call_soon_threadsafe(abort)

    def stall(self, seconds):
        """Connections stay open, but nothing gets through for so long."""
        def begin():
            self._flowing.clear()
            self._loop.call_later(seconds, self._flowing.set)
        self._loop.call_soon_threadsafe(begin)

    def stop(self):
        """Breaks every connection, and ends the thread: the last call."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
