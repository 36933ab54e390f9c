"""The storage `fsspec`: images and records at addresses such as s3://BUCKET/FOLDER.

This module is a `remote_addresses.Storage`.

Images are listed with their sizes and read into memory: `read_ahead` fetches those that a loop is about to open,
several at a time; nothing is stored on the disk.

Records: a conversion works in a local folder, as it does without a bucket. Each worker uploads its shard and then the
shard's state, and leaves an empty file of the same size. Publication renames the shards on the server; the report is
uploaded last. A run begins with the states of the remote folder, so that it resumes what another machine has begun.
"""

import errno
import functools
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.shard_files import FINISHED, ShardTask
from efficientdet.plugins.cluster.remote_files import (
    cache_folder,
    files_below,
    identity,
    is_hidden,
    local_copies,
    local_tree,
    mirrored,
    opened,
    remote_errors,
)
from program_support.remote_addresses import Image, address_of

__all__ = [
    "forget_listings",
    "listing",
    "local_copies",
    "local_output",
    "local_tree",
    "on_this_machine",
    "publish",
    "read",
    "read_ahead",
    "states",
    "upload_shard",
]
_FETCHED = 16  # images fetched in parallel, to hide the latency of a request; twice as many are in memory
MOST_BYTES = 2**30 + 1  # of an image; readers accept one less


_contents: dict[str, bytes | None] = {}  # of the images that loops have reached; None: there is no such file
_RECORDS = (".tfrecord", FINISHED)  # ends of the names of files that are not copied
_PUBLISHED = (".classes.json", ".instances.json", ".report.json")  # the report is last
_REQUESTS = 8  # in parallel


@functools.lru_cache(maxsize=4)  # several steps of a conversion use the same one
def listing(folder: str) -> Mapping[str, tuple[int, int]]:
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


forget_listings = listing.cache_clear


def read(path: str | os.PathLike[str]) -> bytes:
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
    """Yield images; while one is in use, `read` has its file in memory.

    Raises:
        InputError: a file cannot be read; one that does not exist is left to `read`.
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


def local_output(folder: str) -> str:
    """Return the folder to work in for a remote output folder, with its states."""
    local = _local_folder(folder)
    _fetch_states(folder, local)
    return str(local)


@contextmanager
def states(config: ConversionConfig) -> Iterator[None]:
    """Upload the settings of a run before the block in which workers convert, and fetch the workers' states after."""
    _upload(config.state_folder / "job.json", config)
    yield
    _fetch_states(f"{config.remote_output}/{config.state_folder.name}", config.state_folder)


def on_this_machine(task: ShardTask) -> ShardTask:
    """Return the task with paths of this machine, if it comes from another one."""
    if task.state_path.parent.is_dir():
        return task
    assert task.config.remote_output
    folder = _local_folder(task.config.remote_output)
    states = folder / task.state_path.parent.name
    states.mkdir(parents=True, exist_ok=True)
    return replace(task, finished_path=folder / task.finished_path.name, state_path=states / task.state_path.name)


def upload_shard(task: ShardTask) -> None:
    """Upload a finished shard and its state to the remote output folder.

    Raises:
        InputError: it cannot be written.
    """
    _upload(task.finished_path, task.config)
    _upload(task.state_path, task.config)
    size = task.finished_path.stat().st_size
    os.truncate(task.finished_path, 0)
    os.truncate(task.finished_path, size)


def publish(config: ConversionConfig) -> None:
    """Give uploaded shards their final names, upload the files beside them, and remove leftovers.

    Raises:
        InputError: the folder cannot be written.
    """
    assert config.remote_output
    prefix = Path(config.output_prefix)
    shard = re.compile(re.escape(f".{prefix.name}-") + r"\d{5}-of-(\d{5})\.tfrecord" + re.escape(FINISHED))
    with remote_errors(config.remote_output):
        system, root = opened(config.remote_output)
        system.invalidate_cache()
        names = [path.rpartition("/")[2] for path in system.ls(root, detail=False)]
        for suffix in (".report.json", ".classes.json"):
            if f"{prefix.name}{suffix}" in names:
                system.rm_file(f"{root}/{prefix.name}{suffix}")

        def publish_shard(name: str) -> None:
            match = shard.fullmatch(name)
            if match and int(match[1]) == config.num_shards:
                system.copy(f"{root}/{name}", f"{root}/{name[1:].removesuffix(FINISHED)}")
            if match:
                system.rm_file(f"{root}/{name}")

        _in_parallel(publish_shard, names)
    for path in map(config.beside, _PUBLISHED):
        if path.exists():
            _upload(path, config)


def _upload(path: Path, config: ConversionConfig) -> None:
    assert config.remote_output
    name = f"{path.parent.name}/{path.name}" if path.parent.name == config.state_folder.name else path.name
    address = f"{config.remote_output}/{name}"
    with remote_errors(address, doing="written"):
        system, remote = opened(address)
        system.put_file(str(path), remote)


def _local_folder(address: str) -> Path:
    scheme, _, path = address.partition("://")
    return cache_folder() / "conversions" / scheme / path


def _fetch_states(folder: str, local: Path) -> None:
    """Make the local folder what the remote one is, with empty files of the same size for records."""
    for name, size in mirrored(folder, local, not_copied=_RECORDS, kept=("lock",)).items():
        (local / name).touch()
        os.truncate(local / name, 0)
        os.truncate(local / name, size)


def _in_parallel(function: Callable[[str], Any], names: list[str]) -> None:
    with ThreadPoolExecutor(_REQUESTS) as pool:
        list(pool.map(function, names))
