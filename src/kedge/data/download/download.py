"""Download one file over HTTP: try several addresses in turn, and resume interrupted connections."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kedge.data.download.progress import Update, byte_progress

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 2**18  # bytes

Check = Callable[[Path], str | None]


class DownloadFailed(Exception):
    """The file cannot be downloaded from any address; the message has the reason for each address."""


class ConnectionFailed(Exception):
    """A connection that the server refused, or that ended early; the message has the reason."""


def download(title: str, addresses: tuple[str, ...], size: int | None, problem: Check, part: Path) -> None:
    """Download a file to `part` and check it with `problem`, which returns the reason to refuse it.

    An interrupted download stays in `part`, and the next call resumes it.
    """
    reasons = []
    with byte_progress(title, size) as update:
        for address in addresses:
            resumed = part.exists()
            reason = _download_from(address, size, problem, part, update)
            if reason and resumed and not part.exists():
                # The bytes in `part` were of another file: try once more from the start.
                reason = _download_from(address, size, problem, part, update)
            if reason is None:
                _version_file(part).unlink(missing_ok=True)
                return
            reasons.append(f"{address}: {reason}")
    raise DownloadFailed("; ".join(reasons))


def _download_from(address: str, size: int | None, problem: Check, part: Path, update: Update) -> str | None:
    """Download from one address, and reconnect while each connection adds bytes; None, or why it failed."""
    while True:
        before = _size(part)
        if size is None or before < size:
            try:
                _receive(address, size, part, update)
            except ConnectionFailed as error:
                if _size(part) > before:
                    continue
                return str(error)
        if reason := problem(part):
            part.unlink()
        return reason


def _receive(address: str, size: int | None, part: Path, update: Update) -> None:
    """Append the bytes of one connection to `part`; start over if the server sends the whole file."""
    start = _size(part)
    headers = {"User-Agent": "kedge"} | (_range_headers(address, part, start) if start else {})
    try:
        request = urllib.request.Request(address, headers=headers)
        response = urllib.request.build_opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # `part` is already whole
            part.unlink()
        raise ConnectionFailed(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConnectionFailed(str(getattr(error, "reason", error)) or type(error).__name__) from error
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0
            _record_version(address, response, part)
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise ConnectionFailed("the server sent another part of the file than was requested")
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if total is not None and size is not None and total != size:
            raise ConnectionFailed(f"the file there has {total:,} bytes, not {size:,}")
        with part.open("ab" if start else "wb") as file:
            while chunk := _read_chunk(response):
                file.write(chunk)
                update(file.tell())
            file.flush()
            os.fsync(file.fileno())
    if total is not None and _size(part) < total:
        raise ConnectionFailed(f"the connection ended after {_size(part):,} of {total:,} bytes")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionFailed(f"the connection broke: {error or type(error).__name__}") from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.origin")


def _record_version(address: str, response: http.client.HTTPResponse, part: Path) -> None:
    """Store the identifier of this version of the file: a strong ETag, or else its Last-Modified date."""
    tag = response.headers.get("ETag", "")
    version = tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
    _version_file(part).write_text(f"{address}\n{version}")


def _range_headers(address: str, part: Path, start: int) -> dict[str, str]:
    """Headers that request the rest of the file, and of the same version as `part` if that is known."""
    headers = {"Range": f"bytes={start}-"}
    file = _version_file(part)
    origin, _, version = file.read_text().partition("\n") if file.exists() else ("", "", "")
    return headers | ({"If-Range": version} if version and origin == address else {})
