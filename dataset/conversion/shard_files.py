"""Files under the prefix of a conversion: complete shards, shards of other conversions, leftovers of killed runs."""

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataset.conversion.annotations import AnnotatedImage
from dataset.conversion.conversion_options import ConversionConfig
from program_support.atomic_files import HOST, flush_to_disk
from program_support.errors import InputError
from program_support.file_lock import lock_file

PARTIAL, FINISHED = ".partial", ".finished"  # ends of the names of unpublished shards


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Input of a worker for one shard: the images with their objects, and input and output paths."""

    images: Sequence[AnnotatedImage]
    source: str
    category_names: dict[int, str]
    config: ConversionConfig  # with the white level that was found
    fingerprint: str
    finished_path: Path
    state_path: Path
    fatal: frozenset[str] = frozenset()  # file names of images that kill the process which decodes them

    def partial_path(self) -> Path:
        """Return where this process writes the shard: two nodes may have the same task, if one seemed to be lost."""
        name = self.finished_path.name.removesuffix(FINISHED)
        return self.finished_path.with_name(f"{name}.{HOST}-{os.getpid()}{PARTIAL}")


def flush_and_rename(partial: Path, finished: Path) -> int:
    """Flush a file to disk and rename it; return its size in bytes."""
    flush_to_disk(partial)
    size = partial.stat().st_size
    os.replace(partial, finished)
    return size


CONTINUE = "finished shards are kept; run the same command to resume"


@contextlib.contextmanager
def sole_writer(config: ConversionConfig) -> Iterator[None]:
    """Lock the prefix for the block.

    Raises:
        InputError: another conversion holds the lock.
    """
    with open(config.state_folder / "lock", "w") as lock:
        try:
            lock_file(lock)
        except BlockingIOError as error:
            raise InputError(f"{config.output_prefix}: another conversion is writing under this prefix") from error
        yield


def existing_shards(output_prefix: str) -> dict[int, Path]:
    """Return number of shards -> one of these shards, for every conversion under a prefix."""
    prefix = Path(output_prefix)
    pattern = re.compile(re.escape(prefix.name) + r"-\d{5}-of-(?P<total>\d{5})(\.tfrecord)?")
    names = sorted(os.listdir(prefix.parent)) if os.path.isdir(prefix.parent) else []
    return {
        int(match["total"]): prefix.with_name(name) for name in reversed(names) if (match := pattern.fullmatch(name))
    }


def files_beside(config: ConversionConfig) -> list[Path]:
    """Return the files that a conversion writes beside its shards."""
    return [config.beside(suffix) for suffix in (".report.json", ".classes.json", ".instances.json")]


def is_known(config: ConversionConfig) -> bool:
    """Return whether a conversion with this prefix has been in the folder before."""
    return (config.state_folder / "job.json").exists()


def refuse_other_shards(config: ConversionConfig) -> None:
    """Raise InputError if the prefix has shards into another number, or shards that no conversion here wrote."""
    if not is_known(config):
        for path in map(config.shard_path, range(config.num_shards)):
            if path.exists():
                raise InputError(
                    f"{path}: exists and was not written by a conversion in this folder; move it, or choose another "
                    "output folder or --output_file_prefix"
                )
    for total, path in sorted(existing_shards(config.output_prefix).items()):
        if total != config.num_shards:
            raise InputError(
                f"{path} is left from a conversion into {total} shards; readers of {Path(config.output_prefix).name}-* "
                f"would mix it with the new {config.num_shards}: delete those shards or choose another "
                "--output_file_prefix"
            )


def remove_leftovers(config: ConversionConfig) -> None:
    """Remove partial files of killed runs and unpublished shards of another number of shards."""
    prefix, total = Path(config.output_prefix), f"{config.num_shards:05d}"
    shard = re.compile(re.escape(f".{prefix.name}-") + r"\d{5}-of-(\d{5})\.tfrecord(?:\.[^.]+)?\.(partial|finished)")
    beside = re.compile(re.escape(f".{prefix.name}.") + r"(report|classes|instances)\.json\.(partial|.+\.unfinished)")
    for path in list(prefix.parent.iterdir()):
        match = shard.fullmatch(path.name)
        if (match and (match[2] == "partial" or match[1] != total)) or beside.fullmatch(path.name):
            path.unlink()
    for path in list(config.state_folder.iterdir()):
        if path.suffix == ".unfinished" or (path.match("*-of-*.json") and not path.stem.endswith(f"-of-{total}")):
            path.unlink()


def remove_partial_files(config: ConversionConfig) -> None:
    """Remove the unfinished shards of this run, whose processes have ended."""
    prefix = Path(config.output_prefix)
    for path in prefix.parent.glob(f".{glob.escape(prefix.name)}-*{PARTIAL}"):
        path.unlink(missing_ok=True)


def is_finished(task: ShardTask, final_path: Path) -> bool:
    """Return whether this shard is complete, under its final name or before publication."""
    try:
        state = json.loads(task.state_path.read_text(encoding="utf-8"))
        path = task.finished_path if task.finished_path.exists() else final_path
        return state["fingerprint"] == task.fingerprint and state["bytes"] == path.stat().st_size
    except (OSError, json.JSONDecodeError, KeyError):
        return False
