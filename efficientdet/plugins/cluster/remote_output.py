"""Records in a remote output folder, such as s3://bucket/records.

A conversion works in a local folder, as it does without one. Each worker uploads its shard and then the shard's state,
and leaves an empty file of the same size. Publication renames the shards on the server; the report is uploaded last.
A run begins with the states of the remote folder, so that it resumes what another machine has begun.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.sharding.shard_files import FINISHED, ShardTask
from efficientdet.plugins.cluster.remote_files import cache_folder, mirrored, opened, remote_errors

_RECORDS = (".tfrecord", FINISHED)  # ends of the names of files that are not copied
_PUBLISHED = (".classes.json", ".instances.json", ".report.json")  # the report is last
_REQUESTS = 8  # in parallel


def local_output(folder: str) -> str:
    """Return the folder to work in for a remote output folder, with its states."""
    local = _local_folder(folder)
    _fetch_states(folder, local)
    return str(local)


@contextmanager
def remote_states(config: ConversionConfig) -> Iterator[None]:
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


def publish_remote(config: ConversionConfig) -> None:
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

        def publish(name: str) -> None:
            match = shard.fullmatch(name)
            if match and int(match[1]) == config.num_shards:
                system.copy(f"{root}/{name}", f"{root}/{name[1:].removesuffix(FINISHED)}")
            if match:
                system.rm_file(f"{root}/{name}")

        _in_parallel(publish, names)
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
