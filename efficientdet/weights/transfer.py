"""Transfer of a file over HTTP, which resumes after an interruption and is checked at its end."""

import hashlib
import http.client
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

from efficientdet.families.published_files import PublishedFile
from program_support.atomic_files import flush_to_disk
from program_support.errors import InputError

_log = partial(print, flush=True)
_BLOCK = 2**18
_TIMEOUT_SECONDS = 5.0  # limit to connect and of silence; a transfer that has begun is resumed
_SECONDS_BETWEEN_REPORTS = 10.0
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds before a transfer is resumed
_SIZE_TOLERANCE = 1.01  # factor; the published size is rounded
_LARGEST = 2**31  # bytes of a file whose size is not published
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a retry may succeed


class _Interrupted(Exception):
    """An error after which the transfer can resume."""


def file_digest(path: Path, kind: str = "sha256") -> str:
    """Return the digest of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, partial(hashlib.new, kind, usedforsecurity=False)).hexdigest()


def download(file: PublishedFile, target: Path, part: Path) -> None:
    """Download a file to `target`; it is stored in `part` until it is complete, and resumed from there.

    Raises:
        InputError: the server or the network fails, or sends another file; OSError of the disk.
    """
    mirror, begun = os.environ.get("EFFICIENTDET_WEIGHTS_URL"), _stored_bytes(part)
    url = f"{mirror.rstrip('/')}/{file.file}" if mirror else file.url
    size = f" ({file.size / 1e6:.0f} MB)" if file.size else ""
    _log(f"downloading {url}{size}{f', resuming at {begun / 1e6:.0f} MB' if begun else ''}")
    kind, expected = ("md5", file.md5) if file.md5 else ("sha256", file.sha256_prefix)
    try:
        _receive_all(url, part, file)
        if begun and not file_digest(part, kind).startswith(expected):
            _log(f"{part}: not the beginning of this file; starting from scratch")
            part.unlink()
            _receive_all(url, part, file)
    except _Interrupted as error:
        raise InputError(
            f"{url}: cannot be downloaded ({error}); run this again to resume, or download it to {target}"
        ) from error
    if not (digest := file_digest(part, kind)).startswith(expected):
        part.unlink()
        raise InputError(
            f"{url}: the {kind.upper()} of the download begins with {digest[:8]}; expected {expected}; removed the "
            "file: check for a proxy that changes it"
        )
    flush_to_disk(part)
    os.replace(part, target)
    flush_to_disk(target.parent)


def _receive_all(url: str, part: Path, file: PublishedFile) -> None:
    """Receive what is missing, after a fault again, unless nothing at all was received: then the network is absent."""
    first, delays = _stored_bytes(part), list(_RETRY_DELAYS)
    while True:
        try:
            return _receive(url, part, file)
        except _Interrupted as error:
            can_retry = isinstance(error.__cause__, urllib.error.HTTPError) or _stored_bytes(part) > first
            if not delays or not can_retry:
                raise
            time.sleep(delays.pop(0))


def _receive(url: str, part: Path, file: PublishedFile) -> None:
    """Append what is missing to `part`; raise _Interrupted if a retry may help, else InputError."""
    offset, reported_at = _stored_bytes(part), time.monotonic()
    try:
        response = _opened(urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {}))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and offset:  # complete, or not a part of this file: the checksum shows it
            return
        reply = f"the server responds {error.code} {error.reason}"
        if error.code in _BUSY:
            raise _Interrupted(reply) from error
        raise InputError(f"{url}: {reply}; download it from elsewhere into the cache") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: invalid URL
        raise _Interrupted(_reason(error)) from error
    if not (response.headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
        offset = 0  # the server sends the file from the start
    length, expected = response.headers.get("Content-Length") or "", file.size or _LARGEST
    total = offset + int(length) if length.isdigit() else 0
    with response, open(part, "r+b" if offset else "wb") as stream:
        stream.seek(offset)
        while block := _next_block(response):
            offset += stream.write(block)
            if time.monotonic() > reported_at + _SECONDS_BETWEEN_REPORTS:
                reported_at = time.monotonic()
                _log(f"  {offset / 1e6:.0f} MB")
            if offset > expected * _SIZE_TOLERANCE:
                raise InputError(f"{url}: sends more than {offset} bytes; expected about {expected}")
    if offset < total:
        raise _Interrupted(f"the connection ended after {offset} of {total} bytes")


def _next_block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_BLOCK)
    except (http.client.HTTPException, OSError) as error:  # a fault of the network, not of the disk
        raise _Interrupted(_reason(error)) from error


def _stored_bytes(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _opened(request: urllib.request.Request) -> http.client.HTTPResponse:
    """Open a URL; raise TimeoutError after _TIMEOUT_SECONDS.

    The time limit of `urlopen` does not include the resolution of the server's name, and applies to each of the
    server's addresses in turn: behind a firewall that takes minutes.
    """
    results = queue.SimpleQueue[http.client.HTTPResponse | Exception]()

    def run() -> None:
        try:
            results.put(urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS))
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = results.get(timeout=_TIMEOUT_SECONDS)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, Exception):
        raise result
    return result


def _reason(error: Exception) -> str:
    """Return a short description of a network error."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"no data for {_TIMEOUT_SECONDS:.0f} s"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
