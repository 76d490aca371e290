"""A TCP proxy on loopback that delays all bytes, like a network with latency, and counts them."""

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK = 1 << 18


class SlowNetwork:
    """Forwards connections to a port, with a delay in each direction; a context manager.

    A thread runs the event loop of the proxy, from `__enter__` to `__exit__`.
    """

    def __init__(self, target: int, port: int, delay: float) -> None:
        """Forward connections from `port` to `target`; `delay` in seconds."""
        self.target, self.port, self.delay = target, port, delay
        self.sent = self.received = 0  # bytes to and from the target's clients, with HTTP and TLS
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.listening = threading.Event()

    def __enter__(self) -> Self:
        self.thread.start()
        self.listening.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=10)

    def run(self) -> None:
        """Serve connections until the loop is stopped; the thread's function."""
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(asyncio.start_server(self.forward, "127.0.0.1", self.port))
        self.listening.set()
        self.loop.run_forever()
        open_tasks = asyncio.all_tasks(self.loop)
        for task in open_tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*open_tasks, return_exceptions=True))
        self.loop.close()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions."""
        await asyncio.sleep(self.delay)  # a packet to open the connection
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.pump(reader, back, False), self.pump(there, writer, True))

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, down: bool) -> None:
        """Forward all bytes of one direction; each arrives `delay` seconds after it was sent."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(self.write(queue, writer))
        with suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                self.sent += len(chunk) if down else 0
                self.received += 0 if down else len(chunk)
                queue.put_nowait((self.loop.time() + self.delay, chunk))
        queue.put_nowait((self.loop.time() + self.delay, b""))
        await writing

    async def write(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Write each chunk at its time; an empty chunk ends the connection."""
        with suppress(ConnectionError):
            while True:
                moment, chunk = await queue.get()
                await asyncio.sleep(max(0.0, moment - self.loop.time()))
                if not chunk:
                    break
                writer.write(chunk)
                await writer.drain()
        writer.close()
