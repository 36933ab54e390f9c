"""Images at remote addresses, such as s3://bucket/photos: listed with their sizes, and read into memory.

`read_ahead` fetches the images that a loop is about to open, several at a time; nothing is stored on the disk.
"""

import errno
import functools
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from efficientdet.plugins.cluster.remote_files import files_below, identity, is_hidden, opened, remote_errors
from program_support.remote_addresses import Image, address_of

_FETCHED = 16  # images fetched in parallel, to hide the latency of a request; twice as many are in memory
MOST_BYTES = 2**30 + 1  # of an image; readers accept one less


_contents: dict[str, bytes | None] = {}  # of the images that loops have reached; None: there is no such file


@functools.lru_cache(maxsize=4)  # several steps of a conversion use the same one
def remote_listing(folder: str) -> Mapping[str, tuple[int, int]]:
    """Return size in bytes and version of each file below a folder, by its relative name; hidden files are left out.

    Raises:
        InputError: it cannot be listed.
    """
    with remote_errors(folder):
        system, root = opened(folder)
        system.invalidate_cache()
        system.ls(root)  # raises an error for a missing bucket, which `find` does not
        return {
            name: (info["size"], int.from_bytes(hashlib.sha256(identity(info).encode()).digest()[:7]))
            for name, info in files_below(system, root).items()
            if not is_hidden(name)
        }


def read_remote(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a remote file, or its first `MOST_BYTES`.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read.
    """
    address = address_of(path)
    content = _contents[address] if address in _contents else _fetched(address)
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    return content


def read_ahead(images: Iterable[Image], folder: str | Path) -> Iterator[Image]:
    """Yield images; while one is in use, `read_remote` has its file in memory.

    Raises:
        InputError: a file cannot be read; one that does not exist is left to `read_remote`.
    """
    with ThreadPoolExecutor(_FETCHED, thread_name_prefix="read_remote_images") as pool:
        following = iter(images)
        waiting: deque[tuple[Image, str, Future[bytes | None]]] = deque()
        try:
            while True:
                for image in islice(following, 2 * _FETCHED - len(waiting)):
                    address = address_of(Path(folder, image.file_name))
                    waiting.append((image, address, pool.submit(_fetched, address)))
                if not waiting:
                    return
                image, address, fetched = waiting.popleft()
                _contents[address] = fetched.result()
                try:
                    yield image
                finally:
                    del _contents[address]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _fetched(address: str) -> bytes | None:
    with remote_errors(address):
        system, path = opened(address)
        try:
            content: bytes = system.cat_file(path, start=0, end=MOST_BYTES)
        except FileNotFoundError:
            return None
        except Exception:  # S3 has no range of an empty file
            if system.size(path) != 0:
                raise
            return b""
        return content
