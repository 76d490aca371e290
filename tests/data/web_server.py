"""A local web server that can simulate errors."""

import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass
class Site:
    """The served files, the errors to simulate, and the requests received."""

    files: dict[str, bytes]
    address: str = ""
    cuts: list[int] = field(default_factory=list)  # bytes after which the next connections end, in order
    reset: bool = False  # end them with a reset instead of a close
    ranges: bool = True  # answer range requests
    tags: bool = True  # send an ETag
    length: bool = True  # send Content-Length
    wait: threading.Event | None = None  # to wait for before answering
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of every request

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[Site]:
    site = Site(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, site)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(handler: BaseHTTPRequestHandler, site: Site) -> None:
    name, wanted = unquote(handler.path.lstrip("/").partition("?")[0]), handler.headers.get("Range")
    site.asked.append((name, wanted))
    if site.wait is not None:
        site.wait.wait(20)
    if name not in site.files:
        handler.send_error(404)
        return
    content = site.files[name]
    tag = f'"{hashlib.md5(content).hexdigest()}"'
    start, same = 0, handler.headers.get("If-Range") in (None, tag)
    if wanted and site.ranges and same:
        start = int(re.findall(r"\d+", wanted)[0])
    if start and start >= len(content):
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    if site.tags:
        handler.send_header("ETag", tag)
    if site.length:
        handler.send_header("Content-Length", str(len(content) - start))
    handler.end_headers()
    end = start + site.cuts.pop(0) if site.cuts else len(content)
    handler.wfile.write(content[start:end])
    handler.close_connection = True
    if site.reset and end < len(content):
        time.sleep(0.1)  # until the client has read everything
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
