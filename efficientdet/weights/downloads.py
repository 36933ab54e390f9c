"""Download cache of published weights: interrupted downloads resume, and checksums are verified.

A file gets its name after its SHA-256 matches the digits in that name. If the name has none, the checksum of the first
download is stored. If several processes need a file at the same time, one downloads it and the others wait. The lock is
held by the kernel, so that it is released if its process dies.
"""

import contextlib
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dataset.files.untrusted_values import told_with
from efficientdet.families.published_files import PublishedFile, published_files
from efficientdet.weights.archives import unpack_checkpoint
from program_support.atomic_files import flush_to_disk, unfinished_path, write_text
from program_support.errors import InputError
from program_support.file_lock import lock_file

Say = Callable[[str], None]
_BLOCK = 2**18
_SECONDS_OF_SILENCE = 30.0
_SECONDS_BETWEEN_WORDS = 10.0
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before a transfer without progress is retried
_LARGER = 1.01  # tolerance of the published size, which is rounded
_LARGEST = 2**31  # bytes of a file whose size is not published
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a retry may succeed


class _Interrupted(Exception):
    """An error after which the transfer can resume."""


def say_at_once(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


def cache_folder() -> Path:
    """Return $EFFICIENTDET_WEIGHTS, else efficientdet/weights in $XDG_CACHE_HOME, else in ~/.cache."""
    if folder := os.environ.get("EFFICIENTDET_WEIGHTS"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "efficientdet" / "weights"


def local_path(value: str, *, say: Say = say_at_once) -> str:
    """Return the path of published weights for their name, downloading them if necessary; any other value unchanged.

    An existing path takes precedence over a name. Raise InputError if the file cannot be downloaded.
    """
    if value not in published_files() or os.path.lexists(value) or os.path.lexists(f"{value}.index"):
        return value
    with told_with(f"{value}:"):
        return str(ready(published_files()[value], cache_folder(), say=say))


def ready(file: PublishedFile, folder: Path, *, say: Say = say_at_once) -> Path:
    """Return the path of a file as `kept`, or the folder of an extracted archive. Raise InputError."""
    if not file.is_archive:
        return kept(file, folder, say=say)
    unpacked = folder / file.stem
    if not unpacked.is_dir():
        unpack_checkpoint(kept(file, folder, say=say), unpacked)
        say(f"wrote {unpacked}")
    return unpacked


def kept(file: PublishedFile, folder: Path, *, say: Say = say_at_once) -> Path:
    """Return the verified file in the folder, downloaded if it is not there. Raise InputError if that fails."""
    target = folder / file.file
    remembered = target.with_name(f"{target.name}.sha256")
    try:
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / f".{file.file}.lock", say=say) as locked:
                if not target.exists():  # otherwise another process has downloaded it meanwhile
                    _Transfer(
                        file,
                        target,
                        target.with_name(f"{target.name}.part") if locked else unfinished_path(target),
                        say,
                    ).run()
                    if not file.sha256_prefix:
                        write_text(remembered, f"{_sha256(target)}  {target.name}\n")
                    say(f"wrote {target}")
        wanted = file.sha256_prefix or (remembered.read_text()[:64] if remembered.exists() else "")
        if not (found := _sha256(target)).startswith(wanted):
            raise InputError(
                f"{target}: is damaged: its SHA-256 begins with {found[:8]}; expected {wanted[:8]}; remove it and "
                "run this again"
            )
    except OSError as error:
        raise InputError(
            f"{target}: cannot be stored there ({error.strerror or error}); set EFFICIENTDET_WEIGHTS to "
            f"another folder, or download {file.url}"
        ) from error
    return target


@contextlib.contextmanager
def _locked(path: Path, *, say: Say) -> Iterator[bool]:
    """Hold a lock among the processes of a machine; yield False if the file system has no locks."""
    with open(path, "a") as lock:
        try:
            locked = lock_file(lock)
        except BlockingIOError:
            say(f"waiting for the process that downloads {path.name[1:-5]}")
            locked = lock_file(lock, wait=True)
        yield locked


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class _Transfer:
    """The download of a file to `target`, stored in `part` until it is complete."""

    file: PublishedFile
    target: Path
    part: Path
    say: Say

    @property
    def url(self) -> str:
        mirror = os.environ.get("EFFICIENTDET_WEIGHTS_URL")
        return f"{mirror.rstrip('/')}/{self.file.file}" if mirror else self.file.url

    def run(self) -> None:
        """Download the file. Raise InputError; OSError of the disk."""
        before = self._have()
        size = f" ({self.file.size / 1e6:.0f} MB)" if self.file.size else ""
        self.say(f"downloading {self.url}{size}{f', resuming at {before / 1e6:.0f} MB' if before else ''}")
        self._bring()
        if not (found := _sha256(self.part)).startswith(self.file.sha256_prefix) and before:
            self.say(f"{self.part}: not the beginning of this file; starting from scratch")
            self.part.unlink()
            self._bring()
            found = _sha256(self.part)
        if not found.startswith(self.file.sha256_prefix):
            self.part.unlink()
            raise InputError(
                f"{self.url}: the SHA-256 of the download begins with {found[:8]}; expected "
                f"{self.file.sha256_prefix}; removed the file: check for a proxy that changes it"
            )
        flush_to_disk(self.part)
        os.replace(self.part, self.target)
        flush_to_disk(self.target.parent)

    def _bring(self) -> None:
        """Transfer until the file is complete; give up after several retries without progress, or if the first fails."""
        fruitless, any_came = 0, False
        while True:
            before = self._have()
            try:
                self._receive(before)
                return
            except _Interrupted as error:
                fruitless = 0 if self._have() > before else fruitless + 1
                any_came = any_came or self._have() > before
                can_wait = any_came or isinstance(error.__cause__, urllib.error.HTTPError)
                if fruitless > len(_PAUSES) or not can_wait:
                    raise InputError(
                        f"{self.url}: cannot be downloaded ({error}); run this again to resume, or download "
                        f"it to {self.target}"
                    ) from error
                if fruitless:
                    time.sleep(_PAUSES[fruitless - 1])

    def _receive(self, have: int) -> None:
        """Request the missing part. Raise _Interrupted if a retry may help, else InputError; OSError of the disk."""
        if answer := self._answer(have):
            with answer:
                if have and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
                    have = 0  # the server sends the file from the start
                self._store(answer, have)

    def _answer(self, have: int) -> http.client.HTTPResponse | None:
        """Return the server's response; None if no byte is missing."""
        try:
            request = urllib.request.Request(self.url, headers={"Range": f"bytes={have}-"} if have else {})
            return urllib.request.urlopen(request, timeout=_SECONDS_OF_SILENCE)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have:  # complete, or not a part of this file: the checksum shows it
                return None
            if error.code in _BUSY:
                raise _Interrupted(f"the server responds {error.code} {error.reason}") from error
            raise InputError(
                f"{self.url}: the server responds {error.code} {error.reason}; download it from elsewhere to "
                f"{self.target}"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: invalid URL
            raise _Interrupted(_reason(error)) from error

    def _store(self, answer: http.client.HTTPResponse, have: int) -> None:
        length = answer.headers.get("Content-Length") or ""
        came, told = 0, time.monotonic()
        with open(self.part, "r+b" if have else "wb") as part:
            part.seek(have)
            while block := self._next_block(answer):
                part.write(block)
                came += len(block)
                if time.monotonic() > told + _SECONDS_BETWEEN_WORDS:
                    told = time.monotonic()
                    whole = have + int(length) if length.isdigit() else self.file.size
                    self.say(f"  {(have + came) / 1e6:.0f} {f'of {whole / 1e6:.0f} ' if whole else ''}MB")
                if have + came > (self.file.size or _LARGEST) * _LARGER:
                    raise InputError(
                        f"{self.url}: sends more than {have + came} bytes; expected about {self.file.size or _LARGEST}"
                    )
        if length.isdigit() and came < int(length):
            raise _Interrupted(f"the connection ended after {came} of {length} bytes")

    @staticmethod
    def _next_block(answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read1(_BLOCK)
        except (http.client.HTTPException, OSError) as error:  # of the network, not of the disk
            raise _Interrupted(_reason(error)) from error

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _reason(error: Exception) -> str:
    """Return a short description of a network error."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"no data for {_SECONDS_OF_SILENCE:.0f} s"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
