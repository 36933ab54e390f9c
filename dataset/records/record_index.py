"""Random access to TFRecord files: an index of all records, and reading several records at once.

A TFRecord file is a chain of: length (8 bytes, little endian), masked CRC-32C of the length (4), payload, masked
CRC-32C of the payload (4). The index reads the first twelve bytes of each record and no payload; a payload's checksum
is verified each time it is read. Files must be local or mounted.
"""

import os
import queue
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

import google_crc32c
import numpy as np

from dataset.files.bounded_files import file_errors
from program_support.errors import InputError

_HEADER_BYTES = 12
_FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8  # how TFRecord masks a checksum that is stored beside what it covers
_READERS = 16  # files indexed in parallel, to hide the latency of network file systems
_READ_THREADS = 64  # records read in parallel by a reader, for the same reason
_MOST_OPEN_FILES = 512  # the usual limit of a process is 1024


@dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """Positions of n records, in the order of the files and of the records in them."""

    paths: tuple[str, ...]
    file_numbers: np.ndarray  # [n] int32
    offsets: np.ndarray  # [n] int64, bytes from the start of the file to the payload
    lengths: np.ndarray  # [n] int64, bytes of the payload

    def __len__(self) -> int:
        return len(self.offsets)

    def start(self, number: int) -> int:
        """Return the offset of a record in its file, as in error messages and in TensorFlow."""
        return int(self.offsets[number]) - _HEADER_BYTES

    def path(self, number: int) -> str:
        """Return the file that contains record `number`."""
        return self.paths[self.file_numbers[number]]

    def damage(self, number: int) -> InputError:
        """Return the error for a record with a checksum mismatch."""
        return InputError(
            f"{self.path(number)}: damaged: checksum mismatch in the record at byte {self.start(number)} "
            f"(image {number + 1} of {len(self)}); copy the file again or convert again"
        )

    def only(self, chosen: np.ndarray) -> "RecordIndex":
        """Return an index of the records that are True in `chosen`, [n] bool."""
        return RecordIndex(
            paths=self.paths,
            file_numbers=self.file_numbers[chosen],
            offsets=self.offsets[chosen],
            lengths=self.lengths[chosen],
        )


def index_records(paths: Sequence[str]) -> RecordIndex:
    """Index TFRecord files by reading the framing of their records.

    Raises:
        InputError: with file and offset, for a truncated, compressed or invalid file, and if there are no records.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        spans = list(pool.map(_record_spans, paths))
    counts = [len(offsets) for offsets, _ in spans]
    if not sum(counts):
        raise InputError(f"{', '.join(map(str, paths)) or 'no file'}: contains no records")
    return RecordIndex(
        paths=tuple(map(str, paths)),
        file_numbers=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        offsets=np.concatenate([offsets for offsets, _ in spans]),
        lengths=np.concatenate([lengths for _, lengths in spans]),
    )


def require_unchanged(index: RecordIndex) -> None:
    """Raise InputError if a file no longer ends with its last record; `index` is complete."""
    ends = np.zeros(len(index.paths), np.int64)
    np.maximum.at(ends, index.file_numbers, index.offsets + index.lengths + _FOOTER_BYTES)
    for path, end in zip(index.paths, ends.tolist(), strict=True):
        with file_errors(path):
            if os.stat(path).st_size != end:
                raise InputError(f"{path}: changed since it was indexed a moment ago")


def _record_spans(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return offset and length of each payload of one file, two [n] int64."""
    with file_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return _walk(path, descriptor)
        finally:
            os.close(descriptor)


def _walk(path: str, descriptor: int) -> tuple[np.ndarray, np.ndarray]:
    size = os.fstat(descriptor).st_size
    headers, offsets, position, cut_short = [], [], 0, False
    while position < size and not cut_short:
        header = os.pread(descriptor, _HEADER_BYTES, position)
        if len(header) < _HEADER_BYTES:
            raise _cut_short(path, position, size)
        headers.append(header)
        offsets.append(position + _HEADER_BYTES)
        position += _HEADER_BYTES + struct.unpack_from("<Q", header)[0] + _FOOTER_BYTES
        cut_short = position > size
    for header, offset in zip(headers, offsets, strict=True):
        if _masked_crc32c(header[:8]) != header[8:]:
            raise _not_a_record(path, header, offset - _HEADER_BYTES)
    if cut_short:  # checked after the checksums, because a damaged length also points past the end
        raise _cut_short(path, offsets[-1] - _HEADER_BYTES, size)
    lengths = np.frombuffer(b"".join(header[:8] for header in headers), dtype="<i8").astype(np.int64)
    return np.array(offsets, dtype=np.int64), lengths


def _cut_short(path: str, offset: int, size: int) -> InputError:
    return InputError(
        f"{path}: cut short: the record at byte {offset} continues past the end of the file, which has "
        f"{size} bytes; expected a complete TFRecord file; convert again"
    )


def _not_a_record(path: str, header: bytes, offset: int) -> InputError:
    if offset == 0 and header[:2] == b"\x1f\x8b":
        return InputError(f"{path}: compressed with gzip; expected an uncompressed TFRecord file")
    kind = "not a TFRecord file" if offset == 0 else "damaged TFRecord file"
    return InputError(f"{path}: {kind}: checksum mismatch in the record length at byte {offset}")


def _masked_crc32c(content: bytes) -> bytes:
    """Return TFRecord's four checksum bytes of a length or a payload."""
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


class _ReadThreads:
    """Threads that call a function for many numbers; they end with this object.

    A ThreadPoolExecutor holds a lock of all executors while it creates objects. If the garbage collector then destroys
    an iterator of tf.data, which waits for its calls into Python, and those wait for that lock, all wait forever.
    """

    def __init__(self, count: int):
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._to_start, self._lock = count, threading.Lock()
        weakref.finalize(self, _end_threads, self._tasks, count)

    def start(self, function: Callable[[int], bytes], numbers: list[int]) -> Callable[[], list[bytes]]:
        """Return a function that waits for all calls, and returns their results or raises the first one's error."""
        with self._lock:
            starting = min(self._to_start, len(numbers))
            self._to_start -= starting
        for _ in range(starting):
            threading.Thread(target=_work, args=[self._tasks], name="read_records", daemon=True).start()
        results: queue.SimpleQueue = queue.SimpleQueue()
        for place, number in enumerate(numbers):
            self._tasks.put((place, function, number, results))

        def finish() -> list[bytes]:
            read = sorted((results.get() for _ in numbers), key=itemgetter(0))
            for _, _, error in read:
                if error is not None:
                    raise error
            return [payload for _, payload, _ in read]

        return finish


def _work(tasks: queue.SimpleQueue) -> None:
    while (task := tasks.get()) is not None:
        place, function, number, results = task
        try:
            results.put((place, function(number), None))
        except Exception as error:
            results.put((place, b"", error))
        del task, function, results  # a thread that waits keeps no reader alive


def _end_threads(tasks: queue.SimpleQueue, count: int) -> None:
    for _ in range(count):
        tasks.put(None)


class RecordReader:
    """Thread-safe reader of records by number; its files remain open until it is garbage-collected."""

    def __init__(self, index: RecordIndex):
        """Open the files.

        Raises:
            InputError: with the file name if one cannot be opened.
        """
        self.index = index
        self._threads = _ReadThreads(_READ_THREADS)
        self._descriptors: list[int] = []
        self._finalizer = weakref.finalize(self, _close_all, self._descriptors)
        for path in index.paths[:_MOST_OPEN_FILES]:
            with file_errors(path):
                self._descriptors.append(os.open(path, os.O_RDONLY))

    def read(self, numbers: Iterable[int]) -> list[bytes]:
        """Return the payloads of the records with these numbers, in this order.

        Deleted files are errors even while they are open: the result must not depend on the number of open files, and a
        resumed training would read other data.

        Raises:
            InputError: with the file name, for a checksum mismatch, and for a file that is unreadable, deleted,
                replaced or truncated since it was indexed.
        """
        return self.start_reading(numbers)()

    def start_reading(self, numbers: Iterable[int]) -> Callable[[], list[bytes]]:
        """Start to read these records in parallel threads; the returned function waits and does what `read` does."""
        numbers = [int(number) for number in numbers]
        payloads = self._threads.start(self._read_one, numbers)

        def finish() -> list[bytes]:
            finished = payloads()
            for file_number in {int(self.index.file_numbers[number]) for number in numbers}:
                self._require_present(file_number)
            return finished

        return finish

    def _require_present(self, file_number: int) -> None:
        path = self.index.paths[file_number]
        with file_errors(path):
            if file_number < len(self._descriptors) and _is_gone(path, self._descriptors[file_number]):
                raise InputError(f"{path}: deleted or replaced while in use")

    def _read_one(self, number: int) -> bytes:
        path, offset = self.index.path(number), int(self.index.offsets[number])
        file_number, size = int(self.index.file_numbers[number]), int(self.index.lengths[number]) + _FOOTER_BYTES
        with file_errors(path):
            if file_number < len(self._descriptors):
                block = os.pread(self._descriptors[file_number], size, offset)
            else:
                with open(path, "rb", buffering=0) as file:
                    block = os.pread(file.fileno(), size, offset)
        if missing := size - len(block):
            raise InputError(
                f"{path}: the record at byte {self.index.start(number)} lacks its last {missing} bytes; the file "
                "changed while in use"
            )
        payload = block[:-_FOOTER_BYTES]
        if _masked_crc32c(payload) != block[-_FOOTER_BYTES:]:
            raise self.index.damage(number)
        return payload


def _is_gone(path: str, descriptor: int) -> bool:
    """Return whether an open file is no longer the file at its path; some file systems do not count links."""
    status = os.fstat(descriptor)
    return status.st_nlink == 0 and not (os.path.exists(path) and os.path.samestat(os.stat(path), status))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
