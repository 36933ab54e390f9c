"""Published weights in a folder of this machine: downloaded once, continued after an interruption, checked, then kept.

A file appears under its name when its SHA-256 is the one that the publisher wrote into that name; where that says none, the one
of what came first is remembered. Of processes that want it at the same time one downloads and the others wait. The lock is the
kernel's, so that it ends with whoever holds it.
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
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before a transfer that brought nothing new is tried again
_LARGER = 1.01  # how much more than its published size may come: that is rounded
_LARGEST = 2**31  # bytes of a file whose size is not published
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # what a server says that may answer later


class _Interrupted(Exception):
    """The transfer ended early and may continue."""


def say_at_once(line: str) -> None:
    """Print a line also where the output is no terminal."""
    print(line, flush=True)


def cache_folder() -> Path:
    """$EFFICIENTDET_WEIGHTS, else efficientdet/weights in $XDG_CACHE_HOME, else in ~/.cache."""
    if folder := os.environ.get("EFFICIENTDET_WEIGHTS"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "efficientdet" / "weights"


def local_path(value: str, *, say: Say = say_at_once) -> str:
    """What --backbone_init and --pretrained_ckpt name as a path: the file of published weights, or `value` as it is.

    A path that exists is meant before a name. Raises InputError where the file cannot be had.
    """
    if value not in published_files() or os.path.lexists(value) or os.path.lexists(f"{value}.index"):
        return value
    with told_with(f"{value}:"):
        return str(ready(published_files()[value], cache_folder(), say=say))


def ready(file: PublishedFile, folder: Path, *, say: Say = say_at_once) -> Path:
    """`kept`, and of an archive the folder that it was unpacked to, once. Raises InputError."""
    if not file.is_archive:
        return kept(file, folder, say=say)
    unpacked = folder / file.stem
    if not unpacked.is_dir():
        unpack_checkpoint(kept(file, folder, say=say), unpacked)
        say(f"keeps {unpacked}")
    return unpacked


def kept(file: PublishedFile, folder: Path, *, say: Say = say_at_once) -> Path:
    """The file in the folder, checked; downloaded if it is not there. Raises InputError, one line, where it cannot be had."""
    target = folder / file.file
    remembered = target.with_name(f"{target.name}.sha256")
    try:
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / f".{file.file}.lock", say=say) as locked:
                if not target.exists():  # another process brought it meanwhile
                    _Transfer(file, target, target.with_name(f"{target.name}.part") if locked else unfinished_path(target),
                              say).run()
                    if not file.sha256_prefix:
                        write_text(remembered, f"{_sha256(target)}  {target.name}\n")
                    say(f"keeps {target}")
        wanted = file.sha256_prefix or (remembered.read_text()[:64] if remembered.exists() else "")
        if not (found := _sha256(target)).startswith(wanted):
            raise InputError(f"{target}: is damaged: its SHA-256 begins with {found[:8]}, wanted {wanted[:8]}; remove it and "
                             "run this again")
    except OSError as error:
        raise InputError(f"{target}: cannot be kept there ({error.strerror or error}); EFFICIENTDET_WEIGHTS names another "
                         f"folder, and by hand: {file.url}") from error
    return target


@contextlib.contextmanager
def _locked(path: Path, *, say: Say) -> Iterator[bool]:
    """Alone among the processes of a machine; yields False where the file system has no locks."""
    with open(path, "a") as lock:
        try:
            locked = lock_file(lock)
        except BlockingIOError:
            say(f"waits for the process that downloads {path.name[1:-5]}")
            locked = lock_file(lock, wait=True)
        yield locked


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class _Transfer:
    """One file on its way to `target`; until it is whole it lies in `part`."""

    file: PublishedFile
    target: Path
    part: Path
    say: Say

    @property
    def url(self) -> str:
        mirror = os.environ.get("EFFICIENTDET_WEIGHTS_URL")
        return f"{mirror.rstrip('/')}/{self.file.file}" if mirror else self.file.url

    def run(self) -> None:
        """Raises InputError, OSError of the disk."""
        before = self._have()
        size = f" ({self.file.size / 1e6:.0f} MB)" if self.file.size else ""
        self.say(f"downloads {self.url}{size}{f', goes on at {before / 1e6:.0f} MB' if before else ''}")
        self._bring()
        if not (found := _sha256(self.part)).startswith(self.file.sha256_prefix) and before:
            self.say(f"what lay in {self.part} was not its beginning; begins again")
            self.part.unlink()
            self._bring()
            found = _sha256(self.part)
        if not found.startswith(self.file.sha256_prefix):
            self.part.unlink()
            raise InputError(f"{self.url}: what came has a SHA-256 that begins with {found[:8]}, wanted "
                             f"{self.file.sha256_prefix}; it is removed: something between here and there changes it")
        flush_to_disk(self.part)
        os.replace(self.part, self.target)
        flush_to_disk(self.target.parent)

    def _bring(self) -> None:
        """Until nothing is missing; gives up when several tries in a row bring nothing, or the first cannot connect."""
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
                    raise InputError(f"{self.url}: cannot be downloaded ({error}); run this again and it continues, or fetch it "
                                     f"by hand to {self.target}") from error
                if fruitless:
                    time.sleep(_PAUSES[fruitless - 1])

    def _receive(self, have: int) -> None:
        """One request, for what is missing. Raises _Interrupted, InputError where another try would not help, OSError."""
        if answer := self._answer(have):
            with answer:
                if have and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
                    have = 0  # the server begins at the beginning
                self._store(answer, have)

    def _answer(self, have: int) -> http.client.HTTPResponse | None:
        """What the server sends; None where it has nothing beyond what there is."""
        try:
            request = urllib.request.Request(self.url, headers={"Range": f"bytes={have}-"} if have else {})
            return urllib.request.urlopen(request, timeout=_SECONDS_OF_SILENCE)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have:  # nothing is missing, or the part is not of this file: the checksum will tell
                return None
            if error.code in _BUSY:
                raise _Interrupted(f"the server says {error.code} {error.reason}") from error
            raise InputError(f"{self.url}: the server says {error.code} {error.reason}; fetch it elsewhere, by hand, to "
                             f"{self.target}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: of the address
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
                    raise InputError(f"{self.url}: sends more than {have + came} bytes; the file is of about "
                                     f"{self.file.size or _LARGEST}")
        if length.isdigit() and came < int(length):
            raise _Interrupted(f"the connection ended after {came} of {length} bytes")

    @staticmethod
    def _next_block(answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read1(_BLOCK)
        except (http.client.HTTPException, OSError) as error:  # of the network: those of the disk come from elsewhere
            raise _Interrupted(_reason(error)) from error

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _reason(error: Exception) -> str:
    """Of an error of the network, in a few words."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"nothing came for {_SECONDS_OF_SILENCE:.0f} s"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
