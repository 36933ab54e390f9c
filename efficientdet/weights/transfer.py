"""Transfer of a file over HTTP, which resumes after an interruption and is checked at its end."""

import hashlib
import http.client
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from efficientdet.families.published_files import PublishedFile
from program_support.atomic_files import flush_to_disk
from program_support.errors import InputError

Log = Callable[[str], None]
_BLOCK = 2**18
_TIMEOUT_SECONDS = 5.0  # limit to connect and of silence; a transfer that has begun is resumed
_SECONDS_BETWEEN_REPORTS = 10.0
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds before a transfer without progress is retried
_SIZE_TOLERANCE = 1.01  # factor; the published size is rounded
_LARGEST = 2**31  # bytes of a file whose size is not published
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a retry may succeed


class _Interrupted(Exception):
    """An error after which the transfer can resume."""


def file_digest(path: Path, kind: str = "sha256") -> str:
    """Return the digest of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, partial(hashlib.new, kind, usedforsecurity=False)).hexdigest()


@dataclass(frozen=True)
class Transfer:
    """The download of a file to `target`, stored in `part` until it is complete."""

    file: PublishedFile
    target: Path
    part: Path
    log: Log

    @property
    def url(self) -> str:
        mirror = os.environ.get("EFFICIENTDET_WEIGHTS_URL")
        return f"{mirror.rstrip('/')}/{self.file.file}" if mirror else self.file.url

    def run(self) -> None:
        """Download the file. Raise InputError; OSError of the disk."""
        resumed_bytes = self._stored_bytes()
        size = f" ({self.file.size / 1e6:.0f} MB)" if self.file.size else ""
        self.log(
            f"downloading {self.url}{size}{f', resuming at {resumed_bytes / 1e6:.0f} MB' if resumed_bytes else ''}"
        )
        self._download()
        if not (digest := file_digest(self.part)).startswith(self.file.sha256_prefix) and resumed_bytes:
            self.log(f"{self.part}: not the beginning of this file; starting from scratch")
            self.part.unlink()
            self._download()
            digest = file_digest(self.part)
        kind, expected = ("MD5", self.file.md5) if self.file.md5 else ("SHA-256", self.file.sha256_prefix)
        digest = file_digest(self.part, "md5") if self.file.md5 else digest
        if not digest.startswith(expected):
            self.part.unlink()
            raise InputError(
                f"{self.url}: the {kind} of the download begins with {digest[:8]}; expected {expected}; removed the "
                "file: check for a proxy that changes it"
            )
        flush_to_disk(self.part)
        os.replace(self.part, self.target)
        flush_to_disk(self.target.parent)

    def _download(self) -> None:
        """Transfer until the file is complete; fail after several retries without progress, or if the first fails."""
        failures, any_received = 0, False
        while True:
            resumed_bytes = self._stored_bytes()
            try:
                self._receive(resumed_bytes)
                return
            except _Interrupted as error:
                failures = 0 if self._stored_bytes() > resumed_bytes else failures + 1
                any_received = any_received or self._stored_bytes() > resumed_bytes
                can_retry = any_received or isinstance(error.__cause__, urllib.error.HTTPError)
                if failures > len(_RETRY_DELAYS) or not can_retry:
                    raise InputError(
                        f"{self.url}: cannot be downloaded ({error}); run this again to resume, or download "
                        f"it to {self.target}"
                    ) from error
                if failures:
                    time.sleep(_RETRY_DELAYS[failures - 1])

    def _receive(self, offset: int) -> None:
        """Request the missing part. Raise _Interrupted if a retry may help, else InputError; OSError of the disk."""
        if response := self._request(offset):
            with response:
                if offset and not (response.headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
                    offset = 0  # the server sends the file from the start
                self._store(response, offset)

    def _request(self, offset: int) -> http.client.HTTPResponse | None:
        """Return the server's response; None if no byte is missing."""
        try:
            request = urllib.request.Request(self.url, headers={"Range": f"bytes={offset}-"} if offset else {})
            return _opened(request)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and offset:  # complete, or not a part of this file: the checksum shows it
                return None
            if error.code in _BUSY:
                raise _Interrupted(f"the server responds {error.code} {error.reason}") from error
            raise InputError(
                f"{self.url}: the server responds {error.code} {error.reason}; download it from elsewhere to "
                f"{self.target}"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: invalid URL
            raise _Interrupted(_reason(error)) from error

    def _store(self, response: http.client.HTTPResponse, offset: int) -> None:
        length = response.headers.get("Content-Length") or ""
        received, reported_at = 0, time.monotonic()
        with open(self.part, "r+b" if offset else "wb") as part:
            part.seek(offset)
            while block := self._next_block(response):
                part.write(block)
                received += len(block)
                if time.monotonic() > reported_at + _SECONDS_BETWEEN_REPORTS:
                    reported_at = time.monotonic()
                    total = offset + int(length) if length.isdigit() else self.file.size
                    self.log(f"  {(offset + received) / 1e6:.0f} {f'of {total / 1e6:.0f} ' if total else ''}MB")
                if offset + received > (self.file.size or _LARGEST) * _SIZE_TOLERANCE:
                    expected = self.file.size or _LARGEST
                    raise InputError(
                        f"{self.url}: sends more than {offset + received} bytes; expected about {expected}"
                    )
        if length.isdigit() and received < int(length):
            raise _Interrupted(f"the connection ended after {received} of {length} bytes")

    @staticmethod
    def _next_block(response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read1(_BLOCK)
        except (http.client.HTTPException, OSError) as error:  # a fault of the network, not of the disk
            raise _Interrupted(_reason(error)) from error

    def _stored_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


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
