"""One file over HTTP: several addresses in turn, broken connections taken up where they ended."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kedge.data.download.progress import Done, downloading

TIMEOUT = 30.0  # seconds without a byte
AT_ONCE = 2**18  # bytes

Check = Callable[[Path], str | None]


class Refused(Exception):
    """No address gave the whole file; says why for each."""


class Broken(Exception):
    """The server refused, or the connection ended early; says which."""


def download(title: str, addresses: tuple[str, ...], size: int | None, problem: Check, part: Path) -> None:
    """Bring a file's bytes into `part`, where they stay when interrupted, until `problem` finds none."""
    reasons = []
    with downloading(title, size) as done:
        for address in addresses:
            resumed = part.exists()
            reason = _whole(address, size, problem, part, done)
            if reason and resumed and not part.exists():
                # What lay there was of another file: once more from the start.
                reason = _whole(address, size, problem, part, done)
            if reason is None:
                _origin(part).unlink(missing_ok=True)
                return
            reasons.append(f"{address}: {reason}")
    raise Refused("; ".join(reasons))


def _whole(address: str, size: int | None, problem: Check, part: Path, done: Done) -> str | None:
    """Go on as long as every connection brings something; why the file is not there, or None."""
    while True:
        before = _length(part)
        if size is None or before < size:
            try:
                _more(address, size, part, done)
            except Broken as error:
                if _length(part) > before:
                    continue
                return str(error)
        if reason := problem(part):
            part.unlink()
        return reason


def _more(address: str, size: int | None, part: Path, done: Done) -> None:
    """One connection: append what it gives to `part`, or start over if the server does."""
    start = _length(part)
    headers = {"User-Agent": "kedge"} | (_range(address, part, start) if start else {})
    try:
        request = urllib.request.Request(address, headers=headers)
        response = urllib.request.build_opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # all of it is here already
            part.unlink()
        raise Broken(f"the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Broken(str(getattr(error, "reason", error)) or type(error).__name__) from error
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0
            _remember(address, response, part)
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise Broken("the server gave another part of the file than was asked for")
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if total is not None and size is not None and total != size:
            raise Broken(f"the file there has {total:,} bytes, not {size:,}")
        with part.open("ab" if start else "wb") as file:
            while chunk := _read(response):
                file.write(chunk)
                done(file.tell())
            file.flush()
            os.fsync(file.fileno())
    if total is not None and _length(part) < total:
        raise Broken(f"the connection ended after {_length(part):,} of {total:,} bytes")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(AT_ONCE)
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"the connection broke: {error or type(error).__name__}") from error


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _origin(part: Path) -> Path:
    return part.with_name(f"{part.name}.origin")


def _remember(address: str, response: http.client.HTTPResponse, part: Path) -> None:
    """Keep what tells this version of the file from another: a strong ETag, or when it last changed."""
    tag = response.headers.get("ETag", "")
    known = tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
    _origin(part).write_text(f"{address}\n{known}")


def _range(address: str, part: Path, start: int) -> dict[str, str]:
    """Ask for the rest; if it is known which version `part` is a beginning of, for the rest of that one."""
    wanted = {"Range": f"bytes={start}-"}
    origin, _, known = _origin(part).read_text().partition("\n") if _origin(part).exists() else ("", "", "")
    return wanted | ({"If-Range": known} if known and origin == address else {})
